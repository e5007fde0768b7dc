"""torchtitan on paper against the real package, traced once (tests/golden/stacks/torchtitan/README.md)."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tunecast.errors import UsageError
from tunecast.job import job_from_dict
from tunecast.job.job import Job
from tunecast.tape.build.run import build
from tunecast.tape.build.short import build_job, fold_job
from tunecast.tape.build.stacks.torchtitan.pipeline import places
from tunecast.tape.build.stacks.torchtitan.selective import SAVED, Policy
from tunecast.tape.card import Card
from tunecast.tape.op import Op, Phase, Tape
from tunecast.tape.program import program

GOLDEN = Path(__file__).parents[1] / "golden"
HERE = GOLDEN / "stacks" / "torchtitan"
ALONE = 0.05
"""Compiled under torch's own autocast a tensor more is kept a layer than Inductor keeps."""
NEAR = 0.06
"""Of the most compiled code holds: which of a few buffers are alive at once is Inductor's choice."""


def loaded(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


cases = loaded("torchtitan_cases", HERE / "torchtitan_cases.py")
make = loaded("torchtitan_make", HERE / "make.py")
most_held = loaded("sizes", HERE.parents[1] / "tools" / "sizes.py").most_held
EVENTS: dict[str, Any] = json.loads(gzip.decompress((HERE / "events.json.gz").read_bytes()))


def job_of(given: dict[str, Any]) -> Job:
    """The fields program.py has names of its own for are a job's `hardware` and `parallel`."""
    ranks, parts = given.get("ranks", 1), {name: given[name] for name in ("tensor", "context") if name in given}
    plain = {name: value for name, value in given.items() if name not in ("ranks", "tensor", "context")}
    if ranks > 1:
        plain |= {"hardware": {"gpus": ranks}, "parallel": {"data": "fsdp", **parts}}
    return job_from_dict(plain)


def built(case: dict[str, Any], **more: Any) -> Tape:
    job = job_of(case["job"] | more)
    return build(job, case["config"], [job.seq_len] * cases.STEPS, Card(), torch_version="2.13.0")


@pytest.mark.parametrize("name", cases.CASES)
def test_same_allocations_as_torchtitan(name: str) -> None:
    case = cases.CASES[name]
    ours, theirs = make.told(built(case).events, make.counted(case)), EVENTS[name]
    for at, (mine, their) in enumerate(zip(ours, theirs, strict=False)):
        assert mine == their, f"event {at} of {len(theirs)}: built {mine}, traced {their}"
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("name", cases.COMPILED_CASES)
def test_compiled_layers_keep_what_inductor_keeps(name: str) -> None:
    case = cases.COMPILED_CASES[name]
    ours, theirs = make.figures(built(case).events), EVENTS[name]
    assert ours["forward"] == pytest.approx(theirs["forward"], rel=0 if "ranks" in case["job"] else ALONE)
    assert ours["most"] == pytest.approx(theirs["most"], rel=NEAR)


def test_selective_checkpointing_keeps_every_second_product() -> None:
    """q, v, gate and down of the seven; attention's result; the layer's input. On paper, of one layer more."""
    case = cases.CASES["fsdp-selective"]
    three = make.figures(built(case).events)["forward"]
    four = make.figures(built(case | {"config": case["config"] | {"num_hidden_layers": 4}}).events)["forward"]
    config, tokens = case["config"], case["job"]["micro_batch"] * case["job"]["seq_len"]
    dim, heads = config["hidden_size"], config["num_attention_heads"]
    narrow = dim // heads * config["num_key_value_heads"]
    kept = 2 * tokens * (dim + dim + narrow + config["intermediate_size"] + dim + dim)
    seeds = 16 + 8
    assert four - three == kept + 4 * tokens * heads + seeds


def test_products_are_counted_anew_when_computed_again() -> None:
    policy = Policy(SAVED)
    assert [policy("mm") for _ in range(7)] == [True, False, True, False, True, False, True]
    assert policy("max") and not policy("silu")


SEVERAL: dict[str, dict[str, Any]] = {
    "newest": {}, "2025.2": {"stack_version": "2025.2"}, "compiled": {"compile": True},
    "none": {"gradient_checkpointing": False}, "tensor": {"parallel": {"data": "fsdp", "tensor": 2}},
    "context": {"parallel": {"data": "fsdp", "context": 2}}, "float8": {"matmul_dtype": "float8", "compile": True},
    "kept": {"parallel": {"data": "fsdp", "reshard_after_forward": False}},
    "pipeline": {"parallel": {"data": "fsdp", "pipeline": 2}, "grad_accum": 4},
}  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
def test_few_layers_stand_for_all(name: str) -> None:
    config = cases.LARGER | {"num_hidden_layers": 12}
    given = {"model": "small", "stack": "torchtitan", "seq_len": 512, "micro_batch": 1, "hardware": {"gpus": 8}}
    job = job_from_dict(given | {"parallel": {"data": "fsdp"}} | SEVERAL[name])
    whole = build_job(job, config, Card())
    assert most_held(fold_job(job, config, Card()).program) == most_held(program(whole))
    if job.parallel.pipeline == 1:  # its stages have been cut
        every = build(job, config, [job.seq_len] * 6, Card())
        assert most_held(program(every)) == most_held(program(whole))


def forwards_ahead(stages: int, micro_batches: int, virtual: int = 1) -> int:
    """How often the first stage's embedding or a chunk runs before the first gradient comes back."""
    parallel = {"data": "fsdp", "pipeline": stages, "virtual_stages": virtual}
    given = {"model": "small", "stack": "torchtitan", "seq_len": 256, "micro_batch": 1, "grad_accum": micro_batches}
    job = job_from_dict(given | {"parallel": parallel, "hardware": {"gpus": 2 * stages}})
    tape = build(job, cases.LLAMA | {"num_hidden_layers": 2 * virtual}, [256], Card())
    sent = 0
    for event in tape.events:
        if isinstance(event, Op) and event.name == "send":
            sent += 1
        if isinstance(event, Op) and event.name.endswith("_backward"):
            return sent
    raise AssertionError("no backward pass")


def test_as_many_micro_batches_are_under_way_as_there_are_stages() -> None:
    assert forwards_ahead(stages=4, micro_batches=8) == 4
    assert forwards_ahead(stages=4, micro_batches=2) == 2
    assert forwards_ahead(stages=2, micro_batches=8, virtual=2) == 2 + 2 + 1


def test_interleaved_parts_take_turns_by_ranks() -> None:
    assert places(4, ranks=2, chunks=2) == [
        (0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3),
    ]  # fmt: skip
    assert places(1, ranks=8, chunks=2) == [(0, 0), (1, 0)]


def test_a_ring_gathers_keys_and_values_once_a_layer() -> None:
    job = job_of(cases.JOB | {"ranks": 8})
    job = job_from_dict(job.to_dict() | {"parallel": {"data": "fsdp", "context": 4}})
    tape = build(job, cases.LLAMA, [job.seq_len], Card())
    ops = [op for op in tape.ops() if op.name == "all_gather" and op.group == "context"]
    width = cases.LLAMA["hidden_size"] // cases.LLAMA["num_attention_heads"] * cases.LLAMA["num_key_value_heads"]
    keys_and_values = 2 * job.micro_batch * (job.seq_len // 4) * width
    assert len(ops) == 2 * cases.LLAMA["num_hidden_layers"]
    assert {op.shapes for op in ops} == {((keys_and_values,), (4,))}


def test_the_first_backward_step_of_a_pipeline_reduces_nothing() -> None:
    given = {"model": "small", "stack": "torchtitan", "seq_len": 256, "micro_batch": 1, "grad_accum": 4}
    job = job_from_dict(given | {"parallel": {"data": "fsdp", "pipeline": 2}, "hardware": {"gpus": 4}})
    tape = build(job, cases.LLAMA, [256], Card())
    names = [op.name for op in tape.ops()]
    assert names.count("reduce_scatter") == cases.LLAMA["num_hidden_layers"] + 1
    assert names.index("reduce_scatter") > max(at for at, name in enumerate(names) if name == "recv")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"stack_version": "2023.12"}, "stack_version"),
        ({"autocast": "float16"}, "weights_dtype"),
        ({"ranks": 8, "tensor": 8}, "parallel.tensor"),
    ],
)
def test_what_torchtitan_does_not_do_is_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(UsageError) as refused:
        built(cases.CASES["fsdp"], **change)
    assert refused.value.field == field


def test_weights_come_in_parts() -> None:
    tape = built(cases.CASES["fsdp"])
    config = cases.LLAMA
    dim, inner, words = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    layer = 2 * dim * dim + 2 * dim * dim // 4 + 3 * dim * inner + 2 * dim
    total = config["num_hidden_layers"] * layer + 2 * words * dim + dim
    positions = cases.JOB["seq_len"] * (dim // config["num_attention_heads"] // 2) * 8
    loading = tape.steps()[-1]
    held = sum(event.nbytes for event in loading if hasattr(event, "nbytes"))
    assert held == total * 4 // 8 + positions
    assert all(getattr(event, "phase", Phase.LOAD) is Phase.LOAD for event in loading)
