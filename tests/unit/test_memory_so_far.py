"""What a traced script is told of the card's memory: the card's own end counts there too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tunecast.hardware.catalog import gpu
from tunecast.prediction.memory.so_far import MemorySoFar
from tunecast.prediction.modelled import card_of
from tunecast.prediction.script_run import memory_request
from tunecast.tape.op import Free
from tunecast.tape.trace.meter import MemoryMeter
from tunecast.units import GIB

SIZES = {0: 6, 1: 7, 2: 5}
"""In GiB, on a card of 10: 6 are freed before 7 are asked for, for which they are too small; 5 more are too many."""


@pytest.fixture
def events() -> list[Any]:
    return []


@pytest.fixture
def meter(events: list[Any]) -> MemoryMeter:
    blocks = {block: SimpleNamespace(nbytes=size * GIB, stream=0) for block, size in SIZES.items()}
    made = MemoryMeter(SimpleNamespace(_events=events, _blocks=blocks))  # type: ignore[arg-type]
    made.replay_by(MemorySoFar(memory_request(gpu("rtx-4090"), None, None, 10 * GIB), "2.13"))
    return made


def test_cached_blocks_go_where_the_card_would_be_full(meter: MemoryMeter, events: list[Any]) -> None:
    events += [0, Free(0), 1]
    told = meter.now(0)
    assert (told.allocated_bytes, told.reserved_bytes, told.peak_reserved_bytes) == (7 * GIB, 7 * GIB, 7 * GIB)


def test_a_script_that_does_not_fit_goes_on_as_on_a_larger_card(meter: MemoryMeter, events: list[Any]) -> None:
    events += [0, Free(0), 1]
    meter.now(0)
    events.append(2)
    told = meter.now(0)
    assert (told.allocated_bytes, told.reserved_bytes) == (12 * GIB, 13 * GIB), "5 lie in the 6 that were freed"


def test_the_card_has_what_its_context_and_others_leave() -> None:
    request = memory_request(gpu("rtx-4090"), None, None, reserve_bytes=GIB)
    assert request.capacity_bytes == card_of(gpu("rtx-4090")).total_bytes - request.context_bytes - GIB
