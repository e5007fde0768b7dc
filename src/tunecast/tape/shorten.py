"""How few layers and steps stand for all of a run: both engines make a short tape, and the rest follows from it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from math import lcm
from typing import Any

from tunecast.job.job import Job
from tunecast.job.names import ROLLOUTS
from tunecast.job.stacks import stack_of
from tunecast.records import NamedTuple, replace

STEPS = 6
"""The contract's run: six optimizer steps, or one a length when there are more."""
MOST_MICRO_BATCHES = 4
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
USUAL_PERIODS = {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2, "olmo3": 4, "llama4_text": 4, "smollm3": 4, "cohere2": 4}
"""Of architectures whose config.json may leave the kinds of layers out: the pattern their class then makes."""
INTERVALS = ("interleave_moe_layer_step", "decoder_sparse_step", "no_rope_layer_interval")
"""Every how many layers there are experts, or no positions."""
NO_ROPE_INTERVAL = 4
"""Of Llama 4 and SmolLM 3, where a config.json says none of it."""
PER_LAYER = ("layer_types", "layers_block_type", "hybrid_override_pattern", "no_rope_layers")
"""Lists with an entry a layer, or words with a letter."""
CUT = (*PER_LAYER, "mlp_layer_types", "indexer_types", "index_topk_pattern")
"""The same, and those that tell nothing of how often layers repeat: their first layers are unlike the rest."""


class Rhythm(NamedTuple):
    """`head` layers unlike the rest, then a pattern of `period` layers over and over; `total` in all. The last `tail`
    layers, or more, stand for themselves."""

    head: int
    period: int
    total: int
    tail: int = 1

    @property
    def small(self) -> int:
        """The fewest layers that stand for all: the head, one period and the last layers."""
        least = self.head + self.period + self.tail
        return least + (self.total - least) % self.period

    @property
    def copies(self) -> int:
        """How many periods are missing from the small model; negative: it is no smaller."""
        return (self.total - self.small) // self.period


class Standing(NamedTuple):
    """A model of few layers, and for which of the whole model each of them stands.

    Of the rhythm's small model, layers of one kind that follow each other are built once: Gemma 3's five with a window
    and one without are built as one of each.
    """

    rhythm: Rhythm
    short: tuple[int, ...]
    """Of each layer of the rhythm's small model, the one that is built for it."""

    @property
    def built(self) -> int:
        """How many layers are."""
        return self.short[-1] + 1

    @property
    def whole(self) -> tuple[int, ...]:
        """Of each layer of the whole model, the one that is built for it."""
        return tuple([self.short[stand_in(self.rhythm, layer)] for layer in range(self.rhythm.total)])


def stand_in(rhythm: Rhythm, layer: int) -> int:
    """The layer of the small model that is like this one of the whole."""
    if layer < rhythm.head:
        return layer
    if layer >= rhythm.total - (rhythm.small - rhythm.head - rhythm.period):
        return layer - rhythm.total + rhythm.small
    return rhythm.head + (layer - rhythm.head) % rhythm.period


def as_they_are(rhythm: Rhythm) -> Standing:
    """Every layer of the small model is built."""
    return Standing(rhythm, tuple(range(rhythm.small)))


def tightened(rhythm: Rhythm, kinds: Sequence[Any]) -> Standing:
    """`kinds` are those of the small model. The first two layers and the last ones stand for themselves: what is made
    once is made in the first, and the second frees what it left."""
    starts = (0, 1, 2, rhythm.head, rhythm.head + rhythm.period)
    short: list[int] = []
    for layer, kind in enumerate(kinds):
        new = layer in starts or layer >= rhythm.small - rhythm.tail or kind != kinds[layer - 1]
        short.append(short[-1] + new if short else 0)
    return Standing(rhythm, tuple(short))


