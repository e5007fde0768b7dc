"""A decoder layer as one compiled region (unsloth/models/_block_compile.py): the graphs Inductor makes of it.

Three of them: a forward pass without history, one that keeps what the backward pass reads, and that backward pass. Each
is written as the steps are after fusion; `graph.py` orders them and `plan.py` gives them memory, as Inductor does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tunecast.tape.build.attention import flops_of
from tunecast.tape.build.quantized import Linear4bit
from tunecast.tape.build.tensor import FLOAT32, INT32, INT64, Dtype, Machine, Tensor
from tunecast.tape.build.unsloth.graph import Buffer, Graph, Size

ROWS, PADDED = "rows", "padded"


class Shapes(NamedTuple):
    """Of one layer, as far as its graphs depend on it."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    width: int
    rank: int
    quantized: bool
    dtype: Dtype
    drops: bool = False
    """Its adapters drop some of their input."""
    norms: bool = False
    """Queries and keys have norms."""
    biased: bool = False
    """Queries, keys and values have a bias."""

    @property
    def queries(self) -> int:
        return self.heads * self.width

    @property
    def keys(self) -> int:
        return self.kv_heads * self.width


def shapes_of(layer: Any) -> Shapes:
    attention, mlp = layer.self_attn, layer.mlp
    query, key = attention.q_proj, attention.k_proj
    base = query.base_layer
    width = attention.head_dim
    dtype = base.compute_dtype if isinstance(base, Linear4bit) else base.weight.dtype
    return Shapes(
        base.inputs, mlp.gate_proj.base_layer.outputs, base.outputs // width, key.base_layer.outputs // width, width,
        int(query.lora_A.weight.shape[0]), isinstance(base, Linear4bit), dtype, query.lora_dropout.probability > 0,
        hasattr(attention, "q_norm"), base.bias is not None,
    )  # fmt: skip


