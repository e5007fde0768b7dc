"""DeepSpeed's Ulysses on paper, against its own code traced once (tests/golden/stacks/ulysses/README.md)."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tunecast.errors import Unsupported, UsageError
from tunecast.hardware.catalog import known_gpu
from tunecast.hardware.cluster import cluster_of
from tunecast.job import job_from_dict
from tunecast.job.job import Job
from tunecast.prediction.memory.nccl import nccl_bytes
from tunecast.prediction.modelled import require_modelled
from tunecast.prediction.price.host import DEFAULT_HOST
from tunecast.prediction.time.runtime import step_time
from tunecast.tape.build.job_runs import build
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.sharding.scheme import Scheme
from tunecast.tape.build.sharding.sequence import Ulysses
from tunecast.tape.build.stacks import transformers
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Op, Role, Tape
from tunecast.tape.timed import timed_steps
from tunecast.units import MIB

HERE = Path(__file__).parents[1] / "golden" / "stacks" / "ulysses"


def loaded(name: str, file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HERE / file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


cases = loaded("ulysses_cases", "ulysses_cases.py")
make = loaded("ulysses_make", "make.py")
EVENTS = json.loads(gzip.decompress((HERE / "events.json.gz").read_bytes()))


class WithoutZero(Scheme):
    """Rows are split, weights are not."""

    def __init__(self, job: Job, machine: Machine) -> None:
        super().__init__(job, machine)
        self.sequence = Ulysses(machine, job.parallel.context, job.micro_batch)

    def wrap(self, model: Any) -> None:
        self.sequence.wrap(model)


@pytest.mark.parametrize("name", cases.CASES)
def test_same_allocations_and_exchanges_as_deepspeed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers, "scheme_of", WithoutZero)
    values, config = cases.CASES[name]
    tape = build(job_from_dict(values), config, cases.LENGTHS, make.CARD, torch_version="2.13.0")
    ours, theirs = make.told(tape.events), EVENTS[name]["sizes"]
    for place, (mine, their) in enumerate(zip(ours, theirs, strict=False)):
        assert mine == their, f"event {place} of {len(theirs)}: built {mine}, traced {their}"
    assert len(ours) == len(theirs)
    assert make.exchanged(tape.events) == EVENTS[name]["exchanged"]


# ------------------------------------------------------------------------------------------------------- with ZeRO

BATCH, LENGTH, RANKS, GPUS = 2, 256, 4, 8
HIDDEN, HEADS, KEY_HEADS, WIDTH, WORDS = 256, 8, 2, 32, 2048


def job_of(stack: str = "transformers", data: str = "zero3", ranks: int = RANKS, **more: Any) -> Job:
    values, _ = cases.over(ranks, gpus=GPUS)
    spread = {**values["parallel"], "data": data, "context_kind": "ulysses" if ranks > 1 else "ring"}
    return job_from_dict({**values, "stack": stack, "parallel": spread, **more})


def tape_of(config: dict[str, Any] | None = None, **more: Any) -> Tape:
    return build(job_of(**more), {**cases.LLAMA, **(config or {})}, [LENGTH, LENGTH], Card())


def of_step(tape: Tape, name: str, group: str) -> list[Op]:
    return [e for e in tape.steps()[1] if isinstance(e, Op) and e.name == name and e.group == group]


@pytest.mark.parametrize(("recomputed", "times"), [(False, 2), (True, 3)])
def test_heads_are_exchanged_for_tokens(recomputed: bool, times: int) -> None:
    """Of each of 2 layers, in bfloat16: queries, results, and keys and values, each of 2 heads repeated for 4 ranks; in
    the forward pass, its repetition and the backward pass."""
    tape = tape_of(gradient_checkpointing=recomputed)
    queries = 2 * BATCH * LENGTH // RANKS * HEADS * WIDTH
    keys = 2 * BATCH * LENGTH // RANKS * RANKS * WIDTH
    sent = [op.read_bytes for op in of_step(tape, "all_to_all", "sequence")]
    assert sum(sent) == 2 * times * (2 * queries + 2 * keys)
    assert {op.shapes[1] for op in of_step(tape, "all_to_all", "sequence")} == {(RANKS,)}


def test_outside_attention_a_rank_has_its_tokens_alone() -> None:
    """Logits: 2 rows of 64 tokens; attention sees 256 tokens of 2 heads."""
    steps = [e for e in tape_of().steps()[1] if isinstance(e, (Op, Alloc))]
    assert any(isinstance(e, Alloc) and e.nbytes == 2 * BATCH * LENGTH // RANKS * WORDS for e in steps)
    assert not any(isinstance(e, Alloc) and e.nbytes == 2 * BATCH * LENGTH * WORDS for e in steps)
    attention = [e for e in steps if isinstance(e, Op) and "attention" in e.name and not e.name.endswith("backward")]
    assert {op.shapes[0] for op in attention} == {(BATCH, HEADS // RANKS, LENGTH, WIDTH)}


@pytest.mark.parametrize("data", ["zero1", "zero2", "zero3"])
def test_zero_cuts_over_the_ranks_of_a_row_too(data: str) -> None:
    """Masters and two moments of 4 bytes, an eighth of each weight a card."""
    held = {e.block: e for e in tape_of(data=data).events if isinstance(e, Alloc) and e.role is Role.OPTIMIZER}
    layer = [HIDDEN * HIDDEN] * 2 + [HIDDEN * KEY_HEADS * WIDTH] * 2 + [HIDDEN * 736] * 3 + [HIDDEN] * 2
    elements = 2 * WORDS * HIDDEN + 2 * sum(layer) + HIDDEN
    assert sum(e.nbytes for e in held.values()) >= 12 * elements // GPUS
    assert sum(e.nbytes for e in held.values()) < 12 * elements // GPUS + 8 * 512


def test_trl_weighs_the_fused_loss_of_every_part() -> None:
    """Each rank's loss and its number of labels go to all; gradients of the losses come back, 4 bytes each."""
    tape = tape_of(stack="trl")
    assert [op.read_bytes for op in of_step(tape, "all_gather", "sequence")][-2:] == [4, 8]
    assert [op.read_bytes for op in of_step(tape, "reduce_scatter", "sequence")] == [4 * RANKS]


