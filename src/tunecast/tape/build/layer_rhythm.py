"""Which layers of a model are alike: its layers are made on paper, without a batch, and compared. Where none may stand
for another, all are built (`compiles_whole`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.job.stacks import stack_of
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.sharding.layers import layer_count
from tunecast.tape.build.stacks import program_of
from tunecast.tape.card import Card
from tunecast.tape.shorten import (
    Rhythm,
    Standing,
    as_they_are,
    rhythm_of,
    tightened,
    with_layers,
    with_these_layers,
)

MOST_COMPILED_LAYERS = 128
"""The deepest bundled model has 126: compiled on paper in some 10 s, with adapters on every linear layer."""

ModelOf = Callable[[Machine, Mapping[str, Any]], Any]


def job_rhythm(job: Job, config: Mapping[str, Any]) -> Rhythm:
    """In what rhythm the layers repeat, by what they are made of."""
    stack = program_of(job)
    rhythm = rhythm_of(layer_kinds(stack.model, config))
    return rhythm._replace(tail=max(rhythm.tail, getattr(stack, "LAST_LAYERS", 1)))


def few_layers(job: Job, config: Mapping[str, Any], rhythm: Rhythm) -> Iterator[tuple[Standing, dict[str, Any]]]:
    """Models of fewer layers, the smallest first; none where no shorter model has the layers of the whole one."""
    model = program_of(job).model
    small = shorter(model, config, rhythm, rhythm.small) if rhythm.copies >= 1 else None
    if small is None:
        return
    kinds = layer_kinds(model, small)
    tight = tightened(rhythm, kinds)
    attentions = _attentions(model, _key(small)) if tight.built < rhythm.small else ()
    if attentions:
        first = [tight.short.index(layer) for layer in range(tight.built)]
        few = with_these_layers(config, attentions, first)
        if layer_kinds(model, few) == tuple([kinds[layer] for layer in first]):
            yield tight, few
    yield as_they_are(rhythm), small


def shorter(model: ModelOf, config: Mapping[str, Any], rhythm: Rhythm, layers: int) -> dict[str, Any] | None:
    """The model with so many of its layers: the first ones, as many periods as there is room for, and those that stand
    for themselves at the end. None where no config.json says so."""
    whole, last = layer_kinds(model, config), rhythm.small - rhythm.head - rhythm.period
    chosen = [*range(layers - last), *range(rhythm.total - last, rhythm.total)]
    wanted = tuple([whole[layer] for layer in chosen])
    first = with_layers(config, layers)
    if layer_kinds(model, first) == wanted:
        return first
    attentions = _attentions(model, _key(config))
    few = with_these_layers(config, attentions, chosen) if attentions else None
    return few if few is not None and layer_kinds(model, few) == wanted else None


def compiles_whole(job: Job) -> bool:
    """Whether no layer stands for another. Code compiled for a whole model uses memory of one layer again in others;
    compiling every layer on paper takes a second or two. Where saved tensors move to the host, the last few stay,
    whatever layer they are of. DeepSpeed's buckets are full when they are, in whatever layer. The layers of interleaved
    stages run apart. Where some parameters are trained, a layer may have some of them."""
    stack = stack_of(job)
    counts = sharding_of(job).is_zero and not stack.uses_megatron
    apart = stack.uses_megatron and job.parallel.virtual_stages > 1
    compiles = job.compile and stack.is_plain_loop
    return compiles or job.offload_activations or counts or apart or job.trained is not None


def require_compilable(job: Job, config: Mapping[str, Any]) -> None:
    """Raises `Unsupported` where compiling every layer on paper would take minutes."""
    layers = layer_count(config)
    if job.compile and compiles_whole(job) and layers > MOST_COMPILED_LAYERS:
        got = f"got true for a model of {layers} layers; allowed: up to {MOST_COMPILED_LAYERS}, since all of them are"
        raise Unsupported(
            f"compile: {got} compiled on paper. To fix: compile false, or --engine traced", field="compile"
        )


def repeating(model: ModelOf, config: Mapping[str, Any]) -> tuple[Rhythm | None, Mapping[str, Any]]:
    """In what rhythm a model's layers repeat, and the shorter model that has them all; None and the model itself where
    none does."""
    rhythm = rhythm_of(layer_kinds(model, config))
    few = shorter(model, config, rhythm, rhythm.small) if rhythm.copies >= 1 else None
    return (None, config) if few is None else (rhythm, few)


def layer_kinds(model: ModelOf, config: Mapping[str, Any]) -> tuple[Any, ...]:
    """What each layer is made of, as far as memory can tell layers apart."""
    return _kinds(model, _key(config))


def _key(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True, default=str)


@lru_cache(maxsize=256)
def _attentions(model_of: ModelOf, config: str) -> tuple[str, ...]:
    """Of each layer, as a config.json names it; () where a model does not tell."""
    model = model_of(Machine(Card()), json.loads(config))
    return next((tuple(module.kinds) for module in model.modules() if hasattr(module, "kinds")), ())


@lru_cache(maxsize=256)
def _kinds(model_of: ModelOf, config: str) -> tuple[Any, ...]:
    model = model_of(Machine(Card()), json.loads(config))
    return () if model is None else tuple(_kind(layer) for layer in model.layers())


PLACES = ("path", "index")
"""What a module says of where it is among the others."""


def _kind(module: Module) -> tuple[Any, ...]:
    plain = {
        name: value
        for name, value in vars(module).items()
        if name not in PLACES and isinstance(value, (bool, int, float, str, type(None)))
    }
    return (
        type(module).__name__,
        tuple(sorted(plain.items())),
        tuple((name, tensor.shape) for name, tensor in module.own.items()),
        tuple((name, _kind(child)) for name, child in module.children.items()),
    )
