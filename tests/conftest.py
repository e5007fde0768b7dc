"""What holds for every test: no network, no colours, and tests/trace marked as what it needs."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

import pytest

TRACE = Path(__file__).parent / "trace"
WHOLE = [Path(__file__).parent / name for name in ("properties", "golden", "system", "trace")]
"""Folders of which nothing is in the fast tier: they draw hundreds of inputs, or go through whole jobs."""
SLOW = ("trace/test_extension.py",)
"""Traces of some ten seconds or more each."""
NEWER = (
    "trace/test_workspaces.py", "trace/test_snapshot.py::test_freed_blocks_can_be_filtered_out", "trace/test_build.py",
    "trace/test_compiled_on_paper.py", "trace/test_sharding.py", "trace/test_sharding_fsdp1.py",
    "trace/test_sharding_trainers.py", "trace/test_device_map.py", "trace/test_loading.py", "trace/test_kernels.py",
    "trace/test_deepspeed.py",
    "trace/test_distributed.py::test_as_much_as_an_h200_held[llama",
)  # fmt: skip
"""What kernels allocate as measured with torch 2.11, what later viewers can do, and what follows transformers 5: the
closed form, and Llama as measured (4 has one rotary table where 5 has two). torch 2.8 and transformers 4 do some
otherwise."""
LOOPBACK = ("127.", "::1", "localhost")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Without torch there is nothing to trace; the suite that counts (./dev test) always has it."""
    if collection_path == TRACE and importlib.util.find_spec("torch") is None:
        return True
    return None


def pytest_configure() -> None:
    """Ended from outside, fixtures still end what they started."""

    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if TRACE in item.path.parents:
            item.add_marker("trace")
        if not set(WHOLE).isdisjoint(item.path.parents):
            item.add_marker("whole")
        for marker, names in (("slow", SLOW), ("newer", NEWER)):
            if any(f"tests/{name}" in item.nodeid for name in names):
                item.add_marker(marker)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that reaches for the network fails here and now, not on the day the network does."""
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not str(address[0]).startswith(LOOPBACK):
            raise AssertionError(f"a test reached for the network: {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local_only)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a developer's shell may have set changes no answer."""
    for name in ("TUNECAST_DEBUG", "NO_COLOR", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)


class Broken(dict[str, Any]):
    """Answers that never came: the first test that looks fails and says why, those after it are left out."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason, self.is_told = reason, False

    def __getitem__(self, name: str) -> Any:
        if self.is_told:
            pytest.skip("the programs it needs ended early, as the first test that needs them says")
        self.is_told = True
        pytest.fail(self.reason, pytrace=False)


class Waiting:
    """Tells a program that waits for something that never comes from one that is slow.

    On a machine that is busy a program that has work is runnable and only gets no processor: it is left alone, however
    long that takes. A program waits if it and all it started sleep and spend no CPU time between two looks.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.seconds = 0.0
        self._spent, self._looked_s = -1, time.monotonic()

    def look(self) -> None:
        states = [state for pid in (self.pid, *descendants(self.pid)) if (state := process_state(pid)) is not None]
        spent, now_s = sum(state.cpu_ticks for state in states), time.monotonic()
        sleeps = spent == self._spent and all(state.is_asleep for state in states)
        self.seconds = self.seconds + now_s - self._looked_s if sleeps else 0.0
        self._spent, self._looked_s = spent, now_s


class ProcessState(NamedTuple):
    parent: int
    is_dead: bool
    is_asleep: bool
    cpu_ticks: int


