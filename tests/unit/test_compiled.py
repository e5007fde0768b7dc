"""torch.compile on paper, on programs small enough for paper.

`gate` multiplies 1024 x 64 values by a 64 x 64 weight and bends the product three times. Every block it makes has
1024 * 64 * 4 = 262,144 bytes; eager code takes four of them, compiled code two (tests/trace/test_compile.py has the
real compiler do the same).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import backward
from tunecast.tape.build.compiled import Region
from tunecast.tape.build.compiler.graph import INPUT, TANGENT, Graph
from tunecast.tape.build.compiler.order import Schedule, ScheduleStep
from tunecast.tape.build.compiler.partition import Flow, Partitioner
from tunecast.tape.build.dtypes import BOOL, FLOAT32
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import bring
from tunecast.tape.build.recompute import checkpoint
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Begin, Free, Op, Phase

BLOCK = 1024 * 64 * 4


def machine_with_weight() -> tuple[Machine, Tensor]:
    machine = Machine(Card())
    weight = Tensor(machine, None, (64, 64), FLOAT32)  # type: ignore[arg-type]
    weight.requires_grad = True
    bring(weight, "gate")
    return machine, weight


def gate(x: Tensor, weight: Tensor) -> Tensor:
    return (F.mm(x, weight).tanh() * 0.5).tanh()


def trained(call: Callable[[Tensor, Tensor], Tensor], steps: int = 1) -> list[tuple[str, int]]:
    """Requests of 1 KiB or more of the last step by phase, after the weight; compiled kernels' timing buffers, which
    only the first launch takes, are not among them."""
    machine, weight = machine_with_weight()
    for step in range(steps):
        machine.step, machine.phase = step, Phase.OTHER
        x = machine.run("ones", (), (1024, 64), FLOAT32)
        machine.phase, machine.in_forward = Phase.FORWARD, True
        out = call(x, weight)
        loss = out.view(1, -1).mean(-1, keepdim=True)
        del out, x
        backward(loss.view(1))
        del loss
        weight.grad = None
    phase, now, found = "", -1, []
    for event in machine.tape_events():
        if isinstance(event, Begin):
            phase, now = event.phase.value, event.step
        elif isinstance(event, Alloc) and event.nbytes >= 1024 and now == steps - 1:
            found.append((phase, event.nbytes))
    return found


def blocks(found: list[tuple[str, int]], phase: str) -> int:
    return sum(nbytes == BLOCK for where, nbytes in found if where == phase)


def test_eager_code_keeps_every_step() -> None:
    assert blocks(trained(gate), "forward") == 4


def compiled(function: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    regions: dict[int, Region] = {}

    def call(x: Tensor, weight: Tensor) -> Tensor:
        region = regions.setdefault(id(weight), Region(weight.machine, lambda x: function(x, weight)))
        out: Tensor = region(x)
        return out

    return call


def test_one_kernel_bends_the_product() -> None:
    """The product, which the backward pass needs, and the result."""
    assert blocks(trained(compiled(gate), steps=2), "forward") == 2


def test_a_recomputed_product_is_not_kept() -> None:
    """Checkpointed inside: the result is written over the product."""

    def again(x: Tensor, weight: Tensor) -> Tensor:
        out: Tensor = checkpoint(weight.machine, lambda x: gate(x, weight), x)
        return out

    assert blocks(trained(compiled(again), steps=2), "forward") == 1


def test_checkpointed_from_outside() -> None:
    """Compiled code runs again as a whole; its forward pass in the backward pass makes both blocks once more."""
    call = compiled(gate)

    def again(x: Tensor, weight: Tensor) -> Tensor:
        out: Tensor = checkpoint(weight.machine, lambda x: call(x, weight), x)
        return out

    found = trained(again, steps=2)
    assert blocks(found, "forward") == 2
    assert blocks(found, "backward") >= 2


def test_the_first_launch_is_timed_with_a_buffer() -> None:
    first, second = (sum(nbytes == 60 << 20 for _, nbytes in trained(compiled(gate), steps)) for steps in (1, 2))
    assert first >= 2
    assert second == 0


def test_regions_of_one_kind_share_their_code() -> None:
    machine, weight = machine_with_weight()
    other = Tensor(machine, None, (64, 64), FLOAT32)  # type: ignore[arg-type]
    other.requires_grad = True
    bring(other, "other")
    regions = [Region(machine, lambda x, w=w: gate(x, w)) for w in (weight, other)]
    x = machine.run("ones", (), (1024, 64), FLOAT32)
    for region in regions:
        region(x)
    codes = [next(iter(region._compiled.values())).code for region in regions]
    assert codes[0] is codes[1]


def test_everything_a_region_makes_is_let_go() -> None:
    """What is alive after two steps is the weight, and cuBLAS' workspaces of both threads."""
    machine, weight = machine_with_weight()
    region = Region(machine, lambda x: gate(x, weight))
    for _ in range(2):
        x = machine.run("ones", (), (1024, 64), FLOAT32)
        machine.in_forward = True
        backward(region(x).view(1, -1).mean(-1, keepdim=True).view(1))
        weight.grad = None
        del x
    alive: dict[int, Any] = {}
    for event in machine.tape_events():
        if isinstance(event, Alloc):
            alive[event.block] = event.module
        elif isinstance(event, Free):
            del alive[event.block]
    assert sorted(alive.values()) == ["cublas_workspace", "cublas_workspace", "gate"]
    assert any(isinstance(event, Op) and event.name.startswith("triton::") for event in machine.tape_events())


