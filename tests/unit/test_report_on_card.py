"""A run of twenty events, from the tape to the terminal and the page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunecast.hardware import gpu
from tunecast.prediction.memory import needs as memory
from tunecast.prediction.memory.allocator import AllocatorSettings
from tunecast.prediction.on_card import OnCard, on_card
from tunecast.prediction.prediction import Prediction
from tunecast.report.draw.figures import Figures, LiveBlock, PhasePeak
from tunecast.report.draw.moments import Band, Moment
from tunecast.report.page.job import timeline_html
from tunecast.report.run.answer import details_text
from tunecast.report.run.on_card import run_figures, run_timeline
from tunecast.tape.op import Alloc, Begin, Free, Op, Phase, Role, Tape
from tunecast.units import MIB

TAPE = Tape(
    events=(
        Op("aten.empty", source="/home/me/train.py:12"),
        Alloc(0, 30 * MIB, Role.WEIGHTS, "model.layers.0"),
        Alloc(1, 30 * MIB, Role.WEIGHTS, "model.layers.1"),
        Begin(Phase.FORWARD, 0),
        Op("aten.mm", "model.layers.0", source="/home/me/train.py:31"),
        Alloc(2, 10 * MIB, Role.ACTIVATIONS, "model.layers.0"),
        Op("aten.mm", "model.layers.1", source="/home/me/train.py:31"),
        Alloc(3, 10 * MIB, Role.ACTIVATIONS, "model.layers.1"),
        Begin(Phase.BACKWARD, 0),
        Op("aten.mm", "model.layers.1", source="/home/me/train.py:32"),
        Alloc(4, 30 * MIB, Role.GRADIENTS, "model.layers.1"),
        Free(3),
        Op("aten.mm", "model.layers.0", source="/home/me/train.py:32"),
        Alloc(5, 30 * MIB, Role.GRADIENTS, "model.layers.0"),
        Free(2),
        Begin(Phase.OPTIMIZER, 0),
        Op("aten._foreach_mul", source="/home/me/train.py:33"),
        Alloc(6, 2 * MIB, Role.TEMPORARIES),
        Free(6),
        Free(4),
    ),
    guesses=(),
    versions={"torch": "2.11.0"},
)
SETTINGS = AllocatorSettings()


def held(capacity_bytes: int = 1024 * MIB) -> OnCard:
    return on_card(TAPE, gpu("h200"), SETTINGS, capacity_bytes)


def figures_of(run: OnCard, *, details: bool = True) -> Figures:
    return run_figures(Prediction(None, None, run), "train.py", details=details)


def test_figures_of_the_run() -> None:
    """Peak: 60 MiB of weights, 60 of gradients, the first activation's 10. Reserved: the second's 10 as well."""
    figures = figures_of(held())
    assert (figures.allocated_bytes, figures.reserved_bytes) == (130 * MIB, 140 * MIB)
    assert (figures.peak_phase, figures.peak_step, figures.word, figures.fits) == ("backward", 0, "exact", True)
    assert {role: nbytes // MIB for role, nbytes in figures.breakdown_bytes.items() if nbytes} == {
        "weights": 60,
        "gradients": 60,
        "activations": 10,
    }
    assert figures.modules == {"model.layers.0": 70 * MIB, "model.layers.1": 60 * MIB}
    assert tuple(peak._replace(breakdown_bytes=None) for peak in figures.phases) == (
        PhasePeak("load", 0, 60 * MIB, 60 * MIB),
        PhasePeak("forward", 0, 80 * MIB, 80 * MIB),
        PhasePeak("backward", 0, 130 * MIB, 140 * MIB),
        PhasePeak("optimizer", 0, 122 * MIB, 140 * MIB),
    )
    gradient = LiveBlock(
        30 * MIB, "gradients", "model.layers.0", "aten.mm", "/home/me/train.py:32", phase="backward", step=0
    )
    assert gradient in figures.blocks and len(figures.blocks) == 5
    text = details_text(figures)
    assert "model.layers.*  x2  130.00 MiB" in text
    assert "60.00 MiB  gradients, 2 x 30.00 MiB, aten.mm in backward of step 0\n" in text


def test_every_phase_is_told_by_its_parts() -> None:
    """At the end of the forward pass both activations; in the optimizer both gradients and a temporary."""
    parts = {
        peak.phase: {role: nbytes // MIB for role, nbytes in (peak.breakdown_bytes or {}).items() if nbytes}
        for peak in figures_of(held()).phases
    }
    assert parts == {
        "load": {"weights": 60},
        "forward": {"weights": 60, "activations": 20},
        "backward": {"weights": 60, "activations": 10, "gradients": 60},
        "optimizer": {"weights": 60, "gradients": 60, "temporaries": 2},
    }


@pytest.mark.parametrize("capacity_bytes", [1024 * MIB, 125 * MIB])
def test_without_details_no_tape_is_written_out(capacity_bytes: int) -> None:
    def never() -> Tape:
        raise AssertionError("the tape was asked for")

    run = held(capacity_bytes)
    full, short = figures_of(run), figures_of(replace(run, make_tape=never), details=False)
    assert short.modules == {} and short.blocks == ()
    stop = full.stopped_by and full.stopped_by._replace(module="", op="", source="")
    assert short == replace(full, modules={}, blocks=(), stopped_by=stop)


def test_a_card_that_is_too_small() -> None:
    """135 MiB hold the peak of 130 once the second activation's 10 MiB are given back: it fits. 125 do not."""
    for capacity_bytes, fits in ((135 * MIB, True), (125 * MIB, False)):
        run = held(capacity_bytes)
        figures = figures_of(run)
        assert figures.smallest_capacity_bytes == 130 * MIB
        assert figures.fits is fits
        assert figures.reserved_bytes == (130 if fits else 140) * MIB
        text = details_text(figures)
        assert ("train.py: fits, 5.00 MiB to spare\n" in text) is fits
        assert ("train.py: does not fit, 5.00 MiB over\n" in text) is not fits
        asks = (
            "runs out of memory in backward of step 0: aten.mm asks for 30.00 MiB of gradients at /home/me/train.py:32"
        )
        assert (asks in " ".join(text.split())) is not fits
        asks = "runs out of memory in backward of step 0: no room for 30.00 MiB of gradients"
        assert (asks in details_text(figures_of(run, details=False))) is not fits


def test_the_course_of_the_run() -> None:
    samples = memory.timeline(TAPE, SETTINGS)
    timeline = run_timeline(TAPE, samples, memory.peak(TAPE, SETTINGS).event)
    assert timeline.events == 20
    assert timeline.bands == (
        Band("load", 0, 0, 3),
        Band("forward", 0, 3, 8),
        Band("backward", 0, 8, 15),
        Band("optimizer", 0, 15, 20),
    )
    assert len(timeline.moments) == 7 + 4  # allocations and frees
    highest = timeline.moments[timeline.peak()]
    assert highest.event == 13 and highest.allocated_bytes == 130 * MIB
    assert (highest.op, highest.module, highest.source) == ("aten.mm", "model.layers.0", "/home/me/train.py:32")
    assert timeline.moments[0] == Moment(
        1, (30 * MIB, 0, 0, 0, 0, 0, 0), 30 * MIB, "aten.empty", "", "/home/me/train.py:12"
    )


def test_the_page_of_the_run() -> None:
    run = held()
    page = timeline_html(figures_of(run), run_timeline(TAPE, memory.timeline(TAPE, SETTINGS), run.peak.event))
    assert "peak 130.00 MiB" in page and "step 0" in page
