"""Scripts that mean harm, run as `tunecast trace` runs a script but without torch: below the guard, in the sandbox.

After each the user's files are what they were, byte for byte, with their modes, times, owners and attributes; nothing
runs on, nothing lies in shared memory, and nobody was reached.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tunecast.tape.trace.guard import Verdict
from tunecast.tape.trace.kernel import landlock
from tunecast.tape.trace.kernel.calls import call, machine, number
from tunecast.tape.trace.limits import TraceLimits

ROOT = Path(__file__).parents[2]
CLONE = number("clone", machine())
IN_A_COPY = "from tunecast.tape.trace.kernel.seccomp import refuse_forks; refuse_forks()"
"""What a process that the script forked does first (processes.py)."""
pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(
        sys.platform != "linux" or call(landlock.CREATE_RULESET, None, 0, landlock.ASK_VERSION) < 3,
        reason="a kernel without Landlock refuses less",
    ),
]
DRIVER = """
import json, os, runpy, sys
from pathlib import Path
from tunecast.tape.trace.guard import main
from tunecast.tape.trace.limits import TraceLimits
from tunecast.tape.trace.sandbox import Sandbox

folder, script, limits = Path(sys.argv[1]), sys.argv[2], TraceLimits(*json.loads(sys.argv[3]))

def trace():
    exec(os.environ.get("BROKEN_WALL", ""), {})
    sandbox = Sandbox(folder)
    sandbox.restrict()
    sandbox.enter()
    runpy.run_path(script, run_name="__main__")
    return 0

sys.exit(main(folder, os.getppid(), limits, trace))
"""
C = """
import ctypes, os, socket, struct, sys, time
c = ctypes.CDLL(None, use_errno=True)
user, port = os.environ["USER_FILE"].encode(), int(os.environ["PORT"])
folder = os.path.dirname(os.environ["USER_FILE"])

def tried(what, result):
    print(what, result, ctypes.get_errno())

def address():
    return struct.pack("=HH4s8x", socket.AF_INET, socket.htons(port), bytes([127, 0, 0, 1]))
"""
"""What every script begins with: C code by ctypes sees nothing of what Python is told."""

CHANGES = {
    "chmod of C": "tried('chmod', c.chmod(user, 0o777))",
    "fchmod of a file that is open": "fd = os.open(user, os.O_RDONLY); os.fchmod(fd, 0o777); os.chmod(fd, 0o777)",
    "fchmodat2 by its number": "tried('fchmodat2', c.syscall(452, -100, user, 0o777, 0))",
    "chown": """
fd = os.open(user, os.O_RDONLY)
os.chown(user, 12, 12); os.fchown(fd, 12, 12); c.chown(user, 12, 12); c.lchown(user, 12, 12); c.fchown(fd, 12, 12)
""",
    "times": """
fd = os.open(user, os.O_RDONLY)
os.utime(user, (1, 1)); os.utime(fd, (1, 1)); c.utimes(user, None); c.futimens(fd, None); c.utime(user, None)
""",
    "extended attributes": """
for go in (lambda: os.setxattr(user, "user.x", b"1"), lambda: os.removexattr(user, "user.kept")):
    try: go()
    except OSError as error: print(error)
c.setxattr(user, b"user.x", b"1", 1, 0); c.removexattr(user, b"user.kept")
c.fsetxattr(os.open(user, 0), b"user.y", b"1", 1, 0)
""",
    "flags of the file system": """
flags = ctypes.c_int(0x10)
tried("ioctl", c.ioctl(os.open(user, os.O_RDONLY), 0x40086602, ctypes.byref(flags)))
""",
    "open and write of C": "fd = c.open(user, os.O_WRONLY); tried('open', fd); c.write(fd, b'gone', 4)",
    "truncation of C": "c.truncate(user, 0); c.open(user, os.O_RDONLY | os.O_TRUNC); c.creat(user, 0o644)",
    "flags of os.open": """
