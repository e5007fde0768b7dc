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
from recorded import as_recorded

from tunecast.errors import TunecastError, UsageError
from tunecast.job import job_from_dict
from tunecast.job.job import Job
from tunecast.tape.build.job_runs import build, fold_job, whole_tape
from tunecast.tape.build.sharding.layers import candidates
from tunecast.tape.build.stacks import program_of
from tunecast.tape.build.stacks.torchtitan.loop import STAGES, places
from tunecast.tape.build.stacks.torchtitan.selective import SAVED, SavePolicy
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Begin, Free, Op, Phase, Tape
from tunecast.tape.program import program

pytestmark = pytest.mark.whole

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


PARTS = ("tensor", "context", "expert", "replicate")


def job_of(given: dict[str, Any]) -> Job:
    """The fields program.py has names of its own for are a job's `hardware` and `parallel`."""
    ranks, parts = given.get("ranks", 1), {name: given[name] for name in PARTS if name in given}
    plain = {name: value for name, value in given.items() if name not in ("ranks", *PARTS)}
    if ranks > 1:
        data = "hsdp" if "replicate" in parts else "fsdp"
        plain |= {"hardware": {"gpus": ranks}, "parallel": {"data": data, **parts}}
    return as_recorded("stacks/torchtitan", plain)


def built(case: dict[str, Any], **more: Any) -> Tape:
    job = job_of(case["job"] | more)
    return build(job, case["config"], [job.seq_len] * cases.STEPS, Card())


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


