"""Axolotl's context parallelism on paper: a rank has a part of each row, and gathers keys and values head by head.

After ring-flash-attn 0.1.8, llama3_flash_attn_varlen.py (`llama3_flash_attn_varlen_forward`,
`llama3_flash_attn_varlen_backward`), which axolotl/monkeypatch/ring_attn/patch.py puts in the place of transformers'
FlashAttention; axolotl/utils/ctx_managers/sequence_parallel.py cuts the rows (`apply_sequence_parallelism`).

    forward    keys and values of one key head (`heads_k_stride`) are gathered from all ranks into one of two buffers,
               while the head before is computed with the other
    backward   the same, and gradients of a head's keys and values for all ranks are summed and scattered
    work       parts are whole stretches of a row: the last rank's queries see all keys, and the others wait for it

Ignored  slicing a batch's ids, labels and positions; the sum over labels of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.errors import UsageError
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import FLOAT32, INT64
from tunecast.tape.build.flash import like, new_tensors, taken_dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.sharding.sequence import RING, STATES_PASSED
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.kernels import flash
from tunecast.tape.kernels.flash import FlashCall, Sizes

FOLLOWS_SOURCE = (
    "parallel.context: rows over ranks follow Axolotl's and ring-flash-attn's source, and were not traced; a row is "
    "taken as one sample, of which the last rank computes most"
)
BATCH_RING = "parallel.context: rows that are not packed go around in a ring; taken is the way of packed ones"
CAUSAL = FlashCall(causal=True)


class GatheredHeads:
    """In the place of a model's attention."""

    splits_any_layer = True

    def __init__(self, machine: Machine, ranks: int, packs: bool) -> None:
        if not machine.is_flash or machine.attention == "flex_attention":
            told = "context_parallel_size > 1 requires flash attention, as Axolotl says"
            raise UsageError.at("attention", f"got {machine.attention}; {told}; allowed: flash_attention_2")
        self.machine, self.ranks = machine, ranks
        machine.guesses[FOLLOWS_SOURCE] = None
        if not packs:
            machine.guesses[BATCH_RING] = None
        machine.assumptions[STATES_PASSED] = None
        self.position_ids: Any = None
        self.tokens = 0

    def wrap(self, model: Any) -> None:
        """The model stays as it is."""

    def part_of(self, length: int) -> int:
        """The tokens of a row this rank has."""
        self.tokens = -(-length // self.ranks)
        return self.tokens

    def begin_forward(self) -> None:
        self.position_ids = self.machine.run("arange", (), (self.tokens,), INT64).unsqueeze(0)

    def end_forward(self, outputs: Any) -> Any:
        return outputs

    def attend(
        self, core: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, dropout: float,
        position_ids: Any, window: int | None, softcap: float | None,
    ) -> Any:  # fmt: skip
        query, key, value = [x.transpose(1, 2).to(taken_dtype(query)) for x in (query, key, value)]
        width, value_width = query.shape[-1], value.shape[-1]
        if value_width != width:
            value = F.pad(value, width - value_width)
        out = head_by_head(query, key, value, self.ranks, window)
        return (out[..., :value_width] if value_width != width else out), None


def head_by_head(query: Tensor, key: Tensor, value: Tensor, ranks: int, window: int | None) -> Tensor:
    """[batch, tokens, heads, width] of this rank's tokens."""
    machine = query.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return gradients_of(node, gradients[0], ranks, window)

    node = start(machine, (query, key, value), back)
    with machine.no_grad():
        key, value = key.contiguous(), value.contiguous()
        heads, everybodys = key.shape[2], gathered_shape(key, ranks)
        buffers = new_tensors(key, [everybodys] * 2, key.dtype)
        outs = []
        for _ in range(heads):
            gather(key, ranks)
            part = one_head(query, heads)
            size = sizes_of(part, everybodys)
            machine.launch("flash_attn::fwd", (part, buffers[0]), part.dtype, part.nbytes, scores(size, ranks, window))
            outs.append((like(part), machine.tensor(size.rows(), FLOAT32)))
        out = machine.run("cat", [each for each, _ in outs], query.shape, query.dtype)
        rows = [each for _, each in outs]
        lse = machine.run("cat", rows, (query.shape[0], query.shape[2], query.shape[1]), FLOAT32)
        del outs, rows, buffers
    return finish(node, out, query, key, value, out.detach(), lse)


def gradients_of(node: Node, gradient: Tensor, ranks: int, window: int | None) -> Sequence[Tensor]:
    query, key, value = (node.take(place) for place in range(3))
    machine, heads, everybodys = query.machine, key.shape[2], gathered_shape(key, ranks)
    buffers = new_tensors(key, [everybodys] * 3, key.dtype)  # two of keys and values, one of their gradients
    own = machine.tensor((2, *key.shape[:2], 1, key.shape[3]), key.dtype)
    dq, dk, dv = like(query), like(key), like(value)
    for _ in range(heads):
        machine.launch("zero_", (buffers[2],), key.dtype, buffers[2].nbytes)
        gather(key, ranks)
        part = one_head(query, heads)
        size = sizes_of(part, everybodys)
        flops = scores(size, ranks, window) * 5 // 2
        machine.launch("flash_attn::bwd", (gradient, part, buffers[0]), part.dtype, part.nbytes, flops)
        kept = new_tensors(part, flash.backward_floats_2(size, CAUSAL, machine.card), FLOAT32)
        if size.heads > 1:
            kept += new_tensors(part, [(*everybodys[1:3], size.heads, size.width)] * 2, part.dtype)
        del kept
        for _ in range(2):
            half = buffers[2].numel() // 2
            nbytes = half * key.dtype.itemsize
            machine.collective("reduce_scatter", RING, ranks, key.dtype, nbytes, nbytes // ranks, half // ranks)
        machine.launch("copy_", (dk, own), key.dtype, own.nbytes)
    return dq, dk, dv


def gathered_shape(key: Tensor, ranks: int) -> tuple[int, ...]:
    """Keys and values of one head, of all ranks."""
    batch, tokens, _, width = key.shape
    return (2, batch, tokens * ranks, 1, width)


def gather(key: Tensor, ranks: int) -> None:
    """One head's keys, then its values; what is sent is copied first."""
    machine, (batch, tokens, _, width) = key.machine, key.shape
    for _ in range(2):
        sent = machine.run("clone", (key,), (batch, tokens, 1, width), key.dtype)
        received = sent.nbytes * ranks
        machine.collective("all_gather", RING, ranks, key.dtype, sent.nbytes, received, sent.numel())


def one_head(query: Tensor, key_heads: int) -> Tensor:
    """The queries that share a key head."""
    return query[:, :, : query.shape[2] // key_heads]


def sizes_of(part: Tensor, everybodys: Sequence[int]) -> Sizes:
    batch, tokens, heads, width = part.shape
    length = everybodys[2]
    return Sizes(batch, tokens, length, batch * tokens, batch * length, heads, 1, width, False)


def scores(size: Sizes, ranks: int, window: int | None) -> int:
    """The last rank's: all pairs but those hidden in its own part, twice, as what a mask hides is counted
    (`counted_pairs`)."""
    pairs = size.length * size.key_length * (2 * ranks - 1) // ranks
    if window is not None:
        pairs = min(pairs, 2 * size.length * window)
    return 4 * size.heads * size.width * size.batch * pairs
