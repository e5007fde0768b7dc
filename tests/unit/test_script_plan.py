"""A plan of a script: a tape on paper, traced by nobody, on the offers of a day."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tunecast
from tunecast.cli import main as cli
from tunecast.door import trace
from tunecast.errors import UsageError
from tunecast.hardware.catalog import gpu
from tunecast.tape.card import Card
from tunecast.tape.cards import STREAMS_PER_CARD
from tunecast.tape.op import Alloc, Begin, Event, Op, Phase, Role, Tape
from tunecast.tape.trace.facts import ScriptFacts
from tunecast.tape.trace.request import Answer
from tunecast.units import GB, GIB

DAY = "2026-11-15"


def tape(gibibytes: float, dtype: str) -> Tape:
    """Holds so much, and reads 20 GB in each phase of a step."""
    op = Op("aten.add", read_bytes=20 * GB, dtype=dtype, by_engine=True, source="train.py:3")
    steps: list[Event] = []
    for number in range(3):
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
            steps += [Begin(phase, number), op]
    return Tape((Alloc(0, int(gibibytes * GIB), Role.WEIGHTS), *steps), versions={"torch": "2.11.0"})


class Tracer:
    """Stands for the tracer: what it was asked, and what the script needs."""

    def __init__(self) -> None:
        self.cards: list[Card] = []
        self.gibibytes, self.dtype = 20.0, "float32"
        self.steps = 3
        self.error: str | None = None
        self.facts = ScriptFacts(total_steps=100_000, total_steps_from="a trainer")

    def __call__(self, script: str, args: Any, card: Card, **how: Any) -> tuple[Tape, Answer]:
        self.cards.append(card)
        return tape(self.gibibytes, self.dtype), Answer(steps=self.steps, facts=self.facts, error=self.error)


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tracer:
    made = Tracer()
    monkeypatch.setattr(trace, "trace_script", made)
    monkeypatch.setattr(trace, "tracing_python", lambda given: given or "ours")
    monkeypatch.setattr(trace, "has_torch", lambda python: True)
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("raise SystemExit('never run here')\n")
    return made


def test_picks_are_priced_billed_and_traced_on_their_own_cards(tracer: Tracer) -> None:
    plan = tunecast.plan(["train.py", "--x"], as_of=DAY)
    best = plan.best
    assert best is not None and best.fits_surely and best.cards == 1
    traced = {(card.capability, card.sm_count) for card in tracer.cards}
    for choice in plan.pareto:
        card = gpu(choice.fleet.gpu.name)
        assert (tuple(card.compute_capability), card.sm_count) in traced, choice.hardware
        assert choice.total_usd == pytest.approx(sum(line.usd for line in choice.cost.lines))
        assert choice.phases_s["training"] == pytest.approx(100_000 * choice.step_s)
    cheapest, fastest = plan.picks["cheapest"], plan.picks["fastest"]
    assert cheapest.total_usd <= fastest.total_usd and fastest.total_s <= cheapest.total_s
    told = plan.to_dict()
    assert told["schema"] == "tunecast.plan/1"
    assert told["id"] is None and told["picks"]["cheapest"]["job"] is None
    assert told["picks"]["cheapest"]["prediction"]["time"]["lines"][0]["source"] == "train.py:3"


def test_cards_that_are_too_small_say_what_is_missing(tracer: Tracer) -> None:
    tracer.gibibytes = 60.0
    plan = tunecast.plan(tunecast.trace(["train.py"]), as_of=DAY, traces=0)
    refused = {each.hardware: each for each in plan.refused}
    assert "needs 60." in refused["1 x l40s"].reason
    assert all(choice.fleet.gpu.memory_bytes > 60 * GIB for choice in plan.choices)
    assert len(tracer.cards) == 1, "traces=0: one trace stands for all"


def test_bfloat16_is_not_planned_on_cards_without_it(tracer: Tracer) -> None:
    tracer.gibibytes, tracer.dtype = 2.0, "bfloat16"
    plan = tunecast.plan(["train.py"], as_of=DAY, traces=0)
    assert all(tuple(choice.fleet.gpu.compute_capability) >= (8, 0) for choice in plan.choices)
    assert any("bfloat16" in each.reason for each in plan.refused)


def test_as_many_cards_as_the_script_is_launched_on(tracer: Tracer) -> None:
    plan = tunecast.plan(["torchrun", "--nproc-per-node", "8", "train.py"], as_of=DAY, traces=0)
    assert {choice.fleet.gpus for choice in plan.choices} == {8}


def test_an_epoch_is_planned_where_the_script_does_not_say_when_it_ends(tracer: Tracer) -> None:
    tracer.facts = ScriptFacts(epoch_batches=1000, batches_per_step=2.0)
    plan = tunecast.plan(["train.py"], as_of=DAY, traces=0)
    best = plan.best
    assert best is not None
    assert best.phases_s["training"] == pytest.approx(500 * best.step_s)
    assert plan.assumptions[0].startswith("the script does not say")
    assert best.cost.usd_per_epoch == pytest.approx(best.total_usd)


def test_a_length_nobody_says_has_to_be_given(tracer: Tracer) -> None:
    tracer.facts = ScriptFacts()
    with pytest.raises(UsageError, match="--total-steps"):
        tunecast.plan(["train.py"], as_of=DAY)
    plan = tunecast.plan(tunecast.trace(["train.py"], total_steps=7), as_of=DAY, traces=0)
    assert plan.best is not None and plan.best.phases_s["training"] == pytest.approx(7 * plan.best.step_s)


def test_given_steps_win_over_counted_ones(tracer: Tracer, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*args: Any, **how: Any) -> tuple[Tape, Answer]:
        found, answer = tracer(*args, **how)
        return found, Answer(steps=3, finished=True, facts=answer.facts)

    monkeypatch.setattr(trace, "trace_script", ended)
    counted = tunecast.trace(["train.py"]).time
    assert counted is not None and counted.steps == 3
    given = tunecast.trace(["train.py"], total_steps=9).time
    assert given is not None and given.steps == 9


def test_settings_of_a_job_are_not_for_scripts(tracer: Tracer) -> None:
    with pytest.raises(UsageError, match="--allow"):
        tunecast.plan(["train.py"], as_of=DAY, allow="method")


def test_the_command_says_what_to_rent(tracer: Tracer, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(("plan", "--as-of", DAY, "--traces", "0", "--html", "plan.html", "--", "train.py", "--epochs", "3"))
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert out.startswith("Rent 1 x ")
    assert "for train.py --epochs 3, 100,000 optimizer steps" in out
    assert "with the script unchanged" in out
    assert "not in time and cost: data loading" in out
    assert "train.py --epochs 3" in Path("plan.html").read_text()


def test_the_command_keeps_to_limits(tracer: Tracer, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(("plan", "--as-of", DAY, "--traces", "0", "--max-usd", "0.001", "--", "train.py"))
    assert code == 4, capsys.readouterr().err


def test_fit_by_the_scripts_own_arguments(tracer: Tracer, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(("fit", "--gpu", "h200", "--", "train.py"))
    out, _ = capsys.readouterr()
    assert code == 0 and "Nothing has to change." in out
    tracer.gibibytes = 200.0
    code = cli.main(("fit", "--gpu", "h200", "--", "train.py"))
    out, _ = capsys.readouterr()
    assert code == 3
    assert "the script has no argument whose name says what it changes" in out


@pytest.mark.parametrize(
    ("steps", "error", "why"),
    [
        (0, None, "the script took no optimizer step"),
        (2, "ValueError: no", "the script failed after 2 steps: ValueError"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "fit"])
def test_a_script_that_is_not_resolved_is_refused(
    tracer: Tracer, capsys: pytest.CaptureFixture[str], command: str, steps: int, error: str | None, why: str
) -> None:
    """`fit` said that no change makes it fit, and ended as if it did."""
    tracer.steps, tracer.error = steps, error
    day = ("--as-of", DAY) if command == "plan" else ("--gpu", "h200")
    code = cli.main((command, *day, "--", "train.py"))
    out, err = capsys.readouterr()
    assert (code, out) == (5, "") and why in err and len(err.splitlines()) == 1


def test_what_does_not_fit_before_it_fails_does_not_fit(tracer: Tracer, capsys: pytest.CaptureFixture[str]) -> None:
    tracer.gibibytes, tracer.error = 200.0, "ValueError: no"
    assert cli.main(("fit", "--gpu", "h200", "--", "train.py")) == 3, capsys.readouterr().err


def test_of_several_cards_in_one_process_no_time_is_known(
    tracer: Tracer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tape(1.0, "float32")
    both = Tape((*made.events, Alloc(1, GIB, Role.WEIGHTS, "", STREAMS_PER_CARD)), versions=made.versions)
    monkeypatch.setattr(trace, "trace_script", lambda *args, **how: (both, Answer(steps=3, facts=tracer.facts)))
    assert cli.main(("plan", "--as-of", DAY, "--", "train.py")) == 2
    assert "no time is predicted for several cards in one process" in capsys.readouterr().err
