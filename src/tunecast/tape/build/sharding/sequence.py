"""A sequence over ranks: torch's context parallelism, and DeepSpeed's Ulysses.

Context parallelism on paper: a sequence over ranks, attention in a ring.

After torch 2.13 and 2.15, torch/distributed/tensor/experimental/_context_parallel/_attention.py
(`_templated_ring_attention`): a rank keeps its queries and sees the keys and values of all, a part at a time. They are
gathered once (`allgather`, which is torchtitan's `context_parallel_rotate_method`); gradients of keys and values travel
around. Each rank has a part from the front and one from the back of the sequence, so that causal attention is as much
work for all: after the first turn a turn is half of its scores. Results are merged in fp32.

DeepSpeed's Ulysses on paper: a rank has a part of each row, and in attention all of it for a part of the heads.

After DeepSpeed 0.19.8, runtime/sequence_parallel/ulysses_sp.py (`UlyssesSPAttentionHF`), which accelerate's
`ParallelismConfig(sp_size=...)` puts in the place of a model's attention. Everything outside attention sees a rank's
tokens alone.

    before attention   queries, keys and values are copied in the order of their receivers, exchanged (all_to_all), and
                       copied once more in the order kernels read; where ranks outnumber key heads, these are repeated
    after it           the result goes back the same way: copied, exchanged, copied
    backward           a copy and an exchange for each of the four; nothing is saved for it but what the kernel saves
    positions          gathered from all ranks in every layer, for kernels that look for packed rows
    loss               the mean over a rank's labels; those of all ranks are weighed by how many labels they have
                       (transformers' `deepspeed_sp_compute_loss`), with the logits still there

Ignored  what the loader adapter gathers and sends back to the host before a step: ids, positions and labels of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.tape.build import functional as F
from tunecast.tape.build.attention import flops_of
from tunecast.tape.build.autograd import Gradients, Node, finish, record, start
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64, Shape
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.recompute import first_of
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Phase

# -------------------------------------------------------------------------------------------------- attention in a ring


RING = "context"
RING_KERNEL = "_scaled_dot_product_flash_attention"


def ring_attention(query: Tensor, key: Tensor, value: Tensor, ranks: int) -> Tensor:
    """[batch, heads, length, width] each, of this rank's part of the sequence; causal."""
    machine = query.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        q, k, v, out, lse = (node.take(place) for place in range(5))
        return ring_backward(gradients[0], q, k, v, out, lse, ranks)

    node = start(machine, (query, key, value), back, (query, key, value))
    with machine.no_grad():
        key, value = key.contiguous(), value.contiguous()
        next_kv, everybodys = gathered(key, value, ranks)
        k, v = key, value
        out, lse, *rest = attended(query, k, v, causal=True)
        saved_rest = rest if machine.torch >= (2, 14) else None  # before, those of the last turn were saved
        merger = Merger(out, lse)
        del lse
        for turn in range(1, ranks):
            next_kv = None
            key, value = pair_in(everybodys, key.shape, value.shape)
            if turn < ranks - 1:  # sent to nobody: they are there already
                machine.run("cat", (key, value), (key.numel() + value.numel(),), key.dtype)
            k, v = key, value
            out, block_lse, *rest = attended(later_half(query), k, v, causal=False)
            merger.step(out, block_lse)
        result, lse = merger.out.to(query.dtype), merger.lse
        del merger, key, value, k, v, everybodys, next_kv
    return finish(node, result, result.detach(), lse, *(saved_rest or rest))


