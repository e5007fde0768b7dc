"""The step of a traced script, priced: operations that only move memory, so that each can be redone on paper."""

from __future__ import annotations

import pytest

from tunecast.hardware.catalog import gpu
from tunecast.prediction.memory.allocator import AllocatorSettings
from tunecast.prediction.on_card import on_card
from tunecast.prediction.prediction import Prediction
from tunecast.prediction.price.host import DEFAULT_HOST
from tunecast.prediction.time.ranges import BANDS, UNSEEN, TimeBand
from tunecast.prediction.time.runtime import step_time
from tunecast.prediction.time.script_time import (
    OF_A_SCRIPT,
    REPLAYED,
    ScriptClock,
    StepCount,
    code_lines,
    new_lengths_of,
    whole_steps,
)
from tunecast.tape.op import Begin, Event, Op, Phase, Tape, Unit
from tunecast.tape.step import step_of
from tunecast.tape.trace.facts import WeightsFile
from tunecast.units import GB

CARD = gpu("h200")


def step(number: int, gigabytes: int) -> list[Event]:
    """Reads so much forward, backward and in the optimizer."""
    phases = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    op = Op("aten.add", read_bytes=gigabytes * GB, dtype="bfloat16", by_engine=True)
    return [event for phase in phases for event in (Begin(phase, number), op)]


def tape(*events: Event) -> Tape:
    return Tape(events=events, guesses=(), versions={"torch": "2.13.0"})


def priced(of: Tape) -> Prediction:
    return Prediction(None, None, on_card(of, CARD, AllocatorSettings()), clock=lambda _: ScriptClock(of).timing(CARD))


def test_the_mean_of_all_whole_steps_but_the_first() -> None:
    """The last has no optimizer's part: the trace ended in it."""
    whole = tape(*step(0, 500), *step(1, 10), *step(2, 30), Begin(Phase.FORWARD, 3), Op("aten.add", read_bytes=GB))
    assert [len(events) for events in whole_steps(whole).values()] == [6, 6]
    told = priced(whole)
    assert told.time is not None
    seconds = [step_time(step_of(step(1, size), None), CARD, DEFAULT_HOST).step_s for size in (10, 30)]
    assert told.time.step_s == pytest.approx(sum(seconds) / 2)
    # three times 20 GB at 4.8 TB/s, four fifths of which such an operation reaches
    assert told.time.step_s == pytest.approx(3 * 20 * GB / 4.8e12 / 0.8, rel=0.02)
    unseen = TimeBand(*BANDS[UNSEEN])
    assert 1 - told.time.low_s / told.time.step_s > unseen.below - 1e-9
    assert told.time.high_s / told.time.step_s - 1 > unseen.above - 1e-9
    assert sum(told.time.breakdown_s.values()) == pytest.approx(told.time.step_s)
    assert told.assumptions[-1] == OF_A_SCRIPT


def test_traced_steps_weigh_as_many_as_they_stand_for() -> None:
    whole = tape(*step(0, 500), *step(1, 10), *step(2, 30))
    seconds = [step_time(step_of(step(1, size), None), CARD, DEFAULT_HOST).step_s for size in (10, 30)]
    timing = ScriptClock(whole, stands_for={0: 0, 1: 9, 2: 1}).timing(CARD)
    assert timing.time is not None
    assert timing.time.step_s == pytest.approx((9 * seconds[0] + seconds[1]) / 10)
    assert timing.assumptions[-1] == REPLAYED


def test_the_card_is_as_busy_as_the_step_says() -> None:
    """Steps of a small kernel, for which it waits, and one of a large one: utilisation is of the same mean."""
    whole = tape(*step(0, 500), *[Begin(Phase.FORWARD, 1), Op("aten.add", read_bytes=1), Begin(Phase.OPTIMIZER, 1),
                                  Op("aten.add", read_bytes=1)], *step(2, 30))  # fmt: skip
    timing = ScriptClock(whole, stands_for={0: 0, 1: 900, 2: 1}).timing(CARD)
    assert timing.time is not None and timing.utilization is not None
    waits = timing.time.breakdown_s["launch"] / timing.time.step_s
    assert timing.utilization.gpu_busy_fraction == pytest.approx(1 - waits)


