"""This machine: a process of its own session, which goes on when the terminal is closed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tunecast.launching.engines.commands import tail_command
from tunecast.launching.ledger import LOG, PID, STATUS, LedgerEntry
from tunecast.launching.rendering import RESUME, Command, Order

ELSEWHERE = False
INSTALLS = False
OPTIONS: tuple[str, ...] = ()
END_S = 60
"""From being asked to end until being made to: more than the 30 s that torchrun gives its workers, which have sessions
of their own (torch/distributed/elastic/multiprocessing/api.py, `close`)."""
KILL = (
    f"finish() {{ sleep {END_S}; for each in /proc/[0-9]*; do one=${{each#/proc/}}; "
    "read -r told <$each/stat || continue; told=(${told##*\\) }); "
    "case $one in $$|$BASHPID) ;; *) [ ${told[3]} = $$ ] && kill -s KILL $one;; esac; done; }"
)
"""All of the session (proc(5), /proc/PID/stat): what measures a training gives it a process group of its own."""
TRAIN = (
    f"{KILL}; trap 'finish 9>&- &' TERM; bash {RESUME} >{LOG} 2>&1 9>&- & child=$!; "
    f"while kill -0 $child 2>/dev/null; do wait $child; status=$?; done; echo $status >{STATUS}"
)
"""Stays until the training is over, which may take its time to end, or not want to."""
START = f"echo $$ >{PID}; {TRAIN}"
"""Says its own process first, so that a launch that was killed in between is found again; at its end how it ended."""
WAITING, TURN = "waiting", "../.turn"
START_IN_TURN = f"touch {WAITING}; echo $$ >{PID}; exec 9>>{TURN}; flock 9 || exit 1; rm -f {WAITING}; {TRAIN}"
"""The same, once the jobs before it are over: who holds a lock of the kernel's runs (flock(1)), and it is free when its
holder ends, however that comes."""


def render(
    order: Order, options: Mapping[str, str], host: str
) -> tuple[Mapping[str, str], tuple[Command, ...], tuple[str, ...]]:
    return {}, (("bash", "-c", START_IN_TURN if order.in_turn else START),), ()


def submit(entry: LedgerEntry, commands: tuple[Command, ...], environment: Mapping[str, str]) -> str:
    """The process that was started, which leads its session."""
    started = subprocess.Popen(
        commands[-1],
        cwd=entry.folder,
        env={**environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return str(started.pid)


def state(entry: LedgerEntry) -> str:
    """Whether it runs is looked up first: what ends in between has its status written by then."""
    process = entry.process
    runs = process is not None and _is_ours(process, entry.folder)
    if entry.status is not None:
        return "done" if entry.status == 0 else "failed"
    if process is None:
        return "not started"
    if not runs:
        return "failed"
    return "queued" if (entry.folder / WAITING).exists() else "running"


def _is_ours(process: int, folder: Path) -> bool:
    """Numbers of processes are used again: ours works in its folder."""
    try:
        return os.path.samefile(f"/proc/{process}/cwd", folder)
    except OSError:
        return False


def log_command(entry: LedgerEntry, *, follow: bool) -> Command:
    return tail_command(entry, follow=follow)


def cancel(entry: LedgerEntry) -> None:
    """All of its session: trainings start processes of their own."""
    process = entry.process
    if process is not None and _is_ours(process, entry.folder):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGTERM)
