"""What a lane keeps between answers is bounded."""

from __future__ import annotations

import gc
import weakref

from tunecast.prediction.memory import replay
from tunecast.prediction.memory.allocator import AllocatorSettings
from tunecast.records import replace
from tunecast.tape.build.job_runs import NO_ROWS
from tunecast.web.workers import nursery


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_garbage_in_cycles_is_collected_each_so_many_answers() -> None:
    gc.disable()
    try:
        left = weakref.ref(Cycle())
        nursery.collect(nursery.COLLECT_EVERY - 1)
        assert left() is not None
        nursery.collect(nursery.COLLECT_EVERY)
        assert left() is None
    finally:
        gc.enable()


def test_replays_of_a_program_are_kept_while_it_is_asked_for() -> None:
    settings, other = AllocatorSettings(), AllocatorSettings(expandable_segments=True)
    programs = [replace(NO_ROWS) for _ in range(replay.MOST_RECENT + 1)]
    first = replay.replays_of(programs[0], settings)
    assert replay.replays_of(programs[0], settings) is first
    assert replay.replays_of(programs[0], other) is not first, "of the same settings alone"
    assert replay.replays_of(programs[1], settings) is not first, "an equal program is another"
    for each in programs[1:]:
        replay.replays_of(each, settings)
    assert len(replay._recent) == replay.MOST_RECENT
    assert replay.replays_of(programs[0], settings) is not first, "the oldest is forgotten"
