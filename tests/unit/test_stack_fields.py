"""No field is read and ignored: changed, it changes what is predicted, or it is refused, or it is listed here with the
reason why it moves nothing.

A stack's base job is one where most fields have something to say: several cards, a split, micro-batches.
"""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.door.predict import predict
from tunecast.errors import TunecastError
from tunecast.job import job_from_dict
from tunecast.job.job import all_knobs

pytestmark = pytest.mark.whole

SPLIT = {
    "model": "llama-3.2-1b", "task": "sft", "seq_len": 512, "micro_batch": 1, "grad_accum": 4,
    "gradient_checkpointing": True, "hardware": {"gpu": "h100-sxm-80gb", "gpus": 8, "nodes": 2},
    "parallel": {"data": "zero1", "tensor": 2, "pipeline": 2}, "data": {"samples": 400},
}  # fmt: skip
OF_DATA = {
    "data": {"lengths": [500, 260] * 200, "samples": 400, "eval_samples": 640},
    "parallel": {"data": "zero1", "tensor": 2},
    "run": {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 3},
}  # fmt: skip
"""Instead, for fields of `data` and `run`."""
METHODS: dict[str, dict[str, Any]] = {
    "full": {"method": "full"},
    "adapters": {"method": "lora", "lora": {"rank": 8, "dropout": 0.0, "targets": "attention"}},
}
OTHERS: dict[str, list[Any]] = {
    "model": ["llama-3.1-8b"], "id": [], "stack": [], "method": [], "weights_dtype": ["float16"], "autocast": [None],
    "lora.rank": [32], "lora.alpha": [8.0], "lora.dropout": [0.2], "lora.targets": ["all-linear"],
    "seq_len": [256], "micro_batch": [2], "grad_accum": [8, 3], "max_grad_norm": [0.0], "lengths": [[512, 256]],
    "stack_version": ["1.0"], "transformers_version": ["4.57.0"], "torch_version": ["2.5"],
    "peft_version": ["0.17.1"], "trl_version": ["1.0"], "bitsandbytes_version": ["0.49.2"], "liger_version": ["0.8.5"],
    "unsloth_version": ["2026.10.9"], "kernels": [["liger"]],
    "data.tokens": [10**6], "data.samples": [300], "data.lengths": [[300] * 400], "data.epochs": [7.0],
    "data.pad_to_multiple_of": [64], "data.max_tokens_per_batch": [2048], "data.workers": [4], "data.num_proc": [4],
    "data.seed": [7],
    "data.eval_samples": [500], "data.held_back": [0.25, 40],
    "run.max_steps": [7], "run.eval_steps": [4], "run.eval_batch": [1],
    "run.save_steps": [2], "run.evals_per_epoch": [5.0], "run.eval_max_batches": [1], "run.saves_per_epoch": [30.0],
    "run.save_total_limit": [1], "hardware.gpu": ["b200-sxm-180gb"], "hardware.gpus": [4], "hardware.nodes": [1],
    "hardware.capacity_bytes": [2**34], "hardware.reserve_bytes": [2**33], "hardware.interconnect": ["pcie4"],
    "hardware.inter_node_gbps": [0.01], "hardware.launch_us": [50.0], "hardware.provisioning_s": [60.0],
    "hardware.image_bytes": [10**10], "hardware.download_bytes_per_s": [10**7], "hardware.disk_bytes_per_s": [10**7],
    "hardware.nvme_bytes_per_s": [10**9], "hardware.host_w": [100.0], "hardware.pue": [2.0], "hardware.country": ["FR"],
    "parallel.fsdp_version": [1, 2], "parallel.layers": [2], "parallel.tensor": [1, 4], "parallel.pipeline": [1, 4],
    "parallel.virtual_stages": [2], "parallel.context": [2], "parallel.expert": [2],
    "parallel.replicate": [2],
}  # fmt: skip
"""Values to try of fields that have no list of their own."""

