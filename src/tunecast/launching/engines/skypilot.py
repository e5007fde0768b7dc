"""SkyPilot: a task with the plan's machines in the plan's order, started by `sky launch`, or by `sky jobs launch` where
a spot machine is among them or several jobs are launched together: a managed job is queued by SkyPilot, and started
again when it is interrupted.

Source  docs.skypilot.co, "Task YAML"; sky/utils/schemas.py of skypilot 0.14.1. A YAML has no word for how long a task
        takes, and one that is sent to SkyPilot's server loses what `Task.set_time_estimator` said (sky/task.py,
        `to_yaml_config`). So its order is ours, and estimate.py asks SkyPilot's optimizer with the predicted times.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from tunecast.errors import NotResolved, UsageError
from tunecast.hardware.catalog import gpu
from tunecast.launching.engines.commands import run_command, submit_by_name
from tunecast.launching.engines.names import (
    SEVERAL_CARDS,
    SKYPILOT_CANNOT,
    SKYPILOT_CARDS,
    SKYPILOT_CLOUDS,
    SKYPILOT_LISTS,
)
from tunecast.launching.engines.options import price_usd, whole_number
from tunecast.launching.engines.start import NOTHING, letter_first, start_text
from tunecast.launching.ledger import LedgerEntry
from tunecast.launching.offers import most_anywhere, most_usd_per_hour
from tunecast.launching.pins import PYTHON, installation
from tunecast.launching.rendering import Command, MachineOffer, Order
from tunecast.launching.texts import yaml_text
from tunecast.records import NamedTuple
from tunecast.units import GB, GIB

ELSEWHERE = True
INSTALLS = True
OPTIONS = ("bucket", "max_hourly_cost", "infra", "disk_size", "image_id", "idle_minutes")
"""`bucket`: s3://NAME, gs://NAME, …: where checkpoints and the result are kept; `none`: nothing is. `infra`: in the
place of a plan's."""
CLUSTER, MANAGED, START, ESTIMATE = "cluster.yaml", "managed.yaml", "start.sh", "estimate.py"
"""The task has one of two names, by which it is known later who started it."""
WORKDIR, KEPT = "~/sky_workdir", "/tunecast"
ENVIRONMENT = "~/tunecast-python"
MAKE_PYTHON = f'"$HOME/.local/bin/uv" venv --seed --allow-existing --python {PYTHON} {ENVIRONMENT}'
USE_PYTHON = f". {ENVIRONMENT}/bin/activate"
"""SkyPilot's own environment has the image's Python: 3.10 on Ubuntu 22.04, where torch 2.15 and transformers 5.22 do
not install (3.11 and later). uv is where SkyPilot puts it on every machine (sky/skylet/constants.py, SKY_UV_INSTALL_DIR
and SKY_USER_ENV_CREATION_COMMANDS)."""
SYSTEM_DISK_GB = 256
"""SkyPilot's own size of a disk (sky/resources.py, DEFAULT_DISK_SIZE_GB), for system and packages: the job's is
added."""
IDLE_MINUTES = 5
"""Until a machine whose job is over is given back; what is written to the bucket is waited for before that."""
KINDS = ("on-demand", "spot")
"""Offers that SkyPilot can order."""
STATES: Mapping[str, str] = {
    **dict.fromkeys(("PENDING", "SUBMITTED", "STARTING", "RECOVERING", "INIT", "SETTING_UP"), "queued"),
    **dict.fromkeys(("RUNNING", "WINDING_DOWN", "CANCELLING"), "running"),
    "SUCCEEDED": "done",
    "CANCELLED": "cancelled",
    **dict.fromkeys(
        (
            *("FAILED", "FAILED_SETUP", "FAILED_PRECHECKS", "FAILED_NO_RESOURCE", "FAILED_CONTROLLER"),
            *("FAILED_DRIVER",),
        ),
        "failed",
    ),
}
"""SkyPilot's states (sky/jobs/state.py, ManagedJobStatus; sky/skylet/job_lib.py, JobStatus) by ours."""


