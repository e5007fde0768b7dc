"""A folded run and the same run written out: one program."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.job import job_from_dict
from tunecast.prediction.memory.allocator import AllocatorSettings
from tunecast.prediction.memory.needs import peak
from tunecast.prediction.memory.replay import Replays, replay
from tunecast.tape.build.job_runs import fold_job, whole_tape
from tunecast.tape.card import Card
from tunecast.tape.program import program

pytestmark = pytest.mark.whole

CONFIG = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 9,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 3001, "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}  # fmt: skip
JOBS: dict[str, dict[str, Any]] = {
    "full": {"method": "full", "autocast": None},
    "recomputed": {"method": "full", "gradient_checkpointing": True, "autocast": None},
    "lora": {"method": "lora", "lora": {"targets": "all-linear"}},
    "lora-recomputed": {"method": "lora", "gradient_checkpointing": True, "grad_accum": 2},
    "qlora": {"method": "qlora", "quantization": {"format": "nf4"}, "gradient_checkpointing": True},
    "lengths": {"method": "lora", "lengths": [256, 128, 200, 128, 256, 96, 64]},
    "one-length-twice": {"method": "lora", "lengths": [256, 128, 128, 128, 256, 96, 96, 96]},
    "adafactor": {"method": "full", "optimizer": "adafactor", "autocast": None},
    "compiled": {"method": "lora", "compile": True, "gradient_checkpointing": True},
    "adamw_8bit": {"method": "full", "optimizer": "adamw_8bit", "autocast": None},
}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("layers", [3, 4, 5, 9])
def test_folded_is_written_out(name: str, layers: int) -> None:
    values = {"model": "small", "weights_dtype": "bfloat16", "seq_len": 256, "micro_batch": 2, **JOBS[name]}
    job, config = job_from_dict(values), CONFIG | {"num_hidden_layers": layers}
    folded = fold_job(job, config, Card())
    tape = whole_tape(job, config, Card())
    short, whole = folded.program, program(tape)
    assert list(short.written_out()) == list(whole.written_out())
    for settings in (AllocatorSettings(), AllocatorSettings(expandable_segments=True)):
        one, two = replay(short, settings), replay(whole, settings)
        assert (one.reserved_bytes, one.allocated_bytes, one.model_bytes) == (
            two.reserved_bytes, two.allocated_bytes, two.model_bytes,
        )  # fmt: skip
        there, here = Replays(short, settings).at_peak(one), peak(tape, settings)
        assert (there.allocated_bytes, there.phase, there.step, there.by_role) == (
            here.allocated_bytes, here.phase, here.step, here.by_role,
        )  # fmt: skip
