"""The graphs of a compiled layer whose queries, keys and values have a bias (Qwen 2): PEFT's own code, inlined.

The layer and its adapter are two results, added by the kernel that reads them; the adapter's parts are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunecast.tape.build.unsloth.blocks import ROWS, Block
from tunecast.tape.build.unsloth.dropping import DroppingBlock
from tunecast.tape.build.unsloth.graph import WITH_BIAS, Buffer, Graph, Size


class BiasedBlock(Block):
    def projected(
        self, g: Graph, x: Buffer, weight: Sequence[Buffer], width: int, name: str, saved: dict[str, Buffer]
    ) -> list[Buffer]:
        """The layer's result and its adapter's."""
        s = self.s
        out = g.product([x, *weight], (ROWS, s.hidden, width), s.dtype, WITH_BIAS)
        saved[f"{name}_a"] = self.cast(g, s.hidden)
        saved[f"{name}_xa"] = g.product([x, saved[f"{name}_a"]], (ROWS, s.hidden, s.rank), s.dtype)
        saved[f"{name}_b"] = self.cast(g, width)
        return [out, g.product([saved[f"{name}_xa"], saved[f"{name}_b"]], (ROWS, s.rank, width), s.dtype)]

    def summed(self, g: Graph, both: Sequence[Buffer], width: int) -> Buffer:
        """The sum, with positions."""
        out = g.empty(self.rows(width), self.s.dtype)
        dummy = g.empty(Size(1), self.s.dtype)
        [x] = g.point("sum", both, [self.rows(width)], self.s.dtype)
        return g.change("triton::_rope_embedding_QK", [x], out, dummy)[0]

    def values(self, g: Graph, both: Sequence[Buffer]) -> list[Buffer]:
        """Both, for the kernel that pads them; else their sum."""
        return list(both) if self.padded else g.point("sum", both, [self.rows(self.s.keys)], self.s.dtype)

    def inference(self) -> Graph:
        g, s = self.graph(), self.s
        x, _, _ = self.normed(g, [])
        widths = (s.queries, s.keys, s.keys)
        weights = [self.weight(g, width, s.hidden) for width in widths]
        unsaved: dict[str, Buffer] = {}
        q = self.summed(g, self.projected(g, x, weights[0], s.queries, "q", unsaved), s.queries)
        k = self.summed(g, self.projected(g, x, weights[1], s.keys, "k", unsaved), s.keys)
        v = self.values(g, self.projected(g, x, weights[2], s.keys, "v", unsaved))
        _, [attended] = self.attends(g, q, k, v, False)
        return self.rest(g, attended)

    def forward(self) -> tuple[Graph, dict[str, Buffer]]:
        g, s = self.graph(), self.s
        x, normed, r = self.normed(g, [])
        saved: dict[str, Buffer] = {"normed": normed, "r": r}
        pairs = [
            self.projected(g, x, self.weight(g, width, s.hidden), width, name, saved)
            for name, width in (("q", s.queries), ("k", s.keys), ("v", s.keys))
        ]
        v = self.values(g, pairs[2])
        q = self.summed(g, pairs[0], s.queries)
        k = self.summed(g, pairs[1], s.keys)
        pads, parts = self.attends(g, q, k, v, True)
        out = self.rest_kept(g, pads, parts, saved)
        g.outputs = [out, *saved.values()]
        return g, saved

    def projections_backward(self, g: Graph, da: Buffer, given: Mapping[str, Buffer]) -> tuple[Buffer, list[Buffer]]:
        """Values first, as autograd goes; the six terms of the layer input's gradient are summed at the end."""
        dq, dk, dv, part = self.attends_backward(g, da, given)
        if not self.padded:
            [dv] = g.point("cut", [part], [self.rows(self.s.keys)], self.s.dtype)
        s, dtype = self.s, self.s.dtype
        terms: list[Buffer] = []
        gradients: dict[str, Buffer] = {}
        x = {name: given.get(f"{name}_dropped") or given["normed"] for name in "qkv"}
        for name, dy, width in (("v", dv, s.keys), ("k", dk, s.keys), ("q", dq, s.queries)):
            scaled = dy
            if name != "v":
                [scaled] = g.point("scale", [dy], [self.rows(width)], dtype)
            d_b = g.product([scaled, given[f"{name}_xa"]], (width, ROWS, s.rank), dtype)
            t = g.product([scaled, given[f"{name}_b"]], (ROWS, width, s.rank), dtype)
            gradients[f"{name}_b"] = self.widened(g, d_b)
            d_a = g.product([t, x[name]], (s.rank, ROWS, s.hidden), dtype)
            terms.append(g.product([t, given[f"{name}_a"]], (ROWS, s.rank, s.hidden), dtype))
            gradients[f"{name}_a"] = self.widened(g, d_a)
            weight = self.weight(g, width, s.hidden)
            whole = part if name == "v" else dy
            if name == "v" and self.padded:
                [whole] = g.point("unscaled", [part], [self.rows(width)], dtype)
            terms.append(g.product([whole, *weight], (ROWS, width, s.hidden), dtype))
        masks = [given[f"{name}_mask"] for name in "vkq" if f"{name}_mask" in given]
        early = g.point("drop_sum", [*terms, *masks], [self.rows(s.hidden)], dtype) if masks else []
        dn = g.empty(self.rows(s.hidden), dtype)
        [dx] = early or g.point("sum_of_six", terms, [self.rows(s.hidden)], dtype)
        [dn] = g.change("triton::_rms_layernorm_backward", [dx, given["x"], given["r"]], dn)
        return dn, [gradients[f"{name}_{part}"] for name in "qkv" for part in "ab"]