def render(
    order: Order, options: Mapping[str, str], host: str
) -> tuple[Mapping[str, str], tuple[Command, ...], tuple[str, ...]]:
    machines, notes = _machines(order, options)
    entries = [each.entry for each in machines]
    managed = order.of_several or any(entry.get("use_spot") for entry in entries)
    name = letter_first(order.name)
    file, flags = (MANAGED, ("jobs", "launch")) if managed else (CLUSTER, ("launch", "--cluster", name))
    task = task_values(order, options, entries, managed=managed)
    kept, variables = KEPT if _bucket(options) else "", VARIABLES if order.job.hardware.nodes > 1 else {}
    files = {file: yaml_text(task, HEADING), START: start_text("SkyPilot", variables, kept, name)}
    if order.expected_s is not None:
        files[ESTIMATE] = estimate_text(file, machines)
    return files, (("sky", *flags, "--name", name, "--yes", "--detach-run", file),), (*notes, *_notes(order, options))


class TaskMachine(NamedTuple):
    """One entry of a task's resources, and how long the run takes on it."""

    entry: dict[str, object]
    total_s: float


HEADING = ("SkyPilot's task: docs.skypilot.co, Task YAML.",)
VARIABLES = {
    "NODE_RANK": "$SKYPILOT_NODE_RANK",
    "MASTER_ADDR": '$(head -n 1 <<<"$SKYPILOT_NODE_IPS")',
}
"""sky/skylet/constants.py, SKYPILOT_NODE_RANK and SKYPILOT_NODE_IPS: a line for each machine, the first one first."""


def require_options(order: Order, options: Mapping[str, str]) -> None:
    if "bucket" not in options:
        raise UsageError(
            "--on skypilot: what it trains would be lost with the machine. To fix: --option bucket=s3://NAME, or "
            "bucket=none",
            field="option",
        )


def _bucket(options: Mapping[str, str]) -> str:
    given = options.get("bucket", NOTHING)
    if given != NOTHING and "://" not in given:
        raise UsageError(f"--option bucket: got {given!r}; allowed: s3://NAME, gs://NAME and the like", field="option")
    return "" if given == NOTHING else given


def task_values(
    order: Order, options: Mapping[str, str], entries: list[dict[str, object]], *, managed: bool
) -> dict[str, object]:
    disk_gb = ceil((order.disk_bytes or 0) / GB) + SYSTEM_DISK_GB
    idle = whole_number(options, "idle_minutes", IDLE_MINUTES)
    listed = {"ordered" if order.offers else "any_of": entries}
    resources: dict[str, object] = {
        "disk_size": whole_number(options, "disk_size", disk_gb, " of GB"),
        **({"image_id": options["image_id"]} if "image_id" in options else {}),
        **({"job_recovery": "EAGER_NEXT_REGION"} if managed else {"autostop": {"idle_minutes": idle, "down": True}}),
        **(entries[0] if len(entries) == 1 else listed),
    }
    mounts: dict[str, object] = {f"{WORKDIR}/{path}": here for path, here in order.program.carried.items()}
    if _bucket(options):
        mounts[KEPT] = {"source": _bucket(options), "mode": "MOUNT_CACHED"}
    return {
        "name": letter_first(order.name),
        "workdir": ".",
        "num_nodes": order.job.hardware.nodes,
        "resources": resources,
        **({"file_mounts": mounts} if mounts else {}),
        "setup": f"{MAKE_PYTHON} && {USE_PYTHON} && {installation(order.program)}",
        "run": f"{USE_PYTHON} && bash {START}",
    }


def _machines(order: Order, options: Mapping[str, str]) -> tuple[list[TaskMachine], list[str]]:
    """What is asked for, the first choice first."""
    if not order.offers or "infra" in options:
        most = {"max_hourly_cost": _hourly(options, 0.0)} if "max_hourly_cost" in options else {}
        machines = [TaskMachine({**entry, **most}, order.expected_s or 0.0) for entry in _any_cloud(order, options)]
        return _require(machines, ["no cloud with this card can do what the job needs"]), []
    missing = {offer: _missing(offer, order, options) for offer in order.offers}
    known = [offer for offer in order.offers if not missing[offer]]
    notes = [f"{offer.gpus} x {offer.gpu} at {offer.provider} left out: {why}" for offer, why in missing.items() if why]
    prices = list(most_usd_per_hour(known, order.max_usd))
    machines = [
        TaskMachine({**entry, "max_hourly_cost": _hourly(options, price)}, offer.total_s)
        for offer, price in zip(known, prices, strict=True)
        for entry in _entries(offer, anywhere=order.anywhere)
    ]
    pick = order.offers[0]
    if order.anywhere and pick.kind in KINDS and pick.gpu in SKYPILOT_CARDS:
        most_usd = most_anywhere(order)
        others = [
            TaskMachine({**entry, **_spot(pick), "max_hourly_cost": _hourly(options, most_usd)}, pick.total_s)
            for entry in _any_cloud(order, options)
        ]
        machines += others
        if others:
            notes.append(
                f"last of all {pick.gpus} x {pick.gpu} at any cloud that can, for {most_usd:g} USD an hour each at most"
            )
    return _require(machines, notes), notes