for flags in (os.O_TRUNC, os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_CREAT | os.O_TRUNC | os.O_WRONLY):
    try: os.write(os.open(user, flags), b"gone")
    except OSError as error: print(error)
try: os.open(folder, os.O_TMPFILE | os.O_WRONLY)
except OSError as error: print(error)
c.open(os.fsencode(folder), os.O_TMPFILE | os.O_WRONLY, 0o600)
""",
    "a mapping of an open file": """
import mmap
fd = os.open(user, os.O_RDONLY)
for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
    try: mmap.mmap(fd, 0, flags, mmap.PROT_READ | mmap.PROT_WRITE)[:1] = b"X"
    except (OSError, ValueError) as error: print(error)
c.mmap.restype = ctypes.c_void_p
where = c.mmap(None, 4096, 1, 1, fd, 0)
tried("mprotect", c.mprotect(ctypes.c_void_p(where), 4096, 3))
try: os.pwrite(os.open("/proc/self/mem", os.O_RDWR), b"X", where)
except OSError as error: print(error)
mem = c.open(b"/proc/self/mem", os.O_RDWR); c.pwrite(mem, b"X", 1, ctypes.c_long(where))
""",
    "a second way to an open file": """
fd = os.open(user, os.O_RDONLY)
for path in (f"/proc/self/fd/{fd}", f"/dev/fd/{fd}"):
    try: open(path, "r+").write("gone")
    except OSError as error: print(error)
    tried(path, c.open(path.encode(), os.O_RDWR)); c.chmod(path.encode(), 0o777)
""",
    "a hard link": """
os.link(user, "linked"); open("linked", "w").write("gone")
tried("link", c.link(user, os.fsencode(os.environ["TMPDIR"]) + b"/hard"))
tried("linkat", c.linkat(-100, user, -100, os.fsencode(os.environ["TMPDIR"]) + b"/hard2", 0))
fd = c.open(os.fsencode(os.environ["TMPDIR"]) + b"/hard", os.O_WRONLY); c.write(fd, b"gone", 4)
""",
    "a symbolic link": """
os.symlink(user, "soft"); open("soft", "w").write("gone")
inside = os.path.join(os.environ["TMPDIR"], "soft2")
os.symlink(user, inside)
try: open(inside, "w").write("gone")
except OSError as error: print(error)
third = os.fsencode(inside) + b"3"
c.symlink(user, third); fd = c.open(third, os.O_WRONLY); c.write(fd, b"gone", 4); c.chmod(third, 0o777)
""",
    "names": """
c.rename(user, user + b".moved"); c.unlink(user); c.mkdir(os.fsencode(folder) + b"/made", 0o777)
c.rename(user, os.fsencode(os.environ["TMPDIR"]) + b"/moved"); c.mkfifo(os.fsencode(folder) + b"/fifo", 0o666)
os.replace(user, user + b".moved"); os.mkdir(folder + "/made2")
""",
    "a disk of its own making": """
place = os.fsencode(os.environ["TMPDIR"]) + b"/disk"
tried("mknod", c.mknod(place, 0o60666, os.makedev(254, 0))); tried("open", c.open(place, os.O_RDWR))
for name in sorted(os.listdir("/dev")):
    fd = c.open(b"/dev/" + os.fsencode(name), os.O_RDWR | os.O_NONBLOCK)
    harmless = name in ("null", "zero", "full", "random", "urandom", "tty") or name.startswith(("nvidia", "std"))
    if fd >= 0 and not harmless: print("OPEN", name)
""",
    "mounts and namespaces": """
for flags in (0x10000000, 0x20000, 0x40000000, 0x30000000): tried("unshare", c.unshare(flags))
tried("mount", c.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, None)); tried("umount", c.umount2(b"/proc", 2))
tried("remount", c.mount(None, b"/", None, 32, None)); tried("chroot", c.chroot(os.fsencode(folder)))
tried("mount_setattr", c.syscall(442, -100, b"/", 0x8000, struct.pack("=QQQQ", 0, 1, 0, 0), 32))
""",
    "32-bit and other calls": """
