"""Compiled training steps in the closed form against the real compiler's, which the tracer runs.

Two or three layers of a small Llama, two steps. What the forward pass leaves behind is what the partitioner saved: the
same, but for tables of positions. The most the backward pass holds depends on kernels and their order as well.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")
pytest.importorskip("triton", reason="Inductor writes no kernels without Triton")

from installed import as_installed

from tunecast.tape.build.job_runs import build
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Begin, Event, Free, Phase

SOURCE = Path(__file__).parents[2] / "src"
TABLES_BYTES = 32 << 10
CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 2, "head_dim": 32,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 2048, "max_position_embeddings": 2048,
}  # fmt: skip
JOB = {
    "model": "small", "weights_dtype": "bfloat16", "autocast": None, "seq_len": 256, "micro_batch": 2, "compile": True,
    "optimizer": "adamw_torch", "max_grad_norm": 1.0, "gradient_checkpointing": False, "method": "full",
}  # fmt: skip
LORA = {"method": "lora", "lora": {"rank": 8, "targets": "all-linear", "adapter_dtype": "float32"}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "full": (JOB, CONFIG | {"tie_word_embeddings": True}),
    "lora": (JOB | LORA, CONFIG),
    "lora-recomputed": (JOB | LORA | {"gradient_checkpointing": True, "autocast": "bfloat16"}, CONFIG),
    "recomputed": (JOB | {"gradient_checkpointing": True}, CONFIG | {"num_hidden_layers": 3}),
}

TRACE = '''
import gc, json, os, sys
import torch
from tunecast.job import job_from_dict
from tunecast.tape.card import Card
from tunecast.tape.file import write_tape
from tunecast.tape.trace import recipe
from tunecast.tape.trace.ending import LEAVE
from tunecast.tape.trace.session import tracing
from pathlib import Path

folder = Path(sys.argv[1])
with tracing(Card()) as recorder:
    for name, (job, config) in json.loads((folder / "cases.json").read_text()).items():
        gc.collect(); recorder.forget_all(); torch._dynamo.reset()
        recipe.train(job_from_dict(job), config, [job["seq_len"]] * 2, recorder)
        write_tape(recorder.tape({}), folder / f"{name}.gz")
LEAVE(0)
'''  # fmt: skip


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from tunecast.tape.file import read_tape

    folder = tmp_path_factory.mktemp("compiled")
    (folder / "cases.json").write_text(json.dumps(CASES))
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", TRACE, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: read_tape(folder / f"{name}.gz") for name in CASES}


def last_step(events: tuple[Event, ...]) -> dict[str, int]:
    """What is alive at the end of the last forward pass, and the most in it and in the backward pass."""
    sizes: dict[int, int] = {}
    live, phase = 0, None
    found = {"saved": 0, "forward": 0, "backward": 0}
    for event in events:
        if isinstance(event, Begin):
            phase = event.phase if event.step == 1 else None
            if phase is Phase.BACKWARD:
                found["saved"] = live
        elif isinstance(event, Alloc):
            sizes[event.block] = event.nbytes
            live += event.nbytes
            if phase in (Phase.FORWARD, Phase.BACKWARD):
                found[phase.value] = max(found[phase.value], live)
        elif isinstance(event, Free):
            live -= sizes[event.block]
    return found


@pytest.mark.parametrize("name", CASES)
def test_as_the_real_compiler(traced: dict[str, Any], name: str) -> None:

    values, config = CASES[name]
    assert not traced[name].guesses, "the tracer followed the compiler"
    theirs = last_step(traced[name].events)
    tape = build(as_installed(values), config, [values["seq_len"]] * 2, Card())
    ours = last_step(tape.events)
    assert abs(ours["saved"] - theirs["saved"]) <= TABLES_BYTES
    assert ours["forward"] == pytest.approx(theirs["forward"], rel=0.01)
    assert ours["backward"] == pytest.approx(theirs["backward"], rel=0.015)
