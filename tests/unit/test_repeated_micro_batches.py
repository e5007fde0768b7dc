"""RepeatedPasses and micro-batches that are noted as coming again, and the same ones run: one tape."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.job import job_from_dict
from tunecast.tape.build import autograd, repeats
from tunecast.tape.build.job_runs import build
from tunecast.tape.card import Card
from tunecast.tape.op import Tape
from tunecast.tape.shorten import Rhythm, as_they_are

pytestmark = pytest.mark.whole

CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1001, "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}  # fmt: skip
FULL: dict[str, Any] = {"method": "full", "gradient_checkpointing": False}
LORA: dict[str, Any] = {"method": "lora", "gradient_checkpointing": True}
QLORA: dict[str, Any] = {"method": "qlora", "quantization": {"format": "nf4"}, "gradient_checkpointing": True}
SEVERAL: dict[str, Any] = {"hardware": {"gpus": 4}}
DDP, FSDP, ZERO3 = ({**SEVERAL, "parallel": {"data": kind}} for kind in ("ddp", "fsdp", "zero3"))
SYNCED: dict[str, Any] = {**SEVERAL, "parallel": {"data": "fsdp", "sync_each_batch": True}}
ON_HOST: dict[str, Any] = {**SEVERAL, "parallel": {"data": "fsdp", "offload": "parameters"}}
STEPS = 3
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "one": ({**FULL}, 1),
    "two": ({**LORA, "grad_accum": 2}, 2),
    "four": ({**LORA, "grad_accum": 4}, 2),
    "five, without clipping": ({**FULL, "grad_accum": 5, "max_grad_norm": 0}, 2),
    "qlora": ({**QLORA, "grad_accum": 3}, 2),
    "liger": ({**FULL, "grad_accum": 4, "kernels": ["liger"]}, 2),
    "reentrant": ({**LORA, "grad_accum": 4, "checkpoint_reentrant": True}, 24),  # a pass each layer
    "paged": ({**FULL, "grad_accum": 4, "optimizer": "paged_adamw_8bit"}, 2),
    "replicas": ({**LORA, **DDP, "grad_accum": 4}, 3),
    "replicas whose buckets are made anew": ({**FULL, **DDP, "grad_accum": 4, "gradient_checkpointing": True}, 9),
    "shards": ({**FULL, **FSDP, "grad_accum": 4}, 3),
    "shards summed after each": ({**FULL, **SYNCED, "grad_accum": 5}, 3),
    "shards, quantised": ({**QLORA, **FSDP, "grad_accum": 5}, 3),
    "shards on the host": ({**FULL, **ON_HOST, "grad_accum": 4}, 3),
    "ZeRO-3, which does not say": ({**FULL, **ZERO3, "grad_accum": 4}, 12),
    "in the backward pass": ({**FULL, "optimizer_in_backward": True, "max_grad_norm": 0}, 2),  # the first makes state
    "TRL": ({**LORA, "grad_accum": 4, "stack": "trl"}, 6),
    "compiled": ({**LORA, "grad_accum": 3, "compile": True}, 11),  # two of them the compiler's
}
"""A job, and how many backward passes of its three steps are run."""


def built(values: dict[str, Any], **how: Any) -> Tape:
    job = job_from_dict({"model": "small", "weights_dtype": "bfloat16", "seq_len": 128, "micro_batch": 2, **values})
    return build(job, CONFIG, [128] * STEPS, Card(), **how)


@pytest.mark.parametrize("name", CASES)
def test_what_comes_again_is_what_would_have_been_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values, expected = CASES[name]
    runs: list[int] = []
    dependencies = autograd._dependencies

    def counted(root: autograd.Node) -> dict[Any, int]:
        """Asked once a pass."""
        runs.append(1)
        return dependencies(root)

    monkeypatch.setattr(autograd, "_dependencies", counted)
    for how in (
        {},
        {"priced_from": 1},
        {"keeps_ops": False},
        {"standing": as_they_are(Rhythm(1, 1, 6)), "priced_from": 1},
    ):
        runs.clear()
        repeated = built(values, **how)
        assert len(runs) == expected
        with monkeypatch.context() as nobody_says:
            nobody_says.setattr(repeats, "repeats_as", lambda scheme: None)
            whole = built(values, **how)
        assert repeated.events == whole.events
        assert (repeated.guesses, repeated.assumptions) == (whole.guesses, whole.assumptions)


def test_only_steps_of_one_length_stand_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_from_dict({"model": "small", "weights_dtype": "bfloat16", "lengths": [64, 128, 96], "micro_batch": 2})
    lengths = [64, 128, 96, 128, 64]
    repeated = build(job, CONFIG, lengths, Card())
    monkeypatch.setattr(repeats, "repeats_as", lambda scheme: None)
    assert repeated.events == build(job, CONFIG, lengths, Card()).events