def test_only_attention_is_planned_anew_for_a_length() -> None:
    """cuDNN's recurrent layers are not: an LSTM's three steps took 1.9 s of planning."""
    q = (8, 16, 512, 64)
    attention, recurrent = (
        Op(f"aten::{name}", shapes=(q, q), dtype="bfloat16")
        for name in ("_scaled_dot_product_cudnn_attention", "_cudnn_rnn")
    )
    assert new_lengths_of(tape(attention)).likely_s > 0
    assert new_lengths_of(tape(recurrent)).likely_s == 0


def test_a_single_step_stands_for_itself() -> None:
    assert len(whole_steps(tape(*step(0, 5)))) == 1


def test_a_script_without_a_step_has_no_time() -> None:
    assert priced(tape(Op("aten.empty"))).time is None


def test_every_micro_batch_of_an_accumulated_step_counts() -> None:
    forward, backward = (
        Op("aten.add", read_bytes=20 * GB, dtype="bfloat16", by_engine=engine) for engine in (False, True)
    )
    half = [Begin(Phase.FORWARD, 1), forward, Begin(Phase.BACKWARD, 1), backward]
    end = [Begin(Phase.OPTIMIZER, 1), Op("aten.add", read_bytes=GB, dtype="bfloat16")]
    once, twice = priced(tape(*half, *end)).time, priced(tape(*half, *half, *end)).time
    assert once is not None and twice is not None
    # 41 GB and 81 GB
    assert twice.step_s / once.step_s == pytest.approx(81 / 41, rel=0.01)


def test_the_whole_run_is_its_steps_and_its_start() -> None:
    of = tape(*step(0, 10), *step(1, 10))
    time = ScriptClock(of, StepCount(1000, "--total-steps", epoch=400)).timing(CARD).time
    assert time is not None and time.total_s is not None and time.phases_s is not None
    assert time.phases_s["training"] == pytest.approx(1000 * time.step_s)
    assert sum(time.phases_s.values()) == pytest.approx(time.total_s)
    assert (time.steps, time.epoch_steps) == (1000, 400)
    assert time.epoch_s == pytest.approx(400 * time.step_s)
    assert time.total_range_s is not None
    assert time.total_range_s[0] < time.total_s < time.total_range_s[1]
    assert time.to_dict()["missing"], "what is on no tape is named"


def test_weights_are_downloaded_where_a_hub_has_them_and_read_once() -> None:
    """30 GB at 300 MB/s; 30 and 6 GB from the page cache at 7.2 GB/s, after 0.2 s. A longer run takes no more of it."""
    of = tape(*step(0, 10), *step(1, 10))
    files = (WeightsFile(30 * GB, True), WeightsFile(6 * GB, False))
    for steps in (2, 1000):
        timing = ScriptClock(of, StepCount(steps, "--total-steps"), read_files=files).timing(CARD)
        assert timing.time is not None and timing.time.phases_s is not None
        assert timing.time.phases_s["download"] == pytest.approx(100)
        assert timing.time.phases_s["load"] == pytest.approx(0.2 + 36 / 7.2)
        assert sum(timing.time.phases_s.values()) == pytest.approx(timing.time.total_s)
        assert timing.assumptions[-1].startswith("time: 30.0 GB of weights")
    without = ScriptClock(of, StepCount(2, "--total-steps")).timing(CARD).time
    assert without is not None and without.phases_s is not None and without.phases_s["load"] == 0