# ------------------------------------------------------------------------------------------------- the minimum cut


def test_flow_is_cut_where_it_is_narrowest() -> None:
    """0 -3-> 1 -1-> 2 -3-> 3: the cut is between 1 and 2."""
    flow = Flow(4)
    for tail, head, capacity in ((0, 1, 3), (1, 2, 1), (2, 3, 3)):
        flow.connect(tail, head, capacity)
    assert flow.sink_side(0, 3) == {2, 3}


def test_of_equal_cuts_the_one_nearest_to_the_sink() -> None:
    flow = Flow(4)
    for tail, head in ((0, 1), (1, 2), (2, 3)):
        flow.connect(tail, head, 5)
    assert flow.sink_side(0, 3) == {3}


def test_flow_goes_around() -> None:
    """Two paths of 2 and 3 that share no edge, and a way across that helps the wider one: 5 flow, all from 0."""
    flow = Flow(4)
    for tail, head, capacity in ((0, 1, 2), (0, 2, 3), (2, 1, 1), (1, 3, 3), (2, 3, 2)):
        flow.connect(tail, head, capacity)
    assert flow.sink_side(0, 3) == {3}
    assert sum(flow.room[edge ^ 1] for edge in flow.edges[0]) == 5


def test_what_must_be_kept_and_cannot_be_is_told() -> None:
    flow = Flow(2)
    flow.connect(0, 1, float("inf"))
    with pytest.raises(ValueError, match="saved"):
        flow.sink_side(0, 1)


class Sketch:
    """A joint graph by hand: values of [rows, 64] in fp32."""

    def __init__(self) -> None:
        self.graph = Graph()

    def __call__(self, op: str, *inputs: int, rows: int = 1024, dtype: Any = FLOAT32, kind: str = "") -> int:
        return self.graph.add(op, inputs, (rows, 64), dtype, None, kind).number


def test_cheap_operations_are_done_again() -> None:
    """out = exp(exp(x w)): its gradient wants both exponentials; they follow from the product, which is kept."""
    add = Sketch()
    x, weight = add(INPUT, kind=INPUT), add(INPUT, rows=64, kind=INPUT)
    product = add("mm", x, weight)
    inner = add("exp", product)
    out = add("sum", add("exp", inner), rows=1)
    tangent = add(TANGENT, rows=1, kind=TANGENT)
    slope = add("mul", add("mul", tangent, add("exp", inner)), inner)
    gradient = add("mm", x, slope)
    assert Partitioner(add.graph, [out], [gradient], {weight}).saved() == [x, product]