def process_state(pid: int) -> ProcessState | None:
    """Of Linux's /proc (man proc_pid_stat); None of a process that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return ProcessState(int(fields[1]), fields[0] in "ZX", fields[0] in "SZT", int(fields[11]) + int(fields[12]))


def descendants(pid: int) -> set[int]:
    others = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    parents = {other: state.parent for other in others if (state := process_state(other)) is not None}
    below: set[int] = set()
    while more := {other for other, parent in parents.items() if parent in below | {pid}} - below:
        below |= more
    return below


def end(process: subprocess.Popen[str]) -> None:
    """A program with all that it started, in whatever sessions."""
    for pid in descendants(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


MOST_WAITING_S = 300.0
RunPrograms = Callable[..., list["subprocess.CompletedProcess[str]"]]


def run_programs_side_by_side(
    *commands: Sequence[str], most_waiting_s: float = MOST_WAITING_S, text: str = "", **options: Any
) -> list[subprocess.CompletedProcess[str]]:
    """Programs run to their end, side by side, each given `text`. None of them outlives the call.

    There is no limit of time. One that only waits is ended, and its stderr says so.
    """
    with contextlib.ExitStack() as stack:
        running: list[tuple[subprocess.Popen[str], IO[str], IO[str]]] = []
        for command in commands:
            given, out, err = (stack.enter_context(temporary_file()) for _ in range(3))
            given.write(text)
            given.seek(0)
            process = subprocess.Popen(command, stdin=given, stdout=out, stderr=err, start_new_session=True, **options)
            stack.callback(end, process)
            running.append((process, out, err))
        for process, _, err in running:
            wait(process, err, most_waiting_s)
        return [
            subprocess.CompletedProcess(process.args, process.returncode, content(out), content(err))
            for process, out, err in running
        ]


def wait(process: subprocess.Popen[str], err: IO[str], most_waiting_s: float) -> None:
    waiting = Waiting(process.pid)
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1.0)
        waiting.look()
        if waiting.seconds > most_waiting_s:
            end(process)
            err.seek(0, os.SEEK_END)
            err.write(f"ended: it did nothing but wait for {waiting.seconds:.0f} s\n")


def temporary_file() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")


def content(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


@pytest.fixture(scope="module")
def selected(request: pytest.FixtureRequest) -> list[str]:
    """The `name` parameters of a module's tests that are run: what `-k` leaves out need not be traced."""
    items = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    params = [item.callspec.params for item in items if hasattr(item, "callspec")]
    return list(dict.fromkeys(values["name"] for values in params if "name" in values))


@pytest.fixture(scope="session")
def run_programs() -> RunPrograms:
    return run_programs_side_by_side


@pytest.fixture(scope="session")
def ends() -> Callable[[int], bool]:
    """Whether a process that was told to end does: one that only sleeps for some seconds does not."""

    def watch(pid: int) -> bool:
        waiting = Waiting(pid)
        while (state := process_state(pid)) is not None and not state.is_dead:
            waiting.look()
            if waiting.seconds > 5.0:
                return False
            time.sleep(0.05)
        return True

    return watch


@pytest.fixture(scope="session")
def trace_cases() -> Callable[..., dict[str, Any]]:
    """Cases traced by a program that is called with a file of cases and one for its answers: half of them each in two
    processes side by side."""

    def trace(program: Path, cases: Sequence[Any], folder: Path, **options: Any) -> dict[str, Any]:
        source = str(Path(__file__).parents[1] / "src")
        environment = {**os.environ, "PYTHONPATH": source, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        environment["PYTHONHASHSEED"] = "0"  # transformers goes through a set of kinds of layers: here in sorted order
        questions = [folder / f"cases{part}.json" for part in range(2)]
        answers = [folder / f"answers{part}.json" for part in range(2)]
        for part, question in enumerate(questions):
            question.write_text(json.dumps(cases[part::2]))
        commands = [[sys.executable, str(program), str(q), str(a)] for q, a in zip(questions, answers, strict=True)]
        for done in run_programs_side_by_side(*commands, env=environment, **options):
            if done.returncode != 0:
                return Broken(f"{program.name} ended with {done.returncode}: {done.stderr[-3000:]}")
        return {name: events for answer in answers for name, events in json.loads(answer.read_text()).items()}

    return trace
