"""foak's fused adapters on quantised attention: queries, keys and values in one autograd function, the output in one.

The frozen weight is dequantised whole in both directions. Dropout runs inside, without history, so no mask is kept: the
dropped input is, and where it is 0 the gradient is cut. What bitsandbytes' layers got as input, their gradient
overwrites; GPTQ's dequantise all three weights first.

Source   fms_acceleration_foak 0.4.0 and 0.6.0, fused_ops/unsloth_lora/{bnb,gptq}/fast_lora.py, utils.py;
         models/utils.py, `build_lora_fused_ops`.

fms-acceleration's kernels ("foak") on paper: norm, rotation and loss that write over what they were given.

Python autograd functions: they save after their forward has run.

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
from tunecast.tape.build import functional as F
from tunecast.tape.build import liger
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64
from tunecast.tape.build.gptq import LinearGPTQ
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.quantized import Linear4bit
from tunecast.tape.build.tensor import Tensor

# ------------------------------------------------------------------------------------------------------- fused adapters


QKV = ("q_proj", "k_proj", "v_proj")


SCALING = 1.0
"""alpha / rank."""


def is_adapted(module: Any) -> bool:
    return hasattr(module, "lora_A")


def fuse_attention(job: Job, attention: Any) -> None:
    """Each of the two where its layers are adapted; the first of the three to be called runs all three."""
    for projection in (attention.children[name] for name in (*QKV, "o_proj") if name in attention.children):
        if is_adapted(projection):
            require_fusable(job, projection)
    if all(is_adapted(attention.children[name]) for name in QKV):
        projections = [attention.children[name] for name in QKV]
        made: dict[Any, Tensor] = {}

        def forward(self: Any, x: Tensor) -> Tensor:
            if not made:
                made.update(zip(projections, adapted(x, projections), strict=True))
            return made.pop(self)

        for projection in projections:
            projection.forward = MethodType(forward, projection)
    if is_adapted(attention.o_proj):
        attention.o_proj.forward = MethodType(lambda self, x: adapted(x, [self])[0], attention.o_proj)


def require_fusable(job: Job, projection: Any) -> None:
    base = projection.base_layer
    if isinstance(base, LinearGPTQ) or (isinstance(base, Linear4bit) and base.state.nested and not job.lora.dora):
        return
    raise Unsupported.at(
        "kernels", "foak's fused adapters need GPTQ, or nf4 with quantization.double_quant true; and no lora.dora"
    )


def refuse_adapted(mlp: Any) -> None:
    """`LoRA_MLP.backward` multiplies the gradient of `down_proj`'s result by a mask of its input, which is wider."""
    if all(is_adapted(child) for name, child in mlp.children.items() if name.endswith("_proj")):
        raise Unsupported.at(
            "kernels",
            "foak 0.4.0 and 0.6.0 fail in the backward pass of an adapted MLP on quantised weights. "
            "To fix: lora.targets attention, or a list without one of gate_proj, up_proj and down_proj",
        )


# -------------------------------------------------------------------------------------------------------- functions


def dequantize(base: Any) -> Tensor:
    """[inputs, outputs]. bitsandbytes: `fast_dequantize` makes the weight before its scales."""
    if isinstance(base, LinearGPTQ):
        return base.dequantize()
    machine, state = base.machine, base.state
    out = machine.run("empty", (), state.shape, state.dtype)
    out_absmax = machine.run("empty", (), state.absmax.shape, FLOAT32)
    machine.launch("add_", (out_absmax, state.offset), FLOAT32, out_absmax.nbytes)
    return out.t()


def adapted(x: Tensor, projections: Sequence[Any]) -> list[Tensor]:
    """`LoRA_QKV` of three projections, `LoRA_W` of one."""
    machine, shape, dtype = x.machine, x.shape, x.dtype
    autocast, count = machine.autocast, len(projections)
    gptq = isinstance(projections[0].base_layer, LinearGPTQ)
    matrices = [part.weight for projection in projections for part in (projection.lora_A, projection.lora_B)]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        with machine.autocasting(autocast):
            return differentiated(node, gradients, projections, overwrites=count > 1 and not gptq)

    node = start(machine, (x, *matrices), back)
    with machine.no_grad():
        flat = x.view(-1, shape[-1])
        weights = [dequantize(projection.base_layer) for projection in projections] if gptq else None
        outs, dropped = [], []
        for place, projection in enumerate(projections):
            out = F.matmul(flat, dequantize(projection.base_layer) if weights is None else weights[place])
            dropped.append(projection.lora_dropout(flat))
            add_adapted(out, dropped[-1], projection, dtype)
            if projection.base_layer.bias is not None:
                machine.launch("add_", (out, projection.base_layer.bias), out.dtype, out.nbytes)
            outs.append(out.view(*shape[:-1], out.shape[-1]))
            del out
    if node is not None:
        node.keep(machine, (x, *matrices, *dropped))
        node.outputs = count
        for number, given in enumerate(outs):
            given.node, given.number, given.requires_grad = node, number, True
    return outs


