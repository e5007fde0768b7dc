"""What the engines can be asked of a job. What they cannot is refused by name, with what to do instead.

A job is a description; a script is the thing itself. So most of what a job cannot say yet, `tunecast trace` can run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tunecast.errors import UsageError, nearest
from tunecast.hardware.catalog import gpu, meant_by
from tunecast.hardware.grids import FIELD as COUNTRY
from tunecast.hardware.grids import grid
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job, all_knobs
from tunecast.job.kernels import LIGER_PARTS, chosen_kernels
from tunecast.job.knob import shown
from tunecast.job.lengths import lengths_source
from tunecast.job.model import ModelConfig
from tunecast.job.names import LANGUAGE, ROLLOUTS
from tunecast.job.optimizers import optimizer_of
from tunecast.job.releases import FIELDS
from tunecast.job.shardings import sharding_of
from tunecast.job.stacks import STACKS, stack_of
from tunecast.prediction.spreading import RULES as SPREADING
from tunecast.tape.build.fill_in import has_own_dtype
from tunecast.tape.build.stacks import TRACE_INSTEAD, module_of
from tunecast.tape.card import Card
from tunecast.units import gib

if TYPE_CHECKING:
    from tunecast.prediction.data.own_batches import OwnRun

ENGINES: Mapping[str, str] = {
    "analytic": "the closed form: milliseconds, no torch needed",
    "traced": "the real training code, run under fake tensors",
}


def require_engine(name: str) -> None:
    if name in ENGINES:
        return
    near = nearest(name, ENGINES) or next(iter(ENGINES))
    raise UsageError(f"--engine: got {name!r}; allowed: {', '.join(ENGINES)}; nearest: {near}", field="--engine")


def require_modelled(job: Job) -> None:
    """Raises one `UsageError` with a line for each field that asks for what no engine models."""
    _refuse(job, RULES)


def require_traceable(job: Job) -> None:
    """The same for what the traced engine's own recipe does not do; the closed form's are in `tape/build/stacks`."""
    _refuse(job, {"stack": _stack, **RULES, **RECIPE_RULES})


def _refuse(job: Job, rules: Mapping[str, Callable[[Job], str | None]]) -> None:
    found = [(field, told) for field, rule in rules.items() if (told := rule(job)) is not None]
    if found:
        raise UsageError("\n".join(f"{field}: {told}" for field, told in found), field=found[0][0])


def _stack(job: Job) -> str | None:
    if stack_of(job).recipe is not None:
        return None
    known = ", ".join(sorted(name for name, stack in STACKS.items() if stack.recipe is not None))
    told = f"got {job.stack}, whose program the traced engine does not run; allowed: {known}"
    return f"{told}. To fix: --engine analytic, or {TRACE_INSTEAD.removeprefix('To fix: ')}"


def _one_card(job: Job) -> str | None:
    """The traced engine's recipe is one card's."""
    parts, hardware = job.parallel, job.hardware
    if hardware.cards == 1 and sharding_of(job).is_replicated and (parts.offload, parts.layers) == ("none", 1):
        return None
    nodes = f" --nnodes {hardware.nodes}" if hardware.nodes > 1 else ""
    remedy = f"`tunecast trace --nproc-per-node {hardware.gpus}{nodes} -- train.py`"
    return f"the traced engine follows a job on one card. To fix: --engine analytic, or trace your own script, {remedy}"


def _only(read: Callable[[Job], object], *allowed: object) -> Callable[[Job], str | None]:
    """Refuses a value that is none of `allowed`."""

    def rule(job: Job) -> str | None:
        got = read(job)
        if got in allowed:
            return None
        names = ", ".join(shown(value) for value in allowed)
        return f"got {shown(got)}, which the traced engine does not run; allowed: {names}. {TRACE_INSTEAD}"

    return rule


def _unless_traced(field: str, *allowed: object) -> Callable[[Job], str | None]:
    """The same of stacks whose recipe does not do every value of the field."""
    refused = _only(lambda job: getattr(job, field), *allowed)
    return lambda job: None if field in stack_of(job).traced_fields else refused(job)


def _adapter_dtype(job: Job) -> str | None:
    """PEFT either casts adapters to float32 or leaves them in the dtype of the weights they adapt."""
    if job.method == "full" or job.lora.adapter_dtype in ("float32", job.weights_dtype):
        return None
    if not stack_of(job).is_plain_loop:
        return None
    return f"got {job.lora.adapter_dtype} with weights_dtype {job.weights_dtype}; allowed: float32, or the weights' own"


NARROW = {"float8": "fp8", "float4": "fp4"}
"""By `matmul_dtype`: what a card's rate for it is called."""


