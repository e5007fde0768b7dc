"""lyceum: a container on one machine, by lyceum-cli; files go through the account's storage.

Source  lyceum-cli 1.2.2: `docker run` (lyceum/external/compute/execution/docker.py) takes an image, a machine type, a
        time-out and a command, and mounts the account's bucket at /mnt/s3; `storage upload` (external/storage/files.py)
        fills that. Which machine types there are only the account knows (`lyceum gpu machines`); it starts one.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

from tunecast.errors import NotResolved, UsageError
from tunecast.launching.engines.commands import run_command
from tunecast.launching.engines.options import whole_number
from tunecast.launching.engines.start import IMAGE, INSTALLATION_S
from tunecast.launching.ledger import LedgerEntry
from tunecast.launching.pins import installation
from tunecast.launching.rendering import OUTPUT, RESUME, Command, Order, TrainingProgram

ELSEWHERE = True
INSTALLS = True
OPTIONS = ("machine", "image", "timeout")
"""`machine`: a machine type of `lyceum gpu machines`."""
MACHINE = "PLACEHOLDER_machine"
BUCKET, FOLDER = "/mnt/s3", "tunecast"
STATES: Mapping[str, str] = {
    **dict.fromkeys(
        ("pending", "queued", "starting", "provisioning", "initializing", "validating", "created"), "queued"
    ),
    **dict.fromkeys(("running", "in_progress", "finalizing", "active", "ready"), "running"),
    **dict.fromkeys(("completed", "success"), "done"),
    **dict.fromkeys(("cancelled", "aborted"), "cancelled"),
    **dict.fromkeys(
        (
            *("failed", "error", "failed_user", "failed_system", "system_failure", "terminated", "stopped", "expired"),
            "timeout",
        ),
        "failed",
    ),
}
"""lyceum's states (lyceum/shared/ui.py, _STATUS_COLORS) by ours."""
SAID = re.compile(r"Execution ID:\s*([A-Za-z0-9-]+)")


def render(
    order: Order, options: Mapping[str, str], host: str
) -> tuple[Mapping[str, str], tuple[Command, ...], tuple[str, ...]]:
    if order.job.hardware.nodes > 1:
        raise UsageError("--on lyceum: one machine is started, the job has several. To fix: --nodes 1", field="on")
    place = f"{FOLDER}/{order.name}"
    upload = ("lyceum", "storage", "upload")
    limit = _limit_s(order, options)
    commands: tuple[Command, ...] = (
        (*upload, ".", "--recursive", "--force", "--key", place),
        *(
            (*upload, here, "--recursive", "--force", "--key", f"{place}/{path}")
            for path, here in order.program.carried.items()
        ),
        (
            *("lyceum", "docker", "run", options.get("image", IMAGE), "--machine", options.get("machine", MACHINE)),
            *(() if limit is None else ("--timeout", str(limit))),
            *("--file-name", order.name, "--run-name", order.name, "--detach"),
            *("--command", shlex.join(("bash", "-c", start_words(place, order.program)))),
        ),
    )
    return {}, commands, tuple(_notes(order, options))


def start_words(place: str, program: TrainingProgram) -> str:
    """Trained on the machine's own disk: the bucket is no place for files that are written in parts. What there is at
    the end goes back, whatever the end was."""
    kept = f"{BUCKET}/{place}"
    return (
        f"cp -r {kept} /job && cd /job && {installation(program)} && "
        f"{{ status=0; bash {RESUME} || status=$?; cp -r {OUTPUT} {kept}/; exit $status; }}"
    )


def _limit_s(order: Order, options: Mapping[str, str]) -> int | None:
    if "timeout" in options:
        return whole_number(options, "timeout", 0, " of seconds")
    return None if order.limit_s is None else ceil(order.limit_s + INSTALLATION_S)


def require_options(order: Order, options: Mapping[str, str]) -> None:
    if "machine" not in options:
        raise UsageError(
            "--on lyceum: which of its machines has this card is not known here. To fix: --option machine=TYPE, of "
            "`lyceum gpu machines`",
            field="option",
        )
    if _limit_s(order, options) is None:
        raise UsageError(
            "--on lyceum: how long it takes is not predicted, and lyceum ends it after 5 minutes. To fix: --option "
            "timeout=SECONDS",
            field="option",
        )


def _notes(order: Order, options: Mapping[str, str]) -> Iterator[str]:
    hardware = order.job.hardware
    if "machine" not in options:
        yield (
            f"{MACHINE} stands for a machine type with {hardware.gpus} x {hardware.gpu}, of `lyceum gpu machines`. "
            "To fix: --option machine=TYPE"
        )
    if _limit_s(order, options) is None:
        yield "how long it takes is not predicted, and lyceum's time-out is 5 minutes. To fix: --option timeout=SECONDS"
    yield f"checkpoints come into the account's storage ({FOLDER}/{order.name}/{OUTPUT}) when it ends, not before"


def submit(entry: LedgerEntry, commands: tuple[Command, ...], environment: Mapping[str, str]) -> str:
    """The execution's id. It has the launch's name, by which one that was killed in between is found again."""
    said = ""
    for command in commands:
        said = run_command(command, entry, environment)
    found = SAID.search(said)
    number = found[1] if found else _by_name(entry)
    if number is None:
        raise NotResolved("lyceum docker run: it did not say which execution it started", field="on")
    return number


def _by_name(entry: LedgerEntry) -> str | None:
    """Of those that run, and of those that ran."""
    for listed in ("list", "history"):
        rows = _answer(run_command(("lyceum", "jobs", listed, "--limit", "1000", "--json"), entry))
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict) and row.get("file_name") == entry.id:
                return str(row.get("execution_id"))
    return None


def _answer(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise NotResolved("lyceum: its answer is not JSON", field="on") from None


def state(entry: LedgerEntry) -> str:
    number = entry.number or _by_name(entry)
    if number is None:
        return "not started"
    row = _answer(run_command(("lyceum", "jobs", "status", number, "--json"), entry))
    return STATES.get(str(row.get("status")).lower(), "unknown") if isinstance(row, dict) else "unknown"


def log_command(entry: LedgerEntry, *, follow: bool) -> Command:
    number = entry.number or _by_name(entry) or entry.id
    return ("lyceum", "docker", "logs", number) if follow else ("lyceum", "jobs", "logs", number, "--hours", "168")


def cancel(entry: LedgerEntry) -> None:
    number = entry.number or _by_name(entry)
    if number is not None:
        run_command(("lyceum", "jobs", "abort", number), entry)