tried("x32 chmod", c.syscall(0x40000000 + 90, user, 0o777))
tried("io_uring", c.syscall(425, 8, ctypes.create_string_buffer(200)))
tried("openat2", c.syscall(437, -100, user, struct.pack("=QQQ", 2, 0, 0), 24))
tried("handle", c.open_by_handle_at(3, None, 2)); tried("ptrace", c.ptrace(16, os.getppid(), 0, 0))
""",
    "settings of the kernel": """
for path in ("sys/kernel/hostname", "sys/vm/swappiness", "sysrq-trigger", "1/oom_score_adj", "self/oom_score_adj"):
    path = b"/proc/" + path.encode()
    fd = c.open(path, os.O_WRONLY)
    if fd >= 0: print("OPEN", path)
    try: open(path, "w").write("x")
    except OSError: pass
tried("hostname", c.sethostname(b"changed", 7))
""",
    "deleted from the rest of the path": "import shutil; shutil.rmtree(folder); print(os.path.exists(folder))",
    "sqlite": """
import sqlite3
try: sqlite3.connect(user.decode() + ".db").execute("create table x (y)")
except sqlite3.OperationalError as error: print(error)
except OSError as error: print(error)
""",
}
SIGNALS = """
import signal
for pid in (int(os.environ["OUTSIDE"]), os.getppid()):
    tried("kill", c.kill(pid, signal.SIGKILL)); tried("pidfd", c.syscall(424, c.syscall(434, pid, 0), 9, None, 0))
tried("prlimit", c.prlimit(int(os.environ["OUTSIDE"]), 7, struct.pack("=QQ", 3, 3), None))
F_SETFL, F_SETOWN, F_SETSIG, F_SETOWN_EX = 4, 8, 10, 15
pid = int(os.environ["OUTSIDE"])
tried("priority", c.setpriority(0, pid, 19)); tried("of the user", c.setpriority(2, 0, 19))
tried("affinity", c.sched_setaffinity(pid, 8, struct.pack("=Q", 1)))
tried("policy", c.sched_setscheduler(pid, 3, struct.pack("=i", 0)))
os.nice(1); os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for command, owner in ((F_SETOWN, pid), (F_SETOWN_EX, struct.pack("=ii", 1, pid))):
    read, write = os.pipe()
    tried("owner of a pipe", c.fcntl(read, command, owner))
    c.fcntl(read, F_SETSIG, signal.SIGKILL); c.fcntl(read, F_SETFL, os.O_ASYNC); os.write(write, b"x")
"""
NETWORK = {
    "connect of C": "fd = c.socket(2, 1, 0); tried('connect', c.connect(fd, address(), 16)); c.send(fd, b'x', 1, 0)",
    "datagrams of C": "fd = c.socket(2, 2, 0); tried('sendto', c.sendto(fd, b'secret', 6, 0, address(), 16))",
    "fast open": "fd = c.socket(2, 1, 0); tried('sendto', c.sendto(fd, b'secret', 6, 0x20000000, address(), 16))",
    "raw sockets": "print([c.socket(2, 3, 1), c.socket(17, 3, 3), c.socket(16, 3, 0)]); assert c.socket(16, 3, 0) < 0",
    "connect of Python": """
try: socket.create_connection(("127.0.0.1", port))
except OSError as error: print(error)
import urllib.request
try: urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1)
except OSError as error: print(error)
""",
    "a local socket": """
where = os.environ["LOCAL"].encode(); fd = c.socket(1, 1, 0)
tried("connect", c.connect(fd, struct.pack("=H", 1) + where + bytes(1), 3 + len(where))); c.send(fd, b"secret", 6, 0)
""",
}
PROGRAMS = {
    "a git of its own": """
