"""The fused head of TRL 1.16, which never makes all logits: `add_fused_lm_head` of trl/trainer/utils.py and
trl/kernels/chunked_logprob.py. A tile of at most 4096 tokens by 32768 words, in both passes, and fp32 sums of the
gradients. `apply` puts it into the plain loop; stacks/trl.py calls it as TRL's trainer does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import MethodType
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.records import NamedTuple
from tunecast.tape.build.attention import sequence_of
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.decoder import CausalLM
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64, Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Linear
from tunecast.tape.build.recompute import first_of
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.symbols import starts

TILE_TOKENS, TILE_WORDS = 4096, 32768


def apply(model: Any) -> None:
    """Every label counts: which ones a data set masks out a job does not say."""
    if not isinstance(model, CausalLM):
        raise Unsupported.at("loss", f"got chunked, which is not known for {model.model_type}")
    model.forward = MethodType(forward, model)  # type: ignore[method-assign]


def forward(self: Any, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, **images: Any) -> Any:
    outputs = fused_forward(self, input_ids, attention_mask, labels, **images)
    return outputs.loss if sequence_of(self.machine) is None else (outputs.loss, outputs)


LOG_PROBS = "log_probs"
OF_SFT = (LOG_PROBS, "entropy", "is_top1")
"""What SFTTrainer asks the head for (trl/trainer/sft_trainer.py, `__init__`)."""


class Outputs(NamedTuple):
    """`FusedCausalLMOutput`: what the head says of each token; None: nobody asked."""

    log_probs: Tensor
    entropy: Any
    mean_logits: Any
    is_top1: Any
    label_mask: Tensor
    loss: Tensor


def fused_forward(
    model: Any, input_ids: Tensor, attention_mask: Tensor, labels: Tensor,
    outputs: Sequence[str] = OF_SFT, labelled: int | None = None, **images: Any,
) -> Outputs:  # fmt: skip
    """`labelled`: how many of the shifted labels count; None: all but those that would lead to another sample, and
    padding."""
    machine, length = model.machine, labels.shape[1]
    backbone_outputs = model.base()(input_ids, attention_mask=attention_mask, **images)
    last_hidden_state = first_of(backbone_outputs)
    hidden_states = last_hidden_state
    if sequence_of(machine) is None:  # split rows have labels that were shifted before
        hidden_states = last_hidden_state[:, : length - 1]
        labels = labels[:, 1:length]
    mask = machine.run("ne", (labels,), labels.shape, BOOL)
    head = model.output_embedding()
    if not isinstance(head, Linear):
        raise UsageError.at("lora.targets", "TRL's trainers take no adapter on the head")
    weight = machine.scheme.whole(head.weight)
    rows = mask.numel() - machine.packs - machine.padding if labelled is None else labelled
    found = chunked_log_probs(where(hidden_states, mask, rows), weight, head.bias, where(labels, mask, rows), outputs)
    log_probs, entropy, mean_logits, is_top1 = [None if x is None else put_back(machine, x, mask) for x in found]
    assert log_probs is not None
    del found
    loss = -log_probs.sum()
    loss = loss / machine.run("clamp", (mask.sum(range(2)),), (), INT64)
    return Outputs(log_probs, entropy, mean_logits, is_top1, mask, loss)


def where(x: Tensor, mask: Tensor, rows: int) -> Tensor:
    """x[mask], of which so many are set."""
    machine, shape = x.machine, x.shape
    width = shape[mask.dim() :]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        zeros = machine.run("new_zeros", (), shape, gradients[0].dtype)
        args = (zeros, [node.take(0)], gradients[0], True)
        return machine.run_many("index_put", (zeros, gradients[0]), ((zeros.shape, zeros.dtype),), args=args)

    node = start(machine, (x,), back, (mask,))
    found = machine.run("nonzero", (mask,), (rows, mask.dim()), INT64, args=(mask,))
    return finish(node, machine.run("index", (x, found), (rows, *width), x.dtype))


def put_back(machine: Machine, x: Tensor, mask: Tensor) -> Tensor:
    """`x.new_zeros(mask.shape).masked_scatter(mask, x)`."""

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        args = (gradients[0], node.take(0), shape)
        return (machine.run("masked_scatter_backward", args[:2], shape, dtype, args=args),)

    shape, dtype = x.shape, x.dtype
    zeros = machine.run("new_zeros", (), mask.shape, dtype)
    node = start(machine, (x,), back, (mask,))
    args = (zeros, mask, x)
    return finish(node, machine.run("masked_scatter", args, mask.shape, dtype, args=args))


def parts(hidden: Tensor, dtype: Dtype) -> Iterator[Tensor]:
    """Of the tokens; a copy each where they come in another dtype."""
    for first in starts(hidden.shape[0], TILE_TOKENS):
        yield rows_of(hidden, first, TILE_TOKENS).to(dtype)


def word_chunks(weight: Tensor, dtype: Dtype) -> Iterator[Callable[[], Tensor]]:
    """The same of the words."""
    for first in range(0, weight.shape[0], TILE_WORDS):
        yield partial(Tensor.to, rows_of(weight, first, TILE_WORDS), dtype)


def fold(name: str, mm_buf: Tensor, part: Tensor, chunk: Tensor) -> None:
    """A tile of logits, and the kernel that makes statistics or, in the tile's place, gradients of it."""
    machine, words = part.machine, chunk.transpose(0, 1)
    tile = mm_buf.alias((part.shape[0], chunk.shape[0]), mm_buf.stride())
    machine.again = machine.in_backward
    machine.launch("mm", (part, words), part.dtype, tile.nbytes, 2 * part.numel() * chunk.shape[0])
    machine.again = False
    machine.keep_workspaces("mm")
    machine.launch(f"triton::{name}", (tile,), tile.dtype, tile.nbytes if "backward" in name else 0)


