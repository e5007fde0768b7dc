"""Slurm: a batch script with its order, submitted by sbatch.

Options: sbatch(1). A job that runs into its time limit is queued again where it saved a checkpoint meanwhile, and goes
on from it; one that did not would not come further the next time either.

Several jobs that ask for the same machines are one array (sbatch(1), --array): Slurm queues them, at most N at a time
with `%N`. Each works in its own folder, which ARRAY names by its line.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from math import ceil

from tunecast.errors import NotResolved
from tunecast.launching.engines.commands import output_of, said_by, tail_command
from tunecast.launching.ledger import JOB, LOG, STATUS, LedgerEntry, NotKnown
from tunecast.launching.rendering import OUTPUT, RESUME, Command, JobArray, Order
from tunecast.records import replace
from tunecast.units import MIB

ELSEWHERE = False
INSTALLS = False
OPTIONS = (
    *("partition", "account", "qos", "constraint", "gres", "reservation", "time", "mem", "cpus-per-task"),
    *("exclude", "nodelist"),
)
BATCH, ARRAY = "job.sbatch", "array.txt"
MOST_IN_ARRAY = 1000
"""Slurm's default, one index less (slurm.conf(5), MaxArraySize)."""
CHECKPOINT_END = "CHECKPOINT_END"
"""Stands in `BODY` for what the training writes last of a checkpoint."""
SIGNAL_S = 10
"""Before the limit, and up to a minute earlier (sbatch(1), --signal). Asking to be queued again takes a second."""
ESTIMATE = re.compile(r"to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")
"""In what `sbatch --test-only` says (slurm, src/sbatch/sbatch.c, `_print_will_run`)."""
ESTIMATE_LIMIT_S = 20.0
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
    if cores_of(order) > order.cpu_cores and "cpus-per-task" not in options:
        notes.append(
            f"{cores_of(order)} cores, for as many processes that tokenize the data before it trains. To fix, where "
            "nodes have fewer: --set data.num_proc=8"
        )
    test = ("sbatch", "--test-only", BATCH)
    return {BATCH: batch_text(order, options)}, (test, ("sbatch", "--parsable", BATCH)), tuple(notes)


def render_many(
    orders: Sequence[Order], options: Mapping[str, str], host: str, at_once: int | None = None
) -> tuple[JobArray, ...]:
    """Those that ask for the same machines as one, in the order given. `at_once`: how many of them may run."""
    by_machine: dict[tuple[object, ...], list[int]] = {}
    for n, order in enumerate(orders):
        asked = order.job.hardware
        by_machine.setdefault((asked.gpu, asked.gpus, asked.nodes, order.limit_s is None), []).append(n)
    parts = [
        each[first : first + MOST_IN_ARRAY]
        for each in by_machine.values()
        for first in range(0, len(each), MOST_IN_ARRAY)
    ]
    return tuple(_array(orders, tuple(part), options, at_once) for part in parts)


def _array(
    orders: Sequence[Order], members: tuple[int, ...], options: Mapping[str, str], at_once: int | None
) -> JobArray:
    of = [orders[n] for n in members]
    limits = [each.limit_s for each in of if each.limit_s is not None]
    rams = [each.ram_bytes for each in of if each.ram_bytes is not None]
    together = replace(
        of[0],
        cpu_cores=max(map(cores_of, of)),
        ram_bytes=max(rams, default=None),
        limit_s=max(limits, default=None),
    )
    array = f"0-{len(of) - 1}" + ("" if at_once is None else f"%{at_once}")
    files = {
        BATCH: batch_text(together, options, array),
        ARRAY: "".join(f"../{each.name}\n" for each in of),
    }
    return JobArray(members, files, (("sbatch", "--test-only", BATCH), ("sbatch", "--parsable", BATCH)))


