"""The tensors of the model a job trains, by name, read off the closed form: nothing is run or loaded for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

from tunecast.job.job import Job, Quantization
from tunecast.job.model import ModelConfig
from tunecast.job.stored import Packing, packing_for, without_packing
from tunecast.prediction.outside.checkpoint import Parameter
from tunecast.records import fields, replace, replace_unchecked
from tunecast.tape.build.adapters import NOT_CAST, insert_adapters
from tunecast.tape.build.dtypes import DTYPES
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.frozen import is_trained, widens
from tunecast.tape.build.layer_rhythm import repeating
from tunecast.tape.build.machine import Machine, Setup
from tunecast.tape.build.modules import Buffer, Linear, Module
from tunecast.tape.build.stacks import module_of, task_program, transformers
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.card import Card
from tunecast.tape.shorten import stand_in


def tensors_of_job(job: Job, model: ModelConfig) -> tuple[Parameter, ...]:
    return _known_tensors(decisive_fields(job), roomy_config(job, model))


UNDECISIVE = frozenset(
    (
        *("id", "seq_len", "lengths", "micro_batch", "grad_accum", "optimizer", "max_grad_norm", "allocator"),
        *("data", "run", "hardware", "parallel", "given"),
    )
)
"""Fields that change no tensor of a model; its tables of positions have room for the longest row (`with_room`)."""


def decisive_fields(job: Job) -> tuple[tuple[str, Any], ...]:
    names = (each.name for each in fields(job))
    return tuple((name, getattr(job, name)) for name in names if name not in UNDECISIVE)


@lru_cache(maxsize=32)
def _known_tensors(decisive: tuple[tuple[str, Any], ...], config: str) -> tuple[Parameter, ...]:
    """Many jobs have the same, and a prediction asks twice: how long loading and saving take, and what they need."""
    return tensors_on_paper(replace_unchecked(Job("any"), **dict(decisive), seq_len=1), json.loads(config))


def roomy_config(job: Job, model: ModelConfig) -> str:
    """With tables of positions that have room for the longest row."""
    raw = model.raw
    roomy = transformers.with_room(raw, max(job.lengths or (job.seq_len,)))
    return model.raw_json if roomy == raw else json.dumps(roomy, sort_keys=True)


def tensors_on_paper(job: Job, config: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """Names, shapes and dtypes of the model that trains, as the closed form builds it.

    It is built unquantised, for a packed weight has lost its shape; then every linear layer but the head is packed. And
    it is built with the layers that stand for all, where there are such: the others are like them but for their names.
    """
    job = fill_in(job, config)
    packing = packing_for(job.quantization.format, config)
    config = without_packing(config)
    rhythm, few = repeating(transformers.model, config)
    plain = replace_unchecked(job, method=_method(job), quantization=Quantization(), kernels=())
    task = task_program(job)
    making = task.making(job) if hasattr(task, "making") else transformers.model
    machine = Machine(Card(), Setup(DTYPES[job.weights_dtype], job.attention))
    model = transformers.load(plain, few, machine, making=making)
    head = model.output_embedding()
    skips = (lambda path: False) if packing is None else packing.skips
    linear = {id(m.weight) for m in model.modules() if isinstance(m, Linear) and m is not head and not skips(m.path)}
    if job.method != "full":
        insert_adapters(by_hub_names(plain, model), model)
        if hasattr(task, "save_beside_adapters"):
            task.save_beside_adapters(model)
    before, layers, after = _by_layer(model, partial(_as_trained, job, packing, linear))
    if rhythm is not None:
        paths = [layer.path for layer in model.layers()]
        likes = [(layer, stand_in(rhythm, layer)) for layer in range(rhythm.total)]
        layers = [_renamed(layers[like], paths[like], layer) for layer, like in likes]
    found = (*before, *(each for layer in layers for each in layer), *after)
    return found if job.trained is None else tuple(_if_trained(job, each, job.trained) for each in found)


def _if_trained(job: Job, p: Parameter, trained: Collection[str]) -> Parameter:
    if not is_trained(p.name, trained):
        return p._replace(trainable=False)
    return p._replace(dtype="float32") if widens(job) else p


def by_hub_names(job: Job, model: Any) -> Job:
    """A stack that adapts kinds of layers (litgpt's `lora_query`) means those that this model has, by its names."""
    kinds: Mapping[str, Collection[str]] | None = getattr(module_of(job.stack), "KINDS", None)
    given = job.lora.targets
    present = {name for module in model.modules() for name in module.children}
    if kinds is None or not isinstance(given, tuple) or present >= set(given):
        return job
    meant = [name for names in kinds.values() if set(names) & set(given) for name in names if name in present]
    return replace(job, lora=replace(job.lora, targets=tuple(dict.fromkeys(meant)))) if meant else job


def _method(job: Job) -> str:
    return "full" if job.method == "full" else "lora"


def _by_layer(
    model: Any, as_trained: Callable[[Module, str, Tensor], Parameter]
) -> tuple[list[Parameter], list[list[Parameter]], list[Parameter]]:
    """Every parameter once: those before the layers, those of each layer, those behind them."""
    seen: set[int] = set()
    layer_of = {id(part): number for number, layer in enumerate(model.layers()) for part in layer.modules()}
    before, after = list[Parameter](), list[Parameter]()
    layers: list[list[Parameter]] = [[] for _ in model.layers()]
    for module in model.modules():
        number = layer_of.get(id(module))
        place = layers[number] if number is not None else after if any(layers) else before
        for name, tensor in module.own.items():
            if id(tensor) not in seen and not isinstance(tensor, Buffer):
                seen.add(id(tensor))
                place.append(as_trained(module, name, tensor))
    return before, layers, after


def _as_trained(
    job: Job, packing: Packing | None, linear: Collection[int], module: Module, name: str, tensor: Tensor
) -> Parameter:
    """`linear` are the ids of the weights that quantisation packs, as `packing` says or as bitsandbytes does."""
    adapted, packed_as = job.method != "full", job.quantization.format
    path = f"base_model.model.{module.path}.{name}" if adapted else f"{module.path}.{name}"
    p = Parameter(path, tensor.shape, tensor.dtype.name, not adapted)
    if packed_as is None:
        return p._replace(trainable=True) if p.is_adapter else p
    if id(tensor) in linear:
        if packing is None:
            return p._replace(dtype=packed_as)
        return p._replace(shape=(packing.weight_bytes(*tensor.shape) // 2,))  # in 16-bit elements
    if p.is_adapter:
        return p._replace(trainable=True, dtype="float32" if packed_as == "int8" else p.dtype)
    upcast = packed_as not in NOT_CAST and job.quantization.prepare_kbit
    return p._replace(dtype="float32") if upcast else p


def _renamed(of: Iterable[Parameter], path: str, layer: int) -> list[Parameter]:
    """The tensors of a layer as those of another."""
    old, new = f"{path}.", f"{path.rpartition('.')[0]}.{layer}."
    return [each._replace(name=each.name.replace(old, new, 1)) for each in of]
