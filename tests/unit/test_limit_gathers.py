"""FSDP 1's rate limiter: the host is never more than two units ahead of the card."""

from __future__ import annotations

import pytest

from tunecast.prediction.price.clocks import ClockProgram, clock_program, ends, stretches_of
from tunecast.tape.op import HOST_WAIT, WAIT, Op, Phase

EVENT = 11
WORK = Op("mm")
RECORD = Op(WAIT, kernels=0, shapes=((0,),), stream=EVENT)
SYNC = Op(HOST_WAIT, kernels=0, stream=EVENT)
GATHER = Op("all_gather", stream=1, group="shard")


def end_of(*ops: Op) -> float:
    distinct = list(dict.fromkeys(ops))
    course: ClockProgram = clock_program([(Phase.FORWARD, 1, [distinct.index(op) for op in ops])], distinct)
    prices = [[{"mm": 10.0, "all_gather": 10.0}.get(op.name, 0.0)] for op in distinct]
    launches = [1.0 if op.kernels else 0.0 for op in distinct] * 2
    return ends(course, stretches_of(course, prices, launches))[0]


def test_a_gather_runs_beside_the_work_before_it() -> None:
    assert end_of(WORK, GATHER) == pytest.approx(12)  # launched at 2, done at 12


def test_a_host_that_waits_for_the_work_gathers_after_it() -> None:
    assert end_of(WORK, RECORD, SYNC, GATHER) == pytest.approx(22)  # the work is done at 11, then a launch, then 10


def test_an_event_is_where_the_stream_was() -> None:
    """Work given after the event was recorded is not waited for."""
    assert end_of(WORK, RECORD, WORK, SYNC, GATHER) == pytest.approx(22)
