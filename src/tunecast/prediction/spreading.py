"""Which ways of spreading a job over cards the closed form knows; the rest is refused with a remedy.

What each stack, sharding and optimizer can do is declared in job/stacks.py, job/shardings.py and job/optimizers.py.

A rule looks at one field and gives the sentence that refuses it, or None. What a combination needs beyond that (widths
that divide, layers that do not) the stack's own program says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tunecast.job.job import Job
from tunecast.job.kernels import CUT_HEAD, FUSED_HEAD, liger_parts
from tunecast.job.knob import shown
from tunecast.job.optimizers import OPTIMIZERS, optimizer_of
from tunecast.job.shardings import REPLICATED, SHARDED, SHARDINGS, ZERO, sharding_of
from tunecast.job.stacks import STACKS, stack_of, stacks_where
from tunecast.tape.build.eras import era_of
from tunecast.tape.build.sharding.zero_sizes import SETTINGS

OF_TRANSFORMERS = "transformers' own (enable_expert_parallel, all cards on the same rows) is not modelled"
"""It can train in 5.17.0 (distributed/tensor_parallel.py): experts are split, all other weights, their gradients and
optimizer whole on every card, outputs of experts summed over cards, AdamW a weight at a time (trainer_optimizer.py)."""
DIMENSIONS = ("layers", "tensor", "pipeline", "context", "expert")
SCRIPT = "To fix: trace your own script, `tunecast trace --nproc-per-node {gpus} -- train.py`"


def is_sharded(job: Job) -> bool:
    """By accelerate's FSDP."""
    return stack_of(job).uses_accelerate and sharding_of(job).is_fsdp and job.hardware.cards > 1


def has_flat_parameters(job: Job) -> bool:
    """FSDP 1 cuts flat parameters."""
    version = job.parallel.fsdp_version or era_of(job).fsdp_version
    return is_sharded(job) and version == 1


def is_flat(job: Job) -> bool:
    """By accelerate's DeepSpeed, whose ZeRO cuts flat partitions."""
    return stack_of(job).uses_accelerate and sharding_of(job).is_zero


def _cards(job: Job) -> str | None:
    if job.hardware.cards == 1 or stack_of(job).shardings:
        return None
    got = f"got {job.hardware.gpus} on each of {job.hardware.nodes} machines"
    got = got if job.hardware.nodes > 1 else f"got {job.hardware.gpus}"
    known = ", ".join(sorted(name for name, stack in STACKS.items() if stack.shardings))
    script = SCRIPT.format(gpus=job.hardware.gpus)
    return f"{got}; several cards are known of the stacks {known}, not yet of {job.stack}; allowed: 1. {script}"


def _data(job: Job) -> str | None:
    data, hardware = job.parallel.data, job.hardware
    sharding, known = SHARDINGS[data], stack_of(job).shardings or (REPLICATED,)
    if data not in known and not (job.hardware.cards == 1 and sharding.is_replicated):
        return f"got {data}, which is not known of {job.stack}; allowed: {', '.join(known)}"
    if job.hardware.cards == 1 and sharding.is_fsdp:
        fix = f"hardware.gpus 2 or more, or {REPLICATED}"
        return f"got {data} on one card, where there is nothing to share. To fix: {fix}"
    is_usual = job.parallel.replicate is None
    if sharding.replicates_machines and is_usual and (hardware.nodes == 1 or hardware.gpus == 1):
        shape = f"{hardware.nodes} machines of {hardware.gpus} cards"
        told = f"got {data} on {shape}; it shards inside a machine and replicates across several"
        return f"{told}. To fix: {SHARDED}, or say how many copies there are (parallel.replicate)"
    return None