def test_a_small_mask_is_kept_rather_than_what_it_was_made_from() -> None:
    """The comparison takes a quarter of the bytes."""
    add = Sketch()
    x, weight = add(INPUT, kind=INPUT), add(INPUT, rows=64, kind=INPUT)
    product = add("mm", x, weight)
    mask = add("gt", product, dtype=BOOL)
    out = add("sum", add("mul", product, mask), rows=1)
    tangent = add(TANGENT, rows=1, kind=TANGENT)
    gradient = add("mm", x, add("mul", tangent, mask))
    assert Partitioner(add.graph, [out], [gradient], {weight}).saved() == [x, mask]


def test_what_a_product_reads_in_the_backward_pass_is_not_made_again() -> None:
    """exp(product) is multiplied with in the backward pass: it has to be in memory there, so it is kept instead."""
    add = Sketch()
    x, weight, second = add(INPUT, kind=INPUT), add(INPUT, rows=64, kind=INPUT), add(INPUT, rows=64, kind=INPUT)
    bent = add("exp", add("mm", x, weight))
    out = add("mm", bent, second)
    tangent = add(TANGENT, kind=TANGENT)
    of_second = add("mm", bent, tangent, rows=64)
    of_first = add("mm", x, add("mul", add("mm", tangent, second), bent), rows=64)
    assert Partitioner(add.graph, [out], [of_first, of_second], {weight, second}).saved() == [x, second, bent]


def test_checkpointed_calls_keep_what_lies_between_them() -> None:
    """Two calls in a row, each a product bent: the first one's result is kept, nothing inside."""
    add = Sketch()
    x, weight = add(INPUT, kind=INPUT), add(INPUT, rows=64, kind=INPUT)
    value, inside = x, []
    for call in (1, 2):
        product = add("mm", value, weight)
        bent = add("exp", product)
        for number in (product, bent):
            add.graph.values[number].checkpoint = call
        inside.append((value, bent))
        value = bent
    out = add("sum", value, rows=1)
    gradient = add(TANGENT, rows=1, kind=TANGENT)
    for before, bent in reversed(inside):
        gradient = add("mul", gradient, bent)
        of_weight = add("mm", before, gradient, rows=64)
        gradient = add("mm", gradient, weight)
    saved = Partitioner(add.graph, [out], [of_weight, gradient], {weight}).saved()
    assert saved == [x, weight, inside[0][1]]


# ------------------------------------------------------------------------------------------------------ the order


def test_what_frees_most_goes_first() -> None:
    """Two results of 10 bytes, each from a block of 100, and a block of 500 with a result of 1: first, it lives beside
    both blocks of 100 and its result, 701; last, beside the results, 521."""
    steps = [
        ScheduleStep(0, {10: 500}, []),
        ScheduleStep(1, {11: 1}, [10]),
        ScheduleStep(2, {12: 10}, [1]),
        ScheduleStep(3, {13: 10}, [2]),
    ]
    schedule = Schedule(steps, {1: 100, 2: 100}, {11, 12, 13})
    assert schedule.peak([0, 1, 2, 3]) == 701
    assert schedule.peak(schedule.best()) == 521


def test_every_order_keeps_what_is_needed_first() -> None:
    steps = [
        ScheduleStep(0, {10: 5}, []),
        ScheduleStep(1, {11: 5}, [10]),
        ScheduleStep(2, {12: 5}, [10]),
        ScheduleStep(3, {13: 5}, [11, 12]),
    ]
    schedule = Schedule(steps, {}, {13})
    for order in (schedule.as_given(), schedule.least_memory(), schedule.oldest_first(), schedule.depth_first()):
        assert sorted(order) == [0, 1, 2, 3]
        assert order[0] == 0
        assert order[-1] == 3