import subprocess
os.makedirs("bin"); open("bin/git", "w").write("#!/bin/sh\\necho STARTED\\n"); os.chmod("bin/git", 0o755)
os.environ["PATH"] = os.path.abspath("bin") + ":" + folder + ":" + os.environ["PATH"]
own, words = folder + "/git", ["git", "status"]
for go in (lambda: subprocess.run(words), lambda: os.system("git status"), lambda: subprocess.run([own, "status"]),
           lambda: subprocess.run("git status", shell=True), lambda: subprocess.run(words, executable=own),
           lambda: os.posix_spawn(own, words, os.environ), lambda: os.execv(own, words)):
    try: go()
    except OSError as error: print(error)
""",
    "a program by C": """
path = os.fsencode(folder) + b"/git"
tried("system", c.system(path)); tried("system", c.system(b"PATH=" + os.fsencode(folder) + b" git status"))
words = (ctypes.c_char_p * 4)(b"python", b"-c", b"print('STARTED')", None)
for program in (path, sys.executable.encode()):
    tried("posix_spawn", c.posix_spawn(ctypes.byref(ctypes.c_int()), program, None, None, words, None))
""",
    "git that writes": """
import subprocess
for words in (["git", "diff", "--no-index", "--output=" + folder + "/written", "/dev/null", user.decode()],
              ["git", "-c", "core.fsmonitor=" + folder + "/git", "status"], ["hostname", "changed"], ["ldconfig"]):
    try: subprocess.run(words)
    except OSError as error: print(error)
""",
}
LIVING_ON = {
    "two forks and a session of its own": """
import signal
if c.fork() == 0:
    c.setsid(); [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 13, 15)]
    if c.fork() == 0:
        c.setsid(); c.setpgid(0, 0); time.sleep(600)
    time.sleep(600)
""",
    "signals that are ignored": """
import signal
[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]
pid = c.fork()
time.sleep(600) if pid == 0 else None
""",
}


class Place(NamedTuple):
    disk: Path
    folder: Path
    environment: dict[str, str]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    disk, folder = tmp_path / "disk", tmp_path / "run"
    disk.mkdir()
    folder.mkdir()
    (disk / "weights.bin").write_bytes(b"weights" * 1000)
    (disk / "git").write_text("#!/bin/sh\necho STARTED\n")
    (disk / "git").chmod(0o755)
    with contextlib.suppress(OSError):
        os.setxattr(disk / "weights.bin", "user.kept", b"1")
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(folder),
        "PORT": "9", "USER_FILE": str(disk / "weights.bin"), "LOCAL": str(tmp_path / "socket"),
    }  # fmt: skip
    return Place(disk, folder, environment)


def contents(folder: Path) -> dict[str, Any]:
    """All that can be told of every file, but when it was last read."""
    found: dict[str, Any] = {}
    for path in sorted([folder, *folder.rglob("*")]):
        told = path.lstat()
        kept = (told.st_mode, told.st_uid, told.st_gid, told.st_nlink, told.st_size, told.st_mtime_ns, told.st_ctime_ns)
        names = os.listxattr(path, follow_symlinks=False)
        attributes = {name: os.getxattr(path, name, follow_symlinks=False) for name in names}
        found[str(path)] = (*kept, attributes, path.read_bytes() if stat.S_ISREG(told.st_mode) else None)
    return found


def command(place: Place, script: str, limits: TraceLimits) -> list[str]:
    path = place.folder / "script.py"
    path.write_text(C + script)
    return [sys.executable, "-c", DRIVER, str(place.folder), str(path), json.dumps(limits)]


def ran(place: Place, script: str, limits: TraceLimits | None = None, **variables: str) -> tuple[Verdict, str]:
    done = subprocess.run(
        command(place, script, limits or TraceLimits(seconds=120)), cwd=place.disk, capture_output=True, text=True,
        env={**place.environment, **variables}, errors="replace", timeout=300,
    )  # fmt: skip
    verdict = Verdict.read(done.stdout)
    assert verdict is not None, done.stderr
    return verdict, done.stderr


@pytest.mark.parametrize("name", [*CHANGES, *PROGRAMS])
def test_nothing_of_the_user_changes(name: str, place: Place) -> None:
    before, host = contents(place.disk), socket.gethostname()
    verdict, said = ran(place, {**CHANGES, **PROGRAMS}[name])
    assert contents(place.disk) == before
    assert (verdict.code, verdict.reason) == (0, ""), said
    assert "STARTED" not in said and "OPEN" not in said
    assert socket.gethostname() == host


NO_FILTER = "from tunecast.tape.trace.kernel import seccomp; seccomp.refuse_calls = lambda **given: False"
"""On such a kernel the guard has to find processes that left the script's group."""
WALLS = {
    "no mounts": "from tunecast.tape.trace.kernel import mounts; mounts.separate = lambda *given: False",
    "no Landlock": "from tunecast.tape.trace.kernel import landlock as l; l.restrict = lambda *given: l.Landlocked()",
}
"""What kernels and containers withhold."""
BY_PYTHON_OR_C = (
    "chmod of C", "fchmod of a file that is open", "times", "extended attributes", "truncation of C",
    "flags of os.open", "a hard link", "a symbolic link", "names",
)  # fmt: skip


