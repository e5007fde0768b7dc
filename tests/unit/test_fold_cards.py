"""Cards that share a model, and Liger's kernels: a few layers are built, and the folded run is that of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tunecast.job import job_from_dict
from tunecast.job.job import Job
from tunecast.tape.build import job_runs
from tunecast.tape.build.job_runs import Builder, build, fold_job
from tunecast.tape.card import Card
from tunecast.tape.op import Tape
from tunecast.tape.program import program
from tunecast.tape.schedule import scheduled
from tunecast.tape.shorten import steps_to_trace

pytestmark = pytest.mark.whole

CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 3001, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
JOB: dict[str, Any] = {
    "model": "small", "weights_dtype": "bfloat16", "autocast": "bfloat16", "seq_len": 128,
    "gradient_checkpointing": False,
}  # fmt: skip
LORA: dict[str, Any] = {"method": "lora", "lora": {"targets": ["q_proj", "v_proj"]}}
QLORA: dict[str, Any] = LORA | {"method": "qlora", "quantization": {"format": "nf4"}}
FULL: dict[str, Any] = {"method": "full", "weights_dtype": "float32"}
AGAIN: dict[str, Any] = {"gradient_checkpointing": True}
LIGER: dict[str, Any] = {"kernels": ["liger"]}
FSDP: dict[str, Any] = {"parallel": {"data": "fsdp"}, "hardware": {"gpus": 4}}
HSDP: dict[str, Any] = {"parallel": {"data": "hsdp"}, "hardware": {"gpus": 4, "nodes": 2}}
WAYS: dict[str, dict[str, Any]] = {
    # the end of the backward pass lets go of what every layer has reduced, after layer 0's turn
    "hsdp-lora": HSDP | LORA,
    "hsdp-lora-recomputed": HSDP | LORA | AGAIN,
    "hsdp-qlora": HSDP | QLORA,
    # a gradient is made in the last layer, added to in place by all and the embedding's in the end
    "liger-lora-recomputed": LIGER | LORA | AGAIN,
    "liger-lora-recomputed-ddp": LIGER | LORA | AGAIN | {"hardware": {"gpus": 2}},
    "liger-lora-recomputed-fsdp": LIGER | LORA | AGAIN | FSDP | {"stack": "trl"},
    # the last layer makes a block more than the rest, and the one before it frees what comes after
    "liger-full-fsdp": LIGER | FULL | FSDP,
    "liger-full-recomputed-fsdp": LIGER | FULL | AGAIN | FSDP,
    "liger-full-hsdp": LIGER | FULL | HSDP,
    # buckets are made anew in the second step
    "full-recomputed-ddp": FULL | AGAIN | {"hardware": {"gpus": 4}},
}
SHAPES = {
    "11 layers": (11, 1, 1, True, Card()),
    "8 layers": (8, 3, 2, False, Card("NVIDIA A100-SXM4-80GB", 85_094_825_984, (8, 0), 108)),
    "5 layers": (5, 2, 4, True, Card("NVIDIA B200", 191_514_345_472, (10, 0), 148)),
}
"""Layers, micro-batch, grad_accum, whether operations are kept, and the card."""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", WAYS)
def test_folded_is_built(way: str, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layers, batch, grad_accum, keeps_ops, card = SHAPES[shape]
    job = job_from_dict(JOB | {"micro_batch": batch, "grad_accum": grad_accum} | WAYS[way])
    config = CONFIG | {"num_hidden_layers": layers}
    built: list[int] = []

    def watched(job: Job, config: Mapping[str, Any], lengths: Sequence[int], card: Card, **how: Any) -> Tape:
        built.append(config["num_hidden_layers"])
        return build(job, config, lengths, card, **how)

    monkeypatch.setattr(job_runs, "build", watched)
    folded = fold_job(job, config, card, keeps_ops=keeps_ops, builder=Builder())
    assert built == [4], "once, with a few layers"
    lengths, order = steps_to_trace(job)
    whole = program(scheduled(build(job, config, lengths, card), order))
    ours, theirs = list(folded.program.written_out()), list(whole.written_out())
    differ = next((row for row, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    assert differ is None, f"row {differ} of {len(theirs)}: folded {ours[differ]}, built {theirs[differ]}"
    assert len(ours) == len(theirs)
