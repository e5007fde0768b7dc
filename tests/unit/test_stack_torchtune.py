"""torchtune on paper against the real package, traced once (tests/golden/stacks/torchtune/README.md)."""

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

from tunecast.errors import UsageError
from tunecast.job import job_from_dict
from tunecast.tape.build.job_runs import build, fold_job
from tunecast.tape.card import Card
from tunecast.tape.op import EmptyCache, Tape
from tunecast.tape.program import program

pytestmark = pytest.mark.whole

HERE = Path(__file__).parents[1] / "golden" / "stacks" / "torchtune"
NEAR = 0.1
"""Of the most compiled code holds: which of a few buffers are alive at once is Inductor's choice."""


def loaded(name: str, file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HERE / file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


cases = loaded("torchtune_cases", "torchtune_cases.py")
make = loaded("torchtune_make", "make.py")
most_held = loaded("sizes", "../../tools/sizes.py").most_held
EVENTS: dict[str, Any] = json.loads(gzip.decompress((HERE / "events.json.gz").read_bytes()))


def built(case: dict[str, Any], card: Card = make.A100) -> Tape:
    lengths = [case["job"]["seq_len"]] * cases.STEPS
    return build(as_recorded("stacks/torchtune", cases.job_of(case)), case["config"], lengths, card)


def same(ours: list[int], theirs: list[int]) -> None:
    for place, (mine, their) in enumerate(zip(ours, theirs, strict=False)):
        assert mine == their, f"event {place} of {len(theirs)}: built {mine}, traced {their}"
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("name", cases.CASES)
def test_same_allocations_as_the_recipe(name: str) -> None:
    """What was traced begins where loading ends."""
    ours, theirs = make.told(built(cases.CASES[name], Card()).events), EVENTS[name]
    same(ours[-len(theirs) :], theirs)


@pytest.mark.parametrize(("gpus", "times"), [(1, 0), (2, 1)])
def test_recipes_for_one_card_do_not_empty_the_cache_before_they_train(gpus: int, times: int) -> None:
    """recipes/full_finetune_single_device.py and full_finetune_distributed.py of 0.6.1, `train`."""
    case = cases.case(cases.LLAMA3)
    job = job_from_dict({**case["job"], "hardware": {"gpu": "a100-sxm-80gb", "gpus": gpus}})
    events = build(job, case["config"], [job.seq_len], make.A100).events
    assert sum(isinstance(event, EmptyCache) for event in events) == times


@pytest.mark.parametrize("name", cases.PACKED_CASES)
def test_same_allocations_with_packed_rows(name: str) -> None:
    same(make.second_step(built(cases.PACKED_CASES[name]).events), EVENTS[name])


@pytest.mark.parametrize("name", cases.COMPILED_CASES)
def test_compiled_layers_keep_what_inductor_keeps(name: str) -> None:
    ours, theirs = make.figures(built(cases.COMPILED_CASES[name]).events), EVENTS[name]
    assert ours["forward"] == theirs["forward"]
    assert ours["most"] == pytest.approx(theirs["most"], rel=NEAR)


SEVERAL: dict[str, tuple[dict[str, Any], ...]] = {
    "full": (), "recomputed": (cases.RECOMPUTED,), "lora": (cases.lora(), cases.RECOMPUTED),
    "qlora": (cases.qlora(), cases.RECOMPUTED), "packed": (cases.PACKED,),
    "in-backward": (cases.IN_BACKWARD,), "in-backward-recomputed": (cases.IN_BACKWARD, cases.RECOMPUTED),
    "in-backward-paged": (cases.IN_BACKWARD, cases.RECOMPUTED, {"optimizer": "paged_adamw_8bit"}),
    "offloaded": (cases.OFFLOADED, cases.RECOMPUTED), "compiled": (cases.COMPILED,),
    "compiled-recomputed": (cases.COMPILED, cases.PACKED, cases.RECOMPUTED, cases.IN_BACKWARD),
}  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
def test_layers_that_stand_for_others_are_like_them(name: str) -> None:
    """The run the closed form answers with, against every layer and step built."""
    case = cases.case(cases.LLAMA3 | {"num_hidden_layers": 9}, *SEVERAL[name])
    job = job_from_dict(case["job"])
    whole = build(job, case["config"], [job.seq_len] * 6, make.A100)
    assert most_held(fold_job(job, case["config"], make.A100).program) == most_held(program(whole))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"stack_version": "0.2"}, "stack_version"),
        ({"stack_version": "newest"}, "stack_version"),
        ({"stack_version": "0.1", "compile": True}, "compile"),
        (cases.lora("gate_proj"), "lora.targets"),
    ],
)
def test_what_torchtune_cannot_do_is_refused_by_name(change: dict[str, Any], field: str) -> None:
    with pytest.raises(UsageError) as refused:
        built(cases.case(cases.LLAMA2, change))
    assert refused.value.field == field
