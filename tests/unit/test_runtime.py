"""Host and card beside each other, on paper."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunecast.hardware.catalog import gpus
from tunecast.hardware.cluster import cards_of
from tunecast.prediction.price import op_seconds
from tunecast.prediction.price.clocks import Column, power, product
from tunecast.prediction.price.host import FORWARD, KINDS_S, MEASURED_LAUNCH_S, Host
from tunecast.prediction.time.runtime import GpuHost, Lowered, StepTime, step_time
from tunecast.tape.op import CALLS, HOOK, SYNCHRONIZE, WAIT, Op, Phase
from tunecast.tape.step import Step, StepSection

H200 = gpus()["h200-sxm-141gb"]
MS = 1e-3
HOST = Host(launch_s=1 * MS * MEASURED_LAUNCH_S / KINDS_S[FORWARD], more_kernels_s=0.0)
"""A plain operation takes it a millisecond."""


def moving(milliseconds: float, stream: int = 0, name: str = "copy") -> Op:
    """An operation of so many milliseconds on the card."""
    nbytes = round((milliseconds * MS - 2e-6) * (H200.memory_bytes_per_s or 0) * 0.8)
    op = Op(name, written_bytes=nbytes, stream=stream)
    assert op_seconds(op, H200) == pytest.approx(milliseconds * MS)
    return op


def step(*sections: tuple[int, list[Op]], phase: Phase = Phase.FORWARD) -> Step:
    return Step(tuple(StepSection(phase, times, tuple(ops)) for times, ops in sections))


def seconds(made: Step, host: Host = HOST) -> float:
    return step_time(made, H200, host, None).step_s


def test_a_busy_card_waits_for_the_first_launch_only() -> None:
    # launched at 1, 2, 3 ms; each takes 5 ms
    assert seconds(step((1, [moving(5)] * 3))) == pytest.approx((1 + 15) * MS)


def test_a_slow_host_is_what_a_step_waits_for() -> None:
    # launched at 1, 2, ..., 10 ms; the last takes 0.1 ms
    told = step_time(step((1, [moving(0.1)] * 10)), H200, HOST, None)
    assert told.step_s == pytest.approx(10.1 * MS)
    assert told.bound_by == "launch"
    assert told.cpu_s == pytest.approx(10 * MS)
    assert told.gpu_busy_s == pytest.approx(1 * MS)
    assert told.breakdown_s["launch"] == pytest.approx(9.1 * MS)


def test_a_step_is_bound_by_what_takes_longest_alone() -> None:
    # launched by 10 ms; the card works 9 ms of the step's 10.9, and were it twice as fast the step would be 10.45
    told = step_time(step((1, [moving(0.9)] * 10)), H200, HOST, None)
    assert (told.step_s, told.gpu_busy_s) == (pytest.approx(10.9 * MS), pytest.approx(9 * MS))
    assert told.bound_by == "launch"
    # 11 ms of work: a faster host saves no more than the first launch
    assert step_time(step((1, [moving(1.1)] * 10)), H200, HOST, None).bound_by == "memory"


def gathering(group: str = "data", stream: int = 1, nbytes: int = 10**8) -> Op:
    return Op("all_gather", "", 0, nbytes, 8 * nbytes, 1, "bfloat16", ((nbytes // 2,), (8,)), "", stream, group)


EIGHT = cards_of(gpus()["a100-sxm-80gb"], 8, 1, (("data", 8), ("others", 8)))


def on_eight(*ops: Op) -> StepTime:
    return step_time(step((1, list(ops))), gpus()["a100-sxm-80gb"], HOST, EIGHT)


def test_a_communicator_runs_one_collective_at_a_time() -> None:
    """The second is launched at 2 ms and begins when the first ends; of another group, at once."""
    each = on_eight(gathering()).step_s - 1 * MS
    assert each > 2 * MS
    assert on_eight(gathering(stream=1), gathering(stream=2)).step_s == pytest.approx(1 * MS + 2 * each)
    assert on_eight(gathering(stream=1), gathering("others", 2)).step_s == pytest.approx(2 * MS + each)


def test_what_is_no_collective_does_not_wait_for_a_communicator() -> None:
    each = on_eight(gathering()).step_s - 1 * MS
    copy = Op("copy", stream=2)
    short = on_eight(copy).step_s - 1 * MS
    # the copy is launched at 3 ms on the second's stream, which is busy until both are done
    assert on_eight(gathering(stream=1), gathering(stream=2), copy).step_s == pytest.approx(1 * MS + 2 * each + short)
    # before it, it delays nothing; on a third stream neither
    assert on_eight(gathering(stream=1), copy, gathering(stream=2)).step_s == pytest.approx(1 * MS + 2 * each)
    third = [gathering(stream=1), gathering(stream=2), copy._replace(stream=3)]
    assert on_eight(*third).step_s == pytest.approx(1 * MS + 2 * each)


def test_a_communicator_is_handed_on_from_layer_to_layer() -> None:
    layer = [gathering(stream=1), moving(0.1), gathering(stream=2), moving(0.1, stream=2)]
    often = step_time(step((40, layer)), gpus()["a100-sxm-80gb"], HOST, EIGHT)
    written_out = on_eight(*layer * 40)
    assert often.step_s == pytest.approx(written_out.step_s)
    assert often.step_s > often.communication_s > 0.95 * often.step_s
    assert often.bound_by == "communication"


def test_groups_beside_each_other_bound_a_step_by_the_busiest() -> None:
    """Two groups at once take as long as one: less than 1.5 times that of computing, though more in all."""
    each = on_eight(gathering()).step_s - 1 * MS
    work = moving(1.5 * each / MS * 2039 / 4800)  # on an A100, by the cards' bandwidths
    told = on_eight(gathering(stream=1), gathering("others", 2), work)
    assert told.communication_s == pytest.approx(2 * each)
    assert each < told.gpu_busy_s < 2 * each
    assert told.bound_by == "memory"


def test_sections_hand_on_both_clocks() -> None:
    # the card ends at 1 + 2 * 8 = 17 ms, the host at 2; then 20 short ones are launched by 22 ms
    assert seconds(step((1, [moving(8)] * 2), (20, [moving(0.5)]))) == pytest.approx((17 + 10) * MS)
    assert seconds(step((1, [moving(8)] * 2), (40, [moving(0.1)]))) == pytest.approx((42 + 0.1) * MS)


@pytest.mark.parametrize(
    "ops", [[moving(0.2), moving(3.0)], [moving(0.3)] * 3, [moving(2.0), moving(0.1), moving(0.1)]]
)
def test_a_section_is_as_long_as_its_copies_written_out(ops: list[Op]) -> None:
    assert seconds(step((17, ops))) == pytest.approx(seconds(step((1, ops * 17))))


def test_a_wait_for_oneself_changes_nothing() -> None:
    """It cuts a stretch of operations in two."""
    ops = [moving(0.2), moving(3.0), moving(0.4)]
    plain = step((5, ops), (30, [moving(0.6)]))
    waits = step((5, [*ops[:2], Op(WAIT, kernels=0, shapes=((0,),)), ops[2]]), (30, [moving(0.6)]))
    assert len(Lowered(waits).structure.course.stretches) == len(Lowered(plain).structure.course.stretches) + 1
    assert seconds(plain) == pytest.approx(seconds(waits))


def test_what_is_alike_is_computed_once() -> None:
    """Layers that are written out are one stretch of operations, wherever they are cut by what waits."""
    layer = [moving(0.2), moving(3.0), Op(SYNCHRONIZE, kernels=0)]
    course = Lowered(step((1, layer * 7), (20, layer))).structure.course
    assert len(course.stretches) == 1


def test_an_empty_step_takes_nothing() -> None:
    told = step_time(Step(()), H200, HOST, None)
    assert (told.step_s, told.flops, told.cpu_s) == (0.0, 0, 0.0)


def test_streams_run_beside_each_other_until_one_waits() -> None:
    beside = [moving(10, stream=1), moving(4)]
    assert seconds(step((1, beside))) == pytest.approx(11 * MS)
    waits = [moving(10, stream=1), Op(WAIT, kernels=0, shapes=((1,),), stream=0), moving(4)]
    assert seconds(step((1, waits))) == pytest.approx((1 + 10 + 4) * MS)


def test_a_host_that_reads_goes_on_when_the_card_is_done() -> None:
    # 5 ms end at 6; then the next is launched at 7, not at 2
    for name, kernels in ((SYNCHRONIZE, 0), ("_local_scalar_dense", 1)):
        read = Op(name, kernels=kernels)
        taken = seconds(step((1, [moving(5), read, moving(2)])))
        assert taken == pytest.approx((6 + 1 + 2) * MS, abs=1.1 * MS)
        assert taken > seconds(step((1, [moving(5), moving(2)]))) + 0.5 * MS


def test_who_launches_decides_what_it_costs() -> None:
    op = Op("mul")
    assert HOST.op_s(op, Phase.FORWARD) == pytest.approx(1 * MS)
    assert HOST.op_s(op, Phase.BACKWARD) == pytest.approx(1 * MS)  # recomputed, in Python
    engine, lean = HOST.op_s(op._replace(by_engine=True), Phase.BACKWARD), HOST.op_s(op, Phase.OPTIMIZER)
    assert engine < lean < 1 * MS
    assert HOST.op_s(op._replace(name="triton::mul"), Phase.FORWARD) == pytest.approx(1 * MS)  # a compiler's
    for name in ("triton::_rms_norm_forward_kernel", "dequantize_4bit", "int8_linear_matmul", "_grouped_mm"):
        assert HOST.op_s(op._replace(name=name), Phase.FORWARD) > 5 * MS
    updated = HOST.op_s(op._replace(name="optimizer_update_8bit_blockwise"), Phase.OPTIMIZER)
    assert updated > 3 * HOST.op_s(op, Phase.OPTIMIZER)
    assert 0 < HOST.op_s(Op(HOOK, kernels=0), Phase.BACKWARD) < 1 * MS
    assert HOST.op_s(Op("empty", kernels=0), Phase.FORWARD) == 0.0
    one, seven = (HOST.op_s(Op(CALLS, kernels=0, shapes=((n,),)), Phase.FORWARD) for n in (1, 7))
    assert seven == pytest.approx(7 * one)
    several = replace(HOST, more_kernels_s=0.2 * MS)
    assert several.op_s(op._replace(kernels=3), Phase.FORWARD) == pytest.approx(1.4 * MS)


def test_the_breakdown_sums_to_the_step() -> None:
    product_ = Op("mm", flops=2 * 4096**3, read_bytes=4 * 4096**2, written_bytes=2 * 4096**2, dtype="bfloat16",
                  shapes=((4096, 4096), (4096, 4096)))  # fmt: skip
    made = Step((
        StepSection(Phase.FORWARD, 3, (product_, moving(1))),
        StepSection(
            Phase.BACKWARD, 3, (product_, product_._replace(by_engine=True), moving(2)._replace(by_engine=True))
        ),
        StepSection(Phase.OPTIMIZER, 1, (moving(4),)),
    ))  # fmt: skip
    told = step_time(made, H200, HOST, None)
    assert sum(told.breakdown_s.values()) == pytest.approx(told.step_s)
    assert set(told.breakdown_s) >= {"matrix_products", "memory_bound", "recomputation", "optimizer", "launch"}
    assert told.breakdown_s["optimizer"] == pytest.approx(4 * MS)
    assert told.flops == 9 * product_.flops
    assert told.model_flops == 6 * product_.flops


def test_a_step_on_many_cards() -> None:
    made = step((3, [moving(1)]))
    h200, a100 = Lowered(made).on_all([GpuHost(H200, HOST), GpuHost(gpus()["a100-sxm-80gb"], HOST)])
    assert a100.step_s > h200.step_s == seconds(made)


def test_many_places_are_as_each_alone() -> None:
    """Other cards, hosts, and clusters of one question; in any order, also twice the same."""
    gather = Op(
        "all_gather", read_bytes=10**7, written_bytes=8 * 10**7, stream=1, group="data", shapes=((10**7,), (8,))
    )
    wait = Op(WAIT, kernels=0, shapes=((1,),))
    lowered = Lowered(step((1, [moving(1)]), (20, [gather, moving(2), wait, moving(3)])))
    slow = replace(HOST, launch_s=3 * HOST.launch_s)
    cards = [gpus()[name] for name in ("a100-sxm-80gb", "h200-sxm-141gb", "l40s", "h200-sxm-141gb")]
    places = [
        GpuHost(gpu, host, cluster)
        for host in (HOST, slow)
        for gpu in cards
        for cluster in (None, cards_of(gpu, 8, 1, (("data", 8),)))
    ]
    assert lowered.on_all(places) == [lowered.on(*place) for place in places]
    keys = [(place.host.launch_s, place.gpu.name, place.cluster is None) for place in places]
    by_place = dict(zip(keys, lowered.on_all(places), strict=True))
    assert (
        by_place[HOST.launch_s, "l40s", False].communication_s > by_place[HOST.launch_s, "l40s", True].communication_s
    )
    assert by_place[slow.launch_s, "l40s", True].cpu_s == pytest.approx(3 * by_place[HOST.launch_s, "l40s", True].cpu_s)
    assert lowered.on_all([]) == []


@given(
    st.lists(st.lists(st.none() | st.floats(-5, 5), min_size=3, max_size=3), min_size=3, max_size=3), st.integers(1, 20)
)
def test_powers_are_repeated_products(numbers: list[list[float | None]], times: int) -> None:
    matrix: list[list[Column | None]] = [[None if at is None else [at] for at in row] for row in numbers]
    by_hand = matrix
    for _ in range(times - 1):
        by_hand = product(matrix, by_hand)
    for row, other in zip(power(matrix, times), by_hand, strict=True):
        assert [at is None for at in row] == [at is None for at in other]
        assert [at for at in row if at] == [pytest.approx(at) for at in other if at]
