"""A step is priced by stretches, matrices and columns; in Python and in C: with the same figures as operation by
operation."""

from __future__ import annotations

import random
from array import array
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunecast.hardware.catalog import gpus
from tunecast.hardware.cluster import Cluster, cards_of
from tunecast.prediction import native
from tunecast.prediction.price import COMMUNICATION, kind_of, rates_of, seconds
from tunecast.prediction.price.clocks import READ_BY_THE_HOST
from tunecast.prediction.price.collectives import collective_seconds
from tunecast.prediction.price.host import DEFAULT_HOST
from tunecast.prediction.time import runtime
from tunecast.prediction.time.runtime import GpuHost, Lowered, StepTime
from tunecast.tape.op import COLLECTIVES, CROSSED, FROM_HOST, HOOK, OFF_GRID, SYNCHRONIZE, WAIT, Op, Phase
from tunecast.tape.step import Step, StepSection

CARDS = [gpu for gpu in gpus().values() if gpu.dense_flop_per_s or gpu.achieved_flop_per_s]
MESH = (("data", 16), ("others", 1))
needs_c = pytest.mark.skipif(native.price is None, reason="nothing was compiled")


def some_op(chance: random.Random) -> Op:
    stream = chance.choice((0, 0, 0, 1, 2))
    engine = chance.random() < 0.5
    nbytes = chance.choice((0, 100, 10**6, 10**8))
    match chance.randrange(9):
        case 0:
            return Op(WAIT, kernels=0, shapes=((chance.randrange(4),),), stream=stream)
        case 1:
            return Op(chance.choice((SYNCHRONIZE, HOOK, "empty")), kernels=0)
        case 2:
            return Op(chance.choice(sorted(READ_BY_THE_HOST)), stream=stream)
        case 3:
            name, ranks = chance.choice(("all_gather", "all_reduce", "reduce_scatter")), chance.choice((8, 16))
            shapes, group = ((nbytes,), (ranks,)), chance.choice(("data", "data", "others"))
            return Op(name, read_bytes=nbytes, stream=stream, group=group, shapes=shapes)
        case 4:
            m, n, k = (chance.choice((1, 16, 100, 2048, 14336)) for _ in range(3))
            dtype, layout = chance.choice(("bfloat16", "float32", "float8")), chance.choice(("", OFF_GRID))
            shapes = ((m, k), (k, n))
            return Op("mm", "", 2 * m * n * k, nbytes, nbytes, 1, dtype, shapes, "", stream, "", engine, layout)
        case 5:
            name = "_scaled_dot_product_flash_attention" + chance.choice(("", "_backward"))
            shapes = ((1, 32, 2048, 128), (1, 32, 2048, 64))
            return Op(name, flops=10**11, read_bytes=nbytes, dtype="bfloat16", shapes=shapes, by_engine=engine)
        case 6:
            return Op(FROM_HOST, written_bytes=nbytes, stream=stream)
        case _:
            layout = chance.choice(("", CROSSED))
            return Op("mul", written_bytes=nbytes, kernels=chance.randint(1, 3), by_engine=engine, layout=layout)


def some_step(seed: int) -> Step:
    """Sections of a few operations, of which some come again, a few or many times."""
    chance = random.Random(seed)
    known = [tuple(some_op(chance) for _ in range(chance.randint(1, 12))) for _ in range(4)]
    sections = []
    for _ in range(chance.randint(1, 7)):
        times = chance.choice((1, 1, 2, 5, 9, 80))
        sections.append(
            StepSection(chance.choice((Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)), times, chance.choice(known))
        )
    return Step(sections)


def places(seed: int, count: int) -> list[GpuHost]:
    chance = random.Random(seed)
    cards = [chance.choice(CARDS) for _ in range(count)]
    return [GpuHost(card, DEFAULT_HOST, chance.choice((None, cards_of(card, 8, 2, MESH)))) for card in cards]