def test_the_loss_is_taken_of_an_eighth_of_each_row_at_a_time() -> None:
    case = cases.CASES["fsdp-0.3"]
    rows, length, words = case["job"]["micro_batch"], case["job"]["seq_len"], case["config"]["vocab_size"]
    made = [op.shapes[0] for op in built(case).ops() if op.name == "_log_softmax"]
    assert made == [(rows * length // 8, words)] * 8 * cases.STEPS


def test_gradients_stay_for_the_graph() -> None:
    """fp32, a part of every weight: there when the second step begins, and the first step's when it began not."""
    case, older = cases.CASES["fsdp-0.3"], cases.CASES["fsdp-0.2"]
    kept = [step_begins_with(built(each), 1) - step_begins_with(built(each), 0) for each in (case, older)]
    config = case["config"]
    dim, inner, words = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    layer = 2 * dim * dim + 2 * dim * dim // 4 + 3 * dim * inner + 2 * dim
    weights = config["num_hidden_layers"] * layer + 2 * words * dim + dim
    assert kept[0] - kept[1] == pytest.approx(weights * 4 // 8, abs=1 << 16)  # workspaces of products are both's


def step_begins_with(tape: Tape, number: int) -> int:
    """Bytes held when a step's first forward pass begins."""
    sizes: dict[int, int] = {}
    for event in tape.events:
        if isinstance(event, Begin) and (event.phase, event.step) == (Phase.FORWARD, number):
            return sum(sizes.values())
        if isinstance(event, Alloc):
            sizes[event.block] = event.nbytes
        elif isinstance(event, Free):
            sizes.pop(event.block)
    raise AssertionError("no such step")


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("0.3", ("CUDA graph",)),
        ("2026.5", ("between 0.2.2 and 0.3.0",)),
        ("2026.12", ("newer than what is followed, 0.3.0", "CUDA graph")),
        ("0.3.1", ("newer than what is followed, 0.3.0", "CUDA graph")),
        ("2026.2", ()),
        ("0.2", ()),
    ],
)
def test_what_was_not_compared_is_said(version: str, told: tuple[str, ...]) -> None:
    guesses = built(cases.CASES["fsdp"], stack_version=version).guesses
    assert len(guesses) == len(told)
    assert all(part in guess for part, guess in zip(told, guesses, strict=True))


@pytest.mark.parametrize("change", [{"tensor": 2}, {"context": 2}, {"compile": True}])
def test_what_of_0_3_is_not_written_down_is_as_0_2_2_has_it(change: dict[str, Any]) -> None:
    case = cases.CASES["fsdp"]
    newer, older = (built(case, stack_version=version, **change) for version in ("0.3", "2026.2"))
    assert newer.events == older.events
    assert any("not written down; 0.2.2's code is taken" in guess for guess in newer.guesses)


def test_a_row_of_uneven_eighths_is_refused() -> None:
    with pytest.raises(UsageError, match="8 equal parts; got 252"):
        built(cases.CASES["fsdp-0.3"], seq_len=252)


def test_products_are_counted_anew_when_computed_again() -> None:
    policy = SavePolicy(SAVED)
    assert [policy("mm") for _ in range(7)] == [True, False, True, False, True, False, True]
    assert policy("max") and not policy("silu")


SEVERAL: dict[str, dict[str, Any]] = {
    "newest": {}, "0.3": {"stack_version": "0.3"}, "2025.2": {"stack_version": "2025.2"}, "compiled": {"compile": True},
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
    whole = whole_tape(job, config, Card())
    assert most_held(fold_job(job, config, Card()).program) == most_held(program(whole))
    if job.parallel.pipeline == 1:  # its stages have been cut
        every = build(job, config, [job.seq_len] * 6, Card())
        assert most_held(program(every)) == most_held(program(whole))


SEVERAL_EXPERTS: dict[str, dict[str, Any]] = {
    "whole": {}, "4": {"expert": 4}, "8": {"expert": 8}, "hsdp": {"data": "hsdp", "expert": 4},
    "own": {"data": "hsdp", "expert": 8},
}  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL_EXPERTS)
@pytest.mark.parametrize(
    ("model", "recompute"), [("MIXTURE", "selective"), ("MIXTURE", "all"), ("LATENT", "selective")]
)
def test_few_layers_with_experts_stand_for_all(name: str, model: str, recompute: str) -> None:
    config = getattr(cases, model) | {"num_hidden_layers": 12}
    given = {"model": "small", "stack": "torchtitan", "seq_len": 512, "micro_batch": 1, "recompute": recompute}
    parallel = {"data": "fsdp"} | SEVERAL_EXPERTS[name]
    nodes = 2 if parallel["data"] == "hsdp" else 1
    job = job_from_dict(given | {"parallel": parallel, "hardware": {"gpus": 8, "nodes": nodes}})
    every = build(job, config, [job.seq_len] * 6, Card())
    assert most_held(fold_job(job, config, Card()).program) == most_held(program(every))


def test_rows_change_ranks_twice_a_pass() -> None:
    """To their experts and back, and their gradients; the numbers of rows once. Each sends what it has."""
    tape = built(cases.CASES["experts-4"])
    config, job = cases.MIXTURE, cases.JOB
    rows = job["micro_batch"] * job["seq_len"] * config["num_experts_per_tok"]
    sent = [op for op in tape.ops() if op.name == "all_to_all" and op.group == "expert"]
    numbers = [op for op in sent if op.shapes == ((config["num_experts"],), (4,))]
    assert {op.shapes for op in sent} == {((config["num_experts"],), (4,)), ((rows * config["hidden_size"],), (4,))}
    assert len(numbers) == cases.STEPS * config["num_hidden_layers"]
    assert len(sent) == 5 * len(numbers)


def test_ranks_with_the_same_experts_share_them() -> None:
    tape = built(cases.CASES["experts-4"])
    config = cases.MIXTURE
    experts = 3 * config["num_experts"] * config["hidden_size"] * config["moe_intermediate_size"]
    gathered = {op.shapes for op in tape.ops() if op.name == "all_gather" and op.module.endswith("moe.experts")}
    assert gathered == {((experts // 8,), (2,))}
    alone = built(cases.CASES["experts-8"])
    assert not [op for op in alone.ops() if op.name == "all_gather" and op.module.endswith("moe.experts")]


@pytest.mark.parametrize("name", ["experts-fsdp", "experts-4", "experts-8"])
def test_experts_come_in_parts(name: str) -> None:
    """Every rank has an eighth of all weights, however experts are spread, and its layers' counts."""
    config = cases.MIXTURE
    dim, count, words = config["hidden_size"], config["num_experts"], config["vocab_size"]
    narrow = config["head_dim"] * config["num_key_value_heads"]
    attention = 2 * dim * dim + 2 * dim * narrow + 2 * config["head_dim"]
    layer = attention + 3 * count * dim * config["moe_intermediate_size"] + count * dim + 2 * dim
    total = config["num_hidden_layers"] * layer + 2 * words * dim + dim
    buffers = config["num_hidden_layers"] * 2 * count + cases.JOB["seq_len"] * 2 * config["head_dim"]
    loading = built(cases.CASES[name]).steps()[-1]
    assert sum(event.nbytes for event in loading if hasattr(event, "nbytes")) == total * 4 // 8 + buffers * 4


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"expert": 16}, "parallel.expert"),
        ({"expert": 3}, "parallel.expert"),
        ({"expert": 2, "tensor": 2}, "parallel.tensor"),
        ({"compile": True}, "compile"),
        ({"stack_version": "0.2"}, "stack_version"),
    ],
)
def test_experts_that_are_not_written_down_are_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(TunecastError) as refused:
        built(cases.CASES["experts-fsdp"], **change)
    assert refused.value.field == field