@pytest.mark.parametrize("wall", WALLS)
def test_the_other_walls_stand_without_it(wall: str, place: Place) -> None:
    before = contents(place.disk)
    script = "".join(f"try:\n{_indented(CHANGES[name])}\nexcept OSError as e: print(e)\n" for name in BY_PYTHON_OR_C)
    verdict, said = ran(place, script, BROKEN_WALL=WALLS[wall])
    assert contents(place.disk) == before
    assert verdict.code == 0, said


WITH_ALL_RIGHTS = "from tunecast.tape.trace.kernel import restrict; restrict.give_up_capabilities = lambda *given: None"
"""A user's processes have no rights that those of a script lack; root's do."""


@pytest.mark.parametrize("wall", ["none broken", "all rights", *WALLS])
def test_no_other_process_is_touched(wall: str, place: Place) -> None:
    import resource

    outside = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:

        def state() -> tuple[object, ...]:
            pid = outside.pid
            scheduled = os.sched_getaffinity(pid), os.sched_getscheduler(pid), os.getpriority(os.PRIO_PROCESS, pid)
            return resource.prlimit(pid, resource.RLIMIT_NOFILE), *scheduled

        before, broken = state(), {**WALLS, "all rights": WITH_ALL_RIGHTS}.get(wall, "")
        verdict, said = ran(place, SIGNALS, OUTSIDE=str(outside.pid), BROKEN_WALL=broken)
        assert verdict.code == 0, said
        assert outside.poll() is None and state() == before
    finally:
        outside.kill()
        outside.wait()


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


@pytest.mark.parametrize("name", NETWORK)
def test_nobody_is_reached(name: str, place: Place) -> None:
    reached: list[str] = []
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        datagrams.bind(stream.getsockname())
        local = stack.enter_context(socket.socket(socket.AF_UNIX))
        local.bind(place.environment["LOCAL"])
        local.listen()
        for listener in (stream, datagrams, local):
            listener.setblocking(False)
        verdict, said = ran(place, NETWORK[name], PORT=str(stream.getsockname()[1]))
        for listener in (stream, local):
            with contextlib.suppress(BlockingIOError):
                reached.append(str(listener.accept()))
        with contextlib.suppress(BlockingIOError):
            reached.append(str(datagrams.recvfrom(10)))
    assert not reached
    assert verdict.code == 0, said