ALIKE = "a kernel of Megatron's whatever it is called: FusedAdam"
FILES = "`time.missing` says that what this stack loads and saves is not told"
BY_FSDP = "is said to change nothing (`unused_fields`): it belongs to fsdp, which is refused"
RELEASED = "a package this stack does not use; of one beyond what is followed `reasons` tells"
STILL: dict[str, str] = {
    **dict.fromkeys(("peft_version", "trl_version", "bitsandbytes_version"), RELEASED),
    **dict.fromkeys(("liger_version", "unsloth_version"), RELEASED),
    "task": "the same step; other tasks than sft and pretrain are refused",
    "lora.alpha": "a factor", "lora.rslora": "another factor",
    "lora.adapter_dtype": "Megatron's adapters have the weights' dtype and float32 masters",
    "optimizer": ALIKE,
    "parallel.expert_tensor": "of experts, which the model here has none of",
    "recompute": "all is what gradient_checkpointing recomputes",
    "data.packing_strategy": "is said to change nothing: it belongs to data.packing",
    "data.prepared": "preparation of lengths that are given takes no time",
    "data.num_proc": "preparation of lengths that are given takes no time",
    "data.workers": "batches are made beside the step",
    "data.tokens": "is no count of its own beside samples and lengths",
    "data.drop_last": "the samples here divide",
    **dict.fromkeys(("data.append_eos", "data.completion_only"), "of texts, which data.path names and lengths do not"),
    "data.seed": "of another loader than the Trainer's the order is not known, whatever its seed",
    "run.save_total_limit": "what is deleted takes no time",
    "run.save_only_model": FILES, "hardware.download_bytes_per_s": FILES, "hardware.disk_bytes_per_s": FILES,
    "vision.trained": "is said to change nothing: the model here has no tower",
    "hardware.nvme_bytes_per_s": "is said to change nothing: it belongs to offload",
    "hardware.country": "is told in grams of CO2, not among these figures",
    "parallel.fsdp_version": BY_FSDP, "parallel.use_orig_params": BY_FSDP, "parallel.reshard_after_forward": BY_FSDP,
    "parallel.cpu_ram_efficient_loading": BY_FSDP, "parallel.state_dict_type": BY_FSDP,
}  # fmt: skip


OWN = {("megatron", "loss"): "full", ("nemo", "loss"): "fused",
       ("megatron", "parallel.reduce_dtype"): "float32", ("nemo", "parallel.reduce_dtype"): "bfloat16",
       ("megatron", "optimizer_state_dtype"): "float32", ("nemo", "optimizer_state_dtype"): "float32",
       ("megatron", "master_weights"): "float32", ("nemo", "master_weights"): "remainders",
       ("megatron", "parallel.sequence_parallel"): True, ("nemo", "parallel.sequence_parallel"): True}  # fmt: skip
"""What a stack does by itself: said, it is the same."""


def told(job: dict[str, Any]) -> Any:
    """All that is predicted; None where it is refused."""
    try:
        said = predict(job_from_dict(job)).to_dict()
    except TunecastError:
        return None
    return {name: said[name] for name in ("memory", "time", "fits", "capacity_bytes", "energy", "cost")}


def with_value(base: dict[str, Any], field: str, value: Any) -> dict[str, Any]:
    section, _, leaf = field.rpartition(".")
    return {**base, section: {**base.get(section, {}), leaf: value}} if section else {**base, leaf: value}


def values_of(field: str, default: Any, now: Any) -> list[Any]:
    if field in OTHERS:
        return OTHERS[field]
    knob = all_knobs()[field]
    if isinstance(default, bool) or knob.kind == "bool":
        return [value for value in (True, False) if value != (default if now is None else now)]
    return [value for value in knob.choices if value not in (default, now)]


@pytest.mark.parametrize("of_data", [False, True], ids=["step", "data"])
@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("stack", ["megatron", "nemo"])
def test_every_field_counts_or_is_refused_or_has_a_reason(stack: str, method: str, of_data: bool) -> None:
    base = {**SPLIT, **METHODS[method], **(OF_DATA if of_data else {}), "stack": stack}
    before = told(base)
    assert before is not None
    ignored = []
    flat = job_from_dict(base).flat()
    for field, knob in all_knobs().items():
        if field in STILL or (method == "full" and field.startswith("lora.")):
            continue
        if field.startswith(("data.", "run.")) is not of_data:
            continue
        for value in values_of(field, knob.default, flat[field]):
            if OWN.get((stack, field)) != value and told(with_value(base, field, value)) == before:
                ignored.append(f"{field} {value}")
    assert not ignored, ignored


def test_a_reason_is_of_a_field() -> None:
    assert STILL.keys() <= all_knobs().keys()
