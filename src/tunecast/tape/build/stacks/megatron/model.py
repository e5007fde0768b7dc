"""Megatron Core's loss on paper, the vocabulary split over ranks: TransformerEngine's kernel, torch in float32, or the
same compiled.

Megatron Core's GPT on paper, one rank's part of it (megatron/core/models/gpt, transformer/*, core 0.13 with TE 2).

Tensors are [tokens, batch, width]. Outside attention and MLP a rank has its part of the tokens (sequence parallelism);
inside, its part of the heads and of the inner width. With context parallelism the tokens are cut before that, and keys
and values go around a ring beside the attention. A tied head is the embedding, but in a pipeline, whose last stage has
a copy of it (megatron/core/models/common/language_module, `setup_embeddings_and_output_layer`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.errors import UsageError
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, record, start
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module, ModuleList
from tunecast.tape.build.recompute import checkpoint_reentrant
from tunecast.tape.build.stacks.megatron.layers import Attention, Experts
from tunecast.tape.build.stacks.megatron.linears import (
    MegatronRank,
    SplitLinear,
    activate,
    dropout_add,
    rms_norm,
    scatter,
)
from tunecast.tape.build.stacks.megatron.optimizer import DataExchange, is_experts
from tunecast.tape.build.stacks.megatron.shape import MegatronShape
from tunecast.tape.build.tensor import Tensor

# ------------------------------------------------------------------------------------------------------------- the loss


def fused_cross_entropy(logits: Tensor, labels: Tensor, parts: MegatronRank) -> Tensor:
    """TE's fused loss: the gradient is written over the logits in the forward pass; ranks exchange a maximum and a sum
    a token (transformer_engine/pytorch/cross_entropy.py)."""
    machine = logits.machine
    tokens = logits.numel() // logits.shape[-1]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept = node.take(0)
        machine.launch("element_mul", (kept, gradients[0]), kept.dtype, kept.nbytes)
        return (kept,)

    node = start(machine, (logits,), back)
    machine.launch("online_softmax", (logits, labels), logits.dtype, 3 * tokens * FLOAT32.itemsize)
    if parts.tensor > 1:
        machine.collective_of("all_gather", "tensor", parts.tensor, FLOAT32, 3 * tokens)
    machine.launch("cross_entropy", (logits, labels), logits.dtype, logits.nbytes)
    loss = machine.tensor((), FLOAT32)
    return finish(node, loss, logits)


def full_cross_entropy(logits: Tensor, labels: Tensor, parts: MegatronRank) -> Tensor:
    """Without `--cross-entropy-loss-fusion`: logits are copied to float32, and softmax and gradient are written over
    the copy; the gradient is cast back (megatron/core/tensor_parallel/cross_entropy.py)."""
    machine, shape, dtype = logits.machine, logits.shape, logits.dtype
    tokens = logits.numel() // shape[-1]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        wide = node.take(0)
        machine.launch("mul_", (wide, gradients[0]), FLOAT32, wide.nbytes)
        return (machine.run("_to_copy", (wide,), shape, dtype),)

    node = start(machine, (logits,), back)
    wide = machine.run("_to_copy", (logits,), shape, FLOAT32)
    machine.launch("max", (wide,), FLOAT32, tokens * FLOAT32.itemsize)
    for name in ("sub_", "exp_", "div_"):
        machine.launch(name, (wide,), FLOAT32, wide.nbytes)
    machine.launch("sum", (wide,), FLOAT32, tokens * FLOAT32.itemsize)
    if parts.tensor > 1:
        for _ in range(3):  # maximum, the label's logit, sum
            machine.collective_of("all_reduce", "tensor", parts.tensor, FLOAT32, tokens)
    loss = machine.tensor((), FLOAT32)
    return finish(node, loss, wide)


def compiled_cross_entropy(logits: Tensor, labels: Tensor, parts: MegatronRank) -> Tensor:
    """`--cross-entropy-loss-fusion` with `native`: the same in four compiled functions
    (megatron/core/fusions/fused_cross_entropy.py). Two of them write over what they are given, and torch.compile makes
    the result beside it and copies it back: exponentials forward, the gradient before its cast backward.

    Measured on an H200 with torch 2.11: of logits of 8,192 x 151,936, which are 2.32 GiB, peaks are 11.6 GiB beyond
    the rest either way, twice 4.64 GiB in float32 and 2.32 GiB of logits or of their gradient."""
    machine, shape, dtype = logits.machine, logits.shape, logits.dtype
    tokens = logits.numel() // shape[-1]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        wide = node.take(0)
        beside = machine.run("clone", (wide,), shape, FLOAT32)
        made = machine.run("mul", (beside, gradients[0]), shape, dtype)
        machine.launch("copy_", (beside,), FLOAT32, wide.nbytes)
        return (made,)

    node = start(machine, (logits,), back)
    wide = machine.run("_to_copy", (logits,), shape, FLOAT32)
    beside = machine.run("exp", (wide,), shape, FLOAT32)
    machine.launch("sum", (beside,), FLOAT32, tokens * FLOAT32.itemsize)
    machine.launch("copy_", (beside,), FLOAT32, wide.nbytes)
    del beside
    if parts.tensor > 1:  # the maximum; the label's logit and the sum
        for count in (tokens, 2 * tokens):
            machine.collective_of("all_reduce", "tensor", parts.tensor, FLOAT32, count)
    machine.launch("div_", (wide,), FLOAT32, wide.nbytes)
    loss = machine.tensor((), FLOAT32)
    return finish(node, loss, wide)


LOSSES = {"full": full_cross_entropy, "fused": compiled_cross_entropy, "kernel": fused_cross_entropy}


class Head(Module):
    """A few outputs in the vocabulary's place, whole on every rank (swift/megatron/model, `OutputLayerLinear`)."""

    def __init__(self, machine: Machine, width: int, labels: int) -> None:
        super().__init__(machine)
        self.weight = self.parameter(labels, width)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return F.linear(hidden_states, self.weight)


