"""dstack: a task with the plan's card and providers, of which dstack takes the cheapest that is free.

Source  dstack.ai/docs, "Tasks" (distributed tasks: DSTACK_NODE_RANK, DSTACK_MASTER_NODE_IP); the models of dstack
        0.22.5 (dstack/_internal/core/models/configurations.py, profiles.py, resources.py). dstack has no order of
        machines: it sorts them by price, so it is given one card, the most it may cost, and where it may stand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

from tunecast.errors import NotResolved, UsageError
from tunecast.hardware.catalog import gpu
from tunecast.launching.engines.commands import run_command, submit_by_name
from tunecast.launching.engines.names import DSTACK_BACKENDS, DSTACK_CARDS, FORM_FACTORS
from tunecast.launching.engines.options import price_usd
from tunecast.launching.engines.start import IMAGE, INSTALLATION_S, NOTHING, letter_first, start_text
from tunecast.launching.ledger import LedgerEntry
from tunecast.launching.offers import most_anywhere
from tunecast.launching.pins import PYTHON, installation
from tunecast.launching.programs import files_of
from tunecast.launching.rendering import Command, MachineOffer, Order
from tunecast.launching.texts import yaml_text
from tunecast.units import GB

ELSEWHERE = True
INSTALLS = True
OPTIONS = ("volume", "max_price", "backends", "regions", "fleets", "spot_policy", "max_duration")
"""`volume`: a volume of dstack's, where checkpoints and the result are kept; `none`: nothing is."""
TASK, START = "task.dstack.yml", "start.sh"
WORKDIR, KEPT = "/job", "/tunecast"
SYSTEM_DISK_GB = 100
"""What dstack asks for by itself (core/models/resources.py, DEFAULT_DISK), for system and packages."""
VARIABLES = {"NODE_RANK": "$DSTACK_NODE_RANK", "MASTER_ADDR": "$DSTACK_MASTER_NODE_IP"}
STATES: Mapping[str, str] = {
    **dict.fromkeys(("pending", "submitted", "provisioning"), "queued"),
    **dict.fromkeys(("running", "terminating"), "running"),
    "done": "done",
    **dict.fromkeys(("failed", "terminated"), "failed"),
}
"""dstack's states (core/models/runs.py, RunStatus) by ours."""
STOPPED = ("stopped_by_user", "aborted_by_user")
"""Reasons of an end that was asked for (core/models/runs.py, RunTerminationReason)."""


def render(
    order: Order, options: Mapping[str, str], host: str
) -> tuple[Mapping[str, str], tuple[Command, ...], tuple[str, ...]]:
    name, kept = letter_first(order.name), KEPT if _volume(options) else ""
    files = {
        TASK: yaml_text(task_values(order, options), ("dstack's task: dstack.ai/docs, Tasks.",)),
        START: start_text("dstack", VARIABLES if order.job.hardware.nodes > 1 else {}, kept, name),
    }
    return files, (("dstack", "apply", "-y", "-d", "-f", TASK),), tuple(_notes(order, options))


def _volume(options: Mapping[str, str]) -> str:
    given = options.get("volume", NOTHING)
    return "" if given == NOTHING else given


def require_options(order: Order, options: Mapping[str, str]) -> None:
    if "volume" not in options:
        raise UsageError(
            "--on dstack: what it trains would be lost with the machine. To fix: --option volume=NAME, a volume of "
            "dstack's, or volume=none",
            field="option",
        )


def task_values(order: Order, options: Mapping[str, str]) -> dict[str, object]:
    hardware, pick = order.job.hardware, order.offers[0] if order.offers else None
    spot = pick is not None and pick.kind == "spot"
    asked_usd = price_usd(options, "max_price")
    price = most_anywhere(order) if asked_usd is None and pick else asked_usd
    taken = {**files_of(order.program, order.job), START: ""}
    files = [{"local_path": each, "path": each} for each in taken]
    files += [{"local_path": here, "path": path} for path, here in order.program.carried.items()]
    places = {} if order.anywhere else _places(order.offers)
    return {
        "type": "task",
        "name": letter_first(order.name),
        **({"image": IMAGE} if _is_arm(order) else {"python": PYTHON}),
        **({"nodes": hardware.nodes} if hardware.nodes > 1 else {}),
        "working_dir": WORKDIR,
        "files": files,
        "commands": [installation(order.program), f"bash {START}"],
        **({"volumes": [{"name": _volume(options), "path": KEPT}]} if _volume(options) else {}),
        "resources": _resources(order),
        **places,
        **{key: options[key].split(",") for key in ("backends", "regions", "fleets") if key in options},
        "spot_policy": options.get("spot_policy", "spot" if spot else "on-demand"),
        **({"retry": {"on_events": ["no-capacity", "interruption"]}} if spot else {}),
        **({} if price is None else {"max_price": price}),
        **_duration(order, options),
    }


