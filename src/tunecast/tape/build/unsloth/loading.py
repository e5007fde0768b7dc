"""`FastLanguageModel.from_pretrained` and `get_peft_model` on paper: what comes to the card before the first step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tunecast.job.job import Job
from tunecast.records import replace_unchecked
from tunecast.tape.build.adapters import insert_adapters
from tunecast.tape.build.dtypes import FLOAT16, FLOAT32, INT32, INT64
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Buffer, Linear, Module
from tunecast.tape.build.quantized import Linear4bit, QuantState, kept
from tunecast.tape.build.tensor import Tensor

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def probes(machine: Machine) -> None:
    """What importing Unsloth and transformers' grouped products try out."""
    for _ in range(2):
        held = [machine.run("ones", (), (1, 8), FLOAT16), machine.run("ones", (), (8, 8), FLOAT16)]
        held.append(machine.run("_to_copy", (), (1,), INT32))
        held.append(machine.run("_grouped_mm", held[:2], (1, 8), FLOAT16))
        del held


def rotary_marks(machine: Machine) -> list[Tensor]:
    """`LlamaRotaryEmbedding.__init__`: placeholders of one element; those of the first instance do not last."""
    held = [machine.run("empty", (), (1,), machine.weights_dtype) for _ in range(2)]
    del held
    marks = [machine.run("empty", (), (1,), machine.weights_dtype) for _ in range(2)]
    machine.run("_to_copy", (), (1,), INT64)
    return marks


def load(model: Any, four_bit: bool) -> None:
    """Tensors in the order of their names, after one request for as much as all of them will take
    (transformers/modeling_utils.py, `caching_allocator_warmup`)."""
    machine: Machine = model.machine
    named = sorted(weights(model), key=lambda each: natural(each[0]))
    total = sum(nbytes(model, module, tensor, four_bit) * machine.stands_for(path) for path, module, _, tensor in named)
    machine.run("empty", (), (total // 2,), FLOAT16)
    tables: list[Tensor] = []
    for _, module, name, tensor in named:
        if four_bit and is_quantized(model, module) and name == "weight":
            with machine.within(""):
                weight = machine.run("_to_copy", (), tensor.shape, machine.weights_dtype)
            with machine.within(module.path):
                into_four_bits(model, module, weight, tables)
            del weight
        else:
            with machine.within(module.path):
                tensor.storage = kept(machine.run("_to_copy", (), tensor.shape, tensor.dtype)).storage
    model.tables = tables


def weights(model: Any) -> Iterator[tuple[str, Module, str, Tensor]]:
    head = model.output_embedding()
    for module in model.modules():
        if model.tied and module is head:
            continue
        for name, tensor in module.own.items():
            if not isinstance(tensor, Buffer):
                yield f"{module.path}.{name}", module, name, tensor


def natural(name: str) -> list[tuple[int, int | str]]:
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"\.", name)]


def is_quantized(model: Any, module: Module) -> bool:
    return isinstance(module, Linear) and module is not model.output_embedding()


def nbytes(model: Any, module: Module, tensor: Tensor, four_bit: bool) -> int:
    whole = tensor.numel() * tensor.dtype.itemsize
    return tensor.numel() // 2 if four_bit and is_quantized(model, module) and tensor.dim() == 2 else whole


def into_four_bits(model: Any, linear: Any, weight: Tensor, tables: list[Tensor]) -> None:
    """The scales are quantised too, always (unsloth/models/llama.py, `bnb_4bit_use_double_quant`)."""
    new = Linear4bit(linear, weight.dtype, QuantState(weight, True, tables))
    new.path, new.bias = linear.path, linear.bias
    parent_path, _, name = linear.path.rpartition(".")
    parent = next(module for module in model.modules() if module.path == parent_path)
    setattr(parent, name, new)


def adapt(job: Job, model: Any) -> None:
    for parameter in model.parameters():
        parameter.requires_grad = False
    lora = replace_unchecked(job.lora, adapter_dtype="float32", targets=TARGETS)
    insert_adapters(replace_unchecked(job, lora=lora), model)


def empty_caches(machine: Machine, times: int) -> None:
    for _ in range(times):
        machine.empty_cache()


def rotary_repair(machine: Machine, width: int) -> None:
    """Frequencies are computed once more after loading, and kept on the host."""
    machine.run("empty_like", (), (width // 2,), FLOAT32)