def score_loss(logits: Tensor, labels: Tensor, parts: MegatronRank) -> Tensor:
    """Of a few numbers a row."""
    return logits.float().sum()


# ------------------------------------------------------------------------------------------------------------ the model


LORA_TARGETS = {"linear_qkv": ("q_proj", "k_proj", "v_proj", "qkv_proj"), "linear_proj": ("o_proj",),
                "linear_fc1": ("gate_proj", "up_proj"), "linear_fc2": ("down_proj",)}  # fmt: skip
ROWS_DIVISIBLE_BY = 128
"""A rank's part of the vocabulary is padded to it (`--make-vocab-size-divisible-by`; NeMo's GPTConfig)."""


class MLP(Module):
    def __init__(self, machine: Machine, shape: MegatronShape, parts: MegatronRank, ranks: Mapping[str, int]) -> None:
        super().__init__(machine)
        self.gated, self.parts = shape.gated, parts
        outputs = shape.inner * (2 if shape.gated else 1)
        self.linear_fc1 = SplitLinear(
            machine,
            shape.width,
            outputs,
            parts,
            split="column",
            norm=True,
            rank=ranks.get("linear_fc1", 0),
            bias=shape.bias,
        )
        self.linear_fc2 = SplitLinear(
            machine, shape.inner, shape.width, parts, split="row", rank=ranks.get("linear_fc2", 0), bias=shape.bias
        )

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.linear_fc2(activate(self.linear_fc1(hidden_states), self.gated, self.parts))


class Layer(Module):
    def __init__(
        self,
        machine: Machine,
        shape: MegatronShape,
        parts: MegatronRank,
        ranks: Mapping[str, int],
        sparse: bool,
        recomputed: bool,
    ) -> None:
        super().__init__(machine)
        self.self_attention = Attention(machine, shape, parts, ranks)
        self.mlp: Any = Experts(machine, shape, parts, ranks) if sparse else MLP(machine, shape, parts, ranks)
        self.recomputed, self.dropout = recomputed, shape.dropout

    def trained_numel(self, of_experts: bool) -> int:
        """Of experts' weights, or of all others."""
        found = (p for p in self.parameters() if p.requires_grad and is_experts(p) == of_experts)
        return sum(p.numel() for p in found)

    def __call__(self, hidden_states: Tensor) -> Any:
        if self.recomputed:  # assumed of adapters, which would else get no gradient through this kind of recomputation
            hidden_states.requires_grad = True
            return checkpoint_reentrant(self.machine, super().__call__, hidden_states)
        return super().__call__(hidden_states)

    def forward(self, hidden_states: Tensor) -> Tensor:
        residual = hidden_states
        hidden_states = self.self_attention(hidden_states)
        hidden_states = dropout_add(hidden_states, residual, self.dropout)
        residual = hidden_states
        hidden_states = self.mlp(hidden_states)
        return dropout_add(hidden_states, residual, self.dropout)


