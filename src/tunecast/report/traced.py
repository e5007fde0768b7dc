"""From a tape and what `predict.memory` says of it to the plain values that are shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tunecast.predict import memory
from tunecast.predict.prediction import OnCard, Prediction
from tunecast.report.figures import Figures, LiveBlock, PhasePeak
from tunecast.report.moments import Band, Moment, Timeline
from tunecast.tape.op import Begin, Event, Op, Phase, Role, Tape

SAMPLES = 3000
"""For `memory.timeline`: a few for each pixel of a wide screen, so that one step of many looks right enlarged."""
BLOCKS = 100_000
"""For `memory.peak`: all of them, since alike ones are shown together."""


def traced_figures(
    tape: Tape,
    run: memory.Replay,
    peak: memory.Peak,
    *,
    title: str,
    gpu: str | None = None,
    capacity_bytes: int | None = None,
    on_card: memory.Replay | None = None,
    context_bytes: int | None = None,
    smallest_capacity_bytes: int | None = None,
    assumptions: Iterable[str] = (),
) -> Figures:
    """`run` is the replay without a limit, `on_card` the one with `capacity_bytes`.

    What is reserved is what that card would show, if the run fits; else what a card without limit would.
    """
    fits = None if on_card is None else on_card.completed
    shown = on_card if on_card is not None and on_card.completed else run
    return Figures(
        title=title,
        allocated_bytes=peak.allocated_bytes,
        reserved_bytes=shown.reserved_bytes,
        peak_phase=peak.phase.value,
        peak_step=peak.step,
        breakdown_bytes={role.value: nbytes for role, nbytes in peak.by_role.items()},
        phases=_phase_peaks(shown.peaks),
        modules=peak.by_module,
        blocks=tuple(_live_block(live) for live in peak.largest),
        context_bytes=context_bytes,
        gpu=gpu,
        capacity_bytes=capacity_bytes,
        fits=fits,
        smallest_capacity_bytes=smallest_capacity_bytes,
        stopped_by=_stopped_by(tape, on_card.out_of_memory) if on_card is not None else None,
        assumptions=tuple(assumptions),
        guesses=tape.guesses,
        versions=tape.versions,
    )


def card_figures(held: OnCard, said: Prediction, title: str) -> Figures:
    """What is shown of a tape on a card. Guesses and versions are told apart from the other assumptions."""
    apart = {f"guessed: {guess}" for guess in held.guesses}
    told = [text for text in (*said.assumptions, *said.warnings) if text not in apart]
    return traced_figures(
        held.tape,
        held.unlimited,
        held.peak,
        title=title,
        gpu=held.gpu.name,
        capacity_bytes=held.capacity_bytes,
        on_card=held.limited,
        context_bytes=held.context.nbytes,
        smallest_capacity_bytes=held.smallest_capacity_bytes,
        assumptions=[text for text in told if not text.startswith(("traced with ", "follows "))],
    )


def _phase_peaks(peaks: Iterable[memory.PhasePeak]) -> tuple[PhasePeak, ...]:
    """Each phase's highest step; of steps that are equally high the first."""
    highest: dict[Phase, PhasePeak] = {}
    for peak in peaks:
        if peak.phase not in highest or peak.allocated_bytes > highest[peak.phase].allocated_bytes:
            highest[peak.phase] = PhasePeak(peak.phase.value, peak.step, peak.allocated_bytes, peak.reserved_bytes)
    return tuple(highest.values())


def _live_block(live: memory.LiveBlock) -> LiveBlock:
    op = live.op.name if live.op else ""
    return LiveBlock(live.held_bytes, live.role.value, live.module, op, live.source, live.phase.value, live.step)


def _stopped_by(tape: Tape, end: memory.Exhausted | None) -> LiveBlock | None:
    if end is None:
        return None
    op = memory.op_before(tape, end.request) or Op("")
    return LiveBlock(end.requested_bytes, "", op.module, op.name, op.source, end.phase.value, end.step)


def traced_timeline(tape: Tape, samples: Sequence[memory.Sample], peak_event: int) -> Timeline:
    """The course of the run with the operation that made each sample."""
    ops = _ops_at([sample.event for sample in samples], tape.events)
    moments = tuple(
        Moment(
            sample.event,
            tuple(sample.by_role[role] for role in Role),
            sample.reserved_bytes,
            op.name,
            op.module,
            op.source,
        )
        for sample, op in zip(samples, ops, strict=True)
    )
    return Timeline(len(tape.events), tuple(role.value for role in Role), _bands(tape.events), moments, peak_event)


def _ops_at(positions: Sequence[int], events: Sequence[Event]) -> list[Op]:
    """The last operation before each position; positions are in order."""
    ops = []
    op = Op("")
    begin = 0
    for position in positions:
        for event in events[begin : position + 1]:
            if isinstance(event, Op):
                op = event
            elif isinstance(event, Begin):
                op = Op("")
        begin = position + 1
        ops.append(op)
    return ops


def _bands(events: Sequence[Event]) -> tuple[Band, ...]:
    """From one `Begin` to the next; what comes before the first is loading. Empty ones are left out."""
    starts = [(0, Begin(Phase.LOAD))]
    starts += [(position, event) for position, event in enumerate(events) if isinstance(event, Begin)]
    ends = [position for position, _ in starts[1:]] + [len(events)]
    return tuple(
        Band(begin.phase.value, begin.step, position, end)
        for (position, begin), end in zip(starts, ends, strict=True)
        if position < end
    )
