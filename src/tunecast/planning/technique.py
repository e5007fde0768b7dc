"""What may be done on a card, whichever it is: the techniques of a job, as far as the user left them open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, TypeVar

from tunecast.advise.changes import with_fields
from tunecast.advise.ladder import proposes_liger
from tunecast.errors import UsageError
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.job.kernels import CHOSEN, INSTALLED, chosen_kernels
from tunecast.job.names import METHODS, ROLLOUTS
from tunecast.job.optimizers import OPTIMIZERS
from tunecast.job.stacks import stack_of
from tunecast.records import NamedTuple, replace

if TYPE_CHECKING:
    from tunecast.planning.space import Freedom

T = TypeVar("T")
FLASH = ((8, 0), (9, 0))
"""Compute capabilities flash-attn 2 has kernels for: Ampere to Hopper (Dao-AILab/flash-attention, README)."""
ATTENTION = ("sdpa", "flash_attention_2")
"""Tried where it may change: flash-attn is a package of its own, and sdpa runs its kernels too."""
FLOAT8 = (8, 9)
"""From which compute capability on NVIDIA's cards have matrix units for it."""
LEAST_RANK = 8
TRIED = tuple(name for name, kind in OPTIMIZERS.items() if kind.is_tried)


class Technique(NamedTuple):
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
    def base(self) -> Technique:
        """What decides all that lies outside the steps: techniques with the same base share it."""
        return self._replace(gradient_checkpointing=False, kernels=(), attention="")

    @property
    def work(self) -> Technique:
        """What decides the arithmetic of a step, whichever kernel attention is."""
        return self._replace(attention="")

    @property
    def eager(self) -> Technique:
        """The same in the weights' own precision, operation by operation and none of them twice."""
        again = self.gradient_checkpointing and not self.compile
        return self._replace(matmul_dtype=None, compile=False, gradient_checkpointing=again)


def techniques_of(job: Job, freedom: Freedom) -> Iterator[Technique]:
    def values(name: str, own: T, others: Sequence[T]) -> list[T]:
        return [own] if freedom.is_fixed(name) else list(dict.fromkeys([own, *others]))

    freely, search = freedom.allow, stack_of(job).search
    methods = values("method", job.method, METHODS if "method" in freely else ())
    installed = tuple(name for name in job.kernels if name in INSTALLED)
    may_fuse = "kernels" in search and set(chosen_kernels(job)) <= {"liger"} and proposes_liger(job)
    may_fuse = may_fuse and job.task not in ROLLOUTS  # whose time is generation's
    kernels = [("liger", *installed), installed] if may_fuse else []
    may_compile = "compile" in search and "compile" in freely and _rows_are_alike(job)
    may_narrow = "matmul_dtype" in search and "matmul_dtype" in freely
    may_attend = "attention" in search and "attention" in freely
    chosen = product(
        methods,
        values("weights_dtype", job.weights_dtype, ("bfloat16",) if "weights_dtype" in freely else ()),
        values("optimizer", job.optimizer, TRIED if "optimizer" in freely else ()),
        values("matmul_dtype", job.matmul_dtype, ("float8",) if may_narrow else ()),
        values("compile", job.compile, (True,) if may_compile else ()),
        values("gradient_checkpointing", job.gradient_checkpointing, (True, False)),
        values("kernels", job.kernels, kernels),
        values("attention", job.attention, ATTENTION if may_attend else ()),
    )
    for method, dtype, optimizer, matmul_dtype, compiled, checkpointing, fused, attention in chosen:
        ranks = [job.lora.rank]
        if method != "full" and "lora.rank" in freely:
            ranks += [rank for rank in (ranks[0] // 2, ranks[0] // 4) if rank >= LEAST_RANK]
        for rank in ranks:
            technique = Technique(
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
            if _makes_sense(job, technique):
                yield technique


def _prepares(job: Job, freedom: Freedom, method: str) -> bool:
    """Without, norms, embeddings and head stay in the weights' dtype: never more memory, never more work."""
    own = job.quantization.prepare_kbit
    may_leave_out = stack_of(job).by_script and not freedom.is_fixed("quantization.prepare_kbit")
    return own and not (method == "qlora" and may_leave_out)


def _rows_are_alike(job: Job) -> bool:
    """What is compiled is compiled again for other lengths, which nobody has timed."""
    return job.lengths is None and (not job.data.has_lengths or job.data.packing)


def _makes_sense(job: Job, technique: Technique) -> bool:
    """What the closed form cannot follow together is not tried: torch.compile, float8 and fused kernels."""
    is_chosen = (technique.compile, technique.matmul_dtype) != (job.compile, job.matmul_dtype)
    if is_chosen and (
        not set(CHOSEN).isdisjoint(technique.kernels) or (technique.compile and technique.matmul_dtype is not None)
    ):
        return False
    try:
        job_with(job, technique)
    except UsageError:
        return False
    return True


def job_with(job: Job, technique: Technique) -> Job:
    if technique.method != job.method:
        job = with_fields(job, {"method": technique.method})
    adapters = job.lora if technique.method == "full" else replace(job.lora, rank=technique.rank)
    packed = job.quantization
    if packed.prepare_kbit != technique.prepare_kbit:
        packed = replace(packed, prepare_kbit=technique.prepare_kbit)
    return replace(
        job,
        lora=adapters,
        quantization=packed,
        matmul_dtype=technique.matmul_dtype,
        compile=technique.compile,
        weights_dtype=technique.weights_dtype,
        optimizer=technique.optimizer,
        gradient_checkpointing=technique.gradient_checkpointing,
        kernels=technique.kernels,
        attention=technique.attention,
    )


def has_kernels(card: Gpu, technique: Technique) -> bool:
    """Whether the card has the kernels."""
    if technique.matmul_dtype == "float8" and (card.vendor != "NVIDIA" or card.compute_capability < FLOAT8):
        return False
    if technique.attention != "flash_attention_2":
        return True
    return card.vendor == "NVIDIA" and FLASH[0] <= card.compute_capability <= FLASH[1]