def _matmul_dtype(job: Job) -> str | None:
    """A card without the units has no kernel either: torch._scaled_mm refuses it."""
    if (told := SPREADING["matmul_dtype"](job)) is not None or job.matmul_dtype is None:
        return told
    card, name = gpu(job.hardware.gpu), NARROW[job.matmul_dtype]
    if name in card.dense_flop_per_s:
        return None
    others = "h100-sxm-80gb" if name == "fp8" else "b200-sxm-180gb"
    told = f"got {job.matmul_dtype} on {card.name}, which has no {name} matrix units; allowed: null"
    return f"{told}. To fix: matmul_dtype null, or a card that has them, such as {others}"


def _country(job: Job) -> str | None:
    """Asked for only where energy is told, but a name that is none is wrong anywhere."""
    if job.hardware.country is None:
        return None
    try:
        grid(job.hardware.country)
    except UsageError as error:
        return error.message.removeprefix(f"{COUNTRY}: ")
    return None


def _generations(job: Job) -> str | None:
    """trl/trainer/grpo_config.py, `__post_init__`. A teacher tells of one completion too (swift/arguments/
    rlhf_args.py, `_check_teacher`)."""
    generations = job.rl.generations
    if job.task not in ROLLOUTS or job.task == "ppo":
        return None
    if generations < 2 and job.distill.teacher is None:
        return f"got {generations}; allowed: at least 2, since completions of a prompt are compared with each other"
    batch = job.micro_batch * job.hardware.cards * (job.rl.steps_per_generation or job.grad_accum)
    if batch % generations == 0:
        return None
    got = f"got {generations}, but the batch that is generated has {batch} completions, of whole groups alone"
    divisors = [count for count in range(2, min(batch, MOST_GENERATIONS) + 1) if batch % count == 0]
    near = f"; nearest: {min(divisors, key=lambda count: abs(count - generations))}" if divisors else ""
    return f"{got}; allowed: what divides micro_batch x cards x steps_per_generation{near}"


MOST_GENERATIONS = 65536
"""As `rl.generations` allows."""
RULES: Mapping[str, Callable[[Job], str | None]] = {
    **SPREADING,
    "rl.generations": _generations,
    "matmul_dtype": _matmul_dtype,
    "lora.adapter_dtype": _adapter_dtype,
    COUNTRY: _country,
}
RECIPE_RULES: Mapping[str, Callable[[Job], str | None]] = {
    "task": _only(lambda job: job.task, *LANGUAGE),
    "hardware.gpus": _one_card,
    "matmul_dtype": _unless_traced("matmul_dtype", None),
    "attention": _only(lambda job: job.attention, "sdpa", "eager", "flash_attention_2", "flash_attention_3"),
    "kernels": _only(
        lambda job: tuple(name for name in chosen_kernels(job) if name not in ("liger", *LIGER_PARTS)), ()
    ),
    "loss": _unless_traced("loss", None, "full"),
    "optimizer_in_backward": _only(lambda job: job.optimizer_in_backward, False),
    "offload_activations": _only(lambda job: job.offload_activations, False),
    **{field: _unless_traced(field, None) for field in (*FIELDS, "stack_version")},
    "quantization.format": _only(lambda job: job.quantization.format, None, "nf4", "fp4", "int8"),
}


def keeps_apart(job: Job) -> bool:
    """Whether the stack's program has a mask that keeps the samples of a packed row apart."""
    packs = getattr(module_of(job.stack), "packs", None)  # hardly any job needs it
    return packs is not None and packs(job)


def job_assumptions(job: Job, followed: Job, own: OwnRun | None = None) -> list[str]:
    """What both engines take for granted about this job, beyond what the tape itself says. `followed` is the job with
    as many micro-batches as its tape has; `own` is what was replayed of the job's own batches."""
    told = [f"peak over the first {max(6, len(job.lengths or ()))} optimizer steps, starting with an empty cache"]
    if own is not None:
        told = [own.told]
    elif job.data.has_lengths and job.lengths is None:
        told.append(
            f"memory is not that of the job's own batches: every row is taken to be {job.seq_len:,} tokens long"
        )
    if job.data.path is not None:
        told.append(lengths_source(job.data))
    stack = stack_of(job)
    taken = meant_by(job.hardware.gpu).note(job.hardware.gpu)
    if taken is not None:
        told.insert(0, taken)
    if job.hardware.reserve_bytes:
        told.append(others_hold(job.hardware.reserve_bytes))
    if followed.grad_accum < job.grad_accum and own is None:
        told.append(f"the last {job.grad_accum - followed.grad_accum} micro-batches of a step are like those before")
    if job.data.packing and keeps_apart(job):
        told.append("packed samples: all rows of a batch are one, and a mask keeps samples apart (TRL's padding_free)")
    elif job.data.packing and stack.uses_megatron and job.task == "sft":
        told.append("packed rows are of samples of 384 tokens, which attention keeps apart (thd)")
    elif job.data.packing:
        told.append("packed rows are full rows of one sample: masks that keep packed samples apart are left out")
    if job.autocast == "float16":
        told.append("the loss scaler's few hundred bytes are left out")
    if optimizer_of(job).projection:
        told.append("optim_target_modules: every linear layer but the head; rank 128")
    if job.quantization.format == "float8":
        told.append("float8: frozen weights, and what attention and the MLP's activation keep (as in MLPerf's LoRA)")
    if job.matmul_dtype is not None and stack.uses_megatron:
        told.append(f"{job.matmul_dtype}: TransformerEngine's linear layers, all but the head; weights without a copy")
    elif job.matmul_dtype is not None:
        scales = "one scale per tensor" if job.matmul_dtype == "float8" else "NVFP4"
        told.append(f"{job.matmul_dtype}: torchao's linear layers ({scales}), all but the first and the last")
    if job.loss == "chunked" and stack.is_plain_loop:
        told.append("chunked loss: the fused head of TRL 1.16, with no label masked out")
    return told