class Block:
    """Builds the graphs of one kind of layer for one batch."""

    def __init__(self, shapes: Shapes, batch: int, length: int, padded: int) -> None:
        """`padded` 0: the attention kernel takes lengths as they are."""
        self.s, self.batch, self.length, self.padded = shapes, batch, length, padded
        self.counts = {ROWS: batch * length, PADDED: batch * padded}
        self.along = PADDED if padded else ROWS
        self.copies = not padded and shapes.heads == shapes.kv_heads
        """Heads that share no keys are laid out anew, which padding does by the way."""

    def graph(self) -> Graph:
        return Graph(self.counts)

    # ------------------------------------------------------------------ forward

    def rows(self, width: int, itemsize: int = 2) -> Size:
        return Size(width, ROWS, itemsize)

    def weight(self, g: Graph, outputs: int, inputs: int) -> list[Buffer]:
        """A weight written out from 4 bits; one that is not packed is there."""
        if not self.s.quantized:
            return []
        out = g.empty(Size(outputs * inputs), self.s.dtype)
        return g.change("triton::_nf4_dequant_kernel", [], out, besides=[Size(outputs * inputs // 2, "", 1)])

    def cast(self, g: Graph, width: int, name: str = "cast") -> Buffer:
        """An adapter's float32 matrix in the layer's dtype."""
        numel = self.s.rank * width
        return g.point(name, [], [Size(numel)], self.s.dtype, [Size(numel, "", 4)])[0]

    def adapted(self, g: Graph, x: Buffer, inputs: int, outputs: int, first: bool) -> tuple[Buffer, Buffer]:
        """`matmul_lora`: the result, and what is left of it after the adapter is added. Without history the adapter's
        first product comes before the layer's own."""
        dtype, rank = self.s.dtype, self.s.rank
        weight = self.weight(g, outputs, inputs)
        if not first:
            out = g.product([x, *weight], (ROWS, inputs, outputs), dtype)
        a = self.cast(g, inputs)
        xa = g.product([x, a], (ROWS, inputs, rank), dtype)
        if first:
            out = g.product([x, *weight], (ROWS, inputs, outputs), dtype)
        b = self.cast(g, outputs)
        return out, g.added([xa, b], (ROWS, rank, outputs), out)

    def normed(self, g: Graph, reads: Sequence[Buffer]) -> tuple[Buffer, Buffer, Buffer]:
        y = g.empty(self.rows(self.s.hidden), self.s.dtype)
        r = g.empty(self.rows(1, 4), FLOAT32)
        besides = [] if reads else [self.rows(self.s.hidden)]  # the layer's own input
        return g.change("triton::_rms_layernorm_forward", reads, y, r, besides=besides)[0], y, r

    def rotated(self, g: Graph, x: Buffer, width: int) -> tuple[Buffer, Buffer]:
        out = g.empty(self.rows(width), self.s.dtype)
        dummy = g.empty(Size(1), self.s.dtype)
        return out, g.change("triton::_rope_embedding_QK", [x], out, dummy)[0]

    def placed(self, g: Graph, q: Buffer, k: Buffer, saved: dict[str, Buffer] | None = None) -> tuple[Buffer, Buffer]:
        """Queries and keys with their positions. `saved`: for a backward pass, what that reads."""
        s = self.s
        if not s.norms:
            return self.rotated(g, q, s.queries)[1], self.rotated(g, k, s.keys)[1]
        mean_q, mean_k = self.rows(s.heads, 4), self.rows(s.kv_heads, 4)
        if saved is None:
            q_out, r_q = g.empty(self.rows(s.queries), s.dtype), g.empty(mean_q, FLOAT32)
            k_out, r_k = g.empty(self.rows(s.keys), s.dtype), g.empty(mean_k, FLOAT32)
            indices = g.empty(Size(1, "", 4), INT32)
        else:
            indices = g.empty(Size(1, "", 4), INT32)
            q_out, k_out = g.empty(self.rows(s.queries), s.dtype), g.empty(self.rows(s.keys), s.dtype)
            r_q, r_k = g.empty(mean_q, FLOAT32), g.empty(mean_k, FLOAT32)
            saved |= {"indices": indices, "q": q.root(), "k": k.root(), "r_q": r_q, "r_k": r_k}
        placed_q, _, placed_k, _ = g.change("triton::_qk_norm_rope_forward", [q, k, indices], q_out, r_q, k_out, r_k)
        return placed_q, placed_k

    def attends(
        self, g: Graph, q: Buffer, k: Buffer, v: Sequence[Buffer], keeps: bool
    ) -> tuple[list[Buffer], list[Buffer]]:
        """What the kernel reads and makes; several values are summed by the kernel that pads them."""
        s = self.s
        pads = [q, k, *v]
        if self.padded:
            [pad_q] = g.point("pad", [q], [Size(s.queries, PADDED)], s.dtype)
            [pad_k] = g.point("pad", [k], [Size(s.keys, PADDED)], s.dtype)
            [pad_v] = g.point("pad" if len(v) == 1 else "pad_sum", v, [Size(s.keys, PADDED)], s.dtype)
            pads = [pad_q, pad_k, pad_v]
        elif self.copies:
            pads = [g.point("copy", [x], [self.rows(s.queries)], s.dtype)[0] for x in pads]
        sizes = [(Size(s.queries, self.along), s.dtype)]
        if keeps:
            sizes.append((Size(s.heads, self.along, 4), FLOAT32))
            sizes += [(Size(1 if self.padded else 2, "", 8), INT64), (Size(1, "", 8), INT64)]

        def run(machine: Machine, block: Block) -> list[Tensor]:
            return block.attention(machine, keeps)

        parts = g.call("attention", pads, sizes, run, 0 if keeps else 3)
        return pads, parts

    def attention(self, machine: Machine, keeps: bool) -> list[Tensor]:
        """The kernel on tensors of the right shapes; what it makes is all that counts."""
        s, (q, k, v) = self.s, self.tensors(machine)
        batch, heads, length, _ = q.shape
        outs: Any
        args: tuple[Any, ...]
        if self.padded:
            outs = ((q.shape, s.dtype), ((batch, heads, length, 1), FLOAT32), ((), INT64), ((), INT64))
            name, args = "_scaled_dot_product_cudnn_attention", (q, k, v, None, keeps, 0.0, True, False)
        else:
            outs = ((q.shape, s.dtype), ((batch, heads, length), FLOAT32), ((2,), INT64), ((), INT64))
            name, args = "_scaled_dot_product_flash_attention", (q, k, v, 0.0, True)
        made = machine.run_many(name, (q, k, v), outs, flops_of(q, k, v), args)
        return [made[0]] if not keeps else [made[0], made[1], made[2], made[3]]

    def tensors(self, machine: Machine) -> list[Tensor]:
        s, length = self.s, self.padded or self.length
        shapes = [(self.batch, heads, length, s.width) for heads in (s.heads, s.kv_heads, s.kv_heads)]
        laid_out = [
            None if self.padded or self.copies else (length * shape[1] * s.width, s.width, shape[1] * s.width, 1)
            for shape in shapes
        ]
        pairs = zip(shapes, laid_out, strict=True)
        return [Tensor(machine, None, shape, s.dtype, strides) for shape, strides in pairs]  # type: ignore[arg-type]

    def by_token(self, g: Graph, attended: Buffer) -> Buffer:
        """The result of attention as the next product reads it; without padding it may be that already."""
        if not self.padded and not self.copies:
            return attended
        return g.point("clone", [attended], [self.rows(self.s.queries)], self.s.dtype)[0]

    def inference(self) -> Graph:
        g, s = self.graph(), self.s
        x, _, _ = self.normed(g, [])
        q = self.adapted(g, x, s.hidden, s.queries, True)[1]
        k = self.adapted(g, x, s.hidden, s.keys, True)[1]
        v = self.adapted(g, x, s.hidden, s.keys, True)[1]
        q, k = self.placed(g, q, k)
        _, [attended] = self.attends(g, q, k, [v], False)
        return self.rest(g, attended)

    def rest(self, g: Graph, attended: Buffer) -> Graph:
        """From the result of attention on, without history."""
        s = self.s
        o = self.output(g, attended)
        y = g.empty(self.rows(s.hidden), s.dtype)
        r = g.empty(self.rows(1, 4), FLOAT32)
        [h] = g.point("add", [o], [self.rows(s.hidden)], s.dtype, [self.rows(s.hidden)])
        [y, _] = g.change("triton::_rms_layernorm_forward", [h], y, r)
        gate = self.adapted(g, y, s.hidden, s.inner, True)[1]
        up = self.adapted(g, y, s.hidden, s.inner, True)[1]
        act = g.empty(self.rows(s.inner), s.dtype)
        [act] = g.change("triton::_fg_kernel", [gate, up], act)
        down = self.adapted(g, act, s.inner, s.hidden, True)[1]
        g.outputs = g.point("add_three", [o, down], [self.rows(s.hidden)], s.dtype, [self.rows(s.hidden)])
        return g

    def output(self, g: Graph, attended: Buffer) -> Buffer:
        """The output projection without history: the result of attention is laid out by token just before use."""
        s = self.s
        if not self.padded:
            g.skip()
        weight = self.weight(g, s.hidden, s.queries)
        a = self.by_token(g, attended)
        low = self.cast(g, s.queries)
        xa = g.product([a, low], (ROWS, s.queries, s.rank), s.dtype)
        out = g.product([a, *weight], (ROWS, s.queries, s.hidden), s.dtype)
        high = self.cast(g, s.hidden)
        return g.added([xa, high], (ROWS, s.rank, s.hidden), out)

    def forward(self) -> tuple[Graph, dict[str, Buffer]]:
        g, s = self.graph(), self.s
        x, normed, r = self.normed(g, [])
        q = self.adapted(g, x, s.hidden, s.queries, False)[1]
        k = self.adapted(g, x, s.hidden, s.keys, False)[1]
        v = self.adapted(g, x, s.hidden, s.keys, False)[1]
        saved = {"normed": normed, "r": r}
        q, k = self.placed(g, q, k, saved)
        pads, parts = self.attends(g, q, k, [v], True)
        g.outputs = [self.rest_kept(g, pads, parts, saved), *saved.values()]
        return g, saved

    def rest_kept(self, g: Graph, pads: Sequence[Buffer], parts: Sequence[Buffer], saved: dict[str, Buffer]) -> Buffer:
        """From the result of attention on; `saved` gets what the backward pass reads."""
        s = self.s
        if not self.padded:
            g.skip()
        a = self.by_token(g, parts[0])
        o = self.adapted(g, a, s.queries, s.hidden, False)[1]
        [h] = g.point("add", [o], [self.rows(s.hidden)], s.dtype, [self.rows(s.hidden)])
        y, normed_2, r_2 = self.normed(g, [h])
        gate, gate_left = self.adapted(g, y, s.hidden, s.inner, False)
        up, up_left = self.adapted(g, y, s.hidden, s.inner, False)
        act = g.empty(self.rows(s.inner), s.dtype)
        [act] = g.change("triton::_fg_kernel", [gate_left, up_left], act)
        down = self.adapted(g, act, s.inner, s.hidden, False)[1]
        [out] = g.point("add", [h, down], [self.rows(s.hidden)], s.dtype)
        saved |= dict(zip(("pad_q", "pad_k", "pad_v"), [pad.root() for pad in pads], strict=True))
        saved |= dict(zip(("attended", "stats", "seed", "offset"), parts, strict=True))
        saved |= {"h": h, "normed_2": normed_2, "r_2": r_2, "gate": gate, "up": up}
        if a is not parts[0]:
            saved["a"] = a
        return out

    # ------------------------------------------------------------------ backward

    def backward(self, saved: Mapping[str, Size]) -> Graph:
        g, s = self.graph(), self.s
        given = {name: g.give(name, size) for name, size in saved.items()}
        dtype, rank = s.dtype, s.rank

        def low(width: int) -> Size:
            return Size(rank * width)

        def cast(width: int) -> Buffer:
            return self.cast(g, width, "cast_again")

        # the MLP
        weight = self.weight(g, s.hidden, s.inner)
        dw = g.product(weight, (ROWS, s.hidden, s.inner), dtype)
        down_a = cast(s.inner)
        down_b = cast(s.hidden)
        y_db = g.product([down_b], (ROWS, s.hidden, rank), dtype)
        dw = g.added([y_db, down_a], (ROWS, rank, s.inner), dw)
        df, de = g.named(self.rows(s.inner), dtype), g.named(self.rows(s.inner), dtype)
        place = len(g.steps)
        empties = [g.empty(low(width), dtype) for width in (s.inner, s.hidden, s.hidden, s.inner, s.hidden, s.inner)]
        act = g.named(self.rows(s.inner), dtype)
        g.fuse(place, "swiglu_backward", [dw, given["gate"], given["up"]], [df, de, act])
        d_down_a = g.product([empties[0], act, y_db], (s.inner, ROWS, rank), dtype, "addmm")
        xa = g.product([down_a, act], (rank, s.inner, ROWS), dtype)
        d_down_b = g.product([empties[1], xa], (rank, ROWS, s.hidden), dtype, "addmm")
        up_b = cast(s.inner)
        up_db = g.product([df, up_b], (ROWS, s.inner, rank), dtype)
        gate_b = cast(s.inner)
        gate_db = g.product([de, gate_b], (ROWS, s.inner, rank), dtype)
        x = given["normed_2"]
        d_up_a = g.product([empties[4], up_db, x], (s.hidden, ROWS, rank), dtype, "addmm")
        up_a = cast(s.hidden)
        xa = g.product([up_a, x], (rank, s.hidden, ROWS), dtype)
        d_up_b = g.product([empties[5], xa, df], (rank, ROWS, s.inner), dtype, "addmm")
        d_gate_a = g.product([empties[2], gate_db, x], (s.hidden, ROWS, rank), dtype, "addmm")
        gate_a = cast(s.hidden)
        xa = g.product([gate_a, x], (rank, s.hidden, ROWS), dtype)
        d_gate_b = g.product([empties[3], xa, de], (rank, ROWS, s.inner), dtype, "addmm")
        weight = self.weight(g, s.inner, s.hidden)
        dx = g.product([df, *weight], (ROWS, s.inner, s.hidden), dtype)
        dx = g.added([up_db, up_a], (ROWS, rank, s.hidden), dx)
        weight = self.weight(g, s.inner, s.hidden)
        dx = g.added([de, *weight], (ROWS, s.inner, s.hidden), dx)
        dx = g.added([gate_db, gate_a], (ROWS, rank, s.hidden), dx)
        mlp = [self.widened(g, each) for each in (d_gate_a, d_gate_b, d_up_a, d_up_b, d_down_a, d_down_b)]
        # its norm
        dn = g.empty(self.rows(s.hidden), dtype)
        [dn] = g.change("triton::_rms_layernorm_backward", [dx, given["h"], given["r_2"]], dn)
        [dh] = g.point("add", [dn], [self.rows(s.hidden)], dtype, [self.rows(s.hidden)])
        # the output projection
        e_a, e_b = g.empty(low(s.queries), dtype), g.empty(low(s.hidden), dtype)
        o_b = cast(s.hidden)
        y_db = g.product([dh, o_b], (ROWS, s.hidden, rank), dtype)
        a = given.get("a") or given["attended"]
        d_o_a = g.product([e_a, y_db, a], (s.queries, ROWS, rank), dtype, "addmm")
        o_a = cast(s.queries)
        xa = g.product([o_a, a], (rank, s.queries, ROWS), dtype)
        d_o_b = g.product([e_b, xa, dh], (rank, ROWS, s.hidden), dtype, "addmm")
        weight = self.weight(g, s.hidden, s.queries)
        da = g.product([dh, *weight], (ROWS, s.hidden, s.queries), dtype)
        da = g.added([y_db, o_a], (ROWS, rank, s.queries), da)
        output = [self.widened(g, each) for each in (d_o_a, d_o_b)]
        dn, attention = self.projections_backward(g, da, given)
        [out] = g.point("add_in_place", [dh, dn], [self.rows(s.hidden)], dtype)
        g.outputs = [out, *attention, *output, *mlp]
        return g

    def projections_backward(self, g: Graph, da: Buffer, given: Mapping[str, Buffer]) -> tuple[Buffer, list[Buffer]]:
        """The layer input's gradient and those of the adapters of queries, keys and values."""
        s, dtype, rank = self.s, self.s.dtype, self.s.rank

        def low(width: int) -> Size:
            return Size(rank * width)

        def cast(width: int) -> Buffer:
            return self.cast(g, width, "cast_again")

        dq, dk, dv, _ = self.attends_backward(g, da, given)
        empties = [g.empty(low(width), dtype) for width in (s.hidden, s.queries, s.hidden, s.keys, s.hidden, s.keys)]
        dbs = []
        for dy, width in ((dq, s.queries), (dk, s.keys), (dv, s.keys)):
            b = cast(width)
            dbs.append(g.product([dy, b], (ROWS, width, rank), dtype))
        x = given["normed"]
        gradients, a_s = [], []
        for number, (dy, width) in enumerate(((dq, s.queries), (dk, s.keys), (dv, s.keys))):
            of_a = [empties[2 * number], dbs[number], x]
            gradients.append(g.product(of_a, (s.hidden, ROWS, rank), dtype, "addmm"))
            a_s.append(cast(s.hidden))
            xa = g.product([a_s[-1], x], (rank, s.hidden, ROWS), dtype)
            gradients.append(g.product([empties[2 * number + 1], xa, dy], (rank, ROWS, width), dtype, "addmm"))
        weight = self.weight(g, s.queries, s.hidden)
        dx = g.product([dq, *weight], (ROWS, s.queries, s.hidden), dtype)
        dx = g.added([dbs[0], a_s[0]], (ROWS, rank, s.hidden), dx)
        for number, dy in ((1, dk), (2, dv)):
            weight = self.weight(g, s.keys, s.hidden)
            dx = g.added([dy, *weight], (ROWS, s.keys, s.hidden), dx)
            dx = g.added([dbs[number], a_s[number]], (ROWS, rank, s.hidden), dx)
        attention = [self.widened(g, each) for each in gradients]
        dn = g.empty(self.rows(s.hidden), dtype)
        [dn] = g.change("triton::_rms_layernorm_backward", [dx, given["x"], given["r"]], dn)
        return dn, attention

    def widened(self, g: Graph, gradient: Buffer) -> Buffer:
        """An adapter's gradient in fp32."""
        return g.point("widen", [gradient], [gradient.size._replace(itemsize=4)], FLOAT32)[0]

    def attends_backward(self, g: Graph, da: Buffer, given: Mapping[str, Buffer]) -> tuple[Buffer, ...]:
        s = self.s
        pad = da
        if self.padded:
            [pad] = g.point("pad", [da], [Size(s.queries, PADDED)], s.dtype)
        names = ("pad_q", "pad_k", "pad_v", "attended", "stats", "seed", "offset")
        sizes = [(Size(width, self.along), s.dtype) for width in (s.queries, s.keys, s.keys)]
        parts = g.call("attention_backward", [pad, *[given[name] for name in names]], sizes, backward_of)
        if s.norms:
            return self.normed_backward(g, parts, given)
        out_k = g.empty(self.rows(s.keys), s.dtype)
        dummy = g.empty(Size(1), s.dtype)
        cut = parts[1]
        if self.padded:
            [cut] = g.point("pad", [parts[1]], [self.rows(s.keys)], s.dtype)
        tables = [given["cos"], given["sin"]]
        [dk, _] = g.change("triton::_rope_embedding_QK", [cut, *tables], out_k, dummy)
        out_q = g.empty(self.rows(s.queries), s.dtype)
        dummy = g.empty(Size(1), s.dtype)
        cut = parts[0]
        if self.padded:
            [cut] = g.point("pad", [parts[0]], [self.rows(s.queries)], s.dtype)
        [dq, _] = g.change("triton::_rope_embedding_QK", [cut, *tables], out_q, dummy)
        dv = parts[2]
        if self.padded or self.copies:
            [dv] = g.point("cut", [parts[2]], [self.rows(s.keys)], s.dtype)
        return dq, dk, dv, parts[2]

    def normed_backward(self, g: Graph, parts: Sequence[Buffer], given: Mapping[str, Buffer]) -> tuple[Buffer, ...]:
        s = self.s
        out_q, out_k = g.empty(self.rows(s.queries), s.dtype), g.empty(self.rows(s.keys), s.dtype)
        cut_q, cut_k, dv = parts
        if self.padded:
            [cut_q] = g.point("pad", [parts[0]], [self.rows(s.queries)], s.dtype)
            [cut_k] = g.point("pad", [parts[1]], [self.rows(s.keys)], s.dtype)
        reads = [cut_q, cut_k, *[given[name] for name in ("q", "r_q", "k", "r_k", "cos", "sin", "indices")]]
        [dq, dk] = g.change("triton::_qk_norm_rope_backward", reads, out_q, out_k)
        if self.padded or self.copies:
            [dv] = g.point("cut", [parts[2]], [self.rows(s.keys)], s.dtype)
        return dq, dk, dv, parts[2]

    def attention_backward(self, machine: Machine) -> list[Tensor]:
        q, k, v = self.tensors(machine)
        outs = [(each.shape, self.s.dtype) for each in (q, k, v)]
        _, heads, length, width = q.shape
        strides = None if self.padded else (length * heads * width, width, heads * width, 1)
        gradient = q.alias(q.shape, strides)
        args = (gradient, q, k, v, q, None, None, None, None, 0.0)
        name = f"_scaled_dot_product_{'cudnn' if self.padded else 'flash'}_attention_backward"
        return machine.run_many(name, (gradient, q, k, v), outs, flops_of(q, k, v) * 5 // 2, args)


def backward_of(machine: Machine, block: Block) -> list[Tensor]:
    return block.attention_backward(machine)
