"""fms-acceleration's kernels ("foak") on paper: norm, rotation and loss that write over what they were given.

Python autograd functions: they save after their forward has run. The fused adapters are in foak_lora.py.

Fixed    `fast_rms_layernorm`, `fast_rope_embeddings`, `fast_loss` and `fused_lora` are all on; with `liger` among the
         kernels `fast_loss` is `fused_ce_liger`, the package's own old copy of Liger's loss (not liger_kernel's).
Ignored  the multiplication of saved gradients by the loss's own gradient: it allocates nothing.
Source   fms_acceleration_foak 0.4.0 and 0.6.0: models/{llama,mistral}.py, fused_ops/liger_ce/
         fused_linear_cross_entropy_loss.py, kernels/unsloth/{rms_layernorm,rope_embedding,cross_entropy_loss}.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.tape.build import foak_lora
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64
from tunecast.tape.build.liger import chunk_tokens
from tunecast.tape.build.tensor import Tensor

MODELS = ("llama", "mistral")
LARGEST_BLOCK = 65536
"""Logits of a row one program of the loss's kernel takes; more are taken in parts (`MAX_FUSED_SIZE`)."""


def require_known(model_type: str) -> None:
    """Raises `Unsupported` where the package's kernels for such models are not known."""
    if model_type not in MODELS:
        raise Unsupported(
            f"kernels: the closed form does not know foak's kernels for {model_type}; it knows them for "
            + ", ".join(sorted(MODELS)),
            field="kernels",
        )


def apply(job: Job, model: Any) -> None:
    """What the package's `ModelPatcher.patch` does to a model that is loaded and adapted."""
    require_known(model.model_type)
    model.machine.use_rotary(rotary)
    for module in model.modules():
        kinds = {base.__name__ for base in type(module).__mro__}
        if "RMSNorm" in kinds:
            module.forward = MethodType(norm_forward, module)
        elif job.quantization.format is not None and "SelfAttention" in kinds:
            foak_lora.fuse_attention(job, module)
        elif job.quantization.format is not None and "GatedMLP" in kinds:
            foak_lora.refuse_adapted(module)
    if "liger" in job.kernels:
        model.forward = MethodType(fused_forward, model)
    else:
        model.loss = MethodType(fast_loss, model)


# ------------------------------------------------------------------------------------------------------------- norm


def norm_forward(self: Any, hidden_states: Tensor) -> Tensor:
    return rms_norm(hidden_states, self.weight)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """The gradient takes the place of the one that comes in. The weight gets none, even where it is trained."""
    machine, shape, width = x.machine, x.shape, x.shape[-1]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        dy = gradients[0].view(-1, width)
        machine.launch("triton::_rms_layernorm_backward", (dy, node.take(0), node.take(1)), dy.dtype, dy.nbytes)
        return dy.view(*shape), None

    node = start(machine, (x, weight), back)
    with machine.no_grad():
        x = x.view(-1, width)
        y = machine.run("empty", (), x.shape, x.dtype)
        deviations = machine.run("empty", (), x.shape[:1], FLOAT32)
        machine.launch("triton::_rms_layernorm_forward", (y, x, weight), x.dtype, y.nbytes)
    return finish(node, y.alias(shape, None), x, weight, deviations)


# --------------------------------------------------------------------------------------------------------- rotation


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    q = rotate(q.transpose(1, 2), cos, sin).transpose(1, 2)
    k = rotate(k.transpose(1, 2), cos, sin).transpose(1, 2)
    return q, k


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """In place, on [batch, length, heads, width]. Cosines and sines hang on the node and live as long as the graph."""
    machine = x.machine
    batch, length, heads, width = x.shape
    tables = (cos.detach(), sin.detach())

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        dy = gradients[0].reshape(batch * length, heads * width)
        machine.launch("triton::_rope_embedding", (dy, *tables), dy.dtype, dy.nbytes)
        return (dy.view(batch, length, heads, width),)

    node = start(machine, (x,), back)
    with machine.no_grad():
        flat = x.view(batch * length, heads * width)
        machine.launch("triton::_rope_embedding", (flat, *tables), x.dtype, x.nbytes)
        out = flat.view(batch, length, heads, width)
    return finish(node, out)


# ------------------------------------------------------------------------------------------------------------- loss


def fast_loss(self: Any, logits: Tensor, labels: Tensor) -> Tensor:
    """`FastForCausalLMLoss`; before transformers 4.46 the model's own lines and `FastCrossEntropyLoss`, which do the
    same. The mean is over the labels that count, or over as many as a trainer says."""
    upcast = logits.float()
    shift_logits, shift_labels = shift(upcast, labels)
    shift_logits = shift_logits.view(-1, self.vocabulary)
    shift_labels = shift_labels.view(-1)
    loss = cross_entropy(shift_logits, shift_labels)
    n_items = vars(self).get("num_items_in_batch") if self.machine.era.release >= (4, 46) else None
    if n_items is None:
        counts = shift_labels.ne(0)
        n_items = self.machine.run("count_nonzero", (counts,), (), INT64, args=(counts,))
        del counts
    return loss.sum() / n_items


