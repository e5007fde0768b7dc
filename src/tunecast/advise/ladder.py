"""What people change in a job that is to need less memory, or less time: one ladder, from least harm to most.

`predict` advises by it ("What to change first"), `explain-oom` too, and `fit` climbs it. A rung says what it
sets, how it harms, and, where somebody published it, what it did to the result. What nobody published is not said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum

from tunecast.advise import task_rungs
from tunecast.job.job import Job
from tunecast.job.kernels import chosen_kernels, liger_parts
from tunecast.job.model import resolve_model
from tunecast.job.names import BITSANDBYTES, HEADS, LANGUAGE, ROLLOUTS
from tunecast.job.optimizers import optimizer_of
from tunecast.job.shardings import REPLICATED, SHARDED, SHARDINGS, sharding_of
from tunecast.job.stacks import stack_of
from tunecast.records import NamedTuple
from tunecast.tape.build.liger import MODELS

Overrides = Mapping[str, object]


class Harm(IntEnum):
    """To what is trained, not to time."""

    SAME = 0
    """The same mathematics, the same samples a step."""
    ROUNDED = 1
    """The same but for rounding: something is stored in fewer bits."""
    OTHER = 2
    """Something else is trained, or on something else."""


class Rung(NamedTuple):
    group: str
    """Of rungs of one group a job takes one; of `Harm.OTHER` it is the name `--allow` takes."""
    harm: Harm
    settings: Callable[[Job], Iterator[Overrides]]
    """Dotted fields, the mildest first; nothing where it does not apply."""
    unpriced: str | None = None
    """What it costs in time that no prediction counts."""
    quality: Callable[[Job], tuple[str, ...]] = lambda job: ()
    """What was published about the result, and by whom."""
    note: str | None = None
    """What else it takes."""

    def mildest(self, job: Job) -> Overrides | None:
        return next(self.settings(job), None)


EIGHT_BIT = (
    "8-bit states kept the results of 32-bit ones in its authors' tests (Dettmers et al., 8-bit Optimizers via "
    "Block-wise Quantization, ICLR 2022, arXiv:2110.02861)"
)
QLORA = (
    "4-bit weights under adapters kept the results of 16-bit finetuning in its authors' tests (Dettmers et al., QLoRA, "
    "2023, arXiv:2305.14314)"
)
LORA = (
    "LoRA at usual ranks learned less than full finetuning in programming and mathematics, and forgot less (Biderman "
    "et al., LoRA Learns Less and Forgets Less, TMLR 2024, arXiv:2405.09673)"
)
BFLOAT16 = (
    "weight updates rounded to the nearest bfloat16 often cancel where they are small, which cost accuracy in its "
    "authors' tests (the paper Revisiting BFloat16 Training, 2020)"
)
PAGED = "its state moves over PCIe where the card is full: not priced"
ON_THE_HOST = "what is offloaded waits in the host's memory, which has to have room for it"
LEAST_RANK = 8
LEAST_TOKENS = 512
"""Below them a change is no small one any more."""
A_STEP = 1.5
"""Micro-batches less apart than this are not told apart: each takes a prediction."""


def smaller_micro_batches(job: Job) -> Iterator[Overrides]:
    """The same rows a step in more pieces: what divides them, so that the global batch stays as it is."""
    rows, last = job.micro_batch * job.grad_accum, float(job.micro_batch)
    for each in range(job.micro_batch - 1, 0, -1):
        if rows % each == 0 and (last / each >= A_STEP or each == 1):
            last = each
            yield {"micro_batch": each, "grad_accum": rows // each}


def larger_micro_batches(job: Job) -> Iterator[Overrides]:
    rows, last = job.micro_batch * job.grad_accum, float(job.micro_batch)
    for each in range(job.micro_batch + 1, rows + 1):
        if rows % each == 0 and (each / last >= A_STEP or each == rows):
            last = each
            yield {"micro_batch": each, "grad_accum": rows // each}


def fewer_ranks(job: Job) -> Iterator[Overrides]:
    """alpha goes with it: adapters are scaled by alpha / rank."""
    rank = job.lora.rank
    while job.method != "full" and rank // 2 >= LEAST_RANK:
        rank //= 2
        alpha = job.lora.alpha * rank / job.lora.rank
        yield {"lora.rank": rank, "lora.alpha": int(alpha) if alpha.is_integer() else alpha}


def shorter_rows(job: Job) -> Iterator[Overrides]:
    """Of rollouts it is completions that get shorter."""
    length = job.seq_len
    while (
        job.lengths is None and job.task not in ROLLOUTS and length // 2 >= min(LEAST_TOKENS, max(1, job.seq_len // 2))
    ):
        length //= 2
        yield {"seq_len": length}


def _to(field: str, value: Callable[[Job], str | None]) -> Callable[[Job], Iterator[Overrides]]:
    """The field set to what the job's declarations say, where they say something."""
    return lambda job: iter([{field: other}] if (other := value(job)) is not None else [])