def test_a_line_takes_its_backward_pass_too() -> None:
    def op(gigabytes: int, source: str) -> Op:
        return Op("aten.add", read_bytes=gigabytes * GB, dtype="bfloat16", source=source)

    events = [op(10, "a.py:1"), op(20, "a.py:1 (backward)"), op(15, "a.py:2"), op(5, "")]
    first, second = code_lines([events, events], [1, 1], gpu=CARD)
    assert (first.source, second.source) == ("a.py:1", "a.py:2")
    assert first.gpu_s == pytest.approx(2 * second.gpu_s, rel=0.01)
    assert (first.fraction, second.fraction) == pytest.approx((30 / 50, 15 / 50), rel=0.01)
    once, often = code_lines([[op(10, "a.py:1")], [op(30, "a.py:2")]], [9, 1], gpu=CARD)
    assert (once.source, once.fraction) == ("a.py:1", pytest.approx(90 / 120, rel=0.01))
    assert once.gpu_s / often.gpu_s == pytest.approx(90 / 30, rel=0.01)


def read(gigabytes: int) -> Op:
    return Op("aten.add", read_bytes=gigabytes * GB, dtype="bfloat16")


def seconds(*events: Event) -> float:
    return step_time(step_of(list(events), None), CARD, DEFAULT_HOST).step_s


def call(start: int, size: int, *, traced: bool = True, kind: int = 0) -> Unit:
    return Unit("call", kind, start, start + traced, traced, (size,))


STEP = Unit("step", 0, 0, 0, True)


def test_evaluation_is_no_part_of_a_step_and_of_the_whole_run() -> None:
    """After the second of four steps the model is called without gradients: twice traced, then twice skipped, with
    inputs nearest to the first and to the second."""
    first = [*step(0, 5), *step(1, 10)]
    events = [*first, Begin(Phase.OTHER, 1), read(40), read(80), *step(2, 10), *step(3, 10)]
    at = len(first) + 1
    calls = (call(at, 4), call(at + 1, 8), call(at + 2, 5, traced=False), call(at + 2, 9, traced=False))
    units = (STEP, STEP, *calls, STEP, STEP)
    of = Tape(events=tuple(events), versions={}, units=units)
    time = ScriptClock(of, StepCount(4, "the script")).timing(CARD).time
    assert time is not None and time.phases_s is not None
    assert time.step_s == pytest.approx(seconds(*step(1, 10)))
    assert time.phases_s["evaluation"] == pytest.approx(2 * seconds(read(40)) + 2 * seconds(read(80)))
    assert time.missing is not None and not any("evaluation" in each for each in time.missing)
    longer = ScriptClock(of, StepCount(8, "--total-steps")).timing(CARD).time
    assert longer is not None and longer.phases_s is not None
    assert longer.phases_s["evaluation"] == pytest.approx(2 * time.phases_s["evaluation"])


def test_a_model_asked_in_every_step_is_part_of_it() -> None:
    """Such as a reference; in the last step it was skipped."""
    events: list[Event] = []
    units: list[Unit] = []
    for number in range(3):
        events.append(Begin(Phase.OTHER, number))
        units.append(call(len(events), 4, traced=number < 2))
        events += [*([read(40)] if number < 2 else []), *step(number, 10)]
        units.append(STEP)
    time = ScriptClock(Tape(events=tuple(events), versions={}, units=tuple(units))).timing(CARD).time
    assert time is not None
    assert time.step_s == pytest.approx(seconds(read(40)) + seconds(*step(1, 10)))


def test_generation_counts_as_often_as_it_happens() -> None:
    """Before every second step of four; the first of them is not among those that are priced."""
    written: list[Event] = []
    for number in range(4):
        if number % 2 == 0:
            written += [Begin(Phase.GENERATE, number), read(40), Begin(Phase.OTHER, number)]
        written += step(number, 10)
    one = seconds(Begin(Phase.GENERATE, 0), read(40))
    time = ScriptClock(tape(*written)).timing(CARD).time
    assert time is not None and time.task_s is not None
    assert time.step_s == pytest.approx(one / 2 + seconds(*step(1, 10)))
    assert time.task_s["generate"] == pytest.approx(one / 2)
    assert sum(time.task_s.values()) == pytest.approx(time.step_s)
