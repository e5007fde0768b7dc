"""`use_gradient_checkpointing="unsloth"` (unsloth_zoo/gradient_checkpointing.py, `UnslothCheckpointFunction`).

A layer runs without history and again in the backward pass. Its input waits on the host, unless it is small or the
layer is the last; one staging buffer brings it back, from the second step on two in turns.

The model as Unsloth runs it (unsloth/models/llama.py; mistral.py, qwen2.py and qwen3.py where they differ).

Modules, names and weights are the family's own; only what they do is put in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import MethodType
from typing import Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.attention import cudnn, flash, repeat_kv, scaled_dot_product
from tunecast.tape.build.autograd import Gradients, Node, finish, record, run_engine, start, wants
from tunecast.tape.build.dtypes import Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.unsloth.compiled import CompiledLayers
from tunecast.tape.build.unsloth.early import WholeLoss, layer_tables
from tunecast.tape.build.unsloth.fast_lora import Scratch, dense, lora_mlp, lora_qkv, lora_w, mm, t
from tunecast.tape.build.unsloth.loss import Loss
from tunecast.tape.build.unsloth.norms import normed_rotary, rms_norm, rotary
from tunecast.tape.kernels.backend import ALL, Attention, choose

# -------------------------------------------------------------------------------------------------------- checkpointing


SMALLEST_OFFLOADED = 2 << 20
FIRST_BUFFER_NUMEL = 2 * 256 * 2048


class Offloading:
    def __init__(self, machine: Machine, dtype: Dtype) -> None:
        self.machine, self.dtype = machine, dtype
        self.buffers: list[Tensor] = []
        self.first_pass, self.doubled = True, False
        self.backward_pass = True
        self.last = self.current = self.slot = 0

    def __call__(self, path: str, function: Callable[[Tensor], Tensor], hidden_states: Tensor) -> Tensor:
        """What it does for a layer is put down to that layer, so that layers are alike."""
        machine = self.machine
        with machine.within(path):
            return self.checkpointed(machine.autocast, path, function, hidden_states)

    def checkpointed(
        self, autocast: Dtype | None, module: str, function: Callable[[Tensor], Tensor], hidden_states: Tensor
    ) -> Tensor:
        machine = self.machine
        slot: int | None = None
        shape = hidden_states.shape

        def back(node: Node, gradients: Gradients) -> Sequence[Any]:
            args = gradients[0]
            self.backward_pass, self.first_pass, self.current = True, False, 0
            detached = node.take(0).detach() if slot is None else self.brought_back(slot, shape)
            detached.requires_grad = True
            before, machine.module = machine.module, module
            machine.in_forward, machine.grad_enabled = True, True
            with machine.autocasting(autocast):
                outputs = function(detached)
            machine.in_forward, machine.grad_enabled = False, False
            run_engine(outputs.node, args)
            machine.node, machine.module = node, before
            grads = detached.grad
            assert grads is not None
            block = grads.block
            block.role, block.module = None, module
            return (grads,)

        node = start(machine, (hidden_states,), back)
        if node is not None:
            slot = self.sent_off(hidden_states)
        with machine.no_grad():
            outputs = function(hidden_states)
        return finish(node, outputs, *([hidden_states] if slot is None else []))

    def sent_off(self, arg: Tensor) -> int | None:
        """Which buffer will bring it back; None: it stays."""
        self.last += self.first_pass
        self.current += 1
        if arg.nbytes <= SMALLEST_OFFLOADED or (self.current == self.last and not self.first_pass):
            return None
        machine = self.machine
        if not self.buffers:
            self.buffers = [machine.run("empty", (), (FIRST_BUFFER_NUMEL,), self.dtype) for _ in range(2)]
        if self.backward_pass:
            self.backward_pass = False
            self.doubled = not self.first_pass
        for number in range(1 + self.doubled):
            if arg.numel() > self.buffers[number].numel():
                self.buffers[number] = machine.run("resize_", (), (arg.numel(),), self.dtype)
        machine.launch("copy_", (arg,), arg.dtype, arg.nbytes)
        slot, self.slot = self.slot, self.slot ^ 1
        return slot

    def brought_back(self, slot: int, shape: tuple[int, ...]) -> Tensor:
        buffer = self.buffers[slot if self.doubled else 0].alias(shape, None)
        self.machine.launch("copy_", (buffer,), self.dtype, buffer.nbytes)
        return buffer


# ------------------------------------------------------------------------------------------------------------ the model


BUCKET = 128
"""cuDNN's attention gets lengths of whole buckets, and always some padding (`_cudnn_length_bucketed_sdpa`)."""
XFORMERS = (
    "where SDPA has no kernel for shared keys Unsloth takes xformers, which its package requires: taken as torch's "
    "efficient kernel over copied keys and values"
)
FIRST_POSITIONS, POSITIONS_STEP = 4 * 8192, 8192