def _where(condition: Callable[[Job], bool], overrides: Overrides) -> Callable[[Job], Iterator[Overrides]]:
    return lambda job: iter([overrides] if condition(job) else [])


def proposes_liger(job: Job) -> bool:
    """Whether its kernels are proposed: of the others nobody compared a trace."""
    return job.task not in HEADS and resolve_model(job.model).model_type in MODELS


def _liger(job: Job) -> Iterator[Overrides]:
    if not liger_parts(job) and proposes_liger(job):
        yield {"kernels": [*job.kernels, "liger"]}


def _sharded(job: Job) -> Iterator[Overrides]:
    """Over the cards there are. Who runs DeepSpeed stays with it."""
    if job.hardware.cards == 1 or job.parallel.layers > 1:
        return
    for other in sharding_of(job).more_cut:
        if other in stack_of(job).shardings:
            yield {"parallel.data": other}


def _offloaded(job: Job) -> Iterator[Overrides]:
    """Of replicas only once they are sharded: by itself it makes no job."""
    if job.hardware.cards == 1 or job.parallel.layers > 1 or job.parallel.offload != "none":
        return
    able = sharding_of(job).offloads or SHARDINGS[SHARDED].offloads
    yield {"parallel.offload": able[-1]}


def _trained_dtype(job: Job) -> str:
    return job.weights_dtype if job.method == "full" else job.lora.adapter_dtype


def _chunked_loss(job: Job) -> str | None:
    losses = stack_of(job).losses
    is_full = (job.loss or losses[0]) == "full" and not chosen_kernels(job) and job.task in LANGUAGE
    return "chunked" if is_full and "chunked" in losses else None


def _replicated(job: Job) -> str | None:
    is_cut = sharding_of(job).cuts_gradients and job.parallel.offload == "none"
    return REPLICATED if is_cut and REPLICATED in stack_of(job).shardings else None


def _rows_alike(job: Job) -> bool:
    return job.lengths is None and (not job.data.has_lengths or job.data.packing)


def _says(*texts: str) -> Callable[[Job], tuple[str, ...]]:
    return lambda job: texts