class GPT(Module):
    """One pipeline stage: `first` has the embedding, `last` the head."""

    def __init__(
        self, machine: Machine, shape: MegatronShape, parts: MegatronRank, ranks: Mapping[str, int],
        recomputed: bool = False, first: bool = True, last: bool = True, loss: str = "kernel",
        labels: int | None = None, visual: Module | None = None,
    ) -> None:  # fmt: skip
        """`labels`: of a head in the vocabulary's place. `visual`: what puts features among the embeddings."""
        super().__init__(machine)
        self.shape, self.parts, self.first, self.last = shape, parts, first, last
        self.loss = LOSSES[loss] if labels is None else score_loss
        self.visual: Any = visual
        self.exchange = DataExchange(machine, 1)
        """With the ranks that see other data."""
        self.tables: dict[int, Tensor] = {}
        for name, size in (("heads", shape.heads), ("inner width", shape.inner)):
            if size % parts.tensor:
                told = f"{name} split evenly: needs a divisor of {size}, has tensor={parts.tensor}"
                raise UsageError.at("parallel.tensor", told)
        rows = -(-shape.vocabulary // (parts.tensor * ROWS_DIVISIBLE_BY)) * ROWS_DIVISIBLE_BY
        self.word_embeddings: Any = self.parameter(rows, shape.width) if first else None
        learned = first and shape.positions
        self.position_embeddings: Any = self.parameter(shape.positions, shape.width) if learned else None
        self.decoder = ModuleList(machine)
        for number in range(shape.layers):
            sparse = shape.experts > 0 and number >= shape.dense_layers
            self.decoder.append(Layer(machine, shape, parts, ranks, sparse, recomputed))
        self.final_layernorm: Any = self.parameter(shape.width) if last else None
        self.output_layer: Any = None
        if last and labels is not None:
            self.output_layer = Head(machine, shape.width, labels)
        elif last:
            plain = parts._replace(low=None, frozen=None)
            tied = self.word_embeddings if shape.tied else None
            self.output_layer = SplitLinear(
                machine, shape.width, rows * parts.tensor, plain, split="column", weight=tied, in_torch=True
            )

    def layers(self) -> list[Module]:
        return list(self.decoder)

    def chunk(self, number: int, chunks: int) -> list[Module]:
        """The layers of one of an interleaved rank's pieces."""
        layers = self.layers()
        return layers[number * len(layers) // chunks : (number + 1) * len(layers) // chunks]

    def forward(
        self, given: Tensor, labels: Tensor | None, length: int, number: int = 0, chunks: int = 1, **images: Tensor
    ) -> Tensor:
        """The loss of the model's last piece, else what goes to the next one. `length`: the rank's tokens."""
        hidden_states = embed(self, given, **images) if self.first and number == 0 else given[:]
        if not self.shape.positions:
            rotary_table(self, length)
        for layer in self.chunk(number, chunks):
            hidden_states = layer(self.exchange.around(layer, hidden_states))
        if labels is None:
            return hidden_states
        with self.machine.within("output_layer"):
            normed = rms_norm(hidden_states, self.final_layernorm)
            return self.loss(self.output_layer(normed), labels, self.parts)


def embed(model: GPT, ids: Tensor, **images: Tensor) -> Tensor:
    """`VocabParallelEmbedding`: rows of others' are zero, and the sums are scattered over the tokens; a copy of them is
    taken, lest the whole be held (`clone_scatter_output_in_embedding`)."""
    parts = model.parts
    found = F.embedding(model.word_embeddings, ids)
    if parts.tensor > 1:  # `output_parallel[input_mask, :] = 0.0`: in place, back in a copy
        found = record(found.alias(found.shape, None), (found,), lambda node, gradients: (gradients[0].clone(),))
    if model.visual is not None:
        found = model.visual(found, ids, **images)
    if model.position_embeddings is not None:
        found = found + F.embedding(model.position_embeddings, ids)
    found = found.transpose(0, 1).contiguous()
    if parts.tensor > 1:
        found = scatter(found, parts)
        if parts.sequence:
            found = found.clone()
    return F.dropout(found, model.shape.dropout)


def rotary_table(model: GPT, length: int) -> Tensor:
    """One for each length, for good (megatron/core/models/common/embeddings/rotary_pos_embedding.py,
    `RotaryEmbedding.forward`, under `lru_cache`)."""
    machine, head = model.machine, model.shape.head
    if length not in model.tables:
        freqs = machine.run("mul", (), (length, head // 2), FLOAT32)
        model.tables[length] = machine.run("cat", (freqs, freqs), (length, head), FLOAT32)
    return model.tables[length]