def _require(machines: list[TaskMachine], reasons: Sequence[str]) -> list[TaskMachine]:
    if not machines:
        told = f"--on skypilot: {'; '.join(reasons)}. To fix: another card, --option infra=CLOUD, or bucket=none"
        raise UsageError(told, field="on")
    return machines


def _hourly(options: Mapping[str, str], planned: float) -> float:
    given = price_usd(options, "max_hourly_cost")
    return planned if given is None else given


def _missing(offer: MachineOffer, order: Order, options: Mapping[str, str]) -> str:
    """Why SkyPilot cannot order it; '': it can."""
    cloud = _cloud(offer)
    if offer.kind not in KINDS or cloud is None or not (_list(offer) or _accelerator(offer)):
        return "SkyPilot has no name for it that is known here"
    return _inability(
        cloud, order, options, spot=offer.kind == "spot", region=not order.anywhere and bool(offer.regions)
    )


def _inability(
    cloud: str, order: Order, options: Mapping[str, str], *, spot: bool = False, region: bool = False
) -> str:
    needed = {
        "mount a bucket": bool(_bucket(options)),
        "join machines": order.job.hardware.nodes > 1,
        "rent spot machines": spot,
        "name a region": region,
    }
    return next(
        (
            f"SkyPilot cannot {what} there"
            for what, is_needed in needed.items()
            if is_needed and cloud in SKYPILOT_CANNOT[what]
        ),
        "",
    )


def _list(offer: MachineOffer) -> str | None:
    """The cloud whose own list of SkyPilot the offer was read from."""
    name = offer.source.removeprefix("skypilot/")
    return name if name != offer.source and name in SKYPILOT_LISTS and offer.instance else None


def _cloud(offer: MachineOffer) -> str | None:
    return _list(offer) or SKYPILOT_CLOUDS.get(offer.provider)


def _accelerator(offer: MachineOffer) -> str | None:
    cloud = _cloud(offer)
    names = (name for name, clouds in SKYPILOT_CARDS.get(offer.gpu, {}).items() if cloud in clouds)
    return next(names, None)


def _entries(offer: MachineOffer, *, anywhere: bool) -> Iterator[dict[str, object]]:
    """One, or one for each region where a place was asked for."""
    accelerator, cloud = _accelerator(offer), _cloud(offer)
    for region in ("",) if anywhere else offer.regions or ("",):
        yield {
            "infra": f"{cloud}/{region}" if region else cloud,
            **({"instance_type": offer.instance} if _list(offer) else {}),
            **({"accelerators": f"{accelerator}:{offer.gpus}"} if accelerator else {}),
            **_spot(offer),
        }


def _spot(offer: MachineOffer) -> dict[str, object]:
    return {"use_spot": True} if offer.kind == "spot" else {}


def _any_cloud(order: Order, options: Mapping[str, str]) -> Iterator[dict[str, object]]:
    """The card alone: SkyPilot chooses the cloud. Where a name means several cards, or some clouds cannot do what the
    job needs (its optimizer does not ask for that), those are named that will do."""
    hardware = order.job.hardware
    names = SKYPILOT_CARDS.get(gpu(hardware.gpu).name)
    if names is None:
        raise UsageError(f"--on skypilot: no name of SkyPilot's is known for {hardware.gpu}", field="on")
    host = {
        "cpus": f"{order.cpu_cores}+",
        **({} if order.ram_bytes is None else {"memory": f"{ceil(order.ram_bytes / GIB)}+"}),
    }
    given, spot = options.get("infra"), bool(order.offers) and order.offers[0].kind == "spot"
    for name, clouds in names.items():
        card: dict[str, object] = {"accelerators": f"{name}:{hardware.gpus}", **host}
        able = [cloud for cloud in clouds if not _inability(cloud, order, options, spot=spot)]
        if given is not None or (name not in SEVERAL_CARDS and len(able) == len(clouds)):
            yield {**({"infra": given} if given else {}), **card}
        else:
            yield from ({"infra": cloud, **card} for cloud in able)


