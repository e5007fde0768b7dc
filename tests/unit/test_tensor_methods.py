"""Tensors without contents are spelled as torch's: methods, operators and indices, and when a temporary goes."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import backward
from tunecast.tape.build.dtypes import BFLOAT16, BOOL, FLOAT32, INT64, Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Free, Op

FLOAT64 = Dtype("float64", 8)


def tensor(*shape: int, dtype: Dtype = FLOAT32, machine: Machine | None = None) -> Tensor:
    return (machine or Machine(Card())).run("ones", (), shape, dtype)


@pytest.mark.parametrize(
    "index, shape, strides, offset",
    [
        ((..., slice(None, 3)), (2, 5, 3), (30, 6, 1), 0),
        ((..., slice(3, None)), (2, 5, 3), (30, 6, 1), 3),
        ((..., slice(None, -1)), (2, 5, 5), (30, 6, 1), 0),
        ((..., slice(1, None, 2)), (2, 5, 3), (30, 6, 2), 1),
        ((..., slice(1, 4), slice(None)), (2, 3, 6), (30, 6, 1), 6),
        ((slice(None), slice(None), 2), (2, 5), (30, 6), 2),
        ((..., 2), (2, 5), (30, 6), 2),
        (1, (5, 6), (6, 1), 30),
        ((slice(None), None, 4), (2, 1, 6), (30, 30, 1), 24),
        (slice(None), (2, 5, 6), (30, 6, 1), 0),
    ],
)
def test_an_index_is_a_view(index: Any, shape: Any, strides: Any, offset: int) -> None:
    x = tensor(2, 5, 6)
    view = x[index]
    assert (view.shape, view.stride(), view.offset) == (shape, strides, offset)
    assert view.storage is x.storage and view.is_view


def test_a_tensor_of_places_takes_rows() -> None:
    x = tensor(10, 4)
    rows = x[tensor(3, dtype=INT64, machine=x.machine)]
    assert rows.shape == (3, 4) and rows.storage is not x.storage


def test_a_tensor_is_no_sequence() -> None:
    with pytest.raises(TypeError):
        list(tensor(2))  # type: ignore[call-overload]


def ops(machine: Machine) -> list[str]:
    return [event.name for event in machine.tape_events() if isinstance(event, Op)]


def test_operators_take_tensors_and_numbers() -> None:
    x = tensor(2, 3, dtype=BFLOAT16)
    y = tensor(3, machine=x.machine)
    assert (x + y).dtype == FLOAT32 and (x * 2).dtype == BFLOAT16 and (x * y).shape == (2, 3)
    assert all(out.shape == (2, 3) for out in (1 - x, 1 / x, -x, x / y, x // 2))
    assert ops(x.machine)[2:] == ["add", "mul", "mul", "rsub", "reciprocal", "mul", "neg", "div", "floor_divide"]
    assert (x @ y.view(3, 1).to(BFLOAT16)).shape == (2, 1)


def test_comparisons_give_flags_and_sums_count_them() -> None:
    labels = tensor(2, 8, dtype=INT64)
    kept = labels.ne(-100)
    assert kept.dtype == BOOL and kept.sum().dtype == INT64 and kept.sum(0).shape == (8,)
    assert (~kept & kept).shape == (2, 8) and kept.all().shape == ()


def test_a_sum_is_of_fp32_under_autocast_unless_wider() -> None:
    x = tensor(4, 4, dtype=BFLOAT16)
    with x.machine.autocasting(BFLOAT16):
        assert x.sum(-1).dtype == FLOAT32
        assert tensor(4, dtype=FLOAT64, machine=x.machine).sum().dtype == FLOAT64
    assert x.sum(-1).dtype == BFLOAT16


def requests(machine: Machine) -> list[tuple[str, int]]:
    """What is taken (+) and given back (-), in order, from 1 KiB on."""
    sizes: dict[int, int] = {}
    found = []
    for event in machine.tape_events():
        if isinstance(event, Alloc) and event.nbytes >= 1024:
            sizes[event.block] = event.nbytes
            found.append(("+", event.nbytes))
        elif isinstance(event, Free) and event.block in sizes:
            found.append(("-", sizes[event.block]))
    return found


def test_a_temporary_goes_when_its_call_returns() -> None:
    """`(x + y).tanh()`: the sum is there until tanh is made, and then goes."""
    machine = Machine(Card())
    x, y = tensor(1024, machine=machine), tensor(1024, machine=machine)
    before = len(requests(machine))
    out = (x + y).tanh().view(32, 32).transpose(0, 1).contiguous()
    assert requests(machine)[before:] == [("+", 4096), ("+", 4096), ("-", 4096), ("+", 4096), ("-", 4096)]
    assert out.shape == (32, 32)


def test_gradients_flow_through_operators_and_indices() -> None:
    machine = Machine(Card())
    weight = tensor(8, 4, machine=machine)
    weight.requires_grad = True
    x = tensor(3, 4, machine=machine)
    out = F.silu(F.linear(x, weight)[..., :4] * 2 + 1) / 3
    backward(out.sum())
    assert weight.grad is not None and weight.grad.shape == (8, 4)
