"""One record from what every process of a run measured and what was seen from outside."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.learn.inside.journal import lines, utc
from tunecast.learn.inside.measure import MOST_LOSSES, Thinned

DATA_FRACTION = 0.1
"""Of a step, spent waiting for the loader: from a tenth on the loader is said to bound it."""
IDLE_FRACTION = 0.2
"""Of the card's time, by NVML: what is idle more often waits for its host."""
WAITING_POWER_FRACTION = 0.5
"""Of its power limit: NCCL's kernels spin while they wait for other cards, so that a card is busy and draws little."""
RUN, OOM = "run.jsonl", "oom.txt"
"""In a run's folder: its journal, and what PyTorch's allocator said when it had no room."""

Parts = Mapping[str, Any]


def merge(head: Parts, insides: Sequence[Parts], outside: Parts, state: str, ended: float | None) -> dict[str, Any]:
    """Memory is the fullest rank's, time the first one's, tokens all of theirs."""
    first: Parts = min(insides, key=lambda each: each.get("rank", 0), default={})
    fullest: Parts = max(insides, key=_held_bytes, default={})
    record = dict(head)
    hardware = {**(record.get("hardware") or {})}
    for name in ("device", "driver", "memory_bytes"):
        if hardware.get(name) is None:
            hardware[name] = outside.get(name)
    if hardware.get("gpus") is None:
        hardware["gpus"] = outside.get("cards")
    tokens = [each["tokens"] for each in insides if each.get("tokens")]
    record |= {
        "state": state,
        "ended": None if ended is None else utc(ended),
        "hardware": hardware,
        "memory": memory_of(fullest.get("memory") or {}, outside),
        "time": first.get("time"),
        "tokens": {name: sum(each[name] for each in tokens) for name in ("trained", "padding")} if tokens else None,
        "utilization": utilization_of(first, outside),
        "energy_j": outside.get("energy_j"),
        "loss": losses_of(first) or None,
        "note": record.get("note") or diverged_note(first),
    }
    return record


def diverged_note(inside: Parts) -> str | None:
    """Losses are read once a second: the first that was none may be some steps before."""
    step = inside.get("diverged_at")
    return f"the loss was no finite number by step {step:,}" if isinstance(step, int) else None


def _held_bytes(inside: Parts) -> int:
    memory = inside.get("memory") or {}
    return memory.get("reserved_bytes") or memory.get("used_bytes") or 0


def memory_of(inside: Parts, outside: Parts) -> dict[str, Any] | None:
    """By phase: what PyTorch had in use, where it was asked; else what the run had of the card."""
    device = outside.get("device_bytes") or inside.get("used_bytes")
    capacity = inside.get("capacity_bytes") or outside.get("memory_bytes")
    names = ("allocated_bytes", "reserved_bytes", "fragmentation_bytes", "retries")
    found = {name: inside.get(name) for name in names}
    by_phase = inside.get("by_phase_bytes") or outside.get("by_phase_bytes") or None
    found |= {"device_bytes": device, "capacity_bytes": capacity, "by_phase_bytes": by_phase}
    return found if any(value is not None for value in found.values()) else None


def utilization_of(inside: Parts, outside: Parts) -> dict[str, Any] | None:
    busy = outside.get("busy_fraction")
    bound = bound_by(data_fraction(inside), busy, power_fraction(outside), outside.get("cards") or 1)
    found = {
        "gpu_busy_fraction": busy,
        "bound_by": bound,
        "throttled_fraction": outside.get("throttled_fraction"),
        "power_w": outside.get("power_w"),
    }
    return found if any(value is not None for value in found.values()) else None


def data_fraction(inside: Parts) -> float | None:
    """Of training, the part that the loop waited for its data."""
    spans = (inside.get("time") or {}).get("phases_s") or {}
    data, training = spans.get("data", 0.0), spans.get("training", 0.0)
    return data / (data + training) if data + training > 0 else None


