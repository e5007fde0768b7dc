"""The graphs of a compiled layer whose adapters drop some of their input: random numbers come from seeds drawn once a
pass, dropped inputs of layers that share one are made by one kernel, and casts of adapters are kept for the backward
pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunecast.tape.build.tensor import BOOL, FLOAT32, INT64
from tunecast.tape.build.unsloth.blocks import ROWS, Block
from tunecast.tape.build.unsloth.graph import Buffer, Graph, Size

DROPS = 7
"""Seeds a pass: one a layer with an adapter."""


class DroppingBlock(Block):
    drawn: Buffer

    def seeds(self, g: Graph) -> Buffer:
        self.drawn = g.make("randint", [], Size(DROPS, "", 8), INT64)
        return self.drawn

    def random(self, g: Graph, width: int) -> Buffer:
        return g.named(self.rows(width, 4), FLOAT32, inside=True)

    def dropped(self, g: Graph, width: int) -> Buffer:
        return g.named(self.rows(width), self.s.dtype)

    def mask(self, g: Graph, width: int) -> Buffer:
        return g.named(self.rows(width, 1), BOOL)

    # ------------------------------------------------------------------ without history

    def inference(self) -> Graph:
        g, s = self.graph(), self.s
        x, _, _ = self.normed(g, [])
        weight = self.weight(g, s.queries, s.hidden)
        seeds = self.seeds(g)
        place, made = len(g.steps), []
        lefts = []
        for number, width in enumerate((s.queries, s.keys, s.keys)):
            if number:
                weight = self.weight(g, width, s.hidden)
            made += [self.random(g, s.hidden), self.dropped(g, s.hidden)]
            lefts.append(self.product(g, x, weight, made[-1], s.hidden, width))
        g.fuse(place, "drop", [seeds, x], made)
        q, k, v = lefts
        q, k = self.placed(g, q, k)
        _, [attended] = self.attends(g, q, k, [v], False)
        return self.rest(g, attended)

    def rest(self, g: Graph, attended: Buffer) -> Graph:
        s, seeds = self.s, self.drawn
        if not self.padded:
            g.skip()
        weight = self.weight(g, s.hidden, s.queries)
        place, made = len(g.steps), [self.random(g, s.queries), self.dropped(g, s.queries)]
        g.fuse(place, "drop", [seeds, attended], made)
        o = self.product(g, attended, weight, made[1], s.queries, s.hidden, clones=True)
        y = g.empty(self.rows(s.hidden), s.dtype)
        r = g.empty(self.rows(1, 4), FLOAT32)
        [h] = g.point("add", [o], [self.rows(s.hidden)], s.dtype, [self.rows(s.hidden)])
        [y, _] = g.change("triton::_rms_layernorm_forward", [h], y, r)
        weight = self.weight(g, s.inner, s.hidden)
        place, made, lefts = len(g.steps), [], []
        for number in range(2):
            if number:
                weight = self.weight(g, s.inner, s.hidden)
            made += [self.random(g, s.hidden), self.dropped(g, s.hidden)]
            lefts.append(self.product(g, y, weight, made[-1], s.hidden, s.inner))
        g.fuse(place, "drop", [seeds, y], made)
        act = g.empty(self.rows(s.inner), s.dtype)
        [act] = g.change("triton::_fg_kernel", lefts, act)
        weight = self.weight(g, s.hidden, s.inner)
        place, made = len(g.steps), [self.random(g, s.inner), self.dropped(g, s.inner)]
        g.fuse(place, "drop", [seeds, act], made)
        down = self.product(g, act, weight, made[1], s.inner, s.hidden)
        g.outputs = g.point("add_three", [o, down], [self.rows(s.hidden)], s.dtype, [self.rows(s.hidden)])
        return g

    def product(
        self, g: Graph, x: Buffer, weight: Sequence[Buffer], dropped: Buffer, inputs: int, outputs: int,
        clones: bool = False,
    ) -> Buffer:  # fmt: skip
        a = self.cast(g, inputs)
        xa = g.product([dropped, a], (ROWS, inputs, self.s.rank), self.s.dtype)
        if clones:
            x = self.by_token(g, x)
        out = g.product([x, *weight], (ROWS, inputs, outputs), self.s.dtype)
        b = self.cast(g, outputs)
        return g.added([xa, b], (ROWS, self.s.rank, outputs), out)

    # ------------------------------------------------------------------ with history

    def forward(self) -> tuple[Graph, dict[str, Buffer]]:
        g, s = self.graph(), self.s
        saved: dict[str, Buffer] = {}
        x, saved["normed"], saved["r"] = self.normed(g, [])
        seeds = self.seeds(g)
        place = len(g.steps)
        made: list[list[Buffer]] = []
        dropped, lefts = [], []
        for name, width in (("q", s.queries), ("k", s.keys), ("v", s.keys)):
            made.insert(0, [self.random(g, s.hidden), self.mask(g, s.hidden)])
            saved[f"{name}_mask"] = made[0][1]
            left, xd = self.kept_product(g, x, name, s.hidden, width, saved)[1:]
            dropped.append(xd)
            lefts.append(left)
        g.fuse(place, "drop", [seeds, x], [*[each for pair in made for each in pair], *dropped])
        q, k, v = lefts
        q, k = self.placed(g, q, k, saved)
        pads, parts = self.attends(g, q, k, [v], True)
        g.outputs = [self.rest_kept(g, pads, parts, saved), *saved.values()]
        return g, saved

    def rest_kept(self, g: Graph, pads: Sequence[Buffer], parts: Sequence[Buffer], saved: dict[str, Buffer]) -> Buffer:
        s, seeds = self.s, self.drawn
        saved |= dict(zip(("pad_q", "pad_k", "pad_v"), [pad.root() for pad in pads], strict=True))
        saved |= dict(zip(("attended", "stats", "seed", "offset"), parts, strict=True))
        if not self.padded:
            g.skip()
        place = len(g.steps)
        random_o = self.random(g, s.queries)
        weight = self.weight(g, s.hidden, s.queries)
        a = self.by_token(g, parts[0])
        o, dropped_o = self.kept_product(g, a, "o", s.queries, s.hidden, saved, weight)[1:]
        [h] = g.point("add", [o], [self.rows(s.hidden)], s.dtype, [self.rows(s.hidden)])
        saved["h"] = h
        y, saved["normed_2"], saved["r_2"] = self.normed(g, [h])
        place_mlp = len(g.steps)
        random_gate = self.random(g, s.hidden)
        saved["gate"], gate, dropped_gate = self.kept_product(g, y, "gate", s.hidden, s.inner, saved)
        random_up = self.random(g, s.hidden)
        saved["up"], up, dropped_up = self.kept_product(g, y, "up", s.hidden, s.inner, saved)
        act = g.empty(self.rows(s.inner), s.dtype)
        [act] = g.change("triton::_fg_kernel", [gate, up], act)
        place_down = len(g.steps)
        random_down = self.random(g, s.inner)
        weight = self.weight(g, s.hidden, s.inner)
        out = g.product([act, *weight], (ROWS, s.inner, s.hidden), s.dtype)
        saved["down_a"] = self.cast(g, s.inner)
        dropped_down = self.dropped(g, s.inner)
        xa = g.product([dropped_down, saved["down_a"]], (ROWS, s.inner, s.rank), s.dtype)
        place_cast = len(g.steps)
        b = g.named(Size(s.rank * s.hidden), s.dtype)
        down = g.added([xa, b], (ROWS, s.rank, s.hidden), out)
        [out] = g.point("add", [h, down], [self.rows(s.hidden)], s.dtype)
        saved["down_mask"] = self.mask(g, s.inner)
        saved["down_b"] = g.named(Size(s.rank * s.hidden), s.dtype)
        saved["up_mask"], saved["gate_mask"] = self.mask(g, s.hidden), self.mask(g, s.hidden)
        saved["o_mask"] = self.mask(g, s.queries)
        g.fuse(place_cast, "cast", [], [b, saved["down_b"]])
        g.fuse(place_down, "drop", [seeds, act], [random_down, dropped_down, saved["down_mask"]])
        made_mlp = [random_gate, dropped_gate, saved["gate_mask"], random_up, dropped_up, saved["up_mask"]]
        g.fuse(place_mlp, "drop", [seeds, y], made_mlp)
        g.fuse(place, "drop", [seeds, parts[0]], [random_o, dropped_o, saved["o_mask"]])
        return out

    def kept_product(
        self, g: Graph, x: Buffer, name: str, inputs: int, outputs: int, saved: dict[str, Buffer],
        weight: Sequence[Buffer] | None = None,
    ) -> tuple[Buffer, Buffer, Buffer]:  # fmt: skip
        """The product, what is left of it with the adapter added, and the adapter's input, made elsewhere."""
        if weight is None:
            weight = self.weight(g, outputs, inputs)
        out = g.product([x, *weight], (ROWS, inputs, outputs), self.s.dtype)
        saved[f"{name}_a"] = self.cast(g, inputs)
        dropped = self.dropped(g, inputs)
        xa = g.product([dropped, saved[f"{name}_a"]], (ROWS, inputs, self.s.rank), self.s.dtype)
        saved[f"{name}_b"] = self.cast(g, outputs)
        left = g.added([xa, saved[f"{name}_b"]], (ROWS, self.s.rank, outputs), out)
        return out, left, dropped

    # ------------------------------------------------------------------ backward

    def backward(self, saved: Mapping[str, Size]) -> Graph:
        g, s = self.graph(), self.s
        given = {name: g.give(name, size) for name, size in saved.items()}
        dtype, rank = s.dtype, s.rank

        def low(width: int) -> Size:
            return Size(s.rank * width)

        # the MLP
        weight = self.weight(g, s.hidden, s.inner)
        dw = g.product(weight, (ROWS, s.hidden, s.inner), dtype)
        y_db = g.product([given["down_b"]], (ROWS, s.hidden, rank), dtype)
        lora = g.product([y_db, given["down_a"]], (ROWS, rank, s.inner), dtype)
        df, de = g.named(self.rows(s.inner), dtype), g.named(self.rows(s.inner), dtype)
        place = len(g.steps)
        empties = [g.empty(low(width), dtype) for width in (s.inner, s.hidden, s.hidden, s.inner, s.hidden, s.inner)]
        act = g.named(self.rows(s.inner), dtype)
        g.fuse(place, "swiglu", [dw, lora, given["down_mask"], given["gate"], given["up"]], [df, de, act])
        d_down_a = g.product([empties[0], act, y_db], (s.inner, ROWS, rank), dtype, "addmm")
        xa = g.product([given["down_a"], act], (rank, s.inner, ROWS), dtype)
        d_down_b = g.product([empties[1], xa], (rank, ROWS, s.hidden), dtype, "addmm")
        up_db = g.product([df, given["up_b"]], (ROWS, s.inner, rank), dtype)
        gate_db = g.product([de, given["gate_b"]], (ROWS, s.inner, rank), dtype)
        place, pairs = len(g.steps), []
        xds = []
        for dy, db, name, empty in ((df, up_db, "up", 4), (de, gate_db, "gate", 2)):
            xds.append(self.dropped(g, s.hidden))
            two = empties[empty : empty + 2]
            pairs.append(self.pair(g, two, xds[-1], db, dy, given[f"{name}_a"], s.hidden, s.inner))
        weight = self.weight(g, s.inner, s.hidden)
        first, over = self.first_gradient(g, place, up_db, given["up_a"], s.hidden)
        masks = [given["normed_2"], given["up_mask"], given["gate_mask"]]
        g.fuse(place + 1, "drop_backward", [first, *masks], [*xds, over], {over: first})
        dx = g.product([over, df, *weight], (ROWS, s.inner, s.hidden), dtype, "addmm")
        weight = self.weight(g, s.inner, s.hidden)
        dx = g.added([de, *weight], (ROWS, s.inner, s.hidden), dx)
        lora = g.product([gate_db, given["gate_a"]], (ROWS, rank, s.hidden), dtype)
        mlp = [self.widened(g, each) for each in (*pairs[1], *pairs[0], d_down_a, d_down_b)]
        # its norm
        dn = g.empty(self.rows(s.hidden), dtype)
        [dx] = g.point("drop_add", [dx, lora, given["gate_mask"]], [self.rows(s.hidden)], dtype)
        [dn] = g.change("triton::_rms_layernorm_backward", [dx, given["h"], given["r_2"]], dn)
        [dh] = g.point("add", [dn], [self.rows(s.hidden)], dtype, [self.rows(s.hidden)])
        # the output projection
        empties = [g.empty(low(s.queries), dtype), g.empty(low(s.hidden), dtype)]
        y_db = g.product([dh, given["o_b"]], (ROWS, s.hidden, rank), dtype)
        place, xd = len(g.steps), self.dropped(g, s.queries)
        pair = self.pair(g, empties, xd, y_db, dh, given["o_a"], s.queries, s.hidden)
        weight = self.weight(g, s.hidden, s.queries)
        first, over = self.first_gradient(g, place, y_db, given["o_a"], s.queries)
        g.fuse(place + 1, "drop_output", [first, given["attended"], given["o_mask"]], [xd, over], {over: first})
        da = g.product([over, dh, *weight], (ROWS, s.hidden, s.queries), dtype, "addmm")
        output = [self.widened(g, each) for each in pair]
        dn, attention = self.projections_backward(g, da, given)
        [out] = g.point("add_in_place", [dh, dn], [self.rows(s.hidden)], dtype)
        g.outputs = [out, *attention, *output, *mlp]
        return g

    def projections_backward(self, g: Graph, da: Buffer, given: Mapping[str, Buffer]) -> tuple[Buffer, list[Buffer]]:
        s, dtype, rank = self.s, self.s.dtype, self.s.rank

        def low(width: int) -> Size:
            return Size(s.rank * width)

        dq, dk, dv, _ = self.attends_backward(g, da, given)
        widths = (s.queries, s.keys, s.keys)
        empties = [g.empty(low(each), dtype) for width in widths for each in (s.hidden, width)]
        dys = (dq, dk, dv)
        dbs = [
            g.product([dy, given[f"{name}_b"]], (ROWS, width, rank), dtype)
            for dy, name, width in zip(dys, "qkv", widths, strict=True)
        ]
        place, pairs, xds = len(g.steps), [], []
        for number, (dy, name, width) in enumerate(zip(dys, "qkv", widths, strict=True)):
            xds.append(self.dropped(g, s.hidden))
            two = empties[2 * number : 2 * number + 2]
            pairs.append(self.pair(g, two, xds[-1], dbs[number], dy, given[f"{name}_a"], s.hidden, width))
        weight = self.weight(g, s.queries, s.hidden)
        first, over = self.first_gradient(g, place, dbs[0], given["q_a"], s.hidden)
        masks = [given["normed"], *[given[f"{name}_mask"] for name in "qkv"]]
        g.fuse(place + 1, "drop_backward", [first, *masks], [*xds, over], {over: first})
        dx = g.product([over, dq, *weight], (ROWS, s.queries, s.hidden), dtype, "addmm")
        weight = self.weight(g, s.keys, s.hidden)
        dx = g.added([dk, *weight], (ROWS, s.keys, s.hidden), dx)
        lora = g.product([dbs[1], given["k_a"]], (ROWS, rank, s.hidden), dtype)
        [dx] = g.point("drop_add", [dx, lora, given["k_mask"]], [self.rows(s.hidden)], dtype)
        weight = self.weight(g, s.keys, s.hidden)
        dx = g.added([dv, *weight], (ROWS, s.keys, s.hidden), dx)
        lora = g.product([dbs[2], given["v_a"]], (ROWS, rank, s.hidden), dtype)
        attention = [self.widened(g, each) for two in pairs for each in two]
        dn = g.empty(self.rows(s.hidden), dtype)
        [dx] = g.point("drop_add", [dx, lora, given["v_mask"]], [self.rows(s.hidden)], dtype)
        [dn] = g.change("triton::_rms_layernorm_backward", [dx, given["x"], given["r"]], dn)
        return dn, attention

    def pair(
        self, g: Graph, empties: Sequence[Buffer], xd: Buffer, db: Buffer, dy: Buffer, a: Buffer, inputs: int,
        outputs: int,
    ) -> tuple[Buffer, Buffer]:  # fmt: skip
        """An adapter's two gradients."""
        rank, dtype = self.s.rank, self.s.dtype
        d_a = g.product([empties[0], xd, db], (inputs, ROWS, rank), dtype, "addmm")
        xa = g.product([a, xd], (rank, inputs, ROWS), dtype)
        return d_a, g.product([empties[1], xa, dy], (rank, ROWS, outputs), dtype, "addmm")

    def first_gradient(self, g: Graph, place: int, db: Buffer, a: Buffer, width: int) -> tuple[Buffer, Buffer]:
        """What goes back through a dropped input, which comes as early as it can; and its name once dropped."""
        first = g.product([db, a], (ROWS, self.s.rank, width), self.s.dtype)
        g.steps.insert(place, g.steps.pop())
        return first, self.dropped(g, width)