class UnslothRun:
    """What Unsloth keeps in its modules' globals while one model trains."""

    def __init__(
        self, model: Any, checkpointing: bool, dropout: float, longest: int, positions: int, early: bool = False
    ) -> None:
        """`early`: a release up to 2024.9."""
        machine = self.machine = model.machine
        self.dropout = dropout
        self.scratch = Scratch()
        self.loss: Loss | WholeLoss = WholeLoss(machine) if early else Loss(machine)
        self.offloading = Offloading(machine, machine.weights_dtype) if checkpointing else None
        self.longest, self.positions = longest, positions
        self.layer_tables = layer_tables(model, min(FIRST_POSITIONS, positions)) if early else []
        self.tables: tuple[Tensor, ...] | None = tuple(self.layer_tables[:2]) or None
        attention = next(iter(model.layers())).self_attn
        self.kernel = kernel_of(machine, attention.q_proj.base_layer.outputs, attention.groups, attention.head_dim)
        """Of attention on this card."""
        self.compiled: CompiledLayers | None = None

    def compile(self, model: Any) -> bool:
        """Whether the layers' compiled graphs are written down: not where projections have a bias, heads share no keys
        and nothing is padded."""
        attention = next(iter(model.layers())).self_attn
        biased = attention.q_proj.base_layer.bias is not None
        known = self.kernel == "cudnn" or (self.kernel == "flash" and not (biased and attention.groups == 1))
        if known:
            self.compiled = CompiledLayers(self.machine, self.kernel, patch)
        return known


