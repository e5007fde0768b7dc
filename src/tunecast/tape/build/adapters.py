"""PEFT on paper: which linear layers are adapted, and how an adapted one runs (peft 0.21.0)."""

from __future__ import annotations

from typing import Any

from tunecast.job.job import Job
from tunecast.tape.build import ops
from tunecast.tape.build.decoder import CausalLM
from tunecast.tape.build.modules import Dropout, Linear, Module, bring
from tunecast.tape.build.tensor import DTYPES, Tensor
from tunecast.tape.op import Role

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "c_attn", "query_key_value", "Wqkv", "out_proj"}


def adapt(job: Job, model: CausalLM) -> None:
    """What `adapt` of tape/trace/recipe.py does: freeze, insert adapters, switch checkpointing on."""
    if job.method != "full":
        for parameter in model.parameters():
            parameter.requires_grad = False
        insert_adapters(job, model)
    if job.gradient_checkpointing:
        for layer in model.layers():
            layer.checkpoint = True
        if job.method != "full":
            model.input_embedding().gives_gradient = True


def insert_adapters(job: Job, model: CausalLM) -> None:
    dtype = DTYPES[job.lora.adapter_dtype]
    head = model.output_embedding()
    for module in list(model.modules()):
        for name, child in list(module.children.items()):
            if isinstance(child, Linear) and child is not head and is_target(name, job.lora.targets):
                adapted = LoraLinear(child, job.lora.rank, job.lora.dropout)
                adapted.name_all(child.path)
                for part in (adapted.lora_A, adapted.lora_B):
                    bring(part.weight, part.path, Role.ADAPTERS, dtype)
                setattr(module, name, adapted)


def is_target(name: str, targets: Any) -> bool:
    if targets == "all-linear":
        return True
    return name in (ATTENTION if targets == "attention" else targets)


class LoraLinear(Module):
    """peft/tuners/lora/layer.py, `Linear.forward`."""

    def __init__(self, base: Linear, rank: int, dropout: float) -> None:
        super().__init__(base.machine)
        self.base_layer = base
        self.lora_dropout = Dropout(base.machine, dropout)
        self.lora_A = Linear(base.machine, base.inputs, rank)
        self.lora_B = Linear(base.machine, rank, base.outputs)

    def forward(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        torch_result_dtype = result.dtype
        lora_A, lora_B, dropout = self.lora_A, self.lora_B, self.lora_dropout
        x = ops.to(x, lora_A.weight.dtype)
        result = ops.add(result, ops.scale(lora_B(lora_A(dropout(x)))))
        return ops.to(result, torch_result_dtype)