def power_fraction(outside: Parts) -> float | None:
    power, limit = outside.get("power_w"), outside.get("power_limit_w")
    return power / limit if power is not None and limit else None


def bound_by(data: float | None, busy: float | None, power: float | None, cards: int) -> str | None:
    if data is not None and data >= DATA_FRACTION:
        return "data"
    if busy is None:
        return None
    if busy < 1 - IDLE_FRACTION:
        return "host"
    return "link" if cards > 1 and power is not None and power < WAITING_POWER_FRACTION else "card"


def losses_of(inside: Parts) -> list[list[float]]:
    thinned = Thinned(MOST_LOSSES)
    for point in inside.get("losses") or ():
        thinned.append(point)
    return thinned.values


def inside_of(path: str) -> dict[str, Any] | None:
    """What one process wrote, its last line or, where it was killed, the last before."""
    begin: dict[str, Any] = {}
    last: dict[str, Any] = {}
    points = Thinned(MOST_LOSSES)
    stopped = False
    for line in lines(path):
        event = line.get("event")
        if event == "begin":
            begin = line
        elif event == "stop":
            stopped = True
        elif event in ("steps", "end"):
            last = line
            if event == "steps" and line.get("loss"):
                points.append(line["loss"])
    if not begin:
        return None
    state = last.get("state") if last.get("event") == "end" else None
    losses = last.get("losses") or points.values
    record = last.get("record") or begin.get("record")
    return {**begin, **last, "state": state, "losses": losses, "stopped": stopped, "record": record}


def insides_of(folder: str, journal: str = RUN) -> list[dict[str, Any]]:
    """Of every process that trained: a journal each, or the run's own where nothing outside watched it."""
    paths = [os.path.join(folder, journal), *sorted(glob.glob(os.path.join(glob.escape(folder), "rank-*.jsonl")))]
    found = [inside_of(path) for path in paths]
    return [each for each in found if each is not None and "rank" in each]


def state_of(insides: Sequence[Parts], status: int | None, *, oom: bool = False) -> str:
    """`status`: the program's own, negative for a signal as `subprocess` has it; None: nobody saw its end. `oom`: some
    Python of it ended for lack of memory on the card."""
    states = {each.get("state") for each in insides}
    if "oom" in states or (oom and status != 0):
        return "oom"
    if any(each.get("stopped") for each in insides):
        return "stopped"
    if status is None:
        ended = bool(insides) and None not in states
        return ("done" if states == {"done"} else "failed") if ended else "killed"
    if status == 0:
        return "done"
    return "killed" if status < 0 or status in (130, 137, 143) else "failed"


def merged_folder(folder: str, status: int | None, ended: float | None, journal: str = RUN) -> dict[str, Any] | None:
    """The record of a run's folder; None where its journal was never begun."""
    outside: Parts = {}
    head = last_at = None
    for line in lines(os.path.join(folder, journal)):
        if line.get("event") == "begin":
            head = line.get("record")
        elif line.get("event") == "end" and isinstance(line.get("record"), dict):
            return dict(line["record"])
        outside = line.get("outside") or outside
        last_at = line.get("at") or last_at
    if not isinstance(head, dict):
        return None
    insides = insides_of(folder, journal)
    known = described(head, insides)
    state = state_of(insides, status, oom=os.path.exists(os.path.join(folder, OOM)))
    return merge(known, insides, outside, state, last_at if ended is None else ended)


def described(head: Parts, insides: Sequence[Parts]) -> dict[str, Any]:
    """With what the training itself knows of its machine and releases."""
    record = dict(head)
    first = min(insides, key=lambda each: each.get("rank", 0), default=None)
    own = (first or {}).get("record") or {}
    for name in ("hardware", "software"):
        told = {key: value for key, value in (own.get(name) or {}).items() if value is not None}
        record[name] = {**(record.get(name) or {}), **told}
    return record
