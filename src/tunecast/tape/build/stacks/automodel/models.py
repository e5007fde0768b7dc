"""What Automodel's own modules do otherwise than transformers', from which they derive or which they replace.

Source   NVIDIA-NeMo/Automodel at 36044ad3 (0.5.0, August 2026): components/models/common/utils.py, `Float32RMSNorm`;
         models/llama/model.py; models/llama/rope_utils.py; components/distributed/activation_checkpointing.py,
         `apply_submodule_checkpointing`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

from tunecast.job.job import Job
from tunecast.tape.build import attention
from tunecast.tape.build.decoder import SelfAttention
from tunecast.tape.build.dtypes import FLOAT32, INT64
from tunecast.tape.build.frozen import freeze_parts, trained_parts
from tunecast.tape.build.modules import Module, RMSNorm
from tunecast.tape.build.recompute import checkpoint
from tunecast.tape.build.sharding.layers import let_go
from tunecast.tape.build.stacks.torchtune.modules import fused_rms_norm
from tunecast.tape.build.tensor import Tensor

WRAPPED = ("mlp", "self_attn", "input_layernorm", "post_attention_layernorm")
"""`apply_submodule_checkpointing`, in its order."""
TOWER_PATTERNS = ("vision", "visual", "image_encoder")
"""`apply_parameter_freezing`."""


def make_own(model: Any, kind: str) -> None:
    """What its modules do otherwise than transformers', from which Qwen 3's derive but for the positions.
    components/models/common/utils.py, `Float32RMSNorm`, is compiled: one kernel of what it reads and writes."""
    decoder = model.base()
    replace_method(decoder, "position_ids", position_ids)
    replace_method(decoder.rotary_emb, "forward", looked_up)
    for module in model.modules() if kind != "qwen3" else ():
        if isinstance(module, RMSNorm):
            replace_method(module, "forward", normed)
        elif isinstance(module, SelfAttention):
            replace_method(module, "forward", attended)


def fuse_norms(model: Any) -> None:
    """`initialize_rms_norm_module`: of torch, compiled or Transformer Engine's, each is one kernel."""
    for module in model.modules():
        if type(module) is RMSNorm:
            replace_method(module, "forward", normed)


def replace_method(of: Any, name: str, function: Callable[..., Any]) -> None:
    object.__setattr__(of, name, MethodType(function, of))


def normed(norm: Any, x: Tensor) -> Tensor:
    return fused_rms_norm(x, norm.weight)


def attended(self: Any, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Any) -> Any:
    """models/llama/model.py, `LlamaAttention.forward`, whose q, k and v live as long as it runs."""
    batch, length, _ = hidden_states.shape
    q = self.q_proj(hidden_states)
    k = self.k_proj(hidden_states)
    v = self.v_proj(hidden_states)
    query_states, key_states, value_states = (
        x.view(batch, length, -1, self.head_dim).transpose(1, 2) for x in (q, k, v)
    )
    query_states, key_states = self.apply_rotary(query_states, key_states, position_embeddings)
    attn_output, attn_weights = attention.attend(
        query_states, key_states, value_states, attention_mask, self.groups, self.dropout, position_ids=position_ids
    )
    attn_output = attn_output.reshape(batch, length, -1).contiguous()
    attn_output = self.o_proj(attn_output)
    return attn_output, attn_weights


def position_ids(decoder: Any, length: int) -> Tensor:
    return decoder.machine.run("arange", (), (length,), INT64).unsqueeze(0)


def looked_up(rotary: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """models/llama/rope_utils.py: tables of all positions, made once and again where rows get longer."""
    machine, (batch, length) = rotary.machine, position_ids.shape
    machine.run("max", (position_ids,), (), INT64, args=(position_ids,))
    tables = vars(rotary).get("tables")
    if tables is None or length > tables[0].shape[0]:
        tables = vars(rotary)["tables"] = made_tables(rotary, length)
    shape = (batch, length, rotary.width)
    cos, sin = (machine.run("index", (table, position_ids), shape, table.dtype) for table in tables)
    return cos, sin


def made_tables(rotary: Any, length: int) -> tuple[Tensor, Tensor]:
    machine, width = rotary.machine, rotary.width
    positions = machine.run("arange", (), (length,), FLOAT32)
    freqs = machine.run("mul", (positions, rotary.inv_freq), (length, width // 2), FLOAT32)
    emb = machine.run("cat", (freqs, freqs), (length, width), FLOAT32)
    cos = (emb.cos() * rotary.attention_scaling).to(machine.weights_dtype)
    return cos, (emb.sin() * rotary.attention_scaling).to(machine.weights_dtype)


def freeze_towers(job: Job, model: Any) -> None:
    """components/utils/model_utils.py, `apply_parameter_freezing`: a tower is frozen by the names of modules, so that a
    projector inside it, as Qwen's merger is, is frozen with it; adapters too."""
    freeze_parts(job, model)
    trained = trained_parts(job)
    if trained is None or "tower" in trained:
        return
    for module in model.modules() if model.towers() else ():
        if any(pattern in module.path.lower() for pattern in TOWER_PATTERNS):
            for tensor in module.own.values():
                tensor.requires_grad = False


def leave_towers(model: Any) -> None:
    """components/distributed/pipelining/functional.py: `MULTIMODAL_SUFFIXES` are the first stage's."""
    for module in model.modules():
        if model.part_of(module.path) != "language":
            let_go(module)


def trained_tower_layers(model: Any) -> list[list[Any]]:
    """Of each tower that is not frozen. A frozen one is part of the outermost unit of FSDP 2 (`FSDP2Config`,
    `frozen_sharding: root`), and its layers are not checkpointed
    (`_filter_layer_groups_for_activation_checkpointing`)."""
    groups = [list(tower.layers()) for tower in model.towers()]
    return [layers for layers in groups if any(p.requires_grad for layer in layers for p in layer.parameters())]


def switch_on_checkpointing(model: Any, whole_layers: bool) -> None:
    """Both kinds are torch's without reentrance. Alone on a card, of whole layers, transformers' own is switched on,
    which wants gradients of the embeddings."""
    for layer in (layer for layers in trained_tower_layers(model) for layer in layers):
        layer.checkpoint = True
    for layer in model.layers():
        if whole_layers:
            layer.checkpoint = True
            continue
        for name in WRAPPED:
            if name in layer.children:
                setattr(layer, name, Checkpointed(layer.children[name]))


class Checkpointed(Module):
    """torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py, `CheckpointWrapper`."""

    def __init__(self, module: Module) -> None:
        super().__init__(module.machine)
        self.path = module.path
        self._checkpoint_wrapped_module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        def again(*args: Any) -> Any:
            return self._checkpoint_wrapped_module(*args, **kwargs)

        return checkpoint(self.machine, again, *args)
