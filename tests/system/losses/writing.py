"""A process that adds runs for as long as it lives, and writes down which were acknowledged; and who looks at them.

A record is a function of its id, so that whoever reads it can tell whether it is whole: half of it written, or a row
that belongs to another record, is something else than what the id says. Every run is added twice, as running and then
as done, as a training that is measured does.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tunecast.errors import NotResolved
from tunecast.learn.record import MeasuredRun, run_from
from tunecast.learn.runs_store.rows import summary
from tunecast.learn.runs_store.store import RunStore, open_store

LOSSES = 200
"""Points of the loss, so that a record takes several pages of a file."""

PAUSE_S = 0.05
"""At most, between two runs of a writer: so many writers would write more than can be read again."""
NEWEST = 100


def run_id(writer: int, number: int) -> str:
    return hashlib.sha256(f"{writer}/{number}".encode()).hexdigest()[:32]


def record(id: str, state: str) -> dict[str, Any]:
    """The one that belongs to an id."""
    seed = int(id[:12], 16)
    day, second = seed % 28 + 1, seed % 60
    ended = f"2026-10-{day:02d}T08:00:{second:02d}Z" if state == "done" else None
    return {
        "schema": "tunecast.run/1", "id": id, "source": "callback", "state": state,
        "began": f"2026-10-{day:02d}T07:00:{second:02d}Z", "ended": ended,
        "job": {"model": "llama-3.1-8b", "method": "lora", "stack": "trl", "seq_len": seed % 4096 + 1},
        "hardware": {"gpu": "rtx-4090", "gpus": 1, "nodes": 1, "host": id[:12]},
        "memory": {"device_bytes": seed}, "time": {"step_s": (seed % 1000) / 1000, "steps": seed % 500},
        "predicted": {"device_bytes": seed + 1, "step_s": 0.5},
        "loss": [[step, (seed + step) % 997 / 100] for step in range(LOSSES)], "tunecast": "0.1.0",
    }  # fmt: skip


def write_until_killed(environ: Mapping[str, str], writer: int, acknowledged: Path, most: int = 10**9) -> None:
    """An acknowledged run is one line: its id, its state, and whether it was stored or waits."""
    draw = random.Random(writer)
    handle = os.open(acknowledged, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    with open_store(environ) as store:
        for number in range(most):
            id = run_id(writer, number)
            for state in ("running", "done"):
                try:
                    stored = store.add(record(id, state))
                except NotResolved:  # refused: nothing was promised
                    continue
                os.write(handle, f"{id} {state} {'stored' if stored else 'waits'}\n".encode())
                time.sleep(PAUSE_S * draw.random())


def fork(work: Callable[[], None]) -> int:
    """A process of its own, without starting a Python each time."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        work()
        code = 0
    finally:
        os._exit(code)


def acknowledged_runs(folder: Path) -> dict[str, str]:
    """The last state that was acknowledged of each id. A line that was cut off was not said."""
    found: dict[str, str] = {}
    for path in folder.glob("acknowledged-*"):
        for line in path.read_text().splitlines(keepends=True):
            words = line.split()
            if line.endswith("\n") and len(words) == 3:
                found[words[0]] = "done" if found.get(words[0]) == "done" else words[1]
    return found


def wrong_with(run: MeasuredRun) -> str:
    """'' where the record is the one of its id."""
    return "" if run == run_from(record(run.id, run.state)) else f"{run.id} holds what was never written"


def newest_failures(store: RunStore) -> list[str]:
    """Of some rows that were there a moment ago: what is not whole. Read while others write."""
    told = []
    for row in store.summaries(NEWEST):
        run = store.get(row.id)
        if run is None:
            told.append(f"{row.id}: a row without a record")
        elif wrong := wrong_with(run):
            told.append(wrong)
    return told


def failures(store: RunStore, acknowledged: Mapping[str, str]) -> list[str]:
    """What was acknowledged and is not there, and what is there and was never written."""
    bad: list[str] = []
    rows = {each.id: each for each in store.summaries()}
    told, seen = [], {}
    for run in store.records(bad=bad):
        seen[run.id] = run.state
        if wrong := wrong_with(run):
            told.append(wrong)
        if rows.get(run.id) != summary(run):
            told.append(f"{run.id}: the row is not that of the record")
    told += [f"{id} cannot be read" for id in bad]
    told += [f"{id}: a row without a record" for id in rows.keys() - seen.keys() - set(bad)]
    for id, state in acknowledged.items():
        if id not in seen:
            told.append(f"{id} was acknowledged as {state} and is lost")
        elif state == "done" and seen[id] != "done":
            told.append(f"{id} was acknowledged as done and is {seen[id]}")
    return told