def shift(states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """All but the last position, and the labels from the second on: copies."""
    length = labels.shape[1]
    shift_states = states[..., : length - 1, :].contiguous()
    return shift_states, labels[..., 1:length].contiguous()


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """`Fast_CrossEntropyLoss`: a loss a row. The gradient is written over the logits that were saved."""
    machine = logits.machine
    rows, vocabulary = logits.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        logits = node.take(0)
        machine.launch("triton::_cross_entropy_backward", (logits, gradients[0]), logits.dtype, logits.nbytes)
        return (logits.detach(),)

    node = start(machine, (logits,), back)
    with machine.no_grad():
        parts = -(-vocabulary // LARGEST_BLOCK)
        losses = machine.run("empty", (), (rows,), FLOAT32)
        logsumexp = machine.run("empty", (), (rows,) if parts == 1 else (rows, parts), FLOAT32)
        machine.launch("triton::_cross_entropy_forward", (logits, losses, logsumexp), FLOAT32, losses.nbytes)
        if parts > 1:
            logsumexp = machine.run("logsumexp", (logsumexp,), (rows,), FLOAT32, args=(logsumexp, (1,)))
            machine.launch("add_", (losses, logsumexp), FLOAT32, losses.nbytes)
            machine.launch("masked_fill_", (losses, labels.eq(0)), FLOAT32, losses.nbytes)
    return finish(node, losses, logits, logsumexp, labels)


def fused_forward(self: Any, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
    """`lce_forward`: the loss without logits."""
    hidden_states = self.model(input_ids, attention_mask=attention_mask)
    shift_hidden_states, shift_labels = shift(hidden_states, labels)
    shift_hidden_states = shift_hidden_states.view(-1, hidden_states.shape[-1])
    shift_labels = shift_labels.view(-1)
    return linear_cross_entropy(shift_hidden_states, self.lm_head.weight, shift_labels)


def linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """`LigerFusedLinearCrossEntropyFunction`: the gradients are computed with the loss and saved."""
    machine = x.machine
    wants_weight = weight.requires_grad

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        one = machine.run("_to_copy", (), (), FLOAT32)
        machine.run("ne", (gradients[0], one), (), BOOL)
        return node.take(0), node.take(1)

    node = start(machine, (x, weight), back)
    with machine.no_grad():
        loss, grad_input, grad_weight = in_chunks(x, weight, target, wants_weight)
    if node is not None:
        node.keep(machine, (grad_input, grad_weight))
    return finish(node, loss)


def in_chunks(x: Tensor, weight: Tensor, target: Tensor, wants_weight: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """`fused_linear_cross_entropy_forward`. Its variables live on into the next round: two rounds' logits meet."""
    machine = x.machine
    tokens = x.shape[0]
    dtype = machine.autocast or x.dtype
    chunk_size = chunk_tokens(tokens, *weight.shape)
    grad_weight = machine.run("zeros_like", (weight,), weight.shape, weight.dtype) if wants_weight else None
    grad_input = machine.run("zeros_like", (x,), x.shape, x.dtype)
    loss_1d = machine.run("zeros", (), (tokens,), FLOAT32)
    total_n_non_ignore = target.ne(-100).sum()
    for start_idx in range(0, tokens, chunk_size):
        end_idx = min(start_idx + chunk_size, tokens)
        x_chunk = x[start_idx:end_idx]
        logits_chunk = F.matmul(x_chunk, weight.t())
        target[start_idx:end_idx].ne(-100).sum()
        logits_chunk = logits_chunk.float()
        machine.launch("triton::liger_cross_entropy_kernel", (logits_chunk,), FLOAT32, logits_chunk.nbytes)
        logits_chunk = logits_chunk.to(dtype)
        total_n_non_ignore.gt(0)
        alpha = 1 / total_n_non_ignore
        scaled_into(loss_1d, start_idx, end_idx, alpha)
        grad_logits_chunk = machine.run("mul", (logits_chunk, alpha), logits_chunk.shape, dtype)
        part = F.matmul(grad_logits_chunk, weight)
        machine.launch("copy_", (part,), x.dtype, part.nbytes)
        del part
        if grad_weight is not None:
            flops = 2 * logits_chunk.numel() * x.shape[1]
            machine.launch("addmm", (grad_weight, logits_chunk, x_chunk), weight.dtype, grad_weight.nbytes, flops)
    return loss_1d.sum(0), grad_input, grad_weight


def scaled_into(loss_1d: Tensor, start_idx: int, end_idx: int, alpha: Tensor) -> None:
    machine = loss_1d.machine
    part = machine.run("mul", (loss_1d, alpha), (end_idx - start_idx,), FLOAT32)
    machine.launch("copy_", (part,), FLOAT32, part.nbytes)