def alive(place: Place) -> list[int]:
    """The guard, the script and its copies, in whatever session: all are told the folder in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if os.fsencode(place.folder) in words and _state(int(path.parent.name)) not in "ZX":
                found.append(int(path.parent.name))
    return found


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


@contextlib.contextmanager
def started(place: Place, script: str) -> Iterator[subprocess.Popen[bytes]]:
    """As tunecast starts a guard: in a session of its own, below a process that can be killed."""
    below = command(place, script, TraceLimits())
    environment = {**place.environment, "BROKEN_WALL": NO_FILTER}
    above = (  # whoever runs the tests may ignore hang-ups (nohup), which is inherited
        "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        f"from subprocess import *\np = Popen({below!r}, start_new_session=True)\nprint(p.pid, flush=True)\np.wait()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", above],
        cwd=place.disk,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ends_soon(condition: Callable[[], bool]) -> bool:
    for _ in range(600):
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("name", LIVING_ON)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_nothing_runs_on_when_tunecast_is_killed(name: str, number: signal.Signals, place: Place) -> None:
    with started(place, LIVING_ON[name] + "\nprint('begun', flush=True)\ntime.sleep(600)") as process:
        assert process.stderr is not None
        while b"begun" not in (line := process.stderr.readline()):
            assert line, "it never began"
        assert ends_soon(lambda: len(alive(place)) >= 3)
        process.send_signal(number)
        process.wait()
        assert ends_soon(lambda: not alive(place))
        assert ends_soon(lambda: not place.folder.exists()), "its folder goes with it"


@pytest.mark.parametrize("name", LIVING_ON)
def test_nothing_runs_on_when_the_script_ends(name: str, place: Place) -> None:
    with started(place, LIVING_ON[name]) as process:
        process.wait(timeout=120)
        assert not alive(place)


def test_with_its_guard_the_script_ends(place: Place) -> None:
    with started(place, "print('begun', flush=True)\ntime.sleep(600)") as process:
        assert process.stdout is not None and process.stderr is not None
        guard = int(process.stdout.readline())
        while b"begun" not in (line := process.stderr.readline()):
            assert line, "it never began"
        os.kill(guard, signal.SIGKILL)
        assert ends_soon(lambda: not alive(place))


MANY_BYTES = "for i in range(40): open(f'x{i}', 'wb').write(bytes(1 << 20))\ntime.sleep(600)"
MANY_PROGRAMS = """
import subprocess
held = [subprocess.Popen(["cat"], stdin=subprocess.PIPE) for _ in range(30)]
time.sleep(600)
"""
MANY_FILES = "for i in range(3000): open(f'x{i}', 'w')\ntime.sleep(600)"


@pytest.mark.parametrize(
    ("script", "limits", "reason"),
    [
        ("time.sleep(600)", TraceLimits(seconds=1), "longer than 1 s"),
        ("while True: time.sleep(0)", TraceLimits(seconds=1), "longer than 1 s"),
        ("x = bytearray(300 << 20); time.sleep(600)", TraceLimits(memory_bytes=200 << 20), "of host memory"),
        (MANY_BYTES, TraceLimits(disk_bytes=20 << 20), "wrote more than 20.00 MiB"),
        (MANY_FILES, TraceLimits(files=1000), "wrote more than 1,000 files"),
        (MANY_PROGRAMS, TraceLimits(processes=20), "more than 20 processes"),
    ],
    ids=["sleeps", "computes", "memory", "bytes", "files", "programs"],
)  # fmt: skip
def test_limits_hold(script: str, limits: TraceLimits, reason: str, place: Place) -> None:
    verdict, said = ran(place, script, limits)
    assert reason in verdict.reason, said


def test_a_script_that_prints_for_ever_is_shown_in_part(place: Place) -> None:
    verdict, said = ran(place, "while True: print('x' * 1000)", TraceLimits(seconds=3, output_bytes=100_000))
    assert 100_000 <= len(said) < 101_000
    assert said.endswith("the rest is left out\n")
    assert "longer than" in verdict.reason


@pytest.mark.parametrize(
    ("script", "code"),
    [("os._exit(0)", 0), ("os._exit(7)", 7), ("ctypes.string_at(0)", -signal.SIGSEGV), ("os.abort()", -signal.SIGABRT)],
)  # fmt: skip
def test_how_it_ended_is_told(script: str, code: int, place: Place) -> None:
    assert ran(place, script)[0] == Verdict(code, "")


def test_nothing_stays_in_shared_memory(place: Place) -> None:
    name = f"tunecast-test-{os.getpid()}"
    script = f"""