def batch_text(order: Order, options: Mapping[str, str], array: str = "") -> str:
    """Of one job; of several, as `array` says which, what the largest of them needs."""
    hardware = order.job.hardware
    asked = {
        "job-name": order.name,
        "nodes": str(hardware.nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": str(cores_of(order)),
        "gres": f"gpu:{hardware.gpus}",
        **({} if order.ram_bytes is None else {"mem": f"{ceil(order.ram_bytes / MIB)}M"}),
        **({} if order.limit_s is None else {"time": slurm_time(order.limit_s)}),
        "signal": f"B:USR1@{SIGNAL_S}",
        "open-mode": "append",
        "output": "array.log" if array else LOG,
        **({"array": array} if array else {}),
        **options,
    }
    lines = ["#!/usr/bin/env bash", *(f"#SBATCH --{name}={value}" for name, value in asked.items())]
    body = BODY.replace(CHECKPOINT_END, order.program.checkpoint_end)
    return "\n".join([*lines, "#SBATCH --requeue", OF_ARRAY if array else ALONE, body])


def cores_of(order: Order) -> int:
    """Slurm lets a job use no others: those of its training, or of the processes that tokenize before it, whose time is
    predicted so."""
    return max(order.cpu_cores, order.job.data.num_proc)


ALONE = """set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
job=$SLURM_JOB_ID"""
OF_ARRAY = f"""set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
cd "$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {ARRAY})"
exec >>{LOG} 2>&1
# The number of one of its jobs is also that of the whole array: by this name it is that one alone.
job=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"""
BODY = f"""echo "$job" >{JOB}
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
    if [ -n "$(find {OUTPUT} -path '*/{CHECKPOINT_END}' -newer attempt 2>/dev/null)" ]; then
        requeued=1
        scontrol requeue "$job"
    fi
}}
trap requeue USR1

# From Slurm 22.05 on srun does not take over the cores of a task by itself.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 bash -c 'NODE_RANK=$SLURM_NODEID exec bash {RESUME}' &
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


def begins(entry: LedgerEntry, commands: tuple[Command, ...], environment: Mapping[str, str]) -> str:
    """When Slurm would begin it, as the queue stands, in the cluster's own time; '': it does not say."""
    environment = {**environment, "SLURM_TIME_FORMAT": "standard"}
    found = ESTIMATE.search(said_by(commands[0], entry.folder, environment, ESTIMATE_LIMIT_S))
    return "" if found is None else f"Slurm would begin it at {found[1]}, as the queue stands (sbatch --test-only)"


def submit(entry: LedgerEntry, commands: tuple[Command, ...], environment: Mapping[str, str]) -> str:
    """The job's number. Slurm knows it by the folder it was submitted in, so that one that was killed in between, or of
    which the controller's answer was lost, is found again."""
    try:
        return _run(commands[-1], entry, environment).strip().partition(";")[0]
    except NotResolved as error:
        if shutil.which(commands[-1][0]) is None:
            raise
        return _number_after(error, entry)


def _number_after(error: NotResolved, entry: LedgerEntry) -> str:
    """Of a job that was taken all the same. Slurm keeps what it refused for a while too, as failed."""
    try:
        known = QueuedJobs(entry)
    except NotResolved:
        raise NotKnown(
            f"{error.message}; whether it was started is not known until Slurm answers", field="on"
        ) from None
    number = known.number_of(entry)
    if number is None or known.state_of(entry) == "failed":
        raise error
    return number.partition("_")[0] if entry.part else number


def submit_many(
    entries: Sequence[LedgerEntry], commands: tuple[Command, ...], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Of an array: the number of each of its jobs."""
    number = submit(entries[0], commands, environment)
    return tuple(f"{number}_{entry.index}" for entry in entries)


def _run(command: Command, entry: LedgerEntry, environment: Mapping[str, str] | None = None) -> str:
    absent = ": no Slurm here"
    return output_of(command, entry.submitted_in, environment, named=command[0], absent=absent, lock=entry.lock)


class QueuedJobs:
    """What Slurm knows of the user's jobs, asked once: states by number, and numbers by folder and place in an array.
    What ended minutes ago is forgotten (slurm.conf(5), MinJobAge)."""

    def __init__(self, asking: LedgerEntry) -> None:
        self.states: dict[str, str] = {}
        self.numbers: dict[tuple[str, str], str] = {}
        told = _run(("squeue", "--me", "--array", "--noheader", "--states=all", "--format=%F|%K|%T|%Z"), asking)
        for row in told.splitlines():
            job, index, state, place = row.split("|", 3)
            number = f"{job}_{index}" if index.isdecimal() else job
            self.states[number] = state
            self.numbers[place, index if index.isdecimal() else ""] = number

    def number_of(self, entry: LedgerEntry) -> str | None:
        """As sbatch said, as the job itself wrote it, or as Slurm has it."""
        return (
            entry.number or entry.text_in(JOB) or self.numbers.get((os.path.realpath(entry.submitted_in), entry.index))
        )

    def state_of(self, entry: LedgerEntry) -> str:
        number = self.number_of(entry)
        if number is None:
            return "not started"
        known = STATES.get(self.states.get(number, ""))
        if known in ("queued", "running", "cancelled") or (known and entry.status is None):
            return known
        if entry.status is not None:
            return "done" if entry.status == 0 else "failed"
        return "ended"


def state(entry: LedgerEntry) -> str:
    return states([entry])[entry.id]


def states(entries: Sequence[LedgerEntry]) -> dict[str, str]:
    known = QueuedJobs(entries[0])
    return {entry.id: known.state_of(entry) for entry in entries}


def log_command(entry: LedgerEntry, *, follow: bool) -> Command:
    return tail_command(entry, follow=follow)


def cancel(entry: LedgerEntry) -> None:
    cancel_all([entry])


def cancel_all(entries: Sequence[LedgerEntry]) -> None:
    known = QueuedJobs(entries[0])
    numbers = [number for entry in entries if (number := known.number_of(entry)) is not None]
    if numbers:
        _run(("scancel", "--quiet", *numbers), entries[0])