def ring_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, ranks: int
) -> list[Tensor]:
    machine = query.machine
    grad_query, grad_key, grad_value = [
        machine.run("zeros_like", (), t.shape, FLOAT32, strides=F.kept_strides(t)) for t in (query, key, value)
    ]
    shapes = key.shape, value.shape
    key, value = key.contiguous(), value.contiguous()
    arrived: Any = None
    sent: Any = None
    names: dict[str, Any] = {}
    """What only a name of the real loop holds until it is given anew."""
    for turn in range(ranks):
        if turn == 0:
            names["next_kv"], everybodys = gathered(key, value, ranks)
            names["k"], names["v"] = key, value
            q, dout, kept, kept_lse = query, gradient, out, lse
        else:
            key, value = pair_in(everybodys, *shapes)
            if turn < ranks - 1:
                names["next_kv"] = machine.run("cat", (key, value), (key.numel() + value.numel(),), key.dtype)
            q, dout, kept = [later_half(t) for t in (query, gradient, out)]
            kept_lse = later_half(lse).contiguous()
            names["k"], names["v"] = key, value
        likes = [(t.shape, t.dtype) for t in (q, key, value)]
        args = (dout, q, key, value, kept, kept_lse, None, None, None, 0.0)
        flops = scores_of(q, key, value, causal=turn == 0) * 5 // 2
        made = machine.run_many(RING_KERNEL + "_backward", (dout, q, key, value), likes, flops, args)
        if turn:  # another rank's keys: their gradients so far come from the rank before
            grad_key, grad_value = pair_in(arrived, *shapes)
            sent = None
        for total, part in ((grad_key, made[1]), (grad_value, made[2])):
            machine.launch("add_", (total, part), FLOAT32, total.nbytes)
        del total, part
        flat = [t.reshape(-1) for t in (grad_key, grad_value)]
        sent = machine.run("cat", flat, (grad_key.numel() + grad_value.numel(),), FLOAT32)
        del flat
        arrived = machine.exchange("all_to_all", RING, ranks, sent, sent.shape)
        if turn == 0:
            machine.launch("add_", (grad_query, made[0]), FLOAT32, grad_query.nbytes)
        else:
            half = later_half(grad_query)
            machine.launch("add_", (half, made[0]), FLOAT32, half.nbytes)
            grad_query = machine.run("cat", (grad_query, half), grad_query.shape, FLOAT32)
            del half
    grad_query = grad_query.to(query.dtype)
    arrived = arrived.to(key.dtype)
    return [grad_query, *pair_in(arrived, *shapes)]


def gathered(key: Tensor, value: Tensor, ranks: int) -> tuple[Any, Tensor]:
    """Keys and values in one buffer, and those of all ranks."""
    machine, numel = key.machine, key.numel() + value.numel()
    sent = machine.run("cat", (key, value), (numel,), key.dtype)
    return sent, machine.exchange("all_gather", RING, ranks, sent, (numel * ranks,))


def pair_in(buffer: Tensor, first: Shape, second: Shape) -> tuple[Tensor, Tensor]:
    """Two tensors behind each other in a buffer."""
    return buffer.alias(first, None, buffer.offset), buffer.alias(second, None, buffer.offset + prod(first))


