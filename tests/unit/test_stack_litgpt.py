"""litgpt on paper against the real packages, traced once (tests/golden/stacks/litgpt/README.md)."""

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

from tunecast.errors import Unsupported, UsageError
from tunecast.job import job_from_dict
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.job_runs import build
from tunecast.tape.build.stacks.litgpt import ADAPTER_DTYPE, UNCLIPPED, lora_of
from tunecast.tape.build.stacks.litgpt.config import NEWEST, SINCE, lit_config, release_of
from tunecast.tape.op import Tape

pytestmark = pytest.mark.whole

HERE = Path(__file__).parents[1] / "golden" / "stacks" / "litgpt"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name.removeprefix('of_litgpt_')}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


cases = loaded("litgpt_cases")
make = loaded("of_litgpt_make")
EVENTS: dict[str, list[int]] = json.loads(gzip.decompress((HERE / "events.json.gz").read_bytes()))
TABLES = 0.005
"""Of the bytes loaded: the tables of 16 and 256 values beside quantised weights are not counted as each release makes
them."""


def test_every_case_is_traced() -> None:
    assert list(EVENTS) == list(cases.CASES)


@pytest.mark.parametrize("name", cases.CASES)
def test_same_allocations_as_the_real_packages(name: str) -> None:
    case = cases.CASES[name]
    tape = build(as_recorded("stacks/litgpt", case.job()), case.hub(), case.lengths, make.CARD)
    (held, *ours), (really_held, *theirs) = make.told(tape.events), EVENTS[name]
    for place, (mine, their) in enumerate(zip(ours, theirs, strict=False)):
        assert mine == their, f"event {place} of {len(theirs)}: built {mine}, traced {their}"
    assert len(ours) == len(theirs)
    assert held == pytest.approx(really_held, rel=TABLES if case.method == "qlora" else 0)


# ------------------------------------------------------------------------------------------------------ on paper


def built(case: Any, **changes: object) -> Tape:
    return build(job_from_dict(case.job() | changes), case.hub(), case.lengths, make.CARD)


@pytest.mark.parametrize(
    ("version", "since"),
    [("0", (0,)), ("0.3.1", (0,)), ("0.4", (0,)), ("0.4.6", (0, 4, 6)), ("0.4.13", (0, 4, 13)), ("0.5.3", (0, 5, 0))],
)
def test_a_release_is_as_the_last_change_before_it(version: str, since: tuple[int, ...]) -> None:
    assert release_of(version) == SINCE[since]


def test_no_release_is_the_newest() -> None:
    assert release_of(None) is NEWEST
    assert release_of("0.5.13") is NEWEST


@pytest.mark.parametrize("version", ["main", "1.0", "0.4.dev"])
def test_a_release_nobody_has_read(version: str) -> None:
    with pytest.raises((Unsupported, UsageError), match="stack_version"):
        built(cases.Case("0.3.1"), stack_version=version)


def test_embedding_and_head_are_never_one() -> None:
    """2048 x 256 in 2 bytes, twice; beside them two layers, the last norm, cosines and sines of 200 x 32 in fp32."""
    block = 256 * (8 + 2 * 2) * 32 + 256 * 256 + 3 * 256 * 704 + 2 * 256
    held = 2 * (2 * 2048 * 256 + 2 * block + 256) + 2 * 200 * 32 * 4
    batch = 2 * 2 * 200 * 8
    tape = built(cases.Case("0.3.1", method="full"))
    assert make.told(tape.events)[0] == held + batch


@pytest.mark.parametrize(
    ("targets", "kinds"),
    [
        (None, {"query", "value"}),
        ("attention", {"query", "key", "value", "projection"}),
        ("all-linear", {"query", "key", "value", "projection", "mlp"}),
        (["q_proj", "lm_head"], {"query", "head"}),
        (["qkv_proj", "gate_up_proj", "down_proj"], {"query", "key", "value", "mlp"}),
    ],
)
def test_targets(targets: Any, kinds: set[str]) -> None:
    given = {"model": "small", "stack": "litgpt", "method": "lora", "lora": {"targets": targets}}
    lora = lora_of(fill_in(job_from_dict(given), {}))
    assert {kind for kind in cases.EVERY if getattr(lora, kind)} == kinds


@pytest.mark.parametrize(
    ("targets", "said"), [(["gate_proj"], "layers together, got only gate_proj"), (["w1"], "adapts no w1")]
)
def test_targets_litgpt_does_not_have(targets: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        lora_of(job_from_dict({"model": "small", "method": "lora", "lora": {"targets": targets}}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lora": {"dora": True}}, "lora.dora: litgpt has no"),
        ({"loss": "full"}, "loss"),
        ({"compile": True}, "compile"),
    ],
)
def test_what_litgpt_does_not_do_on_one_card(changes: dict[str, object], said: str) -> None:
    with pytest.raises((Unsupported, UsageError), match=said):
        built(cases.Case("0.5.13"), **changes)


def test_quantised_models_train_in_one_precision_and_with_adamw() -> None:
    case = cases.Case("0.5.13", method="qlora")
    assert built(case, autocast="bfloat16").events == built(case).events
    with pytest.raises(UsageError, match="AdamW only"):
        built(case, optimizer="sgd")


def test_what_is_taken_for_something_else_is_said() -> None:
    tape = built(cases.Case("0.5.13"), max_grad_norm=1.0, lora={"adapter_dtype": "float32"})
    assert (tape.guesses, tape.assumptions) == ((), (UNCLIPPED, ADAPTER_DTYPE))


def test_architectures_litgpt_has_and_others() -> None:
    config = lit_config({**cases.HUB, "model_type": "phi3", "max_position_embeddings": 4096})
    assert config is not None and config.window == 2048
    assert lit_config({**cases.HUB, "model_type": "mpt"}) is None
    with pytest.raises(Unsupported, match="'mpt' is not written down"):
        build(job_from_dict(cases.Case("0.3.1").job()), {**cases.HUB, "model_type": "mpt"}, [8], make.CARD)
