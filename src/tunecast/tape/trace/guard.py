"""Stands between tunecast and the traced process: limits it, shows its output, and outlives neither of them.

    tunecast ──starts──► guard ──forks──► traced process ──► the programs it starts

The guard looks several times a second. It ends everything below it when tunecast is gone (closed with its terminal,
killed), when a limit is reached, and when the traced process ends; a process whose parent ended becomes the guard's own
child, so none gets away. Should the guard be killed, the kernel ends the traced process. Runs under the user's own
interpreter before anything of weight is loaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tunecast.records import NamedTuple
from tunecast.tape.trace.ending import run_and_leave
from tunecast.tape.trace.folders import remove
from tunecast.tape.trace.kernel.calls import prctl
from tunecast.tape.trace.limits import TraceLimits
from tunecast.units import gib

LOOK_S, LOOK_AT_FILES_S = 0.1, 2.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""linux/prctl.h."""
OOM_FIRST = "500"
"""Where memory runs out the kernel ends a trace before what the user has open."""
MOST_ROUNDS = 500
"""Of ending processes that start others meanwhile."""
CPU_S_PER_S = 2.0
"""Seconds of processors, per core and second of the time limit, after which the kernel ends a process that nobody
watches any more."""
MOST_CPU_S = 2**31


class Verdict(NamedTuple):
    """How the traced process ended."""

    code: int | None = None
    """Its exit code, or minus the signal that ended it; None where the guard ended it."""
    reason: str = ""
    """The limit that was reached, with what to do about it."""

    def text(self) -> str:
        return json.dumps([self.code, self.reason])

    @staticmethod
    def read(text: str) -> Verdict | None:
        try:
            return Verdict(*json.loads(text))
        except (ValueError, TypeError):
            return None


class Relay(threading.Thread):
    """What the traced process prints, as far as it is shown. Who reads it may pause: the guard waits for nobody."""

    def __init__(self, source: int, target: int, most_bytes: int) -> None:
        super().__init__(daemon=True)
        self.source, self.target, self.left_bytes = source, target, most_bytes

    def run(self) -> None:
        while text := os.read(self.source, 1 << 16):
            self._show(text)

    def _show(self, text: bytes) -> None:
        if not self.left_bytes:
            return
        shown = text[: self.left_bytes]
        self.left_bytes -= len(shown)
        if not self.left_bytes:
            shown += b"\ntunecast: the script prints more than is shown; the rest is left out\n"
        with contextlib.suppress(OSError):
            while shown:
                shown = shown[os.write(self.target, shown) :]


def main(folder: Path, parent: int, limits: TraceLimits, trace: Callable[[], int]) -> int:
    """`trace` runs in a process of its own; its answer is in `folder`. How it ended goes to stdout: whatever lies in
    that folder may be the script's."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    source, target = os.pipe()
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        run_and_leave(lambda: _child(guard, target, limits, trace))
    os.close(target)
    try:
        with contextlib.suppress(OSError):
            os.setpgid(child, child)  # whoever of the two comes first
        relay = Relay(source, 2, limits.output_bytes)
        relay.start()
        verdict = _watch(child, parent, folder, limits)
        end_all(child)
        while relay.is_alive() and os.getppid() == parent:
            relay.join(LOOK_S)
    finally:
        end_all(child)
        if os.getppid() != parent:
            remove(folder)
    with contextlib.suppress(BrokenPipeError):  # tunecast is gone
        os.write(1, verdict.text().encode())
    return 0


def _child(guard: int, output: int, limits: TraceLimits, trace: Callable[[], int]) -> int:
    import resource  # of Unix alone

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    end_with(guard)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_FIRST)
    seconds = limits.seconds * (os.cpu_count() or 1) * CPU_S_PER_S
    kernel = {resource.RLIMIT_CORE: 0}
    kernel |= {resource.RLIMIT_CPU: int(seconds) + 1} if seconds < MOST_CPU_S else {}
    for what, most in kernel.items():
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (most, most))
    return trace()


def end_with(guard: int) -> None:
    """The kernel ends this process when the guard does. Forgotten with a change of rights, so told again then."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(1)


