"""What holds for every test: no network, no colours, and tests/trace marked as what it needs."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

TRACE = Path(__file__).parent / "trace"
SLOW = ("trace/test_extension.py",)
"""Traces of some ten seconds or more each."""
NEWER = (
    "trace/test_workspaces.py", "trace/test_snapshot.py::test_freed_blocks_can_be_filtered_out", "trace/test_build.py",
    "trace/test_compiled_on_paper.py", "trace/test_sharding.py", "trace/test_sharding_fsdp1.py",
    "trace/test_sharding_trainers.py", "trace/test_device_map.py",
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if TRACE in item.path.parents:
            item.add_marker("trace")
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


@pytest.fixture(scope="session")
def traced_by_two() -> Callable[..., dict[str, Any]]:
    """Cases traced by a program, half of them each in two processes beside each other. None of them outlives this."""

    def traced(program: Path, cases: Sequence[Any], folder: Path, limit_s: float) -> dict[str, Any]:
        source = str(Path(__file__).parents[1] / "src")
        environment = {**os.environ, "PYTHONPATH": source, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        running: list[tuple[subprocess.Popen[str], Path]] = []
        answers: dict[str, Any] = {}
        try:
            for part in range(2):
                asked, told = folder / f"cases{part}.json", folder / f"told{part}.json"
                asked.write_text(json.dumps(cases[part::2]))
                command = [sys.executable, str(program), str(asked), str(told)]
                running.append((subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True), told))
            for process, told in running:
                _, said = process.communicate(timeout=limit_s)
                if process.returncode != 0:
                    return Broken(said[-3000:])
                answers |= json.loads(told.read_text())
        except subprocess.TimeoutExpired:
            return Broken(f"{program.name} took longer than {limit_s:.0f} s, and was ended")
        finally:
            for process, _ in running:
                process.kill()
                process.communicate()
        return answers

    return traced