def add_product(shape: tuple[int, ...], a: Tensor, b: Tensor) -> None:
    """`addmm` in place, into rows of a sum in float32 (`out_dtype`)."""
    total = Tensor(a.machine, a.storage, shape, FLOAT32)
    a.machine.launch("addmm", (total, a, b), b.dtype, total.nbytes, 2 * a.numel() * b.shape[1])


def rows_of(x: Tensor, first: int, count: int) -> Tensor:
    return x.detach()[first : min(first + count, x.shape[0])]


def chunked_log_probs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, outputs: Sequence[str]
) -> tuple[Tensor | None, ...]:
    """`ChunkedLogProbFunction`: statistics of each token over tiles of logits that share one buffer. Log-probabilities,
    and entropy, mean logits and whether the target is the likeliest where asked for."""
    machine, rows = hidden.machine, hidden.shape[0]
    dtype = machine.autocast or hidden.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        hidden, weight = node.take(0), node.take(1)
        grad_hidden = machine.run("zeros", (), hidden.shape, FLOAT32) if node.needs[0] else None
        grad_weight = machine.run("zeros", (), weight.shape, FLOAT32) if node.needs[1] else None
        of_bias = node.edges[2]
        grad_bias = None if of_bias is None else machine.run("zeros", (), of_bias[2], FLOAT32)
        mm_buf = machine.run("empty", (), (min(rows, TILE_TOKENS), TILE_WORDS), dtype)
        for part in parts(hidden, dtype):
            for chunk_of in word_chunks(weight, dtype):
                w_chunk = chunk_of()
                fold("_backward_kernel", mm_buf, part, w_chunk)
                tile = mm_buf.alias((part.shape[0], w_chunk.shape[0]), mm_buf.stride())
                if grad_hidden is not None:
                    add_product(part.shape, tile, w_chunk)
                if grad_weight is not None:
                    add_product(w_chunk.shape, tile.transpose(0, 1), part)
        summed_up = ((grad_hidden, hidden.dtype), (grad_weight, weight.dtype), (grad_bias, weight.dtype))
        return [None if gradient is None else gradient.to(dtype) for gradient, dtype in summed_up]

    node = start(machine, (hidden, weight, bias), back)
    with machine.no_grad():
        statistics = [machine.run("zeros", (), (rows,), FLOAT32) for _ in range(7)]
        mm_buf = machine.run("empty", (), (min(rows, TILE_TOKENS), TILE_WORDS), dtype)
        for part in parts(hidden, dtype):
            for chunk_of in word_chunks(weight, dtype):
                fold("_forward_kernel", mm_buf, part, chunk_of())
        log_z = statistics[0] + statistics[1].log()
        logprobs = statistics[6] - log_z
        entropy = log_z - statistics[2] / statistics[1] if "entropy" in outputs else None
        mean_logits = statistics[4] / weight.shape[0] if "mean_logits" in outputs else None
        is_top1 = likeliest(statistics) if "is_top1" in outputs else None
        del statistics, mm_buf
    saved = (hidden, weight, targets, log_z, log_z if entropy is None else entropy)
    return finish(node, logprobs, *saved), entropy, mean_logits, is_top1


def likeliest(statistics: Sequence[Tensor]) -> Tensor:
    """`(target_logit >= running_max) & (target_logit > max_before_target)`."""
    return statistics[6].ge(statistics[0]) & statistics[6].gt(statistics[5])