def test_a_dense_model_has_no_experts_to_spread() -> None:
    with pytest.raises(UsageError, match="without experts"):
        built(cases.CASES["fsdp"], expert=2)


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


@pytest.mark.parametrize(("words", "fullest"), [(2048, 0), (65536, 1)])
def test_every_rank_of_an_interleaved_pipeline_is_asked(words: int, fullest: int) -> None:
    """The first has more under way, the last the logits. All layers of each, built, against few that stand for them."""
    config = cases.LARGER | {"num_hidden_layers": 16, "vocab_size": words}
    given = {"model": "small", "stack": "torchtitan", "seq_len": 512, "micro_batch": 1, "grad_accum": 4}
    parallel = {"data": "fsdp", "pipeline": 2, "virtual_stages": 2}
    job = job_from_dict(given | {"parallel": parallel, "hardware": {"gpus": 4}})
    ranks = candidates(job, config, program_of(job).model)
    held = [most_held(program(build(job, rank, [job.seq_len] * 6, Card()))) for rank in ranks]
    assert held.index(max(held)) == fullest
    assert most_held(fold_job(job, config, Card()).program) == max(held)


def test_the_last_rank_of_an_interleaved_pipeline_has_one_loss_a_micro_batch() -> None:
    """Its last stage has the head; of its others every result is sent on, and its gradient comes back."""
    given = {"model": "small", "stack": "torchtitan", "seq_len": 256, "micro_batch": 1, "grad_accum": 4}
    parallel = {"data": "fsdp", "pipeline": 2, "virtual_stages": 2}
    job = job_from_dict(given | {"parallel": parallel, "hardware": {"gpus": 4}})
    last = candidates(job, cases.LLAMA | {"num_hidden_layers": 8}, program_of(job).model)[1]
    names = [op.name for op in build(job, last, [256], Card()).ops()]
    assert names.count("nll_loss_forward") == 4
    assert names.count("send") == names.count("recv") == 3 * 4
    assert names.index("nll_loss_forward") > names.index("send")
    before = names[: names.index("nll_loss_backward")]
    assert (before.count("send"), before.count("nll_loss_forward")) == (2, 1)


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


@pytest.mark.parametrize(("torch", "guesses"), [("2.14.0", ()), ("2.15.0", (STAGES,))])
def test_the_stages_of_torch_2_15_are_a_guess(torch: str, guesses: tuple[str, ...]) -> None:
    given = {"model": "small", "stack": "torchtitan", "seq_len": 256, "grad_accum": 2, "torch_version": torch}
    job = job_from_dict(given | {"parallel": {"data": "fsdp", "pipeline": 2}, "hardware": {"gpus": 4}})
    assert build(job, cases.LLAMA, [256], Card()).guesses == guesses


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
