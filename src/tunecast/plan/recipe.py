"""What may be done on a card, whichever it is: the recipes of a job, as far as the user left them open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tunecast.errors import UsageError
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.job.names import METHODS
from tunecast.predict.changes import with_fields
from tunecast.predict.spreading import THROUGH_ACCELERATE
from tunecast.records import replace

if TYPE_CHECKING:
    from tunecast.plan.space import Freedom

T = TypeVar("T")
FLASH = ((8, 0), (9, 0))
"""Compute capabilities flash-attn 2 has kernels for: Ampere to Hopper (Dao-AILab/flash-attention, README)."""
ATTENTION = ("sdpa", "flash_attention_2")
"""Tried where it may change: flash-attn is a package of its own, and sdpa runs its kernels too."""
FLOAT8 = (8, 9)
"""From which compute capability on NVIDIA's cards have matrix units for it."""
PREPARED_BY_HAND = ("transformers", "trl")
"""Stacks that leave `prepare_model_for_kbit_training` to the user's own code."""
LEAST_RANK = 8
OPTIMIZERS = ("adamw_torch_fused", "adamw_8bit", "paged_adamw_8bit")
"""Tried beside the user's own where the optimizer may change."""


class Recipe(NamedTuple):
    """What is done on a card, whichever it is."""

    method: str
    rank: int
    weights_dtype: str
    optimizer: str
    prepare_kbit: bool
    matmul_dtype: str | None
    compile: bool
    gradient_checkpointing: bool
    kernels: tuple[str, ...]
    attention: str

    @property
    def base(self) -> tuple[object, ...]:
        """All that decides what lies outside the steps."""
        return self[:7]

    @property
    def eager(self) -> Recipe:
        """The same in the weights' own precision, operation by operation and none of them twice."""
        again = self.gradient_checkpointing and not self.compile
        return self._replace(matmul_dtype=None, compile=False, gradient_checkpointing=again)


def recipes_of(job: Job, freedom: Freedom) -> Iterator[Recipe]:
    def values(name: str, own: T, others: Sequence[T]) -> list[T]:
        return [own] if freedom.is_fixed(name) else list(dict.fromkeys([own, *others]))

    freely = freedom.allow
    methods = values("method", job.method, METHODS if "method" in freely else ())
    is_plain, is_transformers = job.stack in THROUGH_ACCELERATE, job.stack == "transformers"
    kernels: list[tuple[str, ...]] = [("liger",), ()] if is_plain and set(job.kernels) <= {"liger"} else []
    may_compile = is_transformers and "compile" in freely and _rows_are_alike(job)
    chosen = product(
        methods,
        values("weights_dtype", job.weights_dtype, ("bfloat16",) if "weights_dtype" in freely else ()),
        values("optimizer", job.optimizer, OPTIMIZERS if "optimizer" in freely else ()),
        values("matmul_dtype", job.matmul_dtype, ("float8",) if is_transformers and "matmul_dtype" in freely else ()),
        values("compile", job.compile, (True,) if may_compile else ()),
        values("gradient_checkpointing", job.gradient_checkpointing, (True, False)),
        values("kernels", job.kernels, kernels),
        values("attention", job.attention, ATTENTION if is_plain and "attention" in freely else ()),
    )
    for method, dtype, optimizer, matmul_dtype, compiled, checkpointing, fused, attention in chosen:
        ranks = [job.lora.rank]
        if method != "full" and "lora.rank" in freely:
            ranks += [rank for rank in (ranks[0] // 2, ranks[0] // 4) if rank >= LEAST_RANK]
        for rank in ranks:
            recipe = Recipe(
                method,
                rank,
                dtype,
                optimizer,
                _prepares(job, freedom, method),
                matmul_dtype,
                compiled,
                checkpointing,
                fused,
                attention,
            )
            if _makes_sense(job, recipe):
                yield recipe


def _prepares(job: Job, freedom: Freedom, method: str) -> bool:
    """Without, norms, embeddings and head stay in the weights' dtype: never more memory, never more work."""
    own = job.quantization.prepare_kbit
    may_leave_out = job.stack in PREPARED_BY_HAND and not freedom.is_fixed("quantization.prepare_kbit")
    return own and not (method == "qlora" and may_leave_out)


def _rows_are_alike(job: Job) -> bool:
    """What is compiled is compiled again for other lengths, which nobody has timed."""
    return job.lengths is None and (job.data.lengths is None or job.data.packing)


def _makes_sense(job: Job, recipe: Recipe) -> bool:
    """What the closed form cannot follow together is not tried: torch.compile, float8 and fused kernels."""
    is_chosen = (recipe.compile, recipe.matmul_dtype) != (job.compile, job.matmul_dtype)
    if is_chosen and (recipe.kernels or (recipe.compile and recipe.matmul_dtype is not None)):
        return False
    try:
        job_with(job, recipe)
    except UsageError:
        return False
    return True


def job_with(job: Job, recipe: Recipe) -> Job:
    if recipe.method != job.method:
        job = with_fields(job, {"method": recipe.method})
    adapters = job.lora if recipe.method == "full" else replace(job.lora, rank=recipe.rank)
    packed = job.quantization
    if packed.prepare_kbit != recipe.prepare_kbit:
        packed = replace(packed, prepare_kbit=recipe.prepare_kbit)
    return replace(
        job,
        lora=adapters,
        quantization=packed,
        matmul_dtype=recipe.matmul_dtype,
        compile=recipe.compile,
        weights_dtype=recipe.weights_dtype,
        optimizer=recipe.optimizer,
        gradient_checkpointing=recipe.gradient_checkpointing,
        kernels=recipe.kernels,
        attention=recipe.attention,
    )


def has_kernels(card: Gpu, recipe: Recipe) -> bool:
    """Whether the card has the kernels."""
    if recipe.matmul_dtype == "float8" and (card.vendor != "NVIDIA" or card.compute_capability < FLOAT8):
        return False
    if recipe.attention != "flash_attention_2":
        return True
    return card.vendor == "NVIDIA" and FLASH[0] <= card.compute_capability <= FLASH[1]