def _dimensions(job: Job) -> str | None:
    asked, stack = [name for name in DIMENSIONS if getattr(job.parallel, name) > 1], stack_of(job)
    splits = (*stack.splits, *(("context",) if has_ulysses(job) else ()))  # whose stacks `_context_kind` says
    unknown = [name for name in asked if name not in splits]
    if not unknown:
        return _spread(job)
    where = sorted(name for name, other in STACKS.items() if set(unknown) <= set(other.splits))
    known = f"known of {', '.join(where)}" if where else "not modelled yet"
    if unknown == ["context"] and stack.has_ulysses:
        known += f"; with {job.stack} as context_kind ulysses"
    if unknown == ["expert"] and stack.uses_accelerate:
        known += f"; {OF_TRANSFORMERS}"
    script = SCRIPT.format(gpus=job.hardware.gpus)
    return f"{unknown[0]}: got {getattr(job.parallel, unknown[0])}, {known}; allowed with {job.stack}: 1. {script}"


def has_ulysses(job: Job) -> bool:
    return job.parallel.context > 1 and job.parallel.context_kind == "ulysses"


def _context_kind(job: Job) -> str | None:
    """DeepSpeed's, so with ZeRO; it gives the kernel no mask, and looks at positions that eras before 5 do not give."""
    if not has_ulysses(job):
        return None
    if not stack_of(job).has_ulysses:
        known = stacks_where(lambda stack: stack.has_ulysses)
        return f"got ulysses, known of {known} (accelerate's sp_size); allowed with {job.stack}: ring"
    if not is_flat(job):
        got = f"got ulysses with parallel.data {job.parallel.data}"
        return f"{got}; it is DeepSpeed's: allowed with parallel.data {', '.join(ZERO)}"
    if era_of(job).release < (5, 0):
        return f"got ulysses with transformers {job.transformers_version}, whose Trainer has none; allowed: from 5.0 on"
    if job.attention == "eager":
        return "got ulysses with attention eager, which DeepSpeed refuses (it needs a mask); allowed: sdpa, flash"
    return None


def _expert(job: Job) -> str | None:
    """axolotl/integrations/expert_parallel/plugin.py, `_resolve_ep_group`: without FSDP it takes all cards."""
    ranks, cards, stack = job.parallel.expert, job.hardware.cards, stack_of(job)
    if ranks == 1 or not stack.uses_accelerate or "expert" not in stack.splits:
        return None
    if not sharding_of(job).is_replicated or job.parallel.context > 1:
        return (
            f"got {ranks} with parallel.data {job.parallel.data}, not known together; allowed: 1, or with {REPLICATED}"
        )
    if ranks != cards:
        return f"got {ranks} on {cards} cards; Axolotl spreads experts over all of them. To fix: {ranks} cards"
    return None


def _spread(job: Job) -> str | None:
    """device_map is one process: the cards of its machine, and nobody else."""
    layers, hardware = job.parallel.layers, job.hardware
    if layers == 1 or (hardware.gpus == layers and hardware.nodes == 1):
        return None
    got = f"got {layers} with {hardware.gpus} cards on each of {hardware.nodes} machines"
    return f"layers: {got}; device_map uses all cards of one machine. To fix: hardware.gpus {layers}, hardware.nodes 1"


def _offload(job: Job) -> str | None:
    """Which scheme can offload what is the job's own rule (job/check.py)."""
    offload = job.parallel.offload
    if offload == "none" or stack_of(job).offloads:
        return None
    return f"got {offload}, which is not known of {job.stack}; allowed: none"


def _optimizer(job: Job) -> str | None:
    """What steps by value steps on any part; Muon on FSDP 2's, whose matrices it gathers (axolotl's validation.py,
    `check_muon_deepspeed_fsdp`)."""
    kind = optimizer_of(job)
    on_shards, on_partitions = is_sharded(job), is_flat(job)
    if on_shards and not has_flat_parameters(job):
        if kind.is_bitsandbytes:
            instead = "adamw_torch_8bit, adamw_torch_4bit or adamw_torch_fused; or parallel.fsdp_version: 1"
            return f"got {kind.name}, whose kernels in bitsandbytes take none of FSDP 2's shards; allowed: {instead}"
        if not (kind.on_shards or kind.steps_by_value or kind.spares_ends):
            return f"got {kind.name}, which is not known on FSDP's shards; allowed: {_by_value()}"
    elif on_shards and not (kind.on_shards or kind.steps_by_value):
        return f"got {kind.name}, which is not known on FSDP 1's flat parameters; allowed: {_by_value()}"
    if on_partitions and not (kind.on_partitions or kind.steps_by_value):
        return f"got {kind.name}, which is not known on ZeRO's partitions; allowed: {_by_value()}"
    if job.hardware.cards > 1 and kind.in_backward:
        return f"got {job.optimizer}, which takes gradients before they are summed over cards; allowed: on one card"
    return None