def kernel_of(machine: Machine, outputs: int, groups: int, width: int) -> str:
    """What SDPA chooses; training on data-centre Blackwell does without cuDNN (`_no_cudnn_training_devices`)."""
    heads = outputs // width
    shapes = [(1, count, BUCKET, width) for count in (heads, heads // groups)]
    q, k = (Tensor(machine, None, shape, machine.weights_dtype) for shape in shapes)  # type: ignore[arg-type]
    call = Attention(q, k, k, None, 0.0, True, None, groups > 1, True)
    enabled = frozenset({"flash", "efficient"}) if machine.card.capability[0] == 10 else ALL
    return choose(call, machine.card, enabled)


def apply(model: Any, run: UnslothRun) -> None:
    model.run = model.model.run = run
    model.forward = MethodType(causal_lm_forward, model)
    model.model.forward = MethodType(model_forward, model.model)
    for layer in model.layers():
        patch(layer, run)


def patch(layer: Any, run: Any) -> None:
    attention, mlp = layer.self_attn, layer.mlp
    layer.forward = MethodType(layer_forward, layer)
    attention.forward = MethodType(attention_forward, attention)
    mlp.forward = MethodType(mlp_forward, mlp)
    layer.run = attention.run = mlp.run = run


def causal_lm_forward(self: Any, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
    hidden_states = self.model(input_ids)
    return self.run.loss(hidden_states, self.output_embedding().weight, labels)


def model_forward(self: Any, input_ids: Tensor) -> Tensor:
    """`LlamaModel_fast_forward`; the mask of a batch without padding is dropped."""
    run: UnslothRun = self.run
    inputs_embeds = self.embed_tokens(input_ids)
    hidden_states = inputs_embeds
    tables = rotary_tables(self, run, hidden_states)
    for decoder_layer in self.layers:
        if run.offloading is None:
            hidden_states = decoder_layer(hidden_states, tables)
        else:
            hidden_states = run.offloading(decoder_layer.path, partial(decoder_layer, tables=tables), hidden_states)
    return rms_norm(hidden_states, self.norm.weight, True)


def rotary_tables(self: Any, run: UnslothRun, hidden_states: Tensor) -> tuple[Tensor, ...]:
    """`LlamaRotaryEmbedding`: cosines and sines of as many positions as the first forward pass asks for. Up to 32768
    positions they are computed on the host."""
    if run.tables is None:
        machine = run.machine
        width = self.rotary_emb.width
        first = min(FIRST_POSITIONS, run.positions)
        grown = first if run.positions <= first else -(-run.positions // POSITIONS_STEP) * POSITIONS_STEP
        needed = -(-max(first, run.longest) // POSITIONS_STEP) * POSITIONS_STEP
        rows = min(grown, max(first, needed))
        cos, sin = (machine.run("_to_copy", (), (rows, width), hidden_states.dtype) for _ in range(2))
        run.tables = cos, sin
    return run.tables


def layer_forward(self: Any, hidden_states: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
    if self.run.compiled is not None:
        return self.run.compiled(self, hidden_states, tables)
    residual = hidden_states
    hidden_states = rms_norm(hidden_states, self.input_layernorm.weight, True)
    hidden_states = self.self_attn(hidden_states, tables)
    hidden_states = residual + hidden_states
    residual = hidden_states
    hidden_states = rms_norm(hidden_states, self.post_attention_layernorm.weight, True)
    hidden_states = self.mlp(hidden_states)
    hidden_states = residual + hidden_states
    return hidden_states


def mlp_forward(self: Any, x: Tensor) -> Tensor:
    return lora_mlp(x, self.gate_proj, self.up_proj, self.down_proj, "_fg_kernel", self.run.dropout, self.run.scratch)


def attention_forward(self: Any, hidden_states: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
    batch, length, _ = hidden_states.shape
    run: UnslothRun = self.run
    q, k, v = projected(self, hidden_states, run)
    shape = (batch, length, -1, self.head_dim)
    if hasattr(self, "q_norm"):
        q, k = q.view(*shape), k.view(*shape)
        v = v.view(*shape).transpose(1, 2)
        q, k = normed_rotary(q, k, *tables)
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    else:
        q, k, v = (x.view(*shape).transpose(1, 2) for x in (q, k, v))
        q, k = rotary(q, k, *tables)
    a = attended(q, k, v, self.groups > 1, run.kernel)
    attn_output = a.reshape(batch, length, -1)
    attn_output = lora_w(attn_output, self.o_proj, run.dropout, run.scratch)
    return attn_output


def projected(self: Any, hidden_states: Tensor, run: UnslothRun) -> Sequence[Tensor]:
    """Layers with a bias of their own run as PEFT runs them (`original_apply_qkv`)."""
    if self.q_proj.base_layer.bias is not None and run.machine.graph is not None:
        return [compiled_linear(hidden_states, proj) for proj in (self.q_proj, self.k_proj, self.v_proj)]
    if self.q_proj.base_layer.bias is not None:
        return self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)
    return lora_qkv(hidden_states, (self.q_proj, self.k_proj, self.v_proj), run.dropout, run.scratch)


def attended(q: Tensor, k: Tensor, v: Tensor, gqa: bool, kernel: str) -> Tensor:
    """`run_attention`: heads that share no keys are copied, before and after."""
    if not gqa:
        return trained(*copied(q, k, v), gqa=gqa, kernel=kernel).transpose(1, 2).contiguous()
    return trained(q, k, v, gqa=gqa, kernel=kernel).transpose(1, 2)


def copied(q: Tensor, k: Tensor, v: Tensor) -> Sequence[Tensor]:
    return [x.contiguous() for x in (q, k, v)]


def trained(q: Tensor, k: Tensor, v: Tensor, *, gqa: bool, kernel: str) -> Tensor:
    """`_training_sdpa`."""
    if kernel == "cudnn":
        return bucketed(q, k, v, gqa)
    if kernel == "flash":
        return flash(q, k, v, None, 0.0, True, True)
    if kernel == "math" and gqa:
        machine, groups = q.machine, q.shape[1] // k.shape[1]
        machine.guesses[XFORMERS] = None
        return scaled_dot_product(q, repeat_kv(k, groups), repeat_kv(v, groups), None, 0.0, True, False)
    return scaled_dot_product(q, k, v, None, 0.0, True, gqa)


def bucketed(q: Tensor, k: Tensor, v: Tensor, gqa: bool) -> Tensor:
    length = q.shape[2]
    more = BUCKET - length % BUCKET
    q, k, v = [pad_rows(x, more) for x in (q, k, v)]
    if q.machine.graph is not None:
        out = cudnn(q, k, v, None, 0.0, True, wants(q.machine, q, k, v))
    else:
        out = scaled_dot_product(q, k, v, None, 0.0, True, gqa)
    return out[:, :, :length]


def pad_rows(x: Tensor, more: int) -> Tensor:
    """Zeros behind the last but one dimension; the gradient is cut off by a copy."""
    machine, before = x.machine, x.shape
    shape = (*before[:-2], before[-2] + more, before[-1])

    def back(node: Any, gradients: Any) -> Any:
        return (machine.run("constant_pad_nd", gradients, before, gradients[0].dtype),)

    return record(machine.run("constant_pad_nd", (x,), shape, x.dtype), (x,), back)


def compiled_linear(x: Tensor, proj: Any) -> Tensor:
    """PEFT's `Linear.forward` inlined: the layer from its dense weight, and its adapter."""
    machine, a, b = x.machine, proj.lora_A.weight, proj.lora_B.weight
    flat = x.view(-1, x.shape[-1])

    def back(node: Any, gradients: Any) -> Any:
        return (mm(gradients[0], dense(proj, None)),)

    node = start(machine, (flat,), back)
    with machine.no_grad():
        weight = dense(proj, None)
        bias = proj.base_layer.bias
        shape = (flat.shape[0], weight.shape[0])
        out = machine.run("addmm", (bias, flat, t(weight)), shape, flat.dtype, args=(bias, flat, t(weight)))
    out = finish(node, out)
    dropped = F.dropout(x, proj.lora_dropout.probability)
    adapted = F.linear(F.linear(dropped, a.to(x.dtype)), b.to(x.dtype))
    return out.view(*x.shape[:-1], -1) + adapted * 2.0