def _watch(child: int, parent: int, folder: Path, limits: TraceLimits) -> Verdict:
    start_s = time.monotonic()
    next_look_at_files_s = start_s + LOOK_AT_FILES_S
    while os.getppid() == parent:
        code = _exit_code(child)
        if code is not None:
            return Verdict(code)
        now_s = time.monotonic()
        reason = over_time(now_s - start_s, limits) or over_size(os.getpid(), limits)
        if not reason and now_s > next_look_at_files_s:
            reason = over_disk(folder, limits)
            next_look_at_files_s = time.monotonic() + LOOK_AT_FILES_S
        if reason:
            return Verdict(None, reason)
        time.sleep(LOOK_S)
    return Verdict()


def _exit_code(child: int) -> int | None:
    """Of `child`, once it has ended; what else has ended is forgotten."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                found = os.waitstatus_to_exitcode(ended[1])
    return found


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


# ---------------------------------------------------------------------- limits


def over_time(seconds: float, limits: TraceLimits) -> str:
    if seconds <= limits.seconds:
        return ""
    return (
        f"tracing took longer than {limits.seconds:.0f} s and was stopped. "
        "To fix: --time-limit SECONDS, fewer --steps, or a smaller script."
    )


def over_size(guard: int, limits: TraceLimits) -> str:
    """The traced process and all that it started, together."""
    below = descendants(guard, limits.processes + 1)
    if len(below) > limits.processes:
        return (
            f"the script started more than {limits.processes} processes and was stopped. "
            "To fix: let it start fewer, or trace what one of them does."
        )
    used = sum(resident_bytes(pid) for pid in below)
    if used <= limits.memory_bytes:
        return ""
    return (
        f"tracing used {gib(used)} of host memory, more than {gib(limits.memory_bytes)}, and was stopped. "
        "To fix: --memory-limit GIB, or let the script hold less real data."
    )


def over_disk(folder: Path, limits: TraceLimits) -> str:
    disk_bytes = 0
    for files, nbytes in enumerate(_sizes(str(folder)), start=1):
        disk_bytes += nbytes
        if files > limits.files or disk_bytes > limits.disk_bytes:
            most = f"{limits.files:,} files" if files > limits.files else gib(limits.disk_bytes)
            return f"the script wrote more than {most} and was stopped. To fix: let it write less before its last step."
    return ""


def _sizes(folder: str) -> Iterator[int]:
    """Bytes on the disk, of all in a folder; what a file has not been given yet does not count."""
    folders = [folder]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    yield entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)


def resident_bytes(pid: int) -> int:
    """Of the process, 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


# ---------------------------------------------------------------------- ends


def descendants(pid: int, most: int = sys.maxsize) -> list[int]:
    """Living and not yet reaped, parents first; no longer looked for once there are `most`. Empty where the system does
    not say."""
    found, place = [pid], 0
    while place < len(found) <= most:
        with contextlib.suppress(OSError):
            tasks = f"/proc/{found[place]}/task"
            for thread in os.listdir(tasks):
                with contextlib.suppress(OSError):
                    found += map(int, Path(f"{tasks}/{thread}/children").read_text().split())
        place += 1
    return found[1:]


def end_all(child: int) -> None:
    """Its group, which the kernel ends at once, and then whoever got out of it, where no filter prevents that."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    for _ in range(MOST_ROUNDS):
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


if __name__ == "__main__":
    request_path = Path(sys.argv[1])
    parent_pid, limits_text = int(sys.argv[2]), sys.argv[3]
    sys.argv = [str(request_path)]

    def traced() -> int:
        from tunecast.tape.trace.child import main as trace_request

        return trace_request(str(request_path))

    sys.exit(main(request_path.parent, parent_pid, TraceLimits(*json.loads(limits_text)), traced))
