"""An out-of-memory message beside the prediction of the job that is said to have run: are they of one run, and would
what was wasted have been enough for the whole job?"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.advise.changes import Change
from tunecast.advise.oom.advice import PIECES, ROOM, Advice
from tunecast.advise.oom.message import OomMessage
from tunecast.prediction.memory.allocator import rounded_bytes, segment_bytes
from tunecast.prediction.prediction import Prediction
from tunecast.tape.op import Alloc, Free, Tape
from tunecast.units import MIB

ALIKE = 0.05
"""How far the bytes in use may be apart. Nine in ten of the measured runs lie within 1.4 % (evidence.csv); the
rest is for what a script holds of its own."""
ALIKE_REQUEST = 0.01
"""The same of a request: one tensor, printed with two decimals."""


def is_same_run(tape: Tape, capacity_bytes: int, message: OomMessage) -> bool | None:
    """Whether the job makes such a request while about as much is in use, before it needs clearly more than there is.
    None where the message does not say."""
    requested, allocated = message.requested_bytes, message.allocated_bytes
    if requested is None or allocated is None:
        return None
    held: dict[int, int] = {}
    in_use = 0
    for event in tape.events:
        if isinstance(event, Alloc):
            near = abs(segment_bytes(event.nbytes) - requested) <= max(2 * MIB, ALIKE_REQUEST * requested)
            if near and abs(in_use - allocated) <= ALIKE * allocated:
                return True
            held[event.block] = rounded_bytes(event.nbytes)
            in_use += held[event.block]
            if in_use > (1 + ALIKE) * capacity_bytes:
                return False
        elif isinstance(event, Free):
            in_use -= held.pop(event.block, 0)
    return False


def advice_for_job(
    advice: Sequence[Advice], predicted: Prediction, changes: Sequence[Change], same_run: bool | None
) -> list[Advice]:
    """Each with whether the predicted job completes with it; what is not enough for the job comes after the training.

    Of a log of another run the prediction says nothing: the advice stays as the log alone has it.
    """
    if same_run is False:
        return list(advice)
    judged = [each._replace(enough_for_job=_completes(each, predicted, changes)) for each in advice]
    first = [each for each in judged if each.enough and each.enough_for_job is not False]
    training = [each for each in judged if each.training]
    return [*first, *training, *(each for each in judged if each not in first and not each.training)]


def _completes(advice: Advice, predicted: Prediction, changes: Sequence[Change]) -> bool | None:
    if not advice.enough or advice.frees_bytes is None:
        return None
    if advice.gives == PIECES:
        return any(change.fits for change in changes if "allocator" in change.overrides)
    room = predicted.capacity_bytes + (advice.frees_bytes if advice.gives == ROOM else 0)
    return predicted.smallest_capacity_bytes <= room
