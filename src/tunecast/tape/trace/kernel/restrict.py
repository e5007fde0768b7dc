"""The kernel's refusals together: what a traced script, and all that it starts, can no longer do.

Called before torch is loaded: threads made before would not be bound.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import struct
from collections.abc import Sequence

from tunecast.records import NamedTuple
from tunecast.tape.trace.kernel import landlock, mounts, seccomp
from tunecast.tape.trace.kernel.calls import call

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
"""What is written there stays nowhere."""
CAPABILITIES_3 = 0x20080522
CAP_DAC_OVERRIDE = 1
"""The one right that root keeps: to read what is not its own."""


class Refusals(NamedTuple):
    """Which of the kernel's walls stand."""

    landlock: bool = False
    seccomp: bool = False
    mounts: bool = False

    def sentences(self) -> tuple[str, ...]:
        """What this kernel did not allow, and what that leaves open to a script that means harm; the same for Python
        code is refused all the same."""
        told = []
        if not self.landlock and not self.mounts:
            told.append("this kernel has no Landlock and allows no mounts: C code can write to your files")
        if not self.seccomp:
            told.append("this kernel allows no seccomp filter: C code can reach the network, and change files' modes")
        if not self.mounts:
            told.append("this kernel gives a process no mounts of its own: what C code leaves in /dev/shm stays there")
        return tuple(told)


def restrict(folder: str, programs: Sequence[str], shared_memory_bytes: int) -> Refusals:
    """From now on nothing but `folder` is written to, `programs` alone are started, and no network is reached."""
    separated = mounts.separate(folder, shared_memory_bytes)
    give_up_capabilities(separated)
    devices = [*DEVICES, *glob.glob("/dev/nvidia*")]
    loaders = dynamic_loaders() if programs else []
    locked = landlock.restrict([folder, mounts.SHARED_MEMORY], devices, [*programs, *loaders])
    filtered = seccomp.refuse_calls(signals=not locked.signals, truncation=not locked.truncation)
    return Refusals(locked.writes, filtered, separated)


def give_up_capabilities(in_user_namespace: bool) -> None:
    """Root's rights (mounts, clocks, devices, others' processes), and those that came with a namespace."""
    kept = 1 << CAP_DAC_OVERRIDE if os.getuid() == 0 or not in_user_namespace else 0
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        lines = dict(line.split(":", 1) for line in status.read().splitlines() if ":" in line)
        kept &= int(lines["CapPrm"], 16)
    heading = ctypes.create_string_buffer(struct.pack("=Ii", CAPABILITIES_3, 0), 8)
    text = struct.pack("=IIIIII", kept, kept, 0, 0, 0, 0)
    call("capset", heading, ctypes.create_string_buffer(text, len(text)))


def dynamic_loaders() -> list[str]:
    """What the kernel starts for any program that is linked: ours is the machine's."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if line.rstrip().count("/")}
        return sorted(path for path in paths if os.path.basename(path).startswith("ld-"))
    return []