def rhythm_of(kinds: Sequence[Any]) -> Rhythm:
    """The rhythm with the smallest small model, from what each layer is; where no such model is smaller, one whose last
    layers break the pattern and stand for themselves (Kimi Linear's attend fully every fourth, and then after two).

    The head goes as far as the first layer of the last kind to come: what layers of a kind share (their rotary table,
    their mask) is made for its first layer, and in the backward pass freed by it. A kind that only those last layers
    have needs no place in it (the last layer of Llama 3.2 Vision that looks at an image).
    """
    numbers: dict[Any, int] = {}
    kinds = [numbers.setdefault(kind, len(numbers)) for kind in kinds]  # told apart by a number, not by what they are
    total = len(kinds)
    firsts = {kind: layer for layer, kind in reversed(list(enumerate(kinds)))}

    def smallest(tails: Iterable[int]) -> Rhythm:
        found = [_rhythm(kinds, firsts, period, tail) for tail in tails for period in range(1, max(2, total))]
        return min(found, key=lambda rhythm: (rhythm.small, rhythm.head + rhythm.period))

    rhythm = smallest((1,))
    return rhythm if rhythm.copies >= 1 or total < 4 else smallest(range(1, total // 2))


def _rhythm(kinds: Sequence[int], firsts: Mapping[int, int], period: int, tail: int) -> Rhythm:
    """With this period as far as to the last `tail` layers. A last layer alone is part of the pattern: it stands for
    itself because it is the last. `firsts`: the first layer of each kind."""
    until = len(kinds) - (tail if tail > 1 else 0)
    head = max([2, *(layer + 1 for layer in firsts.values() if layer < until)])
    broken = [layer for layer in range(until - period) if kinds[layer] != kinds[layer + period]]
    return Rhythm(max([head, *(layer + 1 for layer in broken[-1:])]), period, len(kinds), tail)


def cycle_of(job: Job) -> int:
    """After how many optimizer steps a run does the same again: one, unless completions serve for longer than that."""
    if job.task not in ROLLOUTS:
        return 1
    generate_every = (job.rl.steps_per_generation or job.grad_accum) * job.rl.iterations
    return lcm(generate_every, job.grad_accum) // job.grad_accum


def steps_of(job: Job) -> list[int]:
    """The padded length of every optimizer step of the run."""
    lengths = list(job.lengths or (job.seq_len,))
    return [lengths[i % len(lengths)] for i in range(max(STEPS, len(lengths), cycle_of(job) + 1))]


def steps_to_trace(job: Job) -> tuple[list[int], list[int]]:
    """Lengths to trace, and the order in which the traced steps make the whole run.

    Step 0 creates the optimizer's state, so it is a kind of its own. Every later step with the same length is the
    same; two of them are traced where there is one length, so that what one leaves to the next is seen.
    """
    run = steps_of(job)
    if cycle_of(job) > 1:
        return run, list(range(len(run)))
    distinct = list(dict.fromkeys(run[1:]))
    if len(distinct) == 1:
        return run[:3], [0, 1] + [2] * (len(run) - 2)
    place = {length: number for number, length in enumerate(distinct, start=1)}
    return [run[0], *distinct], [0, *(place[length] for length in run[1:])]


def layers_to_trace(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """(small, large, all): `small` holds the leading layers, one period and at least one last layer."""
    text = config.get("text_config", config)
    total = next(int(text[name]) for name in LAYER_COUNTS if name in text)
    rhythm = Rhythm(leading_layers(config), layer_period(config), total)
    return rhythm.small, rhythm.small + rhythm.period, total


def leading_layers(config: Mapping[str, Any]) -> int:
    """Layers at the front unlike the rest: the first (its input is the embedding, and what is made once is made in it),
    the second (it frees what the first left), one of each kind, more where DeepSeek says so."""
    text = config.get("text_config", config)
    return max(2, int(text.get("first_k_dense_replace") or 0) + 1, layer_period(config))


def layer_period(config: Mapping[str, Any]) -> int:
    """After how many layers the pattern repeats, as far as a config.json tells: sliding and full attention alternate in
    some models, dense and sparse layers in others."""
    text = config.get("text_config", config)
    usual = int(text.get("sliding_window_pattern") or USUAL_PERIODS.get(text.get("model_type", ""), 1))
    listed = [_repeats_after(text[name]) for name in PER_LAYER if text.get(name)]
    return lcm(*(listed or [usual]), *(int(text.get(name) or 1) for name in INTERVALS))


def _repeats_after(kinds: Sequence[Any]) -> int:
    return next(p for p in range(1, len(kinds) + 1) if all(kinds[i] == kinds[i + p] for i in range(len(kinds) - p)))


def with_layers(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The same architecture with another number of layers, per-layer lists cut to match."""
    changed = copy.deepcopy(dict(config))
    text = changed.get("text_config", changed)
    for name in LAYER_COUNTS:
        if name in text:
            text[name] = layers
    for name in CUT:
        if isinstance(text.get(name), list | str):
            text[name] = text[name][:layers]
    return changed


def with_these_layers(config: Mapping[str, Any], kinds: Sequence[str], layers: Sequence[int]) -> dict[str, Any]:
    """The same architecture with these of its layers alone, whose attention is of these `kinds`."""
    changed = with_layers(config, len(layers))
    text, before = changed.get("text_config", changed), config.get("text_config", config)
    rotated = before.get("no_rope_layers") or [(i + 1) % NO_ROPE_INTERVAL for i in range(len(kinds))]
    if before.get("no_rope_layers") or text.get("model_type") in ("llama4_text", "smollm3"):
        text["no_rope_layers"] = [int(bool(rotated[layer])) for layer in layers]
    text["layer_types"] = [kinds[layer] for layer in layers]
    return changed


def with_few_micro_batches(job: Job) -> Job:
    """The job with at most 5 micro-batches a step: later ones add to gradients that exist and free what they make.

    Odd stays odd. Blocks of one size are taken in turns, and whose turn it is at the optimizer's step moved what was
    reserved by one segment (2 MiB) where 3, 4 and 9 micro-batches were compared. In a pipeline as many are under way as
    there are stages, and interleaved ones take turns by that many; twice as many fill them where a stage has no buffers
    for each (Megatron).
    """
    if job.task in ROLLOUTS:  # as many as there are make the batch that is generated
        return job
    stages = job.parallel.pipeline
    turns = 2 if job.parallel.virtual_stages > 1 and stack_of(job).uses_megatron else 3
    most = MOST_MICRO_BATCHES + job.grad_accum % 2 if stages == 1 else turns * stages
    return replace(job, grad_accum=most) if job.grad_accum > most else job
