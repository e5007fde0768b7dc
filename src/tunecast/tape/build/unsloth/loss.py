"""Head and loss in one operation (unsloth_zoo/fused_losses/fused_linear.py, chunked_logprob.py): logits in fp32 for a
chunk of rows at a time, or for a tile of rows and vocabulary where there are many of both. The gradient of the hidden
states is taken with the loss. The head is frozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2
from typing import Any

from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64, Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.unsloth.fast_lora import into, t
from tunecast.tape.symbols import ask, starts
from tunecast.units import GIB, MIB

FLOAT64 = Dtype("float64", 8)
CHUNK_BYTES = 2 * GIB
"""`_CHUNK_GB`; less where less than twice that is free, which no run that fits has been seen to meet."""
MIN_LOGITS = 512 * 151_936
LEAST_ROWS, MOST_ROWS = 512, 4096
SPLIT_COLUMNS = 16_384
"""Columns of one split of the vocabulary; more than two of them are merged in a second pass."""
TILE_ROWS, TILE_BYTES = 4096, 256 * MIB
SMALL_CARD_BYTES = 24.5 * GIB
"""Up to here a card always tiles, above from 4096 rows on (`_flash_min_rows_auto`)."""


class Loss:
    """`unsloth_fused_ce_loss` for one head; the first call asks the card once for what it can do."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.asked = machine, False

    def __call__(self, hidden_states: Tensor, head: Tensor, labels: Tensor) -> Tensor:
        machine = self.machine
        targets = next_tokens(labels)
        divisor = count_of(targets)
        hidden = hidden_states.reshape(-1, hidden_states.shape[-1])
        return self.linear_cross_entropy(machine, hidden, head, targets, divisor, labels.shape[0])

    def linear_cross_entropy(
        self, machine: Machine, hidden: Tensor, head: Tensor, targets: Tensor, divisor: Tensor, batch: int
    ) -> Tensor:
        divisor = not_zero(divisor)
        scaling = machine.run("ones", (), (), FLOAT32)

        def back(node: Node, gradients: Gradients) -> Sequence[Any]:
            grad_h, scaling = node.take(0), node.take(1)
            above = machine.run("_to_copy", gradients, (), FLOAT64)
            below = machine.run("_to_copy", (scaling,), (), FLOAT64)
            s = machine.run("div", (above, below), (), FLOAT64)
            del above, below
            return (scaled_rows(grad_h, s),)

        node = start(machine, (hidden,), back)
        with machine.no_grad():
            loss, grad_h = self.checked(hidden, head, targets, divisor, scaling, batch)
        return finish(node, loss, grad_h, scaling)

    def checked(
        self, hidden: Tensor, head: Tensor, targets: Tensor, divisor: Tensor, scaling: Tensor, batch: int
    ) -> tuple[Tensor, Tensor]:
        """`_ce_checked`: no target may be out of bounds."""
        flags = [compared(name, targets) for name in ("ne", "lt", "ge")]
        either = compared("__or__", flags[1])
        del flags[1:]
        bad = compared("__and__", flags[0])
        del flags, either
        some = targets.machine.run("any", (bad,), (), BOOL, args=(bad,))
        ok = compared("logical_not", some)
        del some
        result = self.with_gradient(hidden, head, targets, divisor, scaling, batch)
        del bad, ok
        return result

    def with_gradient(
        self, hidden: Tensor, head: Tensor, targets: Tensor, divisor: Tensor, scaling: Tensor, batch: int
    ) -> tuple[Tensor, Tensor]:
        """`_ce_impl`."""
        machine = self.machine
        count, width = hidden.shape
        vocabulary = head.shape[0]
        idx = kept_rows(targets, count - batch)
        n_keep = idx.shape[0]
        grad_h = machine.run("zeros", (), (count, width), hidden.dtype)
        loss = machine.run("zeros", (), (), FLOAT32)
        self.ask_once(hidden.dtype)
        rows = min(chunk_rows(n_keep, width, vocabulary), n_keep)
        coef = machine.run("div", (scaling, divisor), (), FLOAT32)
        lp_all = machine.run("empty", (), (n_keep,), FLOAT32)
        if n_keep >= (0 if machine.card.total_bytes <= SMALL_CARD_BYTES else TILE_ROWS) and splits_of(vocabulary) > 1:
            lse = machine.run("empty", (), (n_keep,), FLOAT32)
            negative = -coef
            tiled(hidden, head, targets, idx)
            del lse, negative
        else:
            stride = -(-vocabulary // 8) * 8
            buf = machine.run("empty", (), (rows, stride), FLOAT32)
            exponent = pointwise("log2", coef)
            exponent = pointwise("round", exponent)
            pow2 = pointwise("exp2", exponent)
            del exponent
            ratio = coef / pow2
            coef = pow2
            gh: Any = None
            for a in starts(n_keep, rows):
                n = min(rows, n_keep - a)
                h = machine.run("index_select", (hidden, idx), (n, width), hidden.dtype)
                chosen = machine.run("index_select", (targets, idx), (n,), INT64)
                x = buf.alias((n, vocabulary), (stride, 1))
                project(x, h, head)
                lse = row_forward(x, chosen, coef, hidden.dtype)
                gh = product(x, head, width)
                machine.launch("mul_", (gh, ratio), FLOAT32, gh.nbytes)
                rounded = pointwise("to", gh, hidden.dtype)
                machine.launch("index_copy_", (grad_h, idx, rounded), hidden.dtype, rounded.nbytes)
                del rounded
        nll = pointwise("to", lp_all, FLOAT64)
        nll = -nll
        total = nll.sum(0)
        of = pointwise("to", divisor, FLOAT64)
        mean = machine.run("div", (total, of), (), FLOAT64)
        del total, of
        loss = pointwise("to", mean, FLOAT32)
        del mean
        return loss, grad_h

    def ask_once(self, dtype: Dtype) -> None:
        """`_fp32_out_ok`: a small product tells whether results can be fp32."""
        if not self.asked:
            self.asked = True
            a = self.machine.run("ones", (), (8, 8), dtype)
            self.machine.run("mm", (a, a), (8, 8), FLOAT32, 1024, args=(a, a))


def next_tokens(labels: Tensor) -> Tensor:
    machine, (batch, length) = labels.machine, labels.shape
    pad = machine.run("full_like", (labels,), (batch, 1), INT64)
    out = machine.run("cat", (labels, pad), (batch, length), INT64)
    return out.reshape(-1)


def count_of(targets: Tensor) -> Tensor:
    divisor = compared("ne", targets).sum(0, dtype=INT64)
    divisor = divisor.to(FLOAT32)
    return not_zero(divisor)


def not_zero(divisor: Tensor) -> Tensor:
    zero = compared("eq", divisor)
    one = pointwise("ones_like", divisor)
    return divisor.machine.run("where", (zero, one, divisor), (), FLOAT32)


def compared(name: str, x: Tensor) -> Tensor:
    return pointwise(name, x, BOOL)


def kept_rows(targets: Tensor, count: int) -> Tensor:
    """`_keep_index`: all but each row's last, which has no next token."""
    first = compared("ge", targets)
    second = compared("lt", targets)
    keep = compared("__and__", first)
    del first, second
    other = compared("ne", targets)
    keep.machine.launch("__iand__", (keep, other), BOOL, keep.nbytes)
    del other
    return keep.machine.run("nonzero", (keep,), (count, 1), INT64, args=(keep,))


def chunk_rows(rows: int, width: int, vocabulary: int) -> int:
    """`fused_linear_rows`: as many logits as hidden states, within bounds."""
    wanted: int = ask(_as_many, (width, vocabulary), (rows,))
    least = min(max(power_of_two(MIN_LOGITS / vocabulary), LEAST_ROWS), MOST_ROWS)
    wanted = min(max(wanted, least), MOST_ROWS)
    return max(min(wanted, max(CHUNK_BYTES // (vocabulary * 4), 2), max(rows, 1)), 1)


def _as_many(of: tuple[int, int], rows: int) -> int:
    width, vocabulary = of
    return power_of_two(rows * width / vocabulary)


def power_of_two(x: float) -> int:
    """At or below x."""
    above = 1 << max(ceil(log2(max(x, 1))), 0)
    return above // 2 if above > x else above


def splits_of(vocabulary: int) -> int:
    splits = -(-vocabulary // SPLIT_COLUMNS)
    return splits if splits > 2 else 1


def row_forward(x: Tensor, chosen: Tensor, coef: Tensor, dtype: Dtype) -> Tensor:
    """`_row_forward`: statistics of rows, then their gradient over the logits, in half the bytes."""
    n, vocabulary = x.shape
    lse = x.machine.run("empty", (), (n,), FLOAT32)
    row_statistics(x, chosen, splits_of(vocabulary))
    negative = -coef
    x.machine.launch("triton::_fl_backward_kernel", (x, chosen, negative), dtype, x.nbytes // 2)
    return lse


def row_statistics(x: Tensor, chosen: Tensor, splits: int) -> None:
    n = x.shape[0]
    if splits > 1:
        part = x.machine.run("empty", (), (7, splits, n), FLOAT32)
        x.machine.launch("triton::_fl_partial_kernel", (x, chosen, part), FLOAT32, part.nbytes)
        x.machine.launch("triton::_fl_combine_kernel", (part, chosen), FLOAT32, 4 * n)
    else:
        x.machine.launch("triton::_fl_forward_kernel", (x, chosen), FLOAT32, 4 * n)


def eights(vocabulary: int) -> list[tuple[int, int]]:
    """The vocabulary up to a multiple of 8, and the rest."""
    even = vocabulary - vocabulary % 8
    return [(0, even), (even, vocabulary)] if 0 < even < vocabulary else [(0, vocabulary)]


def project(x: Tensor, h: Tensor, head: Tensor) -> None:
    for first, last in eights(head.shape[0]):
        into("mm", x.alias((x.shape[0], last - first), x.stride()), h, t(head.alias((last - first, h.shape[1]), None)))


def product(dz: Tensor, head: Tensor, width: int) -> Tensor:
    (first, last), *rest = eights(head.shape[0])
    n, machine = dz.shape[0], dz.machine
    part = narrow(dz, (n, last - first), head.dtype)
    out = machine.run("mm", (part, head), (n, width), FLOAT32, 2 * n * (last - first) * width, args=(part, head))
    for first, last in rest:
        into("addmm_", out, narrow(dz, (n, last - first), head.dtype), head.alias((last - first, width), None))
    return out


def narrow(x: Tensor, shape: tuple[int, int], dtype: Dtype) -> Tensor:
    """Rows of a buffer of float32 in half the bytes (`buf.view(half_dtype)`), where the gradient is by now."""
    return Tensor(x.machine, x.storage, shape, dtype, (2 * x.stride()[0], 1), is_view=True)


def tiled(hidden: Tensor, head: Tensor, targets: Tensor, idx: Tensor) -> None:
    """`_tiled_forward`, with the gradient of hidden states as the tiles go by."""
    machine, n_keep = hidden.machine, idx.shape[0]
    width, vocabulary = hidden.shape[1], head.shape[0]
    rows = max(min(TILE_ROWS, n_keep, TILE_BYTES // (SPLIT_COLUMNS * 4)), 1)
    splits = -(-vocabulary // SPLIT_COLUMNS)
    tile = max(TILE_BYTES // (rows * 4), SPLIT_COLUMNS)
    if machine.card.total_bytes <= SMALL_CARD_BYTES:
        tile = min(tile, SPLIT_COLUMNS)
    tile = min(tile - tile % SPLIT_COLUMNS, splits * SPLIT_COLUMNS)
    buf = machine.run("empty", (), (rows, tile), FLOAT32)
    acc = machine.run("empty", (), (rows, width), FLOAT32)
    running = machine.run("empty", (), (rows,), FLOAT32)
    for a in starts(n_keep, rows):
        n = min(rows, n_keep - a)
        h = machine.run("index_select", (hidden, idx), (n, width), hidden.dtype)
        chosen = machine.run("index_select", (targets, idx), (n,), INT64)
        part = machine.run("empty", (), (8, splits, n), FLOAT32)
        machine.launch("zero_", (acc,), FLOAT32, acc.nbytes)
        machine.launch("fill_", (running,), FLOAT32, running.nbytes)
        for first in range(0, vocabulary, tile):
            last = min(first + tile, vocabulary)
            x = buf.alias((n, last - first), (tile, 1))
            weight = head.alias((last - first, width), None)
            project(x, h, weight)
            machine.launch("triton::_fl_partial_kernel", (x, chosen, part), FLOAT32, part.nbytes)
            machine.launch("triton::_fl_flash_p_kernel", (x, acc, running), hidden.dtype, x.nbytes // 2)
            for begin, end in eights(last - first):
                words = head.alias((end - begin, width), None)
                into("addmm_", acc.alias((n, width), None), narrow(x, (n, end - begin), head.dtype), words)
        machine.launch("triton::_fl_combine_kernel", (part, chosen), FLOAT32, 4 * n)
        machine.launch("triton::_fl_flash_u_kernel", (acc, chosen), hidden.dtype, 2 * n * width)


def scaled_rows(u: Tensor, s: Tensor) -> Tensor:
    """`_scale_rows_impl`."""
    machine = u.machine
    g = machine.run("to", (s,), (1, 1), FLOAT32)
    out = machine.run("empty", (), u.shape, u.dtype)
    machine.launch("triton::_fl_scale_kernel", (u, g, out), u.dtype, out.nbytes)
    return out
