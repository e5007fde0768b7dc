"""A plain machine, by ssh: files are copied into tunecast/NAME of the user's folder there, and started in a session of
their own, which goes on when the connection is lost.

Who may log in, with which key and through which port is ssh's own configuration (ssh_config(5)); nothing is asked for.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from tunecast.errors import NotResolved
from tunecast.launching.engines.commands import output_of
from tunecast.launching.engines.local import START, START_IN_TURN, WAITING
from tunecast.launching.ledger import LOG, PID, STATUS, LedgerEntry
from tunecast.launching.programs import files_of
from tunecast.launching.rendering import Command, Order

ELSEWHERE = True
INSTALLS = False
OPTIONS = ("venv",)
"""`venv`: the folder of the Python environment there, whose programs come first."""
SSH, COPY = ("ssh", "-o", "BatchMode=yes"), ("scp", "-q", "-r", "-o", "BatchMode=yes")


def render(
    order: Order, options: Mapping[str, str], host: str
) -> tuple[Mapping[str, str], tuple[Command, ...], tuple[str, ...]]:
    there, by_folder = folder_of(order.name), dict[str, list[str]]()
    for place, here in order.program.carried.items():
        by_folder.setdefault(f"{there}/{place.rpartition('/')[0]}", []).append(here)
    folders = sorted({there, *by_folder})
    path = f'export PATH={shlex.quote(options["venv"] + "/bin")}:"$PATH" && ' if "venv" in options else ""
    run = f"cd {there} && {path}exec setsid bash -c {shlex.quote(START_IN_TURN if order.in_turn else START)}"
    start = f"{{ {run}; }} </dev/null >/dev/null 2>&1 &"  # nothing of it holds on to the connection
    commands: tuple[Command, ...] = (
        (*SSH, host, f"mkdir -p {' '.join(folders)}"),
        (*COPY, *files_of(order.program, order.job), f"{host}:{there}/"),
        *((*COPY, *files, f"{host}:{folder}/") for folder, files in by_folder.items()),
        (*SSH, host, start),
    )
    nodes = order.job.hardware.nodes
    notes = (f"one machine alone is started: of {nodes} start the others yourself",) if nodes > 1 else ()
    return {}, commands, notes


def folder_of(name: str) -> str:
    """Names of launches are letters, digits and dashes."""
    return f"tunecast/{name}"


def submit(entry: LedgerEntry, commands: tuple[Command, ...], environment: Mapping[str, str]) -> str:
    for command in commands:
        _run(command, entry, environment)
    return folder_of(entry.id)


def _run(command: Command, entry: LedgerEntry, environment: Mapping[str, str] | None = None) -> str:
    return output_of(command, entry.folder, environment, named=entry.engine, lock=entry.lock)


def _host(entry: LedgerEntry) -> str:
    return entry.engine.partition(":")[2]


OURS = f'[ "$(readlink "/proc/$(cat {PID})/cwd")" = "$(pwd -P)" ]'
"""Numbers of processes are used again, after the machine was restarted at the latest: ours works in its folder."""
ASKED = (
    f"if [ -f {STATUS} ]; then cat {STATUS}; elif [ ! -f {PID} ]; then echo absent; "
    f"elif ! {OURS}; then cat {STATUS} 2>/dev/null || echo gone; "  # it may have ended just now
    f"elif [ -f {WAITING} ]; then echo queued; else echo running; fi"
)
"""In a job's folder there."""
ANSWERS = {"absent": "not started", "queued": "queued", "running": "running", "0": "done"}
MOST_ASKED = 1000
"""Names of launches in one command: of at most 45 letters, where Linux takes 131,072 of a word (execve(2))."""


def state(entry: LedgerEntry) -> str:
    return states([entry])[entry.id]


def states(entries: Sequence[LedgerEntry]) -> dict[str, str]:
    """Of jobs on one machine, in one connection for each thousand."""
    found: dict[str, str] = {}
    for first in range(0, len(entries), MOST_ASKED):
        some = entries[first : first + MOST_ASKED]
        names = " ".join(folder_of(each.id) for each in some)
        asked = f"for each in {names}; do (cd $each 2>/dev/null || {{ echo absent; exit; }}; {ASKED}); done"
        told = _run((*SSH, _host(some[0]), asked), some[0]).split()
        if len(told) != len(some):
            raise NotResolved(f"{some[0].engine}: got {len(told)} answers of {len(some)} jobs", field="on")
        found |= {each.id: ANSWERS.get(answer, "failed") for each, answer in zip(some, told, strict=True)}
    return found


def log_command(entry: LedgerEntry, *, follow: bool) -> Command:
    flags = " --follow=name --retry" if follow else ""
    return (*SSH, _host(entry), f"tail -n +1{flags} {folder_of(entry.id)}/{LOG}")


def cancel(entry: LedgerEntry) -> None:
    """All of its session."""
    stop = f'cd {folder_of(entry.id)} 2>/dev/null && {OURS} && kill -s TERM -- "-$(cat {PID})" 2>/dev/null || true'
    _run((*SSH, _host(entry), stop), entry)