def scores_of(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> int:
    """Every fused attention on a tape is taken for causal, which does half of what it says; only the first turn is."""
    return flops_of(query, key, value) * (1 if causal else 2)


def attended(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> list[Tensor]:
    batch, heads, length, _ = query.shape
    made = (batch, heads, length, value.shape[3])
    outs = ((made, query.dtype), ((batch, heads, length), FLOAT32), ((2,), INT64), ((), INT64))
    args = (query, key, value, 0.0, causal)
    flops = scores_of(query, key, value, causal)
    return query.machine.run_many(RING_KERNEL, (query, key, value), outs, flops, args)


def later_half(x: Tensor) -> Tensor:
    return x[:, :, x.shape[2] // 2 :]


class Merger:
    """`_SDPAMerger`: the later half of the rows is brought up to date, and put behind the earlier."""

    def __init__(self, out: Tensor, lse: Tensor) -> None:
        self.out: Any = out.float()
        self.lse = lse

    def step(self, out: Tensor, block_lse: Tensor) -> None:
        machine, wide, narrow = out.machine, out.shape, block_lse.shape
        block_out = out.float()
        weight = machine.run("sub", (block_lse, self.lse), narrow, FLOAT32).sigmoid()
        apart = machine.run("sub", (self.out, block_out), wide, FLOAT32)
        weighed = machine.run("mul", (weight, apart), wide, FLOAT32)
        del weight, apart
        newer = machine.run("sub", (self.out, weighed), wide, FLOAT32)
        del weighed
        slope = pointwise("log_sigmoid", machine.run("sub", (self.lse, block_lse), narrow, FLOAT32))
        newer_lse = machine.run("sub", (self.lse, slope), narrow, FLOAT32)
        del slope
        self.lse = machine.run("cat", (self.lse, newer_lse), self.lse.shape, FLOAT32)
        self.out = machine.run("cat", (self.out, newer), self.out.shape, FLOAT32)


STATES_PASSED = "layers without attention are taken to hand on their states between cards at no cost"


class Ring:
    """In the place of a transformers model's attention (`context_parallel` around its forward pass)."""

    splits_any_layer = True
    """Those without attention see a rank's tokens alone."""

    def __init__(self, machine: Machine, ranks: int) -> None:
        self.machine, self.ranks = machine, ranks
        machine.assumptions[STATES_PASSED] = None
        self.position_ids: Any = None
        """Of the rank's own tokens."""

        self.tokens = 0

    def part_of(self, length: int) -> int:
        """The tokens of a row this rank has: as many from the front as from the back."""
        self.tokens = -(-length // (2 * self.ranks)) * 2
        return self.tokens

    def begin_forward(self) -> None:
        self.position_ids = self.machine.run("arange", (), (self.tokens,), INT64).unsqueeze(0)

    def end_forward(self, outputs: Any) -> Any:
        return outputs

    def attend(self, core: Any, query: Tensor, key: Tensor, value: Tensor, *how: Any) -> Any:
        """Causal, whatever mask or window a layer has."""
        output = ring_attention(query, key, value, self.ranks)
        return output.transpose(1, 2).contiguous(), None


# -------------------------------------------------------------------------------------------------------------- Ulysses


GROUP = "sequence"
PADDED = "rows are padded to a multiple of parallel.context (pad_to_multiple_of), as DeepSpeed's loader wants them"
NOT_OF_THIS = (
    "parallel.context_kind: got ulysses, known of models whose attention transformers lets others replace, with keys "
    "and values of one shape and the batch's own positions. To fix: context 1, or a model such as llama, qwen3"
)
NO_MASK = "Ulysses drops attention masks: rows are full and causal, and under sdpa windows are not cut out"


class Ulysses:
    splits_any_layer = False

    def __init__(self, machine: Machine, ranks: int, batch: int) -> None:
        self.machine, self.ranks, self.batch = machine, ranks, batch
        self.position_ids: Any = None
        """Of a batch, which has them beside its tokens, with labels that are shifted already."""

        self.tokens = 0
        self.attended = False
        machine.assumptions[PADDED] = None

    def wrap(self, model: Any) -> None:
        """The caller weighs the loss while the model's outputs are there."""
        model.gives_logits = True

    def part_of(self, length: int) -> int:
        """The tokens of a row this rank has."""
        self.tokens = -(-length // self.ranks)
        return self.tokens

    def begin_forward(self) -> None:
        machine = self.machine
        phase, machine.phase = machine.phase, Phase.OTHER
        self.position_ids = machine.run("zeros_like", (), (self.batch, self.tokens), INT64)
        machine.phase = phase

    def end_forward(self, outputs: Any) -> Any:
        if not self.attended:  # attention of the model's own, which DeepSpeed does not see
            raise Unsupported(NOT_OF_THIS, field="parallel.context_kind")
        if hasattr(outputs, "loss"):
            return outputs._replace(loss=self.summed(outputs.loss))
        loss = self.summed(first_of(outputs))
        return (loss, *outputs[1:]) if isinstance(outputs, tuple) else loss

    # -------------------------------------------------------------------------------------------------- attention

    def attend(
        self, core: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
        dropout: float, position_ids: Tensor | None, *how: Any,
    ) -> Any:  # fmt: skip
        """`UlyssesSPAttentionHF.forward`, around the kernel a model would have called. [batch, heads, tokens, width] of
        this rank's tokens; the result as [batch, tokens, heads x width]."""
        machine, ranks = self.machine, self.ranks
        self.require(query, key, value, position_ids)
        if attention_mask is not None:
            machine.assumptions[NO_MASK] = None
        batch, heads, tokens, width = query.shape
        key_heads = key.shape[1]
        everybodys = self.gathered(self.position_ids)
        positions = machine.run("cat", everybodys, (batch, tokens * ranks), INT64)
        query, key, value = [t.permute(2, 0, 1, 3) for t in (query, key, value)]
        layers = [self.combined(query, heads), self.combined(key, key_heads), self.combined(value, key_heads)]
        for place in range(3):
            layers[place] = layers[place].permute(1, 2, 0, 3).contiguous()
        groups = layers[0].shape[1] // layers[1].shape[1]
        context, weights = core(*layers, None, groups, dropout, positions, *how)
        context = context.permute(1, 0, 2, 3)
        context = context.reshape(tokens * ranks, batch, heads // ranks * width)
        output = self.parted(context).permute(1, 0, 2)
        del layers, context, everybodys, positions
        return output, weights

    def require(self, query: Tensor, key: Tensor, value: Tensor, position_ids: Tensor | None) -> None:
        """What `UlyssesSPAttentionHF` asserts."""
        ranks, heads, key_heads = self.ranks, query.shape[1], key.shape[1]
        if position_ids is not self.position_ids or key.shape != value.shape:
            raise Unsupported(NOT_OF_THIS, field="parallel.context_kind")
        self.attended = True
        if heads % ranks == 0 and (key_heads % ranks == 0 or ranks % key_heads == 0):
            return
        allowed = [n for n in range(1, heads + 1) if heads % n == 0 and (key_heads % n == 0 or n % key_heads == 0)]
        told = f"got {ranks}; Ulysses splits {heads} attention and {key_heads} key heads evenly"
        near = max(n for n in allowed if n <= ranks)
        names = ", ".join(map(str, allowed))
        raise UsageError.at("parallel.context", f"{told}; allowed: {names}; nearest: {near}")

    def combined(self, x: Tensor, heads: int) -> Tensor:
        """From [tokens, batch, heads, width] to all tokens of this rank's heads."""
        if self.ranks > heads:
            x = x.repeat_interleave(self.ranks // heads, 2)
        tokens, batch, heads, width = x.shape
        x = x.reshape(tokens, batch, self.ranks, heads // self.ranks, width)
        x = x.permute(2, 0, 1, 3, 4).contiguous()
        return self.exchanged(x).reshape(tokens * self.ranks, batch, heads // self.ranks, width)

    def parted(self, context: Tensor) -> Tensor:
        """From [all tokens, batch, width of this rank's heads] to this rank's tokens of all heads."""
        tokens, batch, width = context.shape
        given = context.reshape(self.ranks, tokens // self.ranks, batch, width).contiguous()
        output = self.exchanged(given).permute(1, 2, 0, 3)
        output = output.reshape(tokens // self.ranks, batch, width * self.ranks)
        del given  # which its name held until here
        return output

    def exchanged(self, x: Tensor) -> Tensor:
        """`_dim_zero_all_to_all`: to each rank its row of the first dimension."""

        def back(node: Node, gradients: Gradients) -> Sequence[Any]:
            return (self.exchange(gradients[0].contiguous()),)

        return record(self.exchange(x), (x,), back)

    def exchange(self, x: Tensor) -> Tensor:
        return self.machine.exchange("all_to_all", GROUP, self.ranks, x, x.shape)

    # ------------------------------------------------------------------------------------------------------- loss

    def summed(self, loss: Tensor) -> Tensor:
        """`deepspeed_sp_compute_loss`: gradients of the loss come back from all ranks, summed."""
        machine, ranks, labels = self.machine, self.ranks, self.position_ids
        losses_per_rank = self.gathered(loss)
        counted = machine.run("ne", (labels,), labels.shape, BOOL)
        good_tokens = counted.sum(range(2))
        del counted
        good_tokens_per_rank = self.gathered(good_tokens)
        losses = machine.run("stack", losses_per_rank, (ranks,), FLOAT32)
        losses = record(losses, (loss,), lambda node, gradients: (self.scattered(gradients[0]),))
        counts = machine.run("stack", good_tokens_per_rank, (ranks,), INT64)
        safe_losses = self.without_empty(losses, counts)
        total = (safe_losses * counts).sum()
        total_good_tokens = machine.run("sum", (counts,), (), INT64)
        at_least_one = machine.run("clamp", (total_good_tokens,), (), INT64)
        return total / at_least_one

    def without_empty(self, losses: Tensor, counts: Tensor) -> Tensor:
        """Parts without labels have no loss."""
        machine, shape = self.machine, losses.shape

        def back(node: Node, gradients: Gradients) -> Sequence[Any]:
            zero = machine.run("scalar_tensor", (), (), FLOAT32)
            return (machine.run("where", (node.take(0), gradients[0], zero), shape, FLOAT32),)

        mask = machine.run("gt", (counts,), shape, BOOL)
        zeros = machine.run("zeros_like", (losses,), shape, FLOAT32)
        node = start(machine, (losses,), back, (mask,))
        return finish(node, machine.run("where", (mask, losses, zeros), shape, FLOAT32))

    def gathered(self, x: Tensor) -> list[Tensor]:
        machine, ranks = self.machine, self.ranks
        places = [machine.run("empty_like", (), x.shape, x.dtype) for _ in range(ranks)]
        machine.collective_of("all_gather", GROUP, ranks, x.dtype, x.numel())
        return places

    def scattered(self, gradient: Tensor) -> Tensor:
        machine, dtype = self.machine, gradient.dtype
        own = machine.run("empty_like", (), (), dtype)
        machine.collective_of("reduce_scatter", GROUP, self.ranks, dtype, self.ranks)
        return own
