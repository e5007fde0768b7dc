"""FSDP 1 on paper against torch's own, traced on a process group that is not there: the same allocations and frees, in
the same order, on the same streams, and the same collectives. Two layers, two steps."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from tunecast.job import job_from_dict
from tunecast.tape.build.job_runs import build
from tunecast.tape.build.sharding import accelerate
from tunecast.tape.card import Card
from tunecast.tape.op import COLLECTIVES, Alloc, Begin, Event, Free, Op, Phase

HERE = Path(__file__).parent / "sharding_cases"
SOURCE = Path(__file__).parents[2] / "src"
CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2, "head_dim": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
JOB = {
    "model": "small", "weights_dtype": "bfloat16", "autocast": None, "seq_len": 256, "micro_batch": 2,
    "optimizer": "adamw_torch", "max_grad_norm": 1.0, "gradient_checkpointing": False,
    "transformers_version": version("transformers"), "parallel": {"data": "fsdp", "fsdp_version": 1},
}  # fmt: skip
LORA = {"method": "lora", "lora": {"rank": 8, "dropout": 0.1, "targets": "attention"}}
QLORA = {**LORA, "method": "qlora", "quantization": {"format": "nf4", "prepare_kbit": False, "double_quant": True}}
AGAIN = {"gradient_checkpointing": True, "checkpoint_reentrant": False}
MIXED = {"autocast": "bfloat16"}
FLAT = {"use_orig_params": False}
CASES: dict[str, tuple[dict[str, Any], int, dict[str, Any]]] = {
    "full": ({}, 2, FLAT),
    "full_with_original_parameters": ({}, 2, {}),
    "full_on_three": ({}, 3, {}),
    "full_mixed_from_bfloat16": (MIXED, 2, {}),
    "full_recomputed": (AGAIN, 2, FLAT),
    "full_accumulating": ({"grad_accum": 2}, 2, {}),
    "full_accumulating_synced": ({"grad_accum": 3}, 2, {"parallel": {"sync_each_batch": True}}),
    "lora_mixed_synced": ({**LORA, **MIXED, **AGAIN, "grad_accum": 3}, 2, {"parallel": {"sync_each_batch": True}}),
    "full_kept_after_forward": ({}, 2, {**FLAT, "strategy": "SHARD_GRAD_OP"}),
    "full_kept_with_original_parameters": (MIXED, 2, {"strategy": "SHARD_GRAD_OP"}),
    "full_in_two_copies": (MIXED, 16, {"strategy": "HYBRID_SHARD"}),
    "lora": (LORA, 2, FLAT),
    "lora_mixed_recomputed": ({**LORA, **MIXED, **AGAIN}, 2, {}),
    "lora_not_sharded": ({**LORA, **AGAIN}, 2, {**FLAT, "strategy": "NO_SHARD"}),
    "qlora_recomputed": ({**QLORA, **AGAIN}, 2, FLAT),
    "qlora_mixed": ({**QLORA, **MIXED, **AGAIN, "checkpoint_reentrant": True}, 2, {}),
    "qlora_offloaded": ({**QLORA, **AGAIN}, 2, {**FLAT, "offload": True}),
}
LENGTHS = [256, 256]


def job_of(name: str) -> dict[str, Any]:
    values, ranks, how = CASES[name]
    nodes = 2 if how.get("strategy") == "HYBRID_SHARD" else 1
    hardware = {"gpu": "h200-sxm-141gb", "gpus": ranks // nodes, "nodes": nodes}
    job = {**JOB, **values, "hardware": hardware, "parallel": {**JOB["parallel"], **how.get("parallel", {})}}  # type: ignore[dict-item]
    if nodes > 1:
        return {**job, "parallel": {**JOB["parallel"], "data": "hsdp"}}  # type: ignore[dict-item]
    return {**job, "parallel": {**JOB["parallel"], "offload": "parameters"}} if how.get("offload") else job  # type: ignore[dict-item]


@pytest.fixture(scope="module")
def traced(
    selected: list[str], tmp_path_factory: pytest.TempPathFactory, run_programs: Callable[..., Any]
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("flat")
    asked, answer = folder / "cases.json", folder / "told.json"
    asked.write_text(json.dumps([[name, job_of(name), CONFIG, LENGTHS, CASES[name][2]] for name in selected]))
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "trace_flat.py"), str(asked), str(answer)]
    (done,) = run_programs(command, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def told(events: tuple[Event, ...]) -> list[list[Any]]:
    """As trace_all.py tells them, without the operations' names."""
    out: list[list[Any]] = []
    sizes: dict[int, tuple[int, int]] = {}
    frees: list[tuple[int, int]] = []
    place: list[Any] = [0, "load"]
    for event in events:
        if isinstance(event, Free):
            frees.append(sizes[event.block])
        elif isinstance(event, Begin):
            place = [event.step, "other" if event.phase is Phase.CLIP else event.phase.value]
        elif isinstance(event, Alloc):
            sizes[event.block] = (-event.nbytes, event.stream)
            if event.nbytes:
                out += [[*place, size, stream] for size, stream in sorted(frees) if size]
                frees.clear()
                out.append([*place, event.nbytes, event.stream])
    return out


def of_training(events: list[list[Any]]) -> list[list[Any]]:
    """From the first batch on, without what the end of loading lets go, nor what the end of the program does."""
    first = next(place for place, event in enumerate(events) if event[1] != "load" and event[2] > 0)
    last = max(place for place, event in enumerate(events) if event[2] > 0)
    return [event[:4] for event in events[first : last + 1]]


@pytest.mark.parametrize("name", CASES)
def test_same_events_as_torchs_own(traced: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert not isinstance(traced[name], str), traced[name]
    _, _, how = CASES[name]
    made = accelerate.AccelerateFsdp1.__init__

    def asked(self: Any, *args: Any) -> None:
        made(self, *args)
        strategy = how.get("strategy")
        self.options = replace(
            self.options, use_orig_params=how.get("use_orig_params", True), shards=strategy != "NO_SHARD",
            reshard_after_forward=strategy != "SHARD_GRAD_OP",
        )  # fmt: skip

    monkeypatch.setattr(accelerate.AccelerateFsdp1, "__init__", asked)
    tape = build(job_from_dict(job_of(name)), CONFIG, LENGTHS, Card(), torch_version=torch.__version__)
    ours, theirs = of_training(told(tape.events)), of_training(traced[name][0])
    phases = "grad_accum" not in CASES[name][0]  # `no_sync` begins with what else the forward pass begins with
    for place, (mine, their) in enumerate(zip(ours, theirs, strict=False)):
        around = slice(max(0, place - 3), place + 3)
        shown = f"event {place} of {len(theirs)}: built {ours[around]}, traced {theirs[around]}"
        assert mine[2:] == their[2:] and (mine == their or not phases), shown
    assert len(ours) == len(theirs)
    sent = [
        [op.name, op.read_bytes, op.written_bytes, op.shapes[1][0], op.stream]
        for op in tape.events
        if isinstance(op, Op) and op.name in COLLECTIVES
    ]
    assert sent == traced[name][1]