def one_by_one(step: Step, place: GpuHost, silent: bool = False) -> float:
    """Every operation of every layer, by the definition."""
    rates, cluster = rates_of(place.gpu), place.cluster
    host, streams, communicators = 0.0, {0: 0.0}, {"data": 0.0, "others": 0.0}
    for phase, times, ops in step.sections:
        for op in list(ops) * times:
            now = streams.setdefault(op.stream, 0.0)
            if op.name == WAIT:
                streams[op.stream] = max(now, streams.get(op.shapes[0][0], 0.0))
            elif op.name == SYNCHRONIZE:
                host = max(host, *streams.values())
            else:
                host += place.host.op_s(op, phase)
                if op.name in COLLECTIVES:
                    now = max(now, communicators[op.group])
                price = _seconds(op, rates, cluster, silent)
                if op.kernels or price:
                    streams[op.stream] = max(now, host) + price
                if op.name in COLLECTIVES:
                    communicators[op.group] = streams[op.stream]
                if op.name in READ_BY_THE_HOST:
                    host = max(host, streams[op.stream])
    return max(host, *streams.values())


def _seconds(op: Op, rates: Any, cluster: Cluster | None, silent: bool) -> float:
    if kind_of(op.name) != COMMUNICATION:
        return seconds(op, rates, 1 if cluster is None else cluster.gpus_per_node)
    return 0.0 if silent or cluster is None else collective_seconds(op, cluster)


def numbers(told: StepTime) -> list[float]:
    return [
        told.step_s,
        told.low_s,
        told.high_s,
        told.gpu_busy_s,
        told.cpu_s,
        told.communication_s,
        *told.breakdown_s.values(),
    ]


@pytest.mark.parametrize("in_c", [False, pytest.param(True, marks=needs_c)])
@given(st.integers(0, 10**9), st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_a_step_ends_when_its_operations_do(in_c: bool, seed: int, count: int) -> None:
    """Where other cards slow nothing; what they do is a number that `test_contention.py` has."""
    step, asked = some_step(seed), places(seed, count)
    with (
        patch.object(native, "price", native.price if in_c else None),
        patch.object(runtime, "slowdown", lambda *_: 1.0),
        patch.object(runtime, "slowest", lambda card, _: card),
    ):
        told = Lowered(step).on_all(asked)
    for time, place in list(zip(told, asked, strict=True))[:3]:
        assert time.step_s == pytest.approx(one_by_one(step, place), rel=1e-11)
        alone = time.step_s - time.breakdown_s[COMMUNICATION]
        assert alone == pytest.approx(one_by_one(step, place, silent=True), rel=1e-9)
        assert sum(time.breakdown_s.values()) == pytest.approx(time.step_s)


@needs_c
@given(st.integers(0, 10**9), st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_both_say_the_same(seed: int, count: int) -> None:
    lowered, asked = Lowered(some_step(seed)), places(seed, count)
    in_c = lowered.on_all(asked)
    with patch.object(native, "price", None):
        in_python = lowered.on_all(asked)
    for one, other in zip(in_c, in_python, strict=True):
        assert numbers(one) == pytest.approx(numbers(other), rel=1e-12, abs=1e-15)
        assert one.bound_by == other.bound_by and one.breakdown_s.keys() == other.breakdown_s.keys()


@needs_c
@given(st.integers(0, 10**9), st.integers(0, 10**9))
@settings(max_examples=300, deadline=None)
def test_numbers_that_do_not_belong_together_are_refused(seed: int, harm: int) -> None:
    """The C code reads what it is told to only where there is something: any number may be any other one."""
    asked: list[tuple[Any, ...]] = []
    real = native.price
    assert real is not None
    with patch.object(native, "price", lambda *given: asked.append(given) or real(*given)):
        Lowered(some_step(seed)).on_all(places(seed, 3))
    chance = random.Random(harm)
    given_ = [array(value.typecode, value) if isinstance(value, array) else value for value in asked[0]]
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(given_))
        value, odd = given_[at], chance.choice((-1, 0, 1, 2, 7, 40, 10**6, 2**40, -(2**62)))
        if not isinstance(value, array):
            given_[at] = odd
        elif value and chance.random() < 0.7:
            value[chance.randrange(len(value))] = odd
        else:
            given_[at] = value[: chance.randrange(len(value) + 1)] * chance.choice((1, 2))
    if isinstance(given_[4], array) and any(times > 10**7 for times in given_[4][1::3]):
        return
    try:
        told = real(*given_)
    except (ValueError, MemoryError):
        return
    assert isinstance(told, bytes)