def _by_value() -> str:
    return ", ".join(name for name, each in OPTIMIZERS.items() if each.on_shards and each.on_partitions)


def _in_backward(job: Job) -> str | None:
    if job.optimizer_in_backward and (job.hardware.cards > 1 or is_flat(job)) and stack_of(job).uses_accelerate:
        return "got true, which takes gradients before they are summed over cards; allowed: on one card"
    return None


def _compile(job: Job) -> str | None:
    if job.compile and (is_sharded(job) or is_flat(job)):
        return f"got true with parallel.data {job.parallel.data}, which is not known together; allowed: false"
    return None


def _matmul_dtype(job: Job) -> str | None:
    """FSDP 2 wraps layers that torchao has converted before (accelerate's `_prepare_ao`)."""
    on_fsdp2 = is_sharded(job) and not has_flat_parameters(job)
    if job.matmul_dtype is None or not (is_sharded(job) or is_flat(job)) or (on_fsdp2 and job.matmul_dtype == "float8"):
        return None
    known = "null" if on_fsdp2 else "null, or float8 with fsdp and parallel.fsdp_version 2"
    return f"got {job.matmul_dtype} with parallel.data {job.parallel.data}, not known together; allowed: {known}"


def _kernels(job: Job) -> str | None:
    if not job.kernels or not (is_sharded(job) or is_flat(job)):
        return None
    if has_flat_parameters(job):  # the outermost unit, the head's, stays whole from forward to backward
        return None
    if "foak" in job.kernels:
        return "got foak, which is known with parallel.fsdp_version 1 or on replicas (ddp)"
    head = CUT_HEAD if CUT_HEAD in job.kernels else "liger" if FUSED_HEAD in liger_parts(job) else None
    gathers = sharding_of(job).is_zero and head == "liger"  # DeepSpeed does for whoever asks (`ZeROOrderedDict`)
    if is_sharded(job) and stack_of(job).shards_layers_alone:  # the head is the outermost unit's, which is whole then
        return None
    if head is not None and job.method != "full" and not gathers:
        return f"got {head} with adapters on cut weights: its head reads a weight nobody gathers; allowed: none"
    return None


def _deepspeeds(name: str) -> Callable[[Job], str | None]:
    def refusal(job: Job) -> str | None:
        got = getattr(job.parallel, name)
        if got is None or not stack_of(job).uses_megatron:
            return None
        return f"got {shown(got)}, a setting of DeepSpeed's ZeRO, which {job.stack} does not use; allowed: null"

    return refusal


def _format(job: Job) -> str | None:
    got = job.quantization.format
    if got == "float8" and not stack_of(job).uses_megatron:
        known = f"known of {_of_megatron()} (TransformerEngine's fp8_param_gather)"
        return f"got float8, {known}; allowed with {job.stack}: null, or nf4, fp4, int8 and gptq where it knows them"
    flat = has_flat_parameters(job)
    cuts_int8 = is_sharded(job) and not flat and stack_of(job).shards_int8
    more = ("gptq",) if flat else ("int8",) if cuts_int8 else ()
    allowed = (*sharding_of(job).formats, *more)
    if (is_sharded(job) or is_flat(job)) and got is not None and got not in allowed:
        names = ", ".join((*allowed, "null"))
        return f"got {got} with parallel.data {job.parallel.data}, which cannot cut it; allowed: {names}"
    return None


