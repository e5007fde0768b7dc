"""What was launched from this machine: how it stands, what it printed, and its end."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tunecast.door.recorded import measured_notes, take_left_behind
from tunecast.errors import NotResolved, UsageError
from tunecast.launching import ledger
from tunecast.launching.engines import engine_of
from tunecast.launching.engines.commands import run
from tunecast.launching.ledger import LedgerEntry
from tunecast.launching.rendering import PREFLIGHT_STATUS, PREFLIGHT_VERDICT
from tunecast.records import dataclass, replace
from tunecast.result import Result


@dataclass(frozen=True)
class Launched(Result):
    """A job that was started."""

    schema: ClassVar[str] = "tunecast.launched/1"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("schema", "id", "engine", "framework", "state", "number", "group", "folder", "submitted", "notes"),
    )
    FROM: ClassVar[Mapping[str, str]] = {"folder": "folder_name"}

    id: str
    engine: str
    framework: str
    state: str
    """queued, running, done, failed, cancelled, not started; ended: it is over, and nobody knows how; unknown: its
    engine does not answer."""
    number: str
    """What the engine calls it."""
    folder: Path
    submitted: str
    notes: tuple[str, ...] = ()
    group: str = ""
    """Of several that were launched together; '': alone."""

    @property
    def folder_name(self) -> str:
        return str(self.folder)


@dataclass(frozen=True)
class LaunchedJobs(Result):
    """Every launch of this user on this machine, the oldest first."""

    schema: ClassVar[str] = "tunecast.jobs/1"
    KEYS: ClassVar[tuple[str, ...]] = ("schema", "jobs")

    jobs: tuple[Launched, ...]


def launched_of(entries: Iterable[LedgerEntry], notes: tuple[str, ...] = ()) -> tuple[Launched, ...]:
    """Runs that are over and were measured here go to the store, each once."""
    known = tuple(entries)
    states = states_of(known)
    return tuple(
        Launched(
            each.id, each.engine, each.framework, states[each.id], each.number, each.folder, each.submitted,
            (*notes, *verdict_of(each), *measured_notes(each.folder, states[each.id])), each.group,
        )
        for each in known
    )  # fmt: skip


def verdict_of(entry: LedgerEntry) -> tuple[str, ...]:
    """Why its own check of the machine stopped it."""
    verdict = entry.text_in(PREFLIGHT_VERDICT) if entry.status == PREFLIGHT_STATUS else None
    return () if verdict is None else (verdict,)


def by_engine(entries: Iterable[LedgerEntry]) -> dict[str, list[LedgerEntry]]:
    found: dict[str, list[LedgerEntry]] = {}
    for entry in entries:
        found.setdefault(entry.engine, []).append(entry)
    return found


def states_of(entries: Sequence[LedgerEntry]) -> dict[str, str]:
    """By id. Each engine is asked once, where it answers for all its jobs."""
    found: dict[str, str] = {}
    for name, of in by_engine(entries).items():
        try:
            module = engine_of(name).module
        except UsageError:  # of another release, or a record that was changed by hand
            found |= {entry.id: "unknown" for entry in of}
            continue
        if hasattr(module, "states"):
            found |= _states_or_unknown(of, module.states)
        else:
            for entry in of:
                found |= _states_or_unknown([entry], lambda each: {each[0].id: module.state(each[0])})  # noqa: B023
    return {entry.id: _state(entry, found[entry.id]) for entry in entries}


def _states_or_unknown(
    entries: Sequence[LedgerEntry], ask: Callable[[Sequence[LedgerEntry]], dict[str, str]]
) -> dict[str, str]:
    try:
        return ask(entries)
    except NotResolved:
        return {entry.id: "unknown" for entry in entries}


def _state(entry: LedgerEntry, told: str) -> str:
    """What its engine told, and what is known here."""
    if told == "not started" and ledger.is_submitted_now(entry):
        return "queued"
    return "cancelled" if entry.cancelled and told in ("failed", "ended", "not started") else told


def jobs() -> LaunchedJobs:
    take_left_behind()
    return LaunchedJobs(launched_of(ledger.entries()))


def log_command(name: str, *, follow: bool = False) -> tuple[str, ...]:
    """What shows all that a job printed."""
    entry = ledger.entry_of(name)
    return tuple(engine_of(entry.engine).module.log_command(entry, follow=follow))


def logs(name: str) -> str:
    """All that a job printed so far."""
    done = run(log_command(name), capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    if done.returncode:
        raise NotResolved(f"{name}: there is no log yet ({' '.join(done.stderr.split())[:200]})", field="id")
    return done.stdout


def follow_log(name: str) -> int:
    """What it prints, as it comes, until somebody interrupts that; the exit code of what shows it."""
    return run(log_command(name, follow=True)).returncode


def cancel(name: str) -> Launched | LaunchedJobs:
    """Stop a job, or all of a group; one that is over stays as it is. One that is submitted right now is stopped once
    its engine has it: before, nobody knows what to stop."""
    for entry in ledger.entries_of(name):
        ledger.wait_for_submission(entry)
    entries = ledger.entries_of(name)
    states = states_of(entries)
    going_on = [entry for entry in entries if states[entry.id] in (*ledger.ACTIVE, "unknown")]
    for engine, of in by_engine(going_on).items():
        module = engine_of(engine).module
        if hasattr(module, "cancel_all"):
            module.cancel_all(of)
        else:
            for entry in of:
                module.cancel(entry)
        for entry in of:
            ledger.as_cancelled(entry)
    asked = {entry.id for entry in going_on}
    found = tuple(
        replace(each, notes=("asked to end, and not over yet", *each.notes))
        if each.id in asked and each.state in ledger.ACTIVE
        else each
        for each in launched_of(ledger.entries_of(name))
    )
    return found[0] if len(found) == 1 and found[0].id == name else LaunchedJobs(found)
