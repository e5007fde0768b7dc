"""What a job's fields are about: the tables of docs/defaults.md and the groups of --help-all."""

from __future__ import annotations

from collections.abc import Mapping

from tunecast.job.releases import FIELDS

_BATCH, _PRECISION, _MODEL = "Batch, length and memory", "Precision and kernels", "Model and method"
_SECTIONS: Mapping[str, str] = {
    "lora": "Adapters (`lora`)", "quantization": "Quantized weights (`quantization`)", "data": "Data (`data`)",
    "run": "Evaluation and checkpoints (`run`)", "hardware": "Hardware (`hardware`)",
    "parallel": "Several cards (`parallel`)",
}  # fmt: skip
_GROUPS: Mapping[str, str] = {
    **dict.fromkeys(("model", "id", "task", "method", "stack"), _MODEL),
    **dict.fromkeys((*FIELDS, "stack_version"), _MODEL),
    **dict.fromkeys(("weights_dtype", "autocast", "matmul_dtype", "attention", "kernels"), _PRECISION),
    **dict.fromkeys(("loss", "compile"), _PRECISION),
    **dict.fromkeys(("seq_len", "micro_batch", "grad_accum", "lengths", "gradient_checkpointing"), _BATCH),
    **dict.fromkeys(("checkpoint_reentrant", "recompute", "offload_activations", "allocator"), _BATCH),
    **dict.fromkeys(("optimizer", "optimizer_in_backward", "max_grad_norm"), "Optimizer"),
}
ORDER = (
    _MODEL, _SECTIONS["lora"], _SECTIONS["quantization"], _BATCH, _PRECISION, "Optimizer", _SECTIONS["data"],
    _SECTIONS["run"], _SECTIONS["hardware"], _SECTIONS["parallel"],
)  # fmt: skip


def group_of(name: str) -> str:
    """The group a field stands in."""
    section, dot, _ = name.partition(".")
    return _SECTIONS[section] if dot else _GROUPS[name]
