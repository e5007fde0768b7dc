"""Slurm: a batch script with its order, submitted by sbatch.

Options: sbatch(1). A job that runs into its time limit is queued again where it saved a checkpoint meanwhile, and goes
on from it; one that did not would not come further the next time either.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from tunecast.errors import NotResolved
from tunecast.launching.engines.commands import output_of
from tunecast.launching.ledger import JOB, LOG, STATUS, LedgerEntry
from tunecast.launching.rendering import OUTPUT, RESUME, Command, Order
from tunecast.units import MIB

ELSEWHERE = False
OPTIONS = ("partition", "account", "qos", "constraint", "gres", "reservation", "time", "mem", "exclude", "nodelist")
BATCH = "job.sbatch"
SIGNAL_S = 10
"""Before the limit, and up to a minute earlier (sbatch(1), --signal). Asking to be queued again takes a second."""
STATES: Mapping[str, str] = {
    **dict.fromkeys(("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "CONFIGURING", "SUSPENDED"), "queued"),
    **dict.fromkeys(("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"), "running"),
    "COMPLETED": "done",
    "CANCELLED": "cancelled",
    **dict.fromkeys(
        ("FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED", "REVOKED"), "failed"
    ),
}
"""Slurm's states (squeue(1), JOB STATE CODES) by ours."""


def render(
    order: Order, options: Mapping[str, str], host: str
) -> tuple[Mapping[str, str], tuple[Command, ...], tuple[str, ...]]:
    notes = []
    if "gres" not in options:
        notes.append(
            f"any card: a cluster has its own names for cards. To fix: --option gres=gpu:NAME:{order.job.hardware.gpus}"
        )
    if order.limit_s is None and "time" not in options:
        notes.append("no time limit: how long it takes is not predicted. To fix: --option time=6:00:00")
    test = ("sbatch", "--test-only", BATCH)
    return {BATCH: batch_text(order, options)}, (test, ("sbatch", "--parsable", BATCH)), tuple(notes)


def batch_text(order: Order, options: Mapping[str, str]) -> str:
    hardware = order.job.hardware
    asked = {
        "job-name": order.name,
        "nodes": str(hardware.nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": str(order.cpu_cores),
        "gres": f"gpu:{hardware.gpus}",
        **({} if order.ram_bytes is None else {"mem": f"{ceil(order.ram_bytes / MIB)}M"}),
        **({} if order.limit_s is None else {"time": slurm_time(order.limit_s)}),
        "signal": f"B:USR1@{SIGNAL_S}",
        "open-mode": "append",
        "output": LOG,
        **options,
    }
    lines = ["#!/usr/bin/env bash", *(f"#SBATCH --{name}={value}" for name, value in asked.items())]
    return "\n".join([*lines, "#SBATCH --requeue", BODY])


BODY = f"""set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
echo "$SLURM_JOB_ID" >{JOB}
rm -f {STATUS}
touch attempt
# The address by which Slurm itself reaches the first node.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_ADDR=$(scontrol show node "$first" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')
MASTER_PORT=$((10000 + SLURM_JOB_ID % 50000))
export MASTER_ADDR MASTER_PORT

requeued=
# Runs before the time limit: again from its checkpoint, where it saved one in this attempt.
requeue() {{
    if [ -n "$(find {OUTPUT} -name trainer_state.json -newer attempt 2>/dev/null)" ]; then
        requeued=1
        scontrol requeue "$SLURM_JOB_ID"
    fi
}}
trap requeue USR1

srun --kill-on-bad-exit=1 bash -c 'NODE_RANK=$SLURM_NODEID exec bash {RESUME}' &
status=0
while kill -0 $! 2>/dev/null; do
    status=0
    wait $! || status=$?
done
if [ -z "$requeued" ]; then echo "$status" >{STATUS}; fi
exit "$status"
"""


def slurm_time(seconds: float) -> str:
    """D-HH:MM:SS, whole minutes: Slurm counts no others."""
    minutes = max(1, ceil(seconds / 60))
    days, rest = divmod(minutes, 24 * 60)
    return f"{days}-{rest // 60:02d}:{rest % 60:02d}:00"


def submit(entry: LedgerEntry, commands: tuple[Command, ...], environment: Mapping[str, str]) -> str:
    """The job's number. It is named after the launch, so that one that was killed in between is found again."""
    return _run(commands[-1], entry, environment).strip().partition(";")[0]


def _run(command: Command, entry: LedgerEntry, environment: Mapping[str, str] | None = None) -> str:
    return output_of(command, entry.folder, environment, named=command[0], absent=": no Slurm here")


def number_of(entry: LedgerEntry) -> str | None:
    """As sbatch said, as the job itself wrote it, or by its name and the folder it was submitted in."""
    if entry.number or entry.written(JOB):
        return entry.number or entry.written(JOB)
    rows = _run(("squeue", "--noheader", "--states=all", f"--name={entry.id}", "--format=%A %Z"), entry).splitlines()
    found = [number for number, _, folder in (row.partition(" ") for row in rows) if folder == str(entry.folder)]
    return max(found, key=int, default=None)


def state(entry: LedgerEntry) -> str:
    number = number_of(entry)
    if number is None:
        return "not started"
    told = "".join(_squeue(entry, number).split()[:1])
    known = STATES.get(told)
    if known in ("queued", "running", "cancelled") or (known and entry.status is None):
        return known
    if entry.status is not None:
        return "done" if entry.status == 0 else "failed"
    return "ended"


def _squeue(entry: LedgerEntry, number: str) -> str:
    """Nothing of a job that it has forgotten."""
    try:
        return _run(("squeue", "--noheader", "--states=all", f"--jobs={number}", "--format=%T"), entry)
    except NotResolved as error:
        if "Invalid job id" in error.message:
            return ""
        raise


def log_command(entry: LedgerEntry, *, follow: bool) -> Command:
    return ("tail", "-n", "+1", *(("--follow=name", "--retry") if follow else ()), str(entry.folder / LOG))


def cancel(entry: LedgerEntry) -> None:
    number = number_of(entry)
    if number is not None:
        _run(("scancel", number), entry)
