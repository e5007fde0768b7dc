"""Liger's kernels on paper (liger-kernel 0.8.5): Python autograd functions, so they save after their forward has run,
and their backward passes write gradients over what was saved or came in wherever they can.

Ignored  the multiplication of all gradients by the loss's own gradient when that is not 1: it allocates nothing.
Source   liger_kernel/ops/{rms_norm,rope,swiglu,geglu,cross_entropy,fused_linear_cross_entropy}.py,
         liger_kernel/transformers/monkey_patch.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import MethodType
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.kernels import FUSED_HEAD, FUSED_LOSS
from tunecast.tape.build import functional as F
from tunecast.tape.build.attention import sequence_of
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, INT64
from tunecast.tape.build.recompute import first_of
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.symbols import ask, compute

MODELS = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma", "gemma2", "gemma3_text", "phi3", "olmo2")
"""Whose traces were compared; of others see liger_kin.py."""
NORMS = {"RMSNorm", "GemmaNorm", "OlmoNorm"}
OWN_ROTATION = ("phi3", "olmo2")
"""Architectures whose rotation differs from Llama's; Liger's takes the place of both."""


def require_known(model_type: str, package: str = "Liger", models: Collection[str] = MODELS) -> None:
    """Raises `Unsupported` where a package's kernels for such models are not known."""
    if model_type not in models:
        known = ", ".join(sorted(models))
        told = f"the closed form does not know {package}'s kernels for {model_type}; it knows them for {known}"
        raise Unsupported.at("kernels", told)


def apply(model: Any, model_type: str, parts: Collection[str], fuses_any_head: bool = False) -> None:
    """What `_apply_liger_kernel_to_instance` does to a model that is loaded, with these of `LIGER_PARTS`.
    `fuses_any_head`: a stack that fuses the head of models Liger does not know."""
    if model_type not in MODELS:
        from tunecast.tape.build import liger_kin  # few jobs need it

        liger_kin.apply(model, model_type, parts, fuses_any_head)
        return
    rope, norms, mlps = (name in parts for name in ("liger_rope", "liger_rms_norm", "liger_glu"))
    if rope:
        model.machine.use_rotary(rotary)
    if FUSED_HEAD in parts:
        model.forward = MethodType(causal_lm_forward, model)
    elif FUSED_LOSS in parts:
        model.cross_entropy = cross_entropy
    for module in model.modules():
        kinds = {base.__name__ for base in type(module).__mro__}
        if norms and kinds & NORMS and not (model_type == "olmo2" and module.path.endswith(("q_norm", "k_norm"))):
            module.in_place = norm_in_place(model_type, module.path)
            module.forward = MethodType(norm_forward, module)
        elif mlps and "GatedMLP" in kinds:
            module.forward = MethodType(mlp_forward, module)
        elif rope and "SelfAttention" in kinds and model_type in OWN_ROTATION:
            module.apply_rotary = MethodType(apply_rotary, module)
        elif mlps and "FusedMLP" in kinds:
            module.forward = MethodType(fused_mlp_forward, module)


def norm_in_place(model_type: str, path: str) -> bool:
    """Whether the norm's gradient may overwrite the one that comes in: not where a residual still needs that."""
    if model_type == "olmo2":
        return path == "model.norm"
    return model_type not in ("gemma2", "gemma3_text")


def norm_forward(self: Any, hidden_states: Tensor) -> Tensor:
    return rms_norm(hidden_states, self.weight, self.in_place)


def mlp_forward(self: Any, x: Tensor) -> Tensor:
    return self.down_proj(glu(self.gate_proj(x), self.up_proj(x)))


def apply_rotary(
    self: Any, query_states: Tensor, key_states: Tensor, position_embeddings: Any
) -> tuple[Tensor, Tensor]:
    return rotary(query_states, key_states, *position_embeddings)


def fused_mlp_forward(self: Any, x: Tensor) -> Tensor:
    up_states = self.gate_up_proj(x)
    gate, up_states = up_states.chunk(2, -1)
    return self.down_proj(glu(gate, up_states))


def causal_lm_forward(self: Any, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, **images: Tensor) -> Tensor:
    """`lce_forward`: the loss without logits."""
    outputs = self.base()(input_ids, attention_mask=attention_mask, **images)
    hidden_states = first_of(outputs)
    machine = self.machine
    weight = machine.scheme.read_by(self, self.output_embedding().weight)
    batch, length = labels.shape
    shift_labels = labels
    if sequence_of(machine) is None:
        labels = machine.run("constant_pad_nd", (labels,), (batch, length + 1), INT64)
        shift_labels = labels[..., 1 : length + 1].contiguous()
    flat = hidden_states.view(-1, hidden_states.shape[-1])
    return linear_cross_entropy(flat, weight, shift_labels.view(-1))


