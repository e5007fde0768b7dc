"""Whether the kernel ended a program because the memory of its machine, or of its container, was full.

Source   the kernel's Documentation/admin-guide/cgroup-v2.rst (memory.events: oom_kill, memory.max) and
         cgroup-v1/memory.rst (memory.oom_control, memory.limit_in_bytes); /proc/vmstat's oom_kill counts the machine's
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

GIB = 1 << 30


class HostMemory(NamedTuple):
    """As it stands before a program starts, and again when it was killed."""

    kills: int
    """By the kernel for lack of memory, in this container; of the machine, where no container says."""
    limit_bytes: int | None
    """That its processes may use."""


def host_memory(root: str = "/", ram_bytes: int | None = None) -> HostMemory:
    """`root`: where /proc and /sys are."""
    limits = [] if ram_bytes is None else [ram_bytes]
    kills = None
    for folder, top, counter, most in _cgroups(root):
        for line in _lines(os.path.join(folder, counter)):
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.strip().isdecimal():
                kills = (kills or 0) + int(value)
        for each in _upwards(folder, top):  # a Slurm job's limit stands above the group of its task
            limits += [int(line) for line in _lines(os.path.join(each, most)) if line.isdecimal()]
    if kills is None:
        told = dict(line.partition(" ")[::2] for line in _lines(os.path.join(root, "proc/vmstat")))
        kills = int(told["oom_kill"]) if told.get("oom_kill", "").isdecimal() else 0
    return HostMemory(kills, min(limits, default=None))


def killed_note(before: HostMemory, after: HostMemory, needs_bytes: int | None) -> str | None:
    """Of a program that SIGKILL ended. `needs_bytes`: of the machine's memory, as predicted."""
    if after.kills <= before.kills:
        return None
    limit = after.limit_bytes
    of = "" if limit is None else f" of {limit / GIB:.2f} GiB"
    if needs_bytes is not None and limit is not None and needs_bytes > limit:
        return f"the kernel ended it, out of host memory{of}: it would have fit with {needs_bytes / GIB:.2f} GiB"
    needs = "" if needs_bytes is None else f" ({needs_bytes / GIB:.2f} GiB were predicted)"
    fewer = "fewer data loader workers or processes on a machine need less"
    return f"the kernel ended it, out of host memory{of}{needs}: {fewer}"


def _cgroups(root: str) -> list[tuple[str, str, str, str]]:
    """Folders of this process and the topmost above each: its counter of kills and its limit there. A container sees
    its own as the root."""
    found = []
    for line in _lines(os.path.join(root, "proc/self/cgroup")):
        _, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if not kinds:
            place, counter, most = "sys/fs/cgroup", "memory.events", "memory.max"
        elif "memory" in kinds.split(","):
            place, counter, most = "sys/fs/cgroup/memory", "memory.oom_control", "memory.limit_in_bytes"
        else:
            continue
        top = os.path.join(root, place)
        own = os.path.join(top, path.strip("/"))
        found.append((own if os.path.isdir(own) else top, top, counter, most))
    return found


def _upwards(folder: str, top: str) -> Iterator[str]:
    while len(folder) > len(top):
        yield folder
        folder = os.path.dirname(folder)
    yield top


def _lines(path: str) -> list[str]:
    with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        return file.read(1 << 16).split("\n")
    return []