class DroppingBiasedBlock(DroppingBlock, BiasedBlock):
    """Both: what is dropped is kept whole, and adapters are as PEFT runs them."""

    projections_backward = BiasedBlock.projections_backward

    def lowered(
        self, g: Graph, dropped: Buffer, width: int, name: str, saved: dict[str, Buffer], a: Buffer | None = None
    ) -> Buffer:
        s = self.s
        saved[f"{name}_a"] = a if a is not None else self.cast(g, s.hidden)
        saved[f"{name}_xa"] = g.product([dropped, saved[f"{name}_a"]], (ROWS, s.hidden, s.rank), s.dtype)
        saved[f"{name}_b"] = self.cast(g, width)
        return g.product([saved[f"{name}_xa"], saved[f"{name}_b"]], (ROWS, s.rank, width), s.dtype)

    def inference(self) -> Graph:
        g, s = self.graph(), self.s
        x, _, _ = self.normed(g, [])
        widths = (s.queries, s.keys, s.keys)
        weights = [self.weight(g, width, s.hidden) for width in widths]
        made: list[Buffer] = []
        unsaved: dict[str, Buffer] = {}
        placed = []
        place = 0
        for name, width, weight in zip("qkv", widths, weights, strict=True):
            out = g.product([x, *weight], (ROWS, s.hidden, width), s.dtype, WITH_BIAS)
            if name == "q":
                self.seeds(g)
                place = len(g.steps)
            made += [self.random(g, s.hidden), self.dropped(g, s.hidden)]
            both = [out, self.lowered(g, made[-1], width, name, unsaved)]
            placed.append(self.values(g, both) if name == "v" else [self.summed(g, both, width)])
        g.fuse(place, "drop", [self.drawn, x], made)
        _, [attended] = self.attends(g, placed[0][0], placed[1][0], placed[2], False)
        return self.rest(g, attended)

    def forward(self) -> tuple[Graph, dict[str, Buffer]]:
        g, s = self.graph(), self.s
        saved: dict[str, Buffer] = {}
        x, _, saved["r"] = self.normed(g, [])
        made: list[list[Buffer]] = []
        pairs = []
        place = 0
        for name, width in (("q", s.queries), ("k", s.keys), ("v", s.keys)):
            out = g.product([x, *self.weight(g, width, s.hidden)], (ROWS, s.hidden, width), s.dtype, WITH_BIAS)
            if name == "q":
                self.seeds(g)
                place = len(g.steps)
            made.insert(0, [self.random(g, s.hidden), self.mask(g, s.hidden)])
            saved[f"{name}_mask"] = made[0][1]
            a = self.cast(g, s.hidden)
            saved[f"{name}_dropped"] = self.dropped(g, s.hidden)
            pairs.append([out, self.lowered(g, saved[f"{name}_dropped"], width, name, saved, a)])
        dropped = [saved[f"{name}_dropped"] for name in "qkv"]
        g.fuse(place, "drop", [self.drawn, x], [*[each for pair in made for each in pair], *dropped])
        v = self.values(g, pairs[2])
        q = self.summed(g, pairs[0], s.queries)
        k = self.summed(g, pairs[1], s.keys)
        pads, parts = self.attends(g, q, k, v, True)
        g.outputs = [self.rest_kept(g, pads, parts, saved), *saved.values()]
        return g, saved
