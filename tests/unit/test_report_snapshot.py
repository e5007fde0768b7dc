"""The snapshot of a hand-made run, against what its addresses and sizes must be and what the viewer can read."""

from __future__ import annotations

import pickle
import pickletools
import random
from typing import Any

import pytest

from tunecast.prediction.memory.allocator import AllocatorSettings, CachingAllocator, OutOfMemory
from tunecast.report.run.snapshot import pickled_snapshot, snapshot
from tunecast.tape.op import Alloc, Begin, EmptyCache, Event, Free, Op, Phase, Role, Tape
from tunecast.units import MIB

TAPE = Tape(
    (
        Begin(Phase.LOAD, 0),
        Op("aten.empty", source="/home/me/train.py:12"),
        Alloc(0, 30 * MIB, Role.WEIGHTS, "model.lin"),
        Alloc(1, 1000, Role.WEIGHTS, "model.lin"),
        Begin(Phase.FORWARD, 0),
        Op("aten.mm", "model.lin", source="/home/me/train.py:31"),
        Alloc(2, 5 * MIB, Role.ACTIVATIONS, "model.lin"),
        Alloc(3, 6 * MIB, Role.TEMPORARIES, "model.lin"),
        Free(3),
        Begin(Phase.BACKWARD, 0),
        Op("aten.mm", "model.lin", source="/home/me/a:b.py:31 (backward)"),
        Alloc(4, 30 * MIB, Role.GRADIENTS, "model.lin"),
        Alloc(5, 0),
        Free(5),
        Free(2),
        EmptyCache(),
        Op("aten.all_reduce", stream=7),
        Alloc(6, 700, Role.TEMPORARIES, stream=7),
        Begin(Phase.OPTIMIZER, 0),
        Free(4),
    )
)
Span = tuple[int, int]
NATIVE = AllocatorSettings()
EXPANDABLE = AllocatorSettings(expandable_segments=True)