def add_adapted(out: Tensor, x: Tensor, projection: Any, dtype: Any) -> None:
    """out += (x @ A) @ (scaling * B)."""
    a, b = (part.weight.transpose(0, 1) for part in (projection.lora_A, projection.lora_B))
    add_into(out, F.matmul(F.matmul(x, a.to(dtype)), b.to(dtype) * SCALING))


def add_into(out: Tensor, part: Tensor) -> None:
    out.machine.launch("add_", (out, part), out.dtype, out.nbytes)


def differentiated(node: Node, gradients: Gradients, projections: Sequence[Any], overwrites: bool) -> Sequence[Any]:
    """The adapters' gradients first, then the input's, projection by projection."""
    count = len(projections)
    x, shape = node.take(0), node.take(0).shape
    dtype, machine = x.dtype, x.machine
    matrices = [node.take(1 + place).transpose(0, 1) for place in range(2 * count)]
    dropped = [node.take(1 + 2 * count + place) for place in range(count)]
    given = [gradient.reshape(-1, gradient.shape[-1]) for gradient in gradients]
    if machine.shared_workspace:  # from torch 2.13 on a function's gradients go when it ends (`give_away`)
        gradients[:] = [None] * count
    found = []
    for place, dy in enumerate(given):
        a, b, kept = matrices[2 * place], matrices[2 * place + 1], dropped[place]
        d_a = F.matmul(kept.transpose(0, 1), F.matmul(dy, b.transpose(0, 1)))
        d_b = F.matmul(F.matmul(a.transpose(0, 1), kept.transpose(0, 1)), dy)
        for part in (d_a, d_b):
            machine.launch("mul_", (part,), part.dtype, part.nbytes)
        found += [d_a.transpose(0, 1), d_b.transpose(0, 1)]
        del d_a, d_b, part
    dx: Any = x.view(-1, shape[-1]) if overwrites else None
    for place, (dy, projection) in enumerate(zip(given, projections, strict=True)):
        a, b = matrices[2 * place], matrices[2 * place + 1]
        if dx is None:
            dx = F.matmul(dy, dequantize(projection.base_layer).transpose(0, 1))
        elif place == 0:
            product_into(dy, dequantize(projection.base_layer).transpose(0, 1), dx)
        else:
            add_into(dx, F.matmul(dy, dequantize(projection.base_layer).transpose(0, 1)))
        add_into(dx, through_adapter(dy, a, b, dropped[place], dtype))
    return dx.view(*shape), *found


def product_into(a: Tensor, b: Tensor, out: Tensor) -> None:
    machine: Machine = a.machine
    machine.launch("mm", (a, b, out), out.dtype, out.nbytes, 2 * a.numel() * b.shape[1])
    machine.keep_workspaces("mm")


def through_adapter(dy: Tensor, a: Tensor, b: Tensor, dropped: Tensor, dtype: Any) -> Tensor:
    """(dropped != 0) * (dy @ B @ (scaling * A))."""
    mask = dropped.ne(0)
    part = F.matmul(F.matmul(dy, b.to(dtype).transpose(0, 1)), a.to(dtype).transpose(0, 1) * SCALING)
    return dy.machine.run("mul", (mask, part), part.shape, part.dtype)


# ---------------------------------------------------------------------------------------------- norm, rotation and loss


MODELS = ("llama", "mistral")
LARGEST_BLOCK = 65536
"""Logits of a row one program of the loss's kernel takes; more are taken in parts (`MAX_FUSED_SIZE`)."""


def require_known(model_type: str) -> None:
    """Raises `Unsupported` where the package's kernels for such models are not known."""
    liger.require_known(model_type, "foak", MODELS)


def apply(job: Job, model: Any) -> None:
    """What the package's `ModelPatcher.patch` does to a model that is loaded and adapted."""
    require_known(model.model_type)
    model.machine.use_rotary(rotary)
    for module in model.modules():
        kinds = {base.__name__ for base in type(module).__mro__}
        if "RMSNorm" in kinds:
            module.forward = MethodType(norm_forward, module)
        elif job.quantization.format is not None and "SelfAttention" in kinds:
            fuse_attention(job, module)
        elif job.quantization.format is not None and "GatedMLP" in kinds:
            refuse_adapted(module)
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
    chunk_size = liger.chunk_tokens(tokens, *weight.shape)
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
