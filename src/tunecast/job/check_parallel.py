"""What contradicts what in how a job is split over its cards (rules of `check.py`)."""

from __future__ import annotations

import math

from tunecast.job.knob import Problem
from tunecast.job.rules import Rule, adding_to
from tunecast.job.shardings import REPLICATED, SHARDINGS, able_to_offload
from tunecast.job.stacks import STACKS

RULES: list[Rule] = []
rule = adding_to(RULES)


@rule("parallel.virtual_stages", "parallel.pipeline")
def virtual_stages_of_a_pipeline(virtual: int, pipeline: int) -> str | None:
    if virtual == 1 or pipeline > 1:
        return None
    return f"got {virtual} without a pipeline; allowed: 1, or with pipeline 2 or more; nearest: 1"


@rule("parallel.context_kind", "parallel.context")
def kind_of_a_split_sequence(kind: str, context: int) -> str | None:
    if kind == "ring" or context > 1:
        return None
    return f"got {kind}, but no sequence is split; allowed: ring, or with context 2 or more; nearest: ring"


@rule("hardware.reserve_bytes", "hardware.capacity_bytes")
def capacity_is_what_is_left(reserve_bytes: int, capacity_bytes: int | None) -> str | None:
    if not reserve_bytes or capacity_bytes is None:
        return None
    got = f"got {reserve_bytes} with capacity_bytes, which already says what is left for the allocator"
    return f"{got}; allowed: one of the two; nearest: 0"


@rule("parallel.tensor", "parallel.pipeline", "parallel.context", "parallel.layers", "hardware.gpus", "hardware.nodes")
def cards_divide(tensor: int, pipeline: int, context: int, layers: int, gpus: int, nodes: int) -> Problem | None:
    split = {"tensor": tensor, "pipeline": pipeline, "context": context, "layers": layers}
    parts = {name: n for name, n in split.items() if n > 1}
    product = " x ".join(f"{name} {n}" for name, n in parts.items())
    told = _divides(f"got {product}", math.prod(parts.values()), gpus * nodes)
    return Problem(f"parallel.{next(iter(parts))}", told) if told else None


@rule("parallel.expert", "hardware.gpus", "hardware.nodes")
def experts_divide(expert: int, gpus: int, nodes: int) -> str | None:
    return _divides(f"got {expert}", expert, gpus * nodes)


@rule("parallel.expert_tensor", "stack")
def cards_of_one_expert(ways: int | None, stack: str) -> str | None:
    if ways is None or STACKS[stack].uses_megatron:
        return None
    return f"got {ways} with stack {stack}; allowed: with stacks around Megatron, or null; nearest: null"


@rule("parallel.expert_tensor", "parallel.expert", "parallel.pipeline", "hardware.gpus", "hardware.nodes")
def split_experts_divide(ways: int | None, expert: int, pipeline: int, gpus: int, nodes: int) -> str | None:
    """megatron/core/parallel_state.py, `initialize_model_parallel`: experts have a mesh of their own."""
    if ways is None:
        return None
    return _divides(f"got {ways} with expert {expert}, pipeline {pipeline}", ways * expert * pipeline, gpus * nodes)


def _divides(got: str, part: int, cards: int) -> str | None:
    if cards % part == 0:
        return None
    # at most gpus x nodes = 10**8 cards, so 10**4 trials
    small = [d for d in range(1, math.isqrt(cards) + 1) if cards % d == 0]
    near = max(d for d in (*small, *(cards // d for d in small)) if d <= part)
    return f"{got}; allowed: what divides the {cards} cards of hardware (gpus x nodes); nearest: {near}"


@rule("parallel.layers", "hardware.gpus")
def layers_stay_in_one_machine(layers: int, gpus: int) -> str | None:
    if layers <= gpus:
        return None
    return f"got {layers}; allowed: at most the {gpus} cards of one machine (hardware.gpus); nearest: {gpus}"


@rule("parallel.data", "parallel.layers")
def spread_layers_are_not_sharded(data: str, layers: int) -> str | None:
    """transformers refuses device_map with ZeRO-3, and accelerate refuses it in any distributed mode."""
    if layers == 1 or SHARDINGS[data].is_replicated:
        return None
    got = f'got {data} with layers {layers} (device_map="auto")'
    return f"{got}; allowed: {REPLICATED}, or layers: 1; nearest: {REPLICATED}"


@rule("parallel.replicate", "parallel.data")
def copies_need_hsdp(replicate: int | None, data: str) -> str | None:
    if replicate is None or SHARDINGS[data].replicates_machines:
        return None
    able = " or ".join(name for name, sharding in SHARDINGS.items() if sharding.replicates_machines)
    return f"got {replicate} with parallel.data {data}; allowed: null, or with {able}; nearest: null"


@rule(
    "parallel.replicate", "parallel.tensor", "parallel.pipeline", "parallel.context", "hardware.gpus", "hardware.nodes"
)
def copies_share_the_ranks(
    replicate: int | None, tensor: int, pipeline: int, context: int, gpus: int, nodes: int
) -> str | None:
    ranks = gpus * nodes // (tensor * pipeline * context)
    if replicate is None or (ranks % replicate == 0 and replicate < ranks):
        return None
    near = max((n for n in range(2, min(replicate, ranks // 2) + 1) if ranks % n == 0), default=None)
    told = f"got {replicate}; allowed: what divides the {ranks} ranks of the data, and less"
    return f"{told}; nearest: {'null' if near is None else near}"


@rule("parallel.offload", "parallel.data")
def offload_needs_sharding(offload: str, data: str) -> str | None:
    """DeepSpeed offloads the optimizer with ZeRO 1 to 3, parameters with 3; FSDP's offload moves both."""
    able = SHARDINGS[data].offloads
    if offload == "none" or offload in able:
        return None
    others, near = " or ".join(able_to_offload(offload)), next(iter(able), "none")
    return f"got {offload} with parallel.data {data}; allowed: with {others}; nearest: {near}"


@rule("run.save_only_model", "parallel.state_dict_type", "parallel.data")
def parts_of_a_model_come_with_the_optimizer(model_alone: bool, state_dict: str, data: str) -> str | None:
    """transformers 5.17.0, trainer.py: "save_only_model option is not compatible with FSDP state dict type
    'SHARDED_STATE_DICT'"."""
    if not (model_alone and state_dict == "sharded" and SHARDINGS[data].is_fsdp):
        return None
    got = "got true with parallel.state_dict_type sharded, which the Trainer refuses"
    return f"{got}; allowed: false, or state_dict_type: full; nearest: false"


@rule("parallel.offload_device", "parallel.offload", "parallel.data")
def nvme_needs_zero_3(device: str, offload: str, data: str) -> str | None:
    """DeepSpeed has code that swaps to drives in stage3.py alone; FSDP has none."""
    if device == "cpu" or (SHARDINGS[data].uses_drives and offload != "none"):
        return None
    got = f"got {device} with parallel.data {data} and offload {offload}"
    able = " or ".join(name for name, sharding in SHARDINGS.items() if sharding.uses_drives)
    return f"{got}; allowed: with {able} and offload optimizer or parameters; nearest: cpu"
