"""PyTorch's own tools open our snapshots: torch.cuda._memory_viz reads, sums and plots them."""

from __future__ import annotations

import base64
import copy
import json
import pickle
import re
from typing import Any

import pytest

from tunecast.prediction.memory.allocator import AllocatorSettings
from tunecast.report.run.snapshot import snapshot
from tunecast.tape.op import Alloc, Begin, Free, Op, Phase, Role, Tape
from tunecast.units import MIB

viz = pytest.importorskip("torch.cuda._memory_viz")

TAPE = Tape(
    (
        Begin(Phase.LOAD, 0),
        Op("aten.empty", source="/home/me/train.py:12"),
        Alloc(0, 40 * MIB, Role.WEIGHTS, "model.lin"),
        Alloc(1, 1000, Role.WEIGHTS, "model.lin"),
        Begin(Phase.FORWARD, 0),
        Op("aten.mm", "model.lin", source="/home/me/train.py:31"),
        Alloc(2, 5 * MIB, Role.ACTIVATIONS, "model.lin"),
        Alloc(3, 6 * MIB, Role.TEMPORARIES, "model.lin"),
        Free(2),
        Begin(Phase.BACKWARD, 0),
        Alloc(4, 3 * MIB, Role.GRADIENTS, "model.lin"),
    )
)
SETTINGS = [AllocatorSettings(), AllocatorSettings(expandable_segments=True)]


def embedded(page: str) -> Any:
    """The snapshot inside a page of torch's, as the viewer will unpack it."""
    files = json.loads(re.search(r"const local_files = (.*)", page)[1])  # type: ignore[index]
    return pickle.loads(base64.b64decode(files[0]["base64"]))


def test_segsum_adds_up() -> None:
    """40 MiB, 2 MiB and 20 MiB are reserved; 49 MiB + 1000 bytes requested; the rest is free."""
    text = viz.segsum(snapshot(TAPE, SETTINGS[0]))
    assert "segments: 3\n" in text
    assert "total_reserved: 62.0MiB\n" in text
    assert "total_allocated: 49.0MiB\n" in text
    assert "[aa] 40.0MiB allocated, 0.0B free" in text
    assert "] 20.0MiB allocated, 11.0MiB" in text


def test_segsum_takes_expandable_segments() -> None:
    """One range of large pages, 60 MiB for 40 + 5 + 6, and one of small ones."""
    text = viz.segsum(snapshot(TAPE, SETTINGS[1]))
    assert "segments: 2\n" in text
    assert "total_reserved: 62.0MiB\n" in text


def test_trace_retells_the_run() -> None:
    """The second and third block of the run lie in one segment, the third after the second, which then goes."""
    lines = viz.trace(snapshot(TAPE, SETTINGS[0])).splitlines()
    assert lines[0] == "Device 0 ----------------"
    allocated = [line for line in lines if re.fullmatch(r"\w+ = \w+\[\d+:.*\]", line)]
    assert [re.sub(r"^\w+ = \w+", "", line) for line in allocated] == [
        "[0:40.0MiB]",
        "[0:1000.0B]",
        "[0:5.0MiB]",
        f"[{5 * MIB}:6.0MiB]",
        "[0:3.0MiB]",
    ]
    assert sum("cudaMalloc" in line for line in lines) == 3
    assert sum(line.startswith("del ") for line in lines) == 1


def test_trace_ends_where_memory_does() -> None:
    """50 MiB hold the 40 and the 2, not the 20 for the activations; 8 are left."""
    text = viz.trace(snapshot(TAPE, SETTINGS[0], capacity_bytes=50 * MIB))
    assert "raise OutOfMemoryError # 20.0MiB requested, 8.0MiB free in CUDA" in text


@pytest.mark.parametrize("settings", SETTINGS)
def test_plots_carry_the_snapshot(settings: AllocatorSettings) -> None:
    content = snapshot(TAPE, settings)
    page = viz.trace_plot(content)
    assert "Active Memory Timeline" in page and embedded(page) == content
    page = viz.segment_plot(content)
    assert "Allocator State History" in page and embedded(page) == content


def test_freed_blocks_can_be_filtered_out() -> None:
    content = snapshot(TAPE, SETTINGS[0])
    viz.trace_plot(filtered := copy.deepcopy(content), filter_freed=True)
    sizes = [entry["size"] for entry in filtered["device_traces"][0] if entry["action"] == "alloc"]
    assert sizes == [40 * MIB, 1000, 6 * MIB, 3 * MIB]


@pytest.mark.parametrize("settings", SETTINGS)
def test_flame_graphs_account_for_every_byte(settings: AllocatorSettings) -> None:
    lines = viz.memory(snapshot(TAPE, settings), format_flamegraph=lambda text: text).splitlines()
    assert sum(int(line.rsplit(" ", 1)[1]) for line in lines) == 62 * MIB
    weights = "stream_0;active_allocated;phase:0:load;module:0:model.lin;train.py:12:aten.empty"
    assert f"{weights} {40 * MIB}" in lines
