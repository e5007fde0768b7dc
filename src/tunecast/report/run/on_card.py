"""A run on a card, however its tape was made, as the plain values that text and page draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tunecast.prediction.memory import needs as memory
from tunecast.prediction.memory import replay
from tunecast.prediction.on_card import OnCard, card_warnings
from tunecast.prediction.prediction import Prediction
from tunecast.report.draw.figures import Figures, LeastCard, LiveBlock, PhasePeak
from tunecast.report.draw.moments import Band, Moment, Timeline
from tunecast.tape.op import Begin, Event, Op, Phase, Role, Tape

SAMPLES = 2600
"""For `memory.timeline`: a few for each pixel of a wide screen, so that one step of many looks right enlarged; and few
enough for a page below 300 KB."""


def run_figures(
    prediction: Prediction, title: str, *, details: bool = True, least_card: LeastCard | None = None
) -> Figures:
    """What is shown of a run. Guesses and versions are told apart from the other assumptions.

    Without `details` the tape need not be written out: no modules, no blocks, no operation that found no room.
    """
    said, held = prediction, prediction.on_card
    apart = {f"{told}: {guess}" for guess in held.guesses for told in ("guessed", "not understood")}
    context = card_warnings(held)
    assumed = [text for text in said.assumptions if not text.startswith(("traced with ", "follows "))]
    most = held.peak if details else held.at_peak
    free_for_us = held.capacity_bytes + held.outside_bytes
    pretended = not held.settings.capacity_is_physical
    return Figures(
        title=title,
        allocated_bytes=most.allocated_bytes,
        reserved_bytes=held.shown.reserved_bytes,
        peak_phase=most.phase.value,
        peak_step=most.step,
        breakdown_bytes=_by_role(most.by_role),
        phases=tuple(_phase_peaks(held.shown.peaks, held.phase_peaks)),
        modules=held.peak.by_module if details else {},
        blocks=tuple(_live_block(live) for live in held.peak.largest) if details else (),
        context_bytes=held.context.nbytes,
        communication_bytes=held.communication.nbytes,
        vllm_bytes=held.vllm.nbytes,
        pages_bytes=held.pages_bytes,
        gpu=held.gpu.name,
        room=held.room.in_need(said.smallest_capacity_bytes),
        pretended=pretended,
        others_bytes=0 if pretended else max(0, held.gpu.memory_bytes - free_for_us),
        smallest_capacity_bytes=said.smallest_capacity_bytes,
        least_card=least_card,
        stopped_by=_stopped_by(held, details),
        assumptions=(*assumed, *context),
        warnings=tuple(text for text in said.warnings if text not in apart and text not in context),
        guesses=(*held.guesses, *filter(None, [held.unexplained])),
        versions=held.versions,
    )


def _by_role(parts: Mapping[Role, int]) -> dict[str, int]:
    return {role.value: nbytes for role, nbytes in parts.items()}


def _phase_peaks(peaks: Iterable[replay.PhaseReplay], moments: Iterable[replay.AtPeak]) -> Iterable[PhasePeak]:
    """Each phase at its highest moment; of steps that are equally high the first."""
    reserved = {(peak.phase, peak.step): peak.reserved_bytes for peak in peaks}
    for moment in moments:
        reserved_bytes = reserved[moment.phase, moment.step]
        yield PhasePeak(
            moment.phase.value, moment.step, moment.allocated_bytes, reserved_bytes, _by_role(moment.by_role)
        )


def _live_block(live: memory.PeakBlock) -> LiveBlock:
    op = live.op.name if live.op else ""
    return LiveBlock(live.held_bytes, live.role.value, live.module, op, live.source, live.phase.value, live.step)


def _stopped_by(held: OnCard, details: bool) -> LiveBlock | None:
    """The request that found no room: what it was for, and with details which operation made it."""
    end = held.limited.out_of_memory
    if end is None:
        return None
    op = (held.op_without_room if details else None) or Op("")
    role = held.program.roles[end.block].value
    return LiveBlock(end.requested_bytes, role, op.module, op.name, op.source, end.phase.value, end.step)


def run_timeline(tape: Tape, samples: Sequence[memory.Sample], peak_event: int) -> Timeline:
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