def test_its_exchanges_take_time_and_rows_are_shared() -> None:
    one, split = job_of(ranks=1, seq_len=8192), job_of(ranks=8, seq_len=8192)
    gpu = known_gpu("h100-sxm-80gb")
    alone, together = (
        step_time(timed_steps(job, cases.LLAMA, Card())[8192], gpu, DEFAULT_HOST, cluster_of(job, gpu))
        for job in (one, split)
    )
    assert together.flops < alone.flops
    assert together.communication_s > alone.communication_s


def test_ranks_of_a_row_hold_buffers_for_all_of_them() -> None:
    gpu = known_gpu("h100-sxm-80gb")
    ring = job_of()
    ring = job_from_dict({**ring.to_dict(), "parallel": {**ring.to_dict()["parallel"], "context_kind": "ring"}})
    both = [nccl_bytes(cluster_of(job, gpu)).nbytes for job in (job_of(), ring)]
    # three peers in place of two neighbours, 32 channels of 12 MiB each, and what peers share
    assert both[0] - both[1] == 32 * 12 * MIB + 512 * MIB


# -------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"stack": "axolotl"}, "known of transformers, trl"),
        ({"data": "ddp"}, "allowed with parallel.data zero1, zero2, zero3"),
        ({"data": "fsdp"}, "allowed with parallel.data zero1, zero2, zero3"),
        ({"attention": "eager"}, "attention eager, which DeepSpeed refuses"),
        ({"transformers_version": "4.57.1"}, "from 5.0 on"),
    ],
)
def test_refuses_by_name(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told) as refusal:
        require_modelled(job_of(**changes))
    assert "parallel.context_kind" in refusal.value.message


def test_a_ring_is_not_transformers_but_ulysses_is() -> None:
    ring = job_from_dict({"model": "small", "hardware": {"gpus": 2}, "parallel": {"context": 2, "data": "zero3"}})
    with pytest.raises(UsageError, match="with transformers as context_kind ulysses"):
        require_modelled(ring)
    require_modelled(job_of())


def test_heads_that_do_not_divide_are_told_with_those_that_do() -> None:
    with pytest.raises(UsageError, match=r"splits 6 attention and 3 key heads evenly; allowed: 1, 3, 6; nearest: 3"):
        tape_of({"num_attention_heads": 6, "num_key_value_heads": 3})


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gpt2", "n_embd": 256, "n_layer": 2, "n_head": 8, "n_positions": 512},
        {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2, "bias": False},
    ],
    ids=["positions of its own", "attention of its own"],
)
def test_a_model_deepspeed_does_not_reach(config: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match="lets others replace"):
        tape_of(config)