def _reduce_dtype(job: Job) -> str | None:
    got = job.parallel.reduce_dtype
    stack = stack_of(job)
    if stack.uses_megatron and got not in (None, "float32", job.weights_dtype):
        own = dict.fromkeys(("float32", job.weights_dtype, "null"))
        return f"got {got} with weights_dtype {job.weights_dtype}; allowed: {', '.join(own)} (grad_reduce_in_fp32)"
    if got is None or not stack.uses_accelerate or is_sharded(job):
        return None
    return f"got {got} with parallel.data {job.parallel.data}, which sums gradients as they are; allowed: null"


def _sequence_parallel(job: Job) -> str | None:
    if job.parallel.sequence_parallel is not False or job.parallel.tensor == 1 or stack_of(job).has_plain_tensor:
        return None
    known = stacks_where(lambda stack: stack.has_plain_tensor)
    return f"got false, known of {known}; allowed with {job.stack}: null or true"


def _of_megatron() -> str:
    return stacks_where(lambda stack: stack.uses_megatron)


def _virtual_stages(job: Job) -> str | None:
    """Megatron's schedules.py and torch's ScheduleInterleaved1F1B go through the micro-batches by as many as there are
    ranks."""
    stages, chunks, count = job.parallel.pipeline, job.parallel.virtual_stages, job.grad_accum
    if chunks > 1 and count % stages:
        near = max(stages, round(count / stages) * stages)
        got = f"got {chunks} with {count} micro-batches of a step (grad_accum) on {stages} pipeline stages"
        return f"{got}; interleaved, they come by {stages}: allowed: grad_accum a multiple of it; nearest: {near}"
    return None


def _eager(job: Job) -> str | None:
    if stack_of(job).uses_megatron and job.attention == "eager" and job.parallel.context > 1:
        return "got eager with parallel.context, which TransformerEngine has for fused attention alone; allowed: sdpa"
    return None


def _sync_each_batch(job: Job) -> str | None:
    if not job.parallel.sync_each_batch:
        return None
    if stack_of(job).syncs_as_told:
        return None
    if not stack_of(job).uses_trainer:
        return f"got true, which is accelerate's; allowed with {job.stack}: false"
    if not era_of(job).heeds_sync_each_batch:
        got = f"got true with transformers {job.transformers_version}, whose Trainer ignores it (4.46 to 5.1)"
        return f"{got}; allowed: false, or another transformers_version"
    return None


def _shard_ends(job: Job) -> str | None:
    if job.parallel.shard_ends is None or stack_of(job).shards_ends:
        return None
    whose = stacks_where(lambda stack: stack.shards_ends)
    return f"got {str(job.parallel.shard_ends).lower()}, known of {whose}; allowed with {job.stack}: null"


def _load_on_rank_0(job: Job) -> str | None:
    """Who has no weights needs somebody to send them: `fsdp2_load_full_state_dict`."""
    parts = job.parallel
    if not parts.load_on_rank_0:
        return None
    if not is_sharded(job) or has_flat_parameters(job) or not parts.cpu_ram_efficient_loading:
        got = f"got true with parallel.data {parts.data}, where nobody sends weights to ranks that have none"
        return f"{got}; allowed: with fsdp or hsdp (fsdp_version 2) and cpu_ram_efficient_loading: true"
    if job.quantization.format is not None:
        return "got true with quantised weights, which every rank loads itself; allowed: false"
    return None


RULES: Mapping[str, Callable[[Job], str | None]] = {
    "hardware.gpus": _cards,
    "parallel.data": _data,
    "parallel": _dimensions,
    "parallel.context_kind": _context_kind,
    "parallel.expert": _expert,
    "parallel.offload": _offload,
    "parallel.reduce_dtype": _reduce_dtype,
    "parallel.sequence_parallel": _sequence_parallel,
    "parallel.virtual_stages": _virtual_stages,
    "attention": _eager,
    "parallel.sync_each_batch": _sync_each_batch,
    "parallel.shard_ends": _shard_ends,
    "parallel.load_on_rank_0": _load_on_rank_0,
    "optimizer": _optimizer,
    "optimizer_in_backward": _in_backward,
    "compile": _compile,
    "matmul_dtype": _matmul_dtype,
    "kernels": _kernels,
    "quantization.format": _format,
    **{f"parallel.{name}": _deepspeeds(name) for name in SETTINGS},
}