from multiprocessing import Lock, shared_memory
with Lock(): pass
try: shared_memory.SharedMemory("{name}", create=True, size=1000)
except OSError as error: print(error)
fd = c.shm_open(b"/{name}2", os.O_CREAT | os.O_RDWR, 0o600); tried("shm_open", fd)
tried("shmget", c.shmget(77, 1000, 0o1600)); tried("mq", c.mq_open(b"/{name}", os.O_CREAT | os.O_RDWR, 0o600, None))
os._exit(0)
"""
    verdict, said = ran(place, script)
    assert verdict.code == 0, said
    assert "shmget -1" in said and "mq -1" in said
    if call("unshare", 0) == 0 and os.getuid() == 0:
        assert not [path for path in os.listdir("/dev/shm") if path.startswith(name)]


def test_nothing_multiplies(place: Place) -> None:
    """One call each: where the filter fails this test does, and nothing worse."""
    flags = ("0", "17", "0x100")  # as a copy, one whose end is signalled, one with the same memory
    calls = "".join(
        f"\nchild = c.syscall({CLONE}, {each}, None, None, None, None)\nprint('clone', child)" for each in flags
    )
    verdict, said = ran(
        place, f"{IN_A_COPY}\nchild = c.fork()\nos._exit(0) if child == 0 else print('fork', child){calls}"
    )
    assert verdict.code == 0, said
    assert said.count("-1") == 4 and "fork -1" in said


HONEST = """
import shutil, socket, subprocess, tempfile
import asyncio, threading
sock = socket.socket(); sock.bind(("", 0)); sock.listen(1); print("port", sock.getsockname()[1] > 0)
left, right = socket.socketpair()
left.sendall(b"x"); print("pair", right.recv(1)); left.sendmsg([b"y"]); print(right.recv(1))
print("loop", asyncio.run(asyncio.sleep(0, "done")))
thread = threading.Thread(target=lambda: print("thread")); thread.start(); thread.join()
open("out.txt", "w").write("mine"); os.chdir(os.getcwd())
print("own", open("weights.bin", "rb").read(7), open("out.txt").read(), os.getcwd() == folder)
os.makedirs("a/b"); os.chdir("a/b"); open("c.txt", "w").write("deep")
print(os.getcwd() == folder + "/a/b", open("../b/c.txt").read(), os.listdir("."))
os.chdir("../.."); print(sorted(os.listdir(".")), os.path.exists("weights.bin"))
shutil.copy2("weights.bin", "copied.bin"); os.chmod("copied.bin", 0o600); print("copied", os.path.getsize("copied.bin"))
shutil.copytree(".", "tree"); print("tree", sorted(os.listdir("tree")))
with tempfile.TemporaryDirectory() as temporary: open(os.path.join(temporary, "x"), "w").write("x")
os.symlink("out.txt", "latest"); print("latest", open("latest").read())
print("git", subprocess.run(["git", "--version"], capture_output=True, start_new_session=True).stdout[:11])
print("shell", subprocess.check_output("uname -s", shell=True), subprocess.check_output(["cat", "/etc/passwd"])[:4])
import ctypes.util; print("libc", ctypes.util.find_library("c"))
sys.stdout.flush(); open("/dev/stderr", "w").write("to stderr\\n"); open(os.devnull, "w").write("x")
import resource; resource.setrlimit(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE))
os.sched_setaffinity(0, os.sched_getaffinity(0))
"""


def test_what_ordinary_scripts_do_works(place: Place) -> None:
    before = contents(place.disk)
    verdict, said = ran(place, HONEST)
    assert verdict.code == 0, said
    for told in (
        "port True", "pair b'x'", "b'y'", "loop done", "thread", "own b'weights' mine True", "True deep ['c.txt']",
        "['a', 'git', 'out.txt', 'weights.bin'] True", "copied 7000",
        "tree ['a', 'copied.bin', 'git', 'out.txt', 'weights.bin']", "latest mine", "git b'git version",
        "shell b'Linux\\n'", "libc libc.so", "to stderr",
    ):  # fmt: skip
        assert told in said, (told, said)
    assert contents(place.disk) == before
