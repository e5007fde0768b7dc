"""What filled the card that ran out of memory, and what to change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tunecast.advise.changes import changes_tried, with_fields
from tunecast.advise.oom.advice import advice_for
from tunecast.advise.oom.explanation import OomExplanation
from tunecast.advise.oom.job import advice_for_job, is_same_run
from tunecast.advise.oom.message import OomMessage, filled, messages, the_message
from tunecast.door.asking import Predictions, Tick, no_tick
from tunecast.door.read import Source, read
from tunecast.errors import NotResolved
from tunecast.job.job import Job
from tunecast.prediction.engines import DEFAULT_ENGINE


def explain_oom(
    log: str | Iterable[str],
    job: Source | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    name: str | None = None,
    engine: str = DEFAULT_ENGINE,
    python: str | None = None,
    tick: Tick = no_tick,
) -> OomExplanation:
    """The last out-of-memory message of a log's text, or of its pieces; with the job that ran, also where its memory
    goes at the peak and what each change would free. `name`: what the log is called where it holds no message, which
    raises `NotResolved`."""
    told = None if job is None else read(job, overrides)
    message, count = the_message(messages([log] if isinstance(log, str) else log))
    if message is None:
        raise NotResolved(
            f"{name or 'the log'} holds no out-of-memory message of PyTorch (such as 'CUDA out of memory. Tried to "
            "allocate ...'). "
            "To fix: give the whole log, stderr included: python train.py > train.log 2>&1",
            field=name or "stdin",
        )
    advice = advice_for(message)
    if told is None:
        return OomExplanation(message, count, tuple(advice))
    predictions, on_this_card = Predictions(engine, python, tick=tick), with_room_of(told, message)
    before = predictions.predict(on_this_card)
    changes = tuple(changes_tried(on_this_card, before, predictions.predict))
    same_run = is_same_run(before.on_card.tape, before.on_card.capacity_bytes, message)
    judged = advice_for_job(advice, before, changes, same_run)
    return OomExplanation(message, count, tuple(judged), before, same_run, changes)


def with_room_of(job: Job, message: OomMessage) -> Job:
    """The job with what PyTorch could have had on the card that ran out: all but what is outside it and others'.

    A capacity the job itself names stands.
    """
    filling = filled(message)
    if filling is None or job.hardware.capacity_bytes is not None:
        return job
    room = filling.total_bytes - filling.outside_bytes - filling.others_bytes
    if message.allowed_bytes is not None:
        room = min(room, message.allowed_bytes)
    return with_fields(job, {"hardware.capacity_bytes": max(1, room), "hardware.reserve_bytes": 0})
