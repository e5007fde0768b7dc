"""What holds for every test: no network, no colours, and tests/trace marked as what it needs."""

from __future__ import annotations

import importlib.util
import socket
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