_BY_FSDP = "parallel.data", lambda job: sharding_of(job).is_fsdp
_BY_ZERO = "parallel.data", lambda job: sharding_of(job).is_zero
_BY_ZERO_3 = "parallel.data", lambda job: sharding_of(job).zero_stage == 3
_BY_STEPS = "run.save_strategy", lambda job: job.run.save_strategy == "steps"
BELONGS_TO: Mapping[str, tuple[str, Callable[[Job], bool]]] = {
    "parallel.fsdp_version": _BY_FSDP,
    "parallel.reshard_after_forward": _BY_FSDP,
    "parallel.state_dict_type": _BY_FSDP,
    "parallel.cpu_ram_efficient_loading": _BY_FSDP,
    **{f"parallel.{name}": _BY_ZERO for name in ("reduce_bucket_size", "overlap_comm", "round_robin_gradients")},
    "parallel.prefetch_bucket_size": _BY_ZERO_3,
    "parallel.param_persistence_threshold": _BY_ZERO_3,
    "parallel.max_live_parameters": _BY_ZERO_3,
    "parallel.max_reuse_distance": _BY_ZERO_3,
    "parallel.sub_group_size": _BY_ZERO_3,
    "parallel.sequence_parallel": ("parallel.tensor", lambda job: job.parallel.tensor > 1),
    "hardware.inter_node_gbps": ("hardware.nodes", lambda job: job.hardware.nodes > 1),
    "hardware.nvme_bytes_per_s": ("parallel.offload_device", lambda job: job.parallel.offload_device == "nvme"),
    "data.tokenizer": ("data.path", lambda job: job.data.path is not None),
    "data.packing_strategy": ("data.packing", lambda job: job.data.packing),
    "vision.pixels": ("vision.images", lambda job: job.vision.has_images),
    "vision.tiles": ("vision.images", lambda job: job.vision.has_images),
    "run.save_steps": _BY_STEPS,
    "run.saves_per_epoch": _BY_STEPS,
    "run.eval_max_batches": ("run.eval_strategy", lambda job: job.run.eval_strategy != "no"),
}
"""Fields that say how to do what another has to ask for, and whether it does. They are not refused: a plan chooses the
cards and how the job is spread over them, and then some of them come to count."""


def unused_fields(job: Job, model: ModelConfig) -> list[str]:
    """What was said and changes nothing, each in a line."""
    values = job.flat()
    unused = [
        f"{field} {shown(values[field])} changes nothing, as {other} is {shown(values[other])}"
        for field, (other, counts) in BELONGS_TO.items()
        if values[field] != all_knobs()[field].default and not counts(job)
    ]
    if job.vision.trained is not None and "vision_config" not in model.raw:
        unused.append(f"vision.trained {shown(job.vision.trained)} changes nothing, as {job.model} has no vision tower")
    return unused


def dtype_assumption(job: Job, model: ModelConfig) -> list[str]:
    """Of a job that loads the checkpoint's dtype, where nothing says what that is."""
    if job.weights_dtype != "auto" or model.dtype is not None or has_own_dtype(job):
        return []
    return ["neither config.json nor weight files say the checkpoint's dtype: float32 (--weights-dtype)"]


def others_hold(reserve_bytes: int) -> str:
    return f"other processes hold {gib(reserve_bytes)} of the card (--reserve)"


def card_of(gpu: Gpu) -> Card:
    """What torch code can ask of the card. Where nobody has counted the multiprocessors, the H200's stand in."""
    if gpu.name == "h200-sxm-141gb":
        return Card(total_bytes=gpu.memory_bytes)
    name = f"NVIDIA {gpu.name.upper()}"
    return Card(name, gpu.memory_bytes, gpu.compute_capability, gpu.sm_count or Card.sm_count)