def _is_arm(order: Order) -> bool:
    """Cards that come with NVIDIA's Grace, an ARM processor. dstack's own image is for x86, and asks for that (dstack
    0.22.5, server/services/jobs/configurators/base.py)."""
    return "Grace" in gpu(order.job.hardware.gpu).architecture


def _resources(order: Order) -> dict[str, object]:
    hardware = order.job.hardware
    card = gpu(hardware.gpu).name
    if card not in DSTACK_CARDS:
        raise UsageError(f"--on dstack: no name of dstack's is known for {hardware.gpu}", field="on")
    name, memory_gb = DSTACK_CARDS[card]
    disk_gb = SYSTEM_DISK_GB + ceil((order.disk_bytes or 0) / GB)
    return {
        "gpu": {"name": [name], "memory": f"{memory_gb}GB", "count": hardware.gpus},
        "cpu": f"{order.cpu_cores}..",
        **({} if order.ram_bytes is None else {"memory": f"{ceil(order.ram_bytes / GB)}GB.."}),
        "disk": f"{disk_gb}GB..",
    }


def _places(offers: tuple[MachineOffer, ...]) -> dict[str, object]:
    """Who may rent it out, and where, in the plan's order."""
    same = [offer for offer in offers if offer.gpu == offers[0].gpu]
    backends = list(dict.fromkeys(DSTACK_BACKENDS[each.provider] for each in same if each.provider in DSTACK_BACKENDS))
    if not backends:
        raise UsageError(f"--on dstack: {same[0].provider} is no backend of dstack's", field="on")
    regions = list(dict.fromkeys(region for offer in same for region in offer.regions))
    return {"backends": backends, **({"regions": regions} if regions else {})}


def _duration(order: Order, options: Mapping[str, str]) -> dict[str, object]:
    """The high end of the predicted range and the installation, in whole minutes."""
    if "max_duration" in options:
        return {"max_duration": options["max_duration"]}
    return {} if order.limit_s is None else {"max_duration": f"{ceil((order.limit_s + INSTALLATION_S) / 60)}m"}


def _notes(order: Order, options: Mapping[str, str]) -> Iterator[str]:
    if not _volume(options):
        yield "checkpoints and the result are lost with the machine. To fix: --option volume=NAME"
    if DSTACK_CARDS.get(gpu(order.job.hardware.gpu).name) in FORM_FACTORS:
        yield f"dstack has one name for all form factors of a card: it may bring another than {order.job.hardware.gpu}"
    if order.limit_s is None and "max_duration" not in options:
        yield "no time limit: how long it takes is not predicted. To fix: --option max_duration=6h"
    if order.program.carried:
        yield "dstack's server takes files up to 2 MiB, unless its DSTACK_SERVER_CODE_UPLOAD_LIMIT says otherwise"


def submit(entry: LedgerEntry, commands: tuple[Command, ...], environment: Mapping[str, str]) -> str:
    return submit_by_name(entry, commands, environment, state)


def state(entry: LedgerEntry) -> str:
    run = _newest(run_command(("dstack", "ps", "--all", "--json"), entry), letter_first(entry.id))
    if run is None:
        return "not started"
    if run.get("termination_reason") in STOPPED and run.get("status") == "terminated":
        return "cancelled"
    return STATES.get(str(run.get("status")), "unknown")


def _newest(text: str, name: str) -> dict[str, Any] | None:
    try:
        runs = json.loads(text)["runs"]
        mine = [run for run in runs if run["run_spec"]["run_name"] == name]
    except (ValueError, KeyError, TypeError):
        raise NotResolved("dstack ps: its answer is not the JSON of dstack 0.22", field="on") from None
    return max(mine, key=lambda run: str(run.get("submitted_at")), default=None)


def log_command(entry: LedgerEntry, *, follow: bool) -> Command:
    name = letter_first(entry.id)
    return ("dstack", "attach", "--logs", name) if follow else ("dstack", "logs", name)


def cancel(entry: LedgerEntry) -> None:
    run_command(("dstack", "stop", "-y", letter_first(entry.id)), entry)
