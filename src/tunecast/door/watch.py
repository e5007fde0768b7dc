"""A training that is measured while it runs: any program, a Trainer's callback, any loop."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TextIO

from tunecast.door.explain_oom import explain_oom
from tunecast.door.predict import predict
from tunecast.door.read import Source, read_on_card
from tunecast.errors import TunecastError, UsageError, printable_lines
from tunecast.job.job import Job
from tunecast.job.knob import shown
from tunecast.learn.expected import expected_of
from tunecast.learn.inside.callback import InsideCallback
from tunecast.learn.inside.live import Live, line
from tunecast.learn.inside.loop import Watch, watched_loop
from tunecast.learn.inside.machine import place_of
from tunecast.learn.inside.merge import OOM
from tunecast.learn.inside.outside import Limits
from tunecast.learn.inside.outside import watch as watch_program
from tunecast.learn.inside.process import WatchedProcess, the_process
from tunecast.learn.intake import add, complete, new_folder
from tunecast.learn.record import salvaged
from tunecast.records import dataclass
from tunecast.result import Result
from tunecast.units import gib

DESCRIBED = ("job", "model_shape", "predicted")


@dataclass(frozen=True)
class WatchedRun(Result):
    """A program that was watched to its end."""

    schema: ClassVar[str] = "tunecast.watched/1"
    KEYS: ClassVar[tuple[str, ...]] = ("schema", "exit_code", "run", "kept")

    exit_code: int
    """The program's own; 128 and a signal's number where that ended it."""
    run: Mapping[str, Any] | None
    """As `tunecast.run/1` has it; None where the program was not started."""
    kept: bool
    """Whether the store has it."""


def watch(
    command: Sequence[str],
    job: Source | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    within_s: float | None = None,
    budget_usd: float | None = None,
    usd_per_hour: float | None = None,
    told: TextIO | None = None,
) -> WatchedRun:
    """Run a program as it is, and measure it. `job`: what it trains, to be compared with; `told`: where the line that
    compares goes.

    Raises `UsageError` where the job or the limits are wrong, before anything runs.
    """
    if not command:
        raise UsageError("there is no command after --. To fix: tunecast watch -- python train.py", field="command")
    if budget_usd is not None and not usd_per_hour:
        raise UsageError("--budget: needs the price of an hour. To fix: --usd-per-hour 2.5", field="budget")
    known = None if job is None else read_on_card(job, overrides)
    expected = {} if known is None else expected_or_said(known, told)
    folder = new_folder()
    limits = Limits(within_s, budget_usd, usd_per_hour)
    ended = watch_program(command, folder, expected=expected, limits=limits, told=told)
    if ended.record is None:
        shutil.rmtree(folder, ignore_errors=True)
        return WatchedRun(ended.exit_code, None, False)
    record = complete(with_note(ended.record, folder, known))
    return WatchedRun(ended.exit_code, record, keep_record(record, folder, told))


def expected_or_said(job: Job, told: TextIO | None) -> dict[str, Any]:
    """What cannot be predicted is run all the same."""
    try:
        return expected_of(job, predict(job))
    except TunecastError as error:
        say(f"not predicted, so nothing is compared: {error.message}", told)
        return {}


def with_note(record: Mapping[str, Any], folder: str, job: Job | None) -> dict[str, Any]:
    """Of a run that ran out of memory: what would have made it fit."""
    if record["state"] != "oom" or record.get("note"):
        return dict(record)
    try:
        message = Path(folder, OOM).read_text(encoding="utf-8", errors="replace")
        explained = explain_oom(message, job)
    except (OSError, TunecastError):
        return dict(record)
    fits = next((each for each in explained.changes or () if each.fits), None)
    if fits is not None:
        settings = ", ".join(f"{name} {_setting(value)}" for name, value in fits.set.items())
        note = f"would have fit with {settings}: {gib(fits.saves_bytes)} less"
    else:
        note = explained.advice[0].how
    return {**record, "note": plain(note)}


def _setting(value: object) -> str:
    return " and ".join(map(str, value)) if isinstance(value, (list, tuple)) else shown(value)


def plain(text: str) -> str:
    """On one line, without what a record does not take."""
    return " ".join("".join(each if " " <= each <= "~" and each != "\\" else " " for each in text).split())[:400]


def keep_record(record: Mapping[str, Any], folder: str, told: TextIO | None) -> bool:
    """Whether the store has it now. One that waits for a server is on the disk; else its journal stays."""
    record, left_out = salvaged(record)
    if left_out:
        say(f"left out of the record, as none takes such a value: {', '.join(left_out)}", told)
    try:
        stored = add(record)
    except TunecastError as error:
        say(f"not kept: {error.message}; its journal is {folder}", told)
        return False
    shutil.rmtree(folder, ignore_errors=True)
    name = f"run {str(record['id'])[:8]}"
    waits = f"the store's server is away: {name} waits on this machine, and `tunecast runs` brings it there"
    say(f"{record['state']}; {f'kept as {name}' if stored else waits}", told)
    if record.get("note"):
        say(str(record["note"]), told)
    return stored


def say(text: str, told: TextIO | None) -> None:
    if told is not None:
        print(f"tunecast: {printable_lines(text)}", file=told, flush=True)


class Callback(InsideCallback):
    """For `Trainer(callbacks=[tunecast.Callback(job="train.yaml", gpu="h100")])`, and TRL's trainers: each training is
    measured, compared with what its job is predicted to take, and kept in the store. Under `tunecast watch` it is the
    one that measures. Of several processes the first one records."""

    def __init__(
        self, job: Source | None = None, overrides: Mapping[str, object] | None = None, **fields: object
    ) -> None:
        known = None if job is None else read_on_card(job, overrides, **fields)
        super().__init__(lambda: _process("callback", known))


@contextmanager
def watching(
    job: Source | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    steps: int = 0,
    **fields: object,
) -> Iterator[Watch]:
    """Any loop: `with tunecast.watching(job) as watch: ... watch.step(tokens=..., loss=...)`. `steps`: of the whole
    run, where that is known."""
    known = None if job is None else read_on_card(job, overrides, **fields)
    with watched_loop(lambda: _process("loop", known), steps) as watch:
        yield watch


def _process(source: str, job: Job | None) -> WatchedProcess | None:
    if place_of()["rank"] != 0:
        return None
    expected = {} if job is None else expected_or_said(job, sys.stderr)
    folder = new_folder()

    def finished(record: dict[str, Any]) -> None:
        ended = complete(with_note(record, folder, job))
        time, memory = ended["time"] or {}, ended["memory"] or {}
        measured = {"time": time, "memory": memory, "step": time.get("steps")}
        say(line(Live(expected, measured, {"device_bytes": memory.get("device_bytes")}, 0.0), over=True), sys.stderr)
        keep_record(ended, folder, sys.stderr)

    described = {name: expected.get(name) for name in DESCRIBED}
    return the_process(
        lambda: WatchedProcess(
            folder, source, alone=True, described=described, expected=expected, told=sys.stderr, finished=finished
        )
    )