SAME, ROUNDED, OTHER = Harm
LESS_MEMORY: tuple[Rung, ...] = (
    Rung("gradient_checkpointing", SAME, _where(lambda job: not job.gradient_checkpointing,
                                                {"gradient_checkpointing": True})),
    Rung("loss", SAME, _liger),
    Rung("loss", SAME, _to("loss", _chunked_loss)),
    Rung("attention", SAME, _where(lambda job: job.attention == "eager", {"attention": "sdpa"})),
    Rung("optimizer", SAME, _to("optimizer", lambda job: optimizer_of(job).fused)),
    Rung("micro_batch", SAME, smaller_micro_batches),
    Rung("generation", SAME, task_rungs.smaller_generations),
    Rung("parallel.data", SAME, _sharded),
    Rung("allocator", SAME, _where(lambda job: job.allocator == "native" and stack_of(job).allocator is None,
                                   {"allocator": "expandable_segments"})),
    Rung("optimizer", SAME, _to("optimizer", lambda job: optimizer_of(job).paged_twin
                                if _trained_dtype(job) == "float32" else None), PAGED),
    Rung("offload", SAME, _where(lambda job: stack_of(job).offloads_activations and not job.offload_activations,
                                 {"offload_activations": True}), note=ON_THE_HOST),
    Rung("parallel.offload", SAME, _offloaded, note=ON_THE_HOST),
    Rung("reference", SAME, task_rungs.precomputed_reference, note=task_rungs.BEFORE_TRAINING),
    Rung("vllm", SAME, task_rungs.sleeping_vllm),
    Rung("vllm", SAME, task_rungs.smaller_share),
    Rung("vllm", SAME, task_rungs.vllm_server, note=task_rungs.OTHER_CARDS),
    Rung("prepare_kbit", ROUNDED, _where(lambda job: job.quantization.format in BITSANDBYTES
                                         and job.quantization.prepare_kbit, {"quantization.prepare_kbit": False})),
    Rung("double_quant", ROUNDED, _where(lambda job: job.quantization.format in ("nf4", "fp4")
                                         and not job.quantization.double_quant, {"quantization.double_quant": True})),
    Rung("optimizer", ROUNDED, _to("optimizer", lambda job: optimizer_of(job).eight_bit), None, _says(EIGHT_BIT)),
    Rung("optimizer", ROUNDED, _to("optimizer", lambda job: optimizer_of(job).paged_eight_bit), PAGED,
         _says(EIGHT_BIT)),
    Rung("weights_dtype", ROUNDED, _where(lambda job: job.weights_dtype == "float32" and job.autocast == "bfloat16",
                                          {"weights_dtype": "bfloat16"}),
         None, lambda job: (BFLOAT16,) if job.method == "full" else ()),
    Rung("method", OTHER, _where(lambda job: job.method == "lora", {"method": "qlora"}), None, _says(QLORA)),
    Rung("method", OTHER, _where(lambda job: job.method == "full", {"method": "lora"}), None, _says(LORA)),
    Rung("method", OTHER, _where(lambda job: job.method == "full", {"method": "qlora"}), None,
         _says(LORA, QLORA)),
    Rung("rank", OTHER, fewer_ranks),
    Rung("tower", OTHER, task_rungs.frozen_tower, note=task_rungs.STILL_TOWER),
    Rung("pixels", OTHER, task_rungs.smaller_images, note=task_rungs.BLURRED),
    Rung("generations", OTHER, task_rungs.fewer_generations, note=task_rungs.SMALLER_GROUPS),
    Rung("completion_length", OTHER, task_rungs.shorter_completions, note=task_rungs.SHORTER),
    Rung("seq_len", OTHER, shorter_rows),
)  # fmt: skip
"""The order is that of harm, then of what people do first."""

LESS_TIME: tuple[Rung, ...] = (
    Rung("engine", SAME, task_rungs.vllm_engine, note=task_rungs.ANOTHER_ENGINE),
    Rung("loss", SAME, _liger),
    Rung("attention", SAME, _where(lambda job: job.attention == "eager", {"attention": "sdpa"})),
    Rung("optimizer", SAME, _to("optimizer", lambda job: optimizer_of(job).fused)),
    Rung("gradient_checkpointing", SAME, _where(lambda job: job.gradient_checkpointing,
                                                {"gradient_checkpointing": False})),
    Rung("micro_batch", SAME, larger_micro_batches),
    Rung("parallel.data", SAME, _to("parallel.data", _replicated)),
    Rung("parallel.data", SAME, _where(lambda job: job.parallel.data == SHARDED and job.parallel.reshard_after_forward,
                                       {"parallel.reshard_after_forward": False})),
    Rung("compile", SAME, _where(lambda job: not job.compile and job.method == "full" and _rows_alike(job),
                                 {"compile": True})),
)  # fmt: skip
"""Where there is memory to spare. Only what keeps the mathematics: nobody trains something else to save an hour.
compile: the compiled steps that were timed are of full training, all rows of one length (docs/accuracy_time.md)."""
ALLOWED = tuple(dict.fromkeys(rung.group for rung in LESS_MEMORY if rung.harm is OTHER))
"""What only the user can allow, by name."""
