"""Older transformers, its Trainer and TRL on paper, against what the real packages did (tests/golden/stacks)."""

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
from tunecast.job.releases import minor
from tunecast.tape.build.eras import Era
from tunecast.tape.build.job_runs import build, fold_job
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Begin, Free, Phase, Tape

pytestmark = pytest.mark.whole

HERE = Path(__file__).parents[1] / "golden" / "stacks"


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def events_of(stack: str) -> dict[str, list[int]]:
    return json.loads(gzip.decompress((HERE / stack / "events.json.gz").read_bytes()))  # type: ignore[no-any-return]


sizes = loaded(HERE.parent / "tools" / "sizes.py")
eras = loaded(HERE / "transformers" / "era_cases.py")
trl = loaded(HERE / "trl" / "trl_cases.py")
ERAS, TRL = events_of("transformers"), events_of("trl")


def same(tape: Tape, theirs: list[int]) -> None:
    ours = sizes.told(tape.events)
    for place, (mine, their) in enumerate(zip(ours, theirs, strict=False)):
        assert mine == their, f"event {place} of {len(theirs)}: built {mine}, traced {their}"
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("name", eras.CASES)
def test_same_allocations_as_that_release(name: str) -> None:
    _, config, values = eras.case(name)
    tape = build(as_recorded("stacks/transformers", values), config, [values["seq_len"]] * 2, Card())
    assert not tape.guesses
    same(tape, ERAS[name])


@pytest.mark.parametrize("name", trl.CASES)
def test_same_allocations_as_the_trainers(name: str) -> None:
    case = trl.CASES[name]
    values = {**trl.job_of(case), "checkpoint_reentrant": False}
    lengths = [trl.LENGTH] * trl.STEPS
    same(build(as_recorded("stacks/trl", values), case["config"], lengths, Card()), TRL[name])


def built(config: dict[str, Any] = eras.CONFIGS["llama"], **values: Any) -> Tape:
    return build(job_from_dict({**eras.JOB, **values}), config, [256] * 2, Card())


def most(tape: Tape, phase: Phase) -> int:
    """Bytes held at the fullest moment of a phase of the second step."""
    held = fullest = 0
    now = (Phase.LOAD, 0)
    sizes: dict[int, int] = {}
    for event in tape.events:
        if isinstance(event, Begin):
            now = (event.phase, event.step)
        elif isinstance(event, Alloc):
            sizes[event.block] = event.nbytes
            held += event.nbytes
            if now == (phase, 1):
                fullest = max(fullest, held)
        elif isinstance(event, Free):
            held -= sizes[event.block]
    return fullest


def test_what_became_of_the_logits() -> None:
    """The forward pass of 4.48 holds at once logits in 16 and in 32 bits, those without the last token's and their
    log-softmax (2 + 4 + 4 + 4 bytes each); 4.45 none in 16 bits; 5 no second copy."""
    config = {**eras.CONFIGS["llama"], "vocab_size": 32000}
    now, old, oldest = (most(built(config, method="full", **at(v)), Phase.FORWARD) for v in (None, "4.48.1", "4.45.2"))
    logits, last = 2 * 256 * 32000, 2 * 32000
    assert old - oldest == pytest.approx(2 * logits, rel=0.01)
    assert old - now == pytest.approx(4 * (logits - last) - 4 * last, rel=0.01)


def at(version: str | None) -> dict[str, Any]:
    return {"transformers_version": version, "attention": "flash_attention_2"}


def test_which_release_is_which() -> None:
    assert not Era().reentrant
    assert Era(minor("4.48.1")) == Era(minor("4.48")) == Era((4, 48))
    assert Era(minor("4.46.0")).widens_logits("mistral") and not Era(minor("4.46.0")).widens_logits("llama")
    assert Era(minor("4.57.1")).reentrant


def test_what_nobody_read_is_said() -> None:
    phi = {"model_type": "phi", **eras.WIDTHS}
    (told,) = built(phi, method="full", transformers_version="4.48.1").guesses
    assert "phi" in told
    (older,) = built(method="full", transformers_version="4.40").guesses
    assert "4.43.0" in older
    (stack,) = built(method="full", stack="llama-factory").guesses
    assert "Trainer" in stack
    assert not built(method="full", stack="trl").guesses


def test_reentrant_unless_the_stack_says_otherwise() -> None:
    """A reentrant layer hands on gradients its frame still holds, so sums need memory of their own."""

    def kept(**values: Any) -> list[int]:
        return sizes.told(built(method="full", gradient_checkpointing=True, **values).events)

    assert kept() == kept(checkpoint_reentrant=False) != kept(checkpoint_reentrant=True)
    old = {"transformers_version": "4.57.1"}
    assert kept(**old) == kept(**old, checkpoint_reentrant=True)
    for stack, reentrant in (("trl", False), ("axolotl", True), ("llama-factory", True)):
        assert kept(stack=stack) == kept(stack=stack, checkpoint_reentrant=reentrant)


def test_trl_makes_tiles_of_logits() -> None:
    """At most 4096 tokens by 32768 words, however long the rows and small the vocabulary."""
    tape = built(method="full", stack="trl")
    tiles = [e.nbytes for e in tape.events if isinstance(e, Alloc) and e.nbytes == 2 * 255 * 32768 * 2]
    assert len(tiles) == 4  # a forward and a backward pass, two steps


def test_trl_says_what_it_refuses() -> None:
    with pytest.raises(Unsupported, match="loss"):
        built(method="full", stack="trl", loss="full")
    with pytest.raises(UsageError, match="head"):
        built(method="lora", lora={"targets": ["lm_head"]}, stack="trl")


@pytest.mark.parametrize(
    "values",
    [
        {"checkpoint_reentrant": True},
        {"transformers_version": "4.45.2", "attention": "flash_attention_2"},
        {"stack": "trl"},
        {"stack": "axolotl"},
    ],
)
def test_layers_are_folded(values: dict[str, Any]) -> None:
    """A long model's program follows from a short one's: the same as every layer written out."""
    job = job_from_dict({**eras.JOB, "method": "lora", "gradient_checkpointing": True, **values})
    config = {**eras.CONFIGS["llama"], "num_hidden_layers": 9}
    folded = fold_job(job, config, Card()).program
    requests = [size for size in folded.sizes if size >= 0]
    written = build(job, config, [256] * 2, Card(), keeps_ops=False)
    expected = [e.nbytes for e in written.events if isinstance(e, Alloc)]
    assert requests == expected


def test_a_release_is_a_number() -> None:
    with pytest.raises(UsageError, match="transformers_version: got 'banana'"):
        built(transformers_version="banana")


@pytest.mark.parametrize(("stack", "field"), [("trl", "trl_version"), ("torchtune", "stack_version")])
def test_so_is_a_stacks(stack: str, field: str) -> None:
    with pytest.raises(UsageError, match=f"{field}: got 'banana'"):
        built(stack=stack, **{field: "banana"})


def test_sdpa_had_no_window_before_4_40() -> None:
    """modeling_mistral.py of 4.38.2 and of 4.40.2."""
    assert not Era(minor("4.38.2")).windows_with_sdpa
    assert Era(minor("4.40.2")).windows_with_sdpa
    assert Era().windows_with_sdpa