# ------------------------------------------------------------------------------------------------------- functions


def rms_norm(x: Tensor, weight: Tensor, in_place: bool) -> Tensor:
    machine, shape, width = x.machine, x.shape, x.shape[-1]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        dy = gradients[0].contiguous()
        x, weight, _ = (node.take(place) for place in range(3))
        partial = machine.run("empty", (), (machine.card.sm_count, width), FLOAT32) if node.needs[1] else None
        dx = dy if in_place else machine.run("zeros_like", (dy,), (rows, width), dy.dtype)
        machine.launch("triton::_rms_norm_backward_kernel", (dy, dx, x), dy.dtype, dx.nbytes)
        dw = None
        if partial is not None:
            dw = partial.sum(0).to(weight.dtype)
        return dx.alias(shape, None), dw

    node = start(machine, (x, weight), back)
    with machine.no_grad():
        x = x.contiguous().view(-1, width)
        rows = x.shape[0]
        y = machine.run("empty", (), x.shape, x.dtype)
        deviations = machine.run("empty", (), (rows,), FLOAT32)
        machine.launch("triton::_rms_norm_forward_kernel", (y, x, weight), x.dtype, y.nbytes)
    return finish(node, y.alias(shape, None), x, weight, deviations)


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """In place, forward and backward, on what is laid out as the projections put it."""
    machine = q.machine

    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> list[Tensor]:
        turned = [x.transpose(1, 2).contiguous() for x in (q, k)]
        machine.launch("triton::_triton_rope", (*turned, cos, sin), q.dtype, q.nbytes + k.nbytes)
        return [x.transpose(1, 2) for x in turned]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return rotate(gradients[0], gradients[1], node.take(0), node.take(1))

    node = start(machine, (q, k), back)
    with machine.no_grad():
        q, k = rotate(q, k, cos, sin)
    finish(node, q, cos, sin)
    if node is not None:
        node.outputs = 2
        k.node, k.number, k.requires_grad = node, 1, True
    return q, k


def glu(a: Tensor, b: Tensor) -> Tensor:
    """SwiGLU or GeGLU: the gradients take the place of the inputs that were saved."""
    machine, shape, width = a.machine, a.shape, a.shape[-1]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        dc = gradients[0].contiguous()
        a, b = node.take(0), node.take(1)
        machine.launch("triton::_glu_backward_kernel", (dc, a, b), dc.dtype, a.nbytes + b.nbytes)
        return a.alias(shape, None), b.alias(shape, None)

    node = start(machine, (a, b), back)
    with machine.no_grad():
        a, b = (x.contiguous().view(-1, width) for x in (a, b))
        c = machine.run("empty_like", (a,), a.shape, a.dtype)
        machine.launch("triton::_glu_forward_kernel", (a, b, c), a.dtype, c.nbytes)
    return finish(node, c.alias(shape, None), a, b)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """`liger_cross_entropy`: the gradient takes the logits' place with the loss."""
    machine, rows = logits.machine, logits.shape[0]

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        look_for_one(gradients[0])
        return (node.take(0),)

    node = start(machine, (logits,), back)
    with machine.no_grad():
        loss_1d = machine.run("zeros", (), (rows,), logits.dtype)
        target_mask = machine.run("ne", (target,), target.shape, BOOL)
        target_mask.sum(0)
        for bound in ("max", "min"):
            labels = machine.run("mul", (target, target_mask), target.shape, INT64)
            most = machine.run(bound, (labels,), (), INT64, args=(labels,))
            del labels
            machine.run("lt", (most,), (), BOOL)
            del most
        machine.launch("triton::liger_cross_entropy_kernel", (logits,), logits.dtype, logits.nbytes)
        loss = loss_1d.sum(0)
    return finish(node, loss, logits.detach())


def look_for_one(gradient: Tensor) -> None:
    """`torch.equal` of the loss's own gradient and 1."""
    machine = gradient.machine
    one = machine.run("_to_copy", (), (), FLOAT32)
    same = machine.run("eq", (gradient, one), (), BOOL)
    machine.run("all", (same,), (), BOOL)


def linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Head and loss a chunk of tokens at a time; the gradients are computed with the loss and saved."""
    machine = x.machine
    wants_x, wants_weight = x.requires_grad, weight.requires_grad

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        look_for_one(gradients[0])
        return node.take(0), node.take(1)

    node = start(machine, (x, weight), back)
    with machine.no_grad():
        loss, grad_input, grad_weight = _in_chunks(x, weight, target, wants_x, wants_weight)
    if node is not None:
        node.keep(machine, (grad_input, grad_weight))
    return finish(node, loss)


def _in_chunks(
    x: Tensor, weight: Tensor, target: Tensor, wants_x: bool, wants_weight: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    machine = x.machine
    tokens, vocabulary = x.shape[0], weight.shape[0]
    chunk, rows = chunks_of(tokens, *weight.shape)
    grad_input = machine.run("zeros_like", (x,), x.shape, x.dtype)
    grad_weight = machine.run("zeros_like", (weight,), weight.shape, weight.dtype) if wants_x and wants_weight else None
    loss_1d = machine.run("zeros", (), (tokens,), FLOAT32)
    target_mask = machine.run("ne", (target,), target.shape, BOOL)
    target_mask.sum(0)
    writes_out = x.dtype == weight.dtype and machine.autocast in (None, x.dtype)
    logits_storage = machine.run("empty", (), (chunk, vocabulary), x.dtype) if writes_out else None
    for number, here in enumerate(rows):
        x_chunk = x[number * chunk : number * chunk + here]
        logits_chunk: Any
        if logits_storage is not None:
            logits_chunk = logits_storage[: x_chunk.shape[0]]
            _product_into(x_chunk, weight.t(), logits_chunk)
        else:
            logits_chunk = F.mm(x_chunk, weight.t())
        machine.launch("triton::liger_cross_entropy_kernel", (logits_chunk,), logits_chunk.dtype, logits_chunk.nbytes)
        grad_logits_chunk = logits_chunk
        del logits_chunk
        machine.launch("copy_", (loss_1d,), FLOAT32, 4 * x_chunk.shape[0])
        if wants_x:
            if writes_out and grad_logits_chunk.dtype == grad_input.dtype:
                _product_into(grad_logits_chunk, weight, x_chunk)
            else:
                part = F.mm(grad_logits_chunk, weight)
                machine.launch("copy_", (part,), x.dtype, part.nbytes)
                del part
        if grad_weight is not None:
            _add_weight_gradient(grad_weight, grad_logits_chunk, x_chunk)
        del grad_logits_chunk, x_chunk
    del logits_storage
    loss = loss_1d.sum(0)
    return loss, grad_input, grad_weight


def chunks_of(tokens: int, vocabulary: int, hidden: int) -> tuple[int, list[int]]:
    """The tokens of a chunk, and of each one there is. How many there are and whether the last is whole is all that a
    program depends on: that is asked, and their size computed."""
    head = vocabulary, hidden
    count, whole = ask(_chunk_count, head, (tokens,))
    if count == 1:
        return tokens, [tokens]
    chunk = compute(_chunk_tokens, head, (tokens,))
    return chunk, [*[chunk] * (count - 1), chunk if whole else tokens - (count - 1) * chunk]


def _chunk_count(head: tuple[int, int], tokens: int) -> tuple[int, bool]:
    chunk = _chunk_tokens(head, tokens)
    return -(-tokens // chunk), tokens % chunk == 0


def _chunk_tokens(head: tuple[int, int], tokens: int) -> int:
    return chunk_tokens(tokens, *head)


def chunk_tokens(tokens: int, vocabulary: int, hidden: int) -> int:
    """So many that a chunk's logits are about as large as all hidden states; a power of two."""
    parts = -(-vocabulary // hidden)
    wanted = -(-tokens // parts)
    return min(1 << (wanted - 1).bit_length(), tokens)


def _product_into(a: Tensor, b: Tensor, out: Tensor) -> None:
    machine = a.machine
    machine.launch("mm", (a, b, out), out.dtype, out.nbytes, 2 * a.shape[0] * a.shape[1] * b.shape[1])
    machine.keep_workspaces("mm")


def _add_weight_gradient(grad_weight: Tensor, grad_logits: Tensor, x: Tensor) -> None:
    """One product into the sum where tensor cores take both factors; else a copy of the whole gradient a chunk."""
    machine = x.machine
    low = grad_logits.dtype in (BFLOAT16, FLOAT16)
    if machine.card.capability[0] >= 8 and low and grad_weight.dtype in (FLOAT32, grad_logits.dtype):
        x = x.to(grad_logits.dtype)
        flops = 2 * grad_logits.shape[0] * grad_weight.numel()
        machine.launch("addmm", (grad_weight, grad_logits, x), grad_weight.dtype, grad_weight.nbytes, flops)
        return
    part = F.mm(grad_logits.t(), x)
    part = part.float()
    machine.launch("add_", (grad_weight, part), grad_weight.dtype, grad_weight.nbytes)
