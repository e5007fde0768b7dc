"""The tensors of the model a job trains, by name, read off the closed form: nothing is run or loaded for it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from tunecast.job.job import Job, Quantization
from tunecast.job.model import ModelConfig
from tunecast.predict.checkpoint import Parameter
from tunecast.records import fields, replace


def tensors_of_job(job: Job, model: ModelConfig) -> Tensors:
    """With tables of positions that have room for the longest row."""
    return _known_tensors(_decisive(job), _with_room(model, max(job.lengths or (job.seq_len,))))


class Tensors(NamedTuple):
    parameters: tuple[Parameter, ...]
    buffers: tuple[int, ...]
    """Bytes of each."""


UNDECISIVE = frozenset(
    (
        *("id", "seq_len", "lengths", "micro_batch", "grad_accum", "optimizer", "max_grad_norm", "allocator"),
        *("data", "run", "hardware", "parallel", "given"),
    )
)
"""Fields that change no tensor of a model; its tables of positions have room for the longest row (`with_room`)."""


def _decisive(job: Job) -> tuple[tuple[str, Any], ...]:
    names = (each.name for each in fields(job))
    return tuple((name, getattr(job, name)) for name in names if name not in UNDECISIVE)


@lru_cache(maxsize=32)
def _known_tensors(decisive: tuple[tuple[str, Any], ...], config: str) -> Tensors:
    """Many jobs have the same, and a prediction asks twice: how long loading and saving take, and what they need."""
    return tensors_on_paper(Job(**dict(decisive), seq_len=1), json.loads(config))


def _with_room(model: ModelConfig, longest: int) -> str:
    from tunecast.tape.build.stacks import transformers

    raw = model.raw
    roomy = transformers.with_room(raw, longest)
    return model.raw_json if roomy == raw else json.dumps(roomy, sort_keys=True)


def tensors_on_paper(job: Job, config: Mapping[str, Any]) -> Tensors:
    """Names, shapes and dtypes of the model that trains, as the closed form builds it.

    It is built unquantised, for a packed weight has lost its shape; then every linear layer but the head is packed. And
    it is built with the layers that stand for all, where there are such: the others are like them but for their names.
    """
    from tunecast.tape.build.adapters import insert_adapters
    from tunecast.tape.build.fill_in import fill_in
    from tunecast.tape.build.gptq import packed_bytes
    from tunecast.tape.build.modules import Buffer, Linear
    from tunecast.tape.build.short import repeating
    from tunecast.tape.build.stacks import transformers
    from tunecast.tape.build.tensor import DTYPES, Machine
    from tunecast.tape.card import Card
    from tunecast.tape.shorten import stand_in, with_layers

    job = fill_in(job, config)
    packed_as = job.quantization.format
    adapted = job.method != "full"
    plain = replace(job, method="lora" if adapted else "full", quantization=Quantization(), kernels=())
    rhythm = repeating(transformers.model, config)
    few = config if rhythm is None else with_layers(config, rhythm.small)
    model = transformers.load(plain, few, Machine(Card(), DTYPES[job.weights_dtype], job.attention))
    head = model.output_embedding()
    linear = {id(m.weight) for m in model.modules() if isinstance(m, Linear) and m is not head}
    packed = linear if packed_as is not None else set()
    if adapted:
        insert_adapters(plain, model)
    made: dict[int, Parameter | int] = {}
    paths = [layer.path for layer in model.layers()]
    layer_of = {id(part): number for number, layer in enumerate(model.layers()) for part in layer.modules()}
    before: list[Parameter | int] = []
    layers: list[list[Parameter | int]] = [[] for _ in paths]
    after: list[Parameter | int] = []
    upcast = packed_as not in (None, "gptq") and job.quantization.prepare_kbit
    for module in model.modules():
        number = layer_of.get(id(module))
        place = layers[number] if number is not None else after if any(layers) else before
        for name, tensor in module.own.items():
            if id(tensor) in made:
                continue
            if isinstance(tensor, Buffer):
                made[id(tensor)] = tensor.nbytes
                place.append(tensor.nbytes)
                continue
            path = f"base_model.model.{module.path}.{name}" if adapted else f"{module.path}.{name}"
            p = Parameter(path, tensor.shape, tensor.dtype.name, not adapted)
            if id(tensor) in packed and packed_as == "gptq":  # the file has it packed; counted in 16-bit elements
                p = p._replace(shape=(packed_bytes(*tensor.shape) // 2,))
            elif id(tensor) in packed and packed_as is not None:
                p = p._replace(dtype=packed_as)
            elif p.is_adapter:
                p = p._replace(trainable=True, dtype="float32" if packed_as == "int8" else p.dtype)
            elif upcast:
                p = p._replace(dtype="float32")
            made[id(tensor)] = p
            place.append(p)
    if rhythm is not None:
        likes = [(layer, stand_in(rhythm, layer)) for layer in range(rhythm.total)]
        layers = [_renamed(layers[like], paths[like], layer) for layer, like in likes]
    every = [*before, *(each for layer in layers for each in layer), *after]
    return Tensors(
        tuple(each for each in every if isinstance(each, Parameter)),
        tuple(each for each in every if isinstance(each, int)),
    )


def _renamed(of: Iterable[Parameter | int], path: str, layer: int) -> list[Parameter | int]:
    """The tensors of a layer as those of another."""
    old, new = f"{path}.", f"{path.rpartition('.')[0]}.{layer}."
    return [each._replace(name=each.name.replace(old, new, 1)) if isinstance(each, Parameter) else each for each in of]