def reverted(content: dict[str, Any]) -> tuple[list[Span], dict[int, int]]:
    """What the viewer does to show an earlier moment: from the final state back, event by event, to the beginning.

    Fails where an event speaks of a block or of memory that is not there, or a block lies outside all segments.
    """
    segments = [(segment["address"], segment["address"] + segment["total_size"]) for segment in content["segments"]]
    blocks = {
        block["address"]: block["requested_size"]
        for segment in content["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    for entry in reversed(content["device_traces"][0]):
        action = entry["action"]
        if action == "alloc":
            assert blocks.pop(entry["addr"]) == entry["size"]
        elif action == "free_completed":
            assert entry["addr"] not in blocks
            blocks[entry["addr"]] = entry["size"]
        elif action == "free_requested":
            assert blocks[entry["addr"]] == entry["size"]
        elif action in ("segment_alloc", "segment_map"):
            start, end = entry["addr"], entry["addr"] + entry["size"]
            (around,) = [span for span in segments if span[0] <= start and end <= span[1]]
            assert action == "segment_map" or around == (start, end)
            segments.remove(around)
            segments += [span for span in ((around[0], start), (end, around[1])) if span[0] < span[1]]
        elif action in ("segment_free", "segment_unmap"):
            span = (entry["addr"], entry["addr"] + entry["size"])
            for other in [other for other in segments if other[1] == span[0] or other[0] == span[1]]:
                assert action == "segment_unmap"
                segments.remove(other)
                span = (min(span[0], other[0]), max(span[1], other[1]))
            segments.append(span)
        for address, size in blocks.items():
            assert any(start <= address and address + size <= end for start, end in segments)
    return segments, blocks


def test_segments_are_what_the_allocator_asked_for() -> None:
    """30 MiB of weights and of gradients fill a segment each; 1000 and 700 bytes one of 2 MiB a stream.

    5 and 6 MiB shared one of 20 MiB, which empty_cache gave back. The gradients' stays, free, since they went later.
    """
    keys = ("total_size", "allocated_size", "requested_size", "stream", "segment_type")
    segments = [tuple(segment[key] for key in keys) for segment in snapshot(TAPE, NATIVE)["segments"]]
    assert sorted(segments) == [
        (2 * MIB, 1024, 700, 7, "small"),
        (2 * MIB, 1024, 1000, 0, "small"),
        (30 * MIB, 0, 0, 0, "large"),
        (30 * MIB, 30 * MIB, 30 * MIB, 0, "large"),
    ]


def test_blocks_tile_their_segment() -> None:
    for settings in (NATIVE, EXPANDABLE):
        for segment in snapshot(TAPE, settings)["segments"]:
            at = segment["address"]
            for block in segment["blocks"]:
                assert block["address"] == at
                at += block["size"]
            assert at == segment["address"] + segment["total_size"]
            assert segment["is_expandable"] is settings.expandable_segments


def test_the_history_leads_from_nothing_to_the_final_state() -> None:
    assert reverted(snapshot(TAPE, NATIVE)) == ([], {})
    assert reverted(snapshot(TAPE, EXPANDABLE)) == ([], {})


def drawn_tape(draw: random.Random, length: int) -> Tape:
    events: list[Event] = [Begin(Phase.FORWARD, 0)]
    live: list[int] = []
    for block in range(length):
        nbytes = int(2 ** draw.uniform(0, 25.5))
        events.append(Alloc(block, nbytes, draw.choice(list(Role)), stream=draw.choice((0, 0, 7))))
        live.append(block)
        while live and draw.random() < 0.48:
            events.append(Free(live.pop(draw.randrange(len(live)))))
        if draw.random() < 0.02:
            events.append(EmptyCache())
    return Tape(tuple(events))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "settings",
    [
        NATIVE,
        EXPANDABLE,
        AllocatorSettings(expandable_segments=True, capacity_is_physical=True),
        AllocatorSettings(max_split_size_bytes=20 * MIB),
        AllocatorSettings(garbage_collection_threshold=0.5),
    ],
)
def test_any_history_can_be_walked_back(seed: int, settings: AllocatorSettings) -> None:
    """With retries, oversize blocks and garbage collection under a capacity; the final figures are the allocator's."""
    draw = random.Random(seed)
    tape = drawn_tape(draw, 200)
    capacity_bytes = draw.choice((None, 100 * MIB, 200 * MIB, 400 * MIB))
    content = snapshot(tape, settings, capacity_bytes)
    assert reverted(content) == ([], {})
    allocator = CachingAllocator(settings, capacity_bytes)
    try:
        for event in tape.events:
            if isinstance(event, Alloc):
                allocator.malloc(event.block, event.nbytes, event.stream)
            elif isinstance(event, Free):
                allocator.free(event.block)
            elif isinstance(event, EmptyCache):
                allocator.empty_cache()
    except OutOfMemory:
        assert content["device_traces"][0][-1]["action"] == "oom"
    assert sum(segment["total_size"] for segment in content["segments"]) == allocator.reserved_bytes
    assert sum(segment["allocated_size"] for segment in content["segments"]) == allocator.allocated_bytes


def test_pages_are_mapped_and_unmapped() -> None:
    """Large pages hold 20 MiB: 30 of weights, 5 + 6 of activations and 30 of gradients, all but the weights' go."""
    trace = snapshot(TAPE, EXPANDABLE)["device_traces"][0]
    mapped = [entry["size"] for entry in trace if entry["action"] == "segment_map"]
    unmapped = [entry["size"] for entry in trace if entry["action"] == "segment_unmap"]
    assert mapped[:2] == [40 * MIB, 2 * MIB]
    final = snapshot(TAPE, EXPANDABLE)["segments"]
    assert sum(mapped) - sum(unmapped) == sum(segment["total_size"] for segment in final)
    assert [(s["stream"], s["segment_type"]) for s in final] == [(0, "large"), (0, "small"), (7, "small")]


def test_frames_name_the_operation_the_line_the_module_and_the_phase() -> None:
    trace = snapshot(TAPE, NATIVE)["device_traces"][0]
    activation = next(entry for entry in trace if entry["action"] == "alloc" and entry["size"] == 5 * MIB)
    assert activation["frames"] == [
        {"name": "aten.mm", "filename": "/home/me/train.py", "line": 31},
        {"name": "model.lin", "filename": "module", "line": 0},
        {"name": "forward of step 0", "filename": "phase", "line": 0},
    ]
    assert activation["category"] == "activations"
    gradient = next(entry for entry in trace if entry["category"] == "gradients")
    assert gradient["frames"][0] == {"name": "aten.mm", "filename": "/home/me/a:b.py", "line": 31}
    reduced = next(entry for entry in trace if entry["size"] == 700)
    assert reduced["frames"][0] == {"name": "aten.all_reduce", "filename": "line not known", "line": 0}


def test_phases_are_annotated() -> None:
    notes = snapshot(TAPE, NATIVE)["external_annotations"]
    assert [(note["name"], note["stage"], note["time_us"]) for note in notes] == [
        ("load", "START", 0),
        ("load", "END", 4),
        ("forward of step 0", "START", 4),
        ("forward of step 0", "END", 9),
        ("backward of step 0", "START", 9),
        ("backward of step 0", "END", 18),
        ("optimizer of step 0", "START", 18),
        ("optimizer of step 0", "END", 19),
    ]


def test_a_run_out_of_memory_ends_with_the_request_that_failed() -> None:
    """60 MiB hold the weights (30), the small segment (2) and the 20 for 5 + 6 MiB, not 30 more of gradients."""
    content = snapshot(TAPE, NATIVE, capacity_bytes=60 * MIB)
    last = content["device_traces"][0][-1]
    assert (last["action"], last["size"], last["device_free"]) == ("oom", 30 * MIB, 8 * MIB)
    assert last["frames"][0]["name"] == "aten.mm"
    assert reverted(content) == ([], {})


def test_a_retry_gives_segments_back() -> None:
    """With the 20 MiB segment free again, the gradients' 30 fit into 70: the cached segment goes, then theirs comes."""
    kept = Tape(tuple(event for event in TAPE.events if event not in (Free(2), EmptyCache())))
    freed_first = Tape((*TAPE.events[:9], Free(2), Begin(Phase.BACKWARD, 0), Alloc(4, 30 * MIB, Role.GRADIENTS)))
    actions = [entry["action"] for entry in snapshot(freed_first, NATIVE, 70 * MIB)["device_traces"][0]]
    assert actions[-3:] == ["segment_free", "segment_alloc", "alloc"]
    assert reverted(snapshot(freed_first, NATIVE, 70 * MIB)) == ([], {})
    assert snapshot(kept, NATIVE, 70 * MIB)["device_traces"][0][-1]["action"] == "oom"


VIEWER_OPCODES = set(
    """
    APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPUT BINUNICODE DICT EMPTY_DICT EMPTY_LIST EMPTY_TUPLE
    FRAME LIST LONG1 LONG_BINGET LONG_BINPUT MARK MEMOIZE NEWFALSE NEWTRUE NONE PROTO SETITEM SETITEMS
    SHORT_BINUNICODE STOP TUPLE TUPLE1 TUPLE2 TUPLE3
    """.split()  # noqa: SIM905
)
"""What the unpickler in torch/utils/viz/MemoryViz.js knows; anything else stops it."""


@pytest.mark.parametrize("settings", [NATIVE, EXPANDABLE, AllocatorSettings(roundup_power2_divisions=(4,) * 16)])
def test_the_viewer_can_read_the_file(settings: AllocatorSettings) -> None:
    content = pickled_snapshot(TAPE, settings)
    opcodes = [(opcode.name, argument) for opcode, argument, _ in pickletools.genops(content)]
    assert opcodes[0] == ("PROTO", 4)
    assert {name for name, _ in opcodes} <= VIEWER_OPCODES
    assert pickle.loads(content) == snapshot(TAPE, settings)
    assert any(entry["category"] == "unknown" for entry in snapshot(TAPE, settings)["device_traces"][0])