def _notes(order: Order, options: Mapping[str, str]) -> Iterator[str]:
    if not _bucket(options):
        yield "checkpoints and the result are lost with the machine. To fix: --option bucket=s3://NAME"
    if order.of_several:
        yield "SkyPilot queues them as managed jobs: its controller decides how many run (sky jobs queue)"
    if not order.offers:
        yield "no plan: SkyPilot chooses the cloud by its own prices. To fix: launch what `tunecast plan --json` writes"


def estimate_text(file: str, machines: Sequence[TaskMachine]) -> str:
    """A program for SkyPilot's own Python."""
    seconds = {_key(each.entry): round(each.total_s, 1) for each in machines}
    table = "\n".join(f"    {name!r}: {value!r}," for name, value in sorted(seconds.items()))
    return ESTIMATE_PROGRAM.format(file=file, table=table)


def _key(entry: Mapping[str, object]) -> str:
    cloud = str(entry.get("infra") or "").partition("/")[0]
    return f"{cloud} {entry.get('instance_type') or entry.get('accelerators')}"


ESTIMATE_PROGRAM = '''"""What SkyPilot's optimizer chooses with the predicted times: run it with SkyPilot's Python.

Without them it takes every machine to need one hour. It starts nothing.
"""

import sky
from sky.optimizer import Optimizer

SECONDS = {{
{table}
}}


def seconds(resources):
    cloud = "" if resources.cloud is None else str(resources.cloud).lower()
    cards = next((f"{{name}}:{{count:g}}" for name, count in (resources.accelerators or {{}}).items()), "")
    names = [f"{{at}} {{what}}" for what in (resources.instance_type, cards) for at in (cloud, "")]
    return next(SECONDS[name] for name in names if name in SECONDS)


with sky.Dag() as dag:
    task = sky.Task.from_yaml("{file}")
    task.set_resources(set(task.resources))  # by cost, and not in the order of the file
    task.set_time_estimator(seconds)
Optimizer.optimize(dag)
print(task.best_resources)
'''


def submit(entry: LedgerEntry, commands: tuple[Command, ...], environment: Mapping[str, str]) -> str:
    return submit_by_name(entry, commands, environment, state)


def _is_managed(entry: LedgerEntry) -> bool:
    return (entry.folder / MANAGED).exists()


def state(entry: LedgerEntry) -> str:
    name = letter_first(entry.id)
    if _is_managed(entry):
        rows = _records(run_command(("sky", "jobs", "queue", "--all", "--output", "json"), entry))
        mine = [row for row in rows if row.get("job_name") == name]
        newest = max(mine, key=lambda row: int(row.get("job_id") or 0), default=None)
        return "not started" if newest is None else STATES.get(str(newest.get("status")), "unknown")
    clusters = _records(run_command(("sky", "status", "--output", "json", name), entry))
    if not clusters:
        return "ended" if entry.number else "not started"
    jobs = _records(run_command(("sky", "queue", "--output", "json", name), entry))
    return STATES.get(str(jobs[0].get("status")), "unknown") if jobs else "queued"


def _records(text: str) -> list[dict[str, Any]]:
    """Of `--output json`: a list, or (sky queue) a list for each cluster. Other lines may come before it."""
    lines = text.splitlines()
    start = next((place for place, line in enumerate(lines) if line[:1] in ("[", "{")), None)
    try:
        found = json.loads("\n".join(lines[start:])) if start is not None else []
    except ValueError:
        raise NotResolved("sky: its answer is not JSON", field="on") from None
    rows = [row for each in found.values() for row in each] if isinstance(found, dict) else found
    return [row for row in rows if isinstance(row, dict)]


def log_command(entry: LedgerEntry, *, follow: bool) -> Command:
    name, flag = letter_first(entry.id), "--follow" if follow else "--no-follow"
    return ("sky", "jobs", "logs", "--name", name, flag) if _is_managed(entry) else ("sky", "logs", flag, name)


def cancel(entry: LedgerEntry) -> None:
    """A machine of one's own is given back with its job."""
    name = letter_first(entry.id)
    if _is_managed(entry):
        run_command(("sky", "jobs", "cancel", "--yes", "--name", name), entry)
    else:
        run_command(("sky", "down", "--yes", name), entry)
