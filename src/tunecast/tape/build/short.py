"""From a job to the tape of its whole run: a few layers and steps built, the rest following from them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.records import replace
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.modules import Module
from tunecast.tape.build.run import build
from tunecast.tape.build.shapes import NAMES, Built, Paper, Shapes, built, built_short
from tunecast.tape.build.sharding.layers import candidates, held, layer_count
from tunecast.tape.build.sharding.scheme import ranks_of
from tunecast.tape.build.stacks import followed, program_of
from tunecast.tape.build.tensor import Machine
from tunecast.tape.card import Card
from tunecast.tape.fold import Folded, Short, folded_program
from tunecast.tape.layers import NotRepeating, extended
from tunecast.tape.op import Tape
from tunecast.tape.pattern import Pattern
from tunecast.tape.program import FREE, Program
from tunecast.tape.schedule import NotRepeatable, scheduled
from tunecast.tape.shorten import (
    Rhythm,
    Standing,
    as_they_are,
    rhythm_of,
    stand_in,
    steps_of,
    steps_to_trace,
    tightened,
    with_layers,
    with_these_layers,
)


def build_job(job: Job, config: Mapping[str, Any], card: Card) -> Tape:
    """The tape of the run the contract defines, every layer and every step of it, on the fullest card."""
    job = fill_in(job, config)
    cards = candidates(job, config, program_of(job).model)
    return _built_whole(job, cards[0], card) if len(cards) == 1 else fold_job(job, config, card).make_tape()


def _built_whole(job: Job, config: Mapping[str, Any], card: Card) -> Tape:
    lengths, order = steps_to_trace(job)
    try:
        tape = scheduled(_with_all_layers(job, config, card, lengths), order)
    except NotRepeatable:  # what a step leaves behind dies in none it was built with: all of them are built
        every = steps_of(job)
        tape = scheduled(_with_all_layers(job, config, card, every), range(len(every)))
    return replace(tape, versions=followed(job))


def _with_all_layers(job: Job, config: Mapping[str, Any], card: Card, lengths: list[int]) -> Tape:
    head, period, total, _ = rhythm = _rhythm(job, config)
    small, large = rhythm.small, rhythm.small + period
    if large < total and not compiles_whole(job):
        with contextlib.suppress(NotRepeating):
            few, more = (build(job, with_layers(config, count), lengths, card) for count in (small, large))
            return extended(few, more, small, large, total, head=head)
    return build(job, config, lengths, card)


MOST_COMPILED_LAYERS = 128
"""The deepest bundled model has 126: compiled on paper in some 10 s, with adapters on every linear layer."""


def require_compilable(job: Job, config: Mapping[str, Any]) -> None:
    """Raises `Unsupported` where compiling every layer on paper would take minutes."""
    layers = layer_count(config)
    if job.compile and compiles_whole(job) and layers > MOST_COMPILED_LAYERS:
        told = f"got true for a model of {layers} layers; allowed: up to {MOST_COMPILED_LAYERS}, since all of them are"
        raise Unsupported(
            f"compile: {told} compiled on paper. To fix: compile false, or --engine traced", field="compile"
        )


def compiles_whole(job: Job) -> bool:
    """Code compiled for a whole model uses memory of one layer again in others: no layer stands for another. Compiling
    every layer on paper takes a second or two. Nor does one where saved tensors leave for the host: the last few stay,
    whatever layer they are of. Nor where DeepSpeed counts: its buckets are full when they are, in whatever layer. Nor
    of interleaved stages, whose layers run apart."""
    megatron = job.stack in ("megatron", "nemo")
    counts = job.parallel.data.startswith("zero") and not megatron
    apart = megatron and job.parallel.virtual_stages > 1
    return (job.compile and job.stack == "transformers") or job.offload_activations or counts or apart


def fold_job(
    job: Job, config: Mapping[str, Any], card: Card, *, keeps_ops: bool = False, for_time: bool = False
) -> Folded:
    """The same run as columns of numbers, in a fraction of the time; `make_tape` writes it out. With `keeps_ops` the
    short tape comes along, for who prices its operations too (tape/timed.py). Of cards that hold different layers it is
    the fullest one's, or `for_time` that of what is priced."""
    job = fill_in(job, config)
    model = program_of(job).model
    require_compilable(job, config)
    cards = (held(job, config, model),) if for_time else candidates(job, config, model)
    every = [_folded_card(job, here, card, keeps_ops) for here in cards]
    return every[0] if len(every) == 1 else max(every, key=lambda folded: most_alive_bytes(folded.program))


def fold_rank(job: Job, config: Mapping[str, Any], card: Card, *, last: bool) -> Folded:
    """The run of a pipeline's first or last stage, whichever is the fullest."""
    job = fill_in(job, config)
    cards = candidates(job, config, program_of(job).model)
    return _folded_card(job, cards[-1 if last else 0], card, keeps_ops=False)


def _folded_card(job: Job, config: Mapping[str, Any], card: Card, keeps_ops: bool) -> Folded:
    def make_tape() -> Tape:
        return _built_whole(job, config, card)

    made = built(job, config, card, keeps_ops, partial(_fold, job, config=config, keeps_ops=keeps_ops))
    return Folded(made.program, make_tape, made.guesses, made.assumptions, followed(job), made.short)


def shapes_of(
    job: Job, config: Mapping[str, Any], card: Card, masked: bool = False, evaluates: bool = False,
    most: int = 24,
) -> Shapes | None:  # fmt: skip
    """For the job's own micro-batches, of those that need a mask or of those that need none, or for those it is
    evaluated on, at most so many structures; None where several cards hold different layers and take turns."""
    job = fill_in(job, config)
    cards = candidates(job, config, program_of(job).model)
    if len(cards) > 1 or job.parallel.pipeline > 1:
        return None
    return Shapes(job, cards[0], card, partial(_fold, job, config=cards[0]), most, masked, evaluates)


def most_alive_bytes(rows: Program) -> int:
    """In the steps, each as it is taken first: what loading brings and lets go of again is not asked."""
    sizes: dict[int, int] = {}
    alive = most = 0
    for number, (block, size) in enumerate(zip(rows.blocks, rows.sizes, strict=True)):
        if size >= 0:
            sizes[block] = size
            alive += size
            if alive > most and number >= rows.bounds[0]:
                most = alive
        elif size == FREE:
            alive -= sizes.pop(block, 0)
    return most


NO_ROWS = Program([], [], None, [], [], [0], [], [])


def short_job(job: Job, config: Mapping[str, Any], card: Card, length: int) -> Short:
    """Its operations where all rows have `length`, which may be shorter than the job's longest."""
    job = fill_in(job, config)
    here = held(job, config, program_of(job).model)

    def build_as(paper: Paper) -> Built:
        """Two steps: what later ones do to memory is not asked."""
        return _folded(paper, here, [paper.length] * 2, [0, 1], keeps_ops=True)._replace(program=NO_ROWS)

    return built_short(job, length, here, card, build_as)


def _fold(job: Job, paper: Paper, config: Mapping[str, Any], keeps_ops: bool = False) -> Built:
    """`paper` has the job, or the job with symbols."""
    lengths, order = steps_to_trace(job)
    every, uniform = steps_of(job), len(set(lengths)) == 1
    if not job.lengths:
        lengths, every = [paper.length] * len(lengths), [paper.length] * len(every)
    if uniform and not _settles_late(job):  # two are enough where what the first leaves dies as the second's
        with contextlib.suppress(NotRepeatable):
            return _folded(paper, config, lengths[:2], [0, *[1] * (len(order) - 1)], keeps_ops)
    with contextlib.suppress(NotRepeatable):
        return _folded(paper, config, lengths, order, keeps_ops)
    return _folded(paper, config, every, list(range(len(every))), keeps_ops)


def _settles_late(job: Job) -> bool:
    """Two steps would not do: DDP makes its buckets anew in the second where it looks for no unused parameters
    (sharding/ddp.py). Where this is not said of a job that is so, two are built in vain."""
    return job.parallel.data == "ddp" and job.method == "full" and job.gradient_checkpointing and ranks_of(job) > 1


def _folded(paper: Paper, config: Mapping[str, Any], lengths: list[int], order: list[int], keeps_ops: bool) -> Built:
    job, _, card, asked, masked, evaluates, padding = paper
    how: Any = {"keeps_ops": keeps_ops, "priced_from": min(1, len(lengths) - 1)}
    how["written"] = None if asked is None else asked.place
    how["masked"], how["evaluates"], how["padding"] = masked, evaluates, padding
    rhythm = _rhythm(job, config)
    models: list[tuple[Standing | None, Mapping[str, Any]]] = [(None, config)]
    if not compiles_whole(job):
        models = [*_few_layers(job, config, rhythm), *models]
    for standing, few in models:
        try:
            tape = build(job, few, lengths, card, standing=standing, **how)
            rows = folded_program(tape, None if standing is None else standing.whole, order)
            break
        except NotRepeating:
            if standing is None:
                raise
    pattern = Short(Pattern(tape, standing, asked, NAMES), tuple(lengths)) if keeps_ops else None
    return Built(rows, tape.guesses, tape.assumptions, pattern)


def _few_layers(job: Job, config: Mapping[str, Any], rhythm: Rhythm) -> Iterator[tuple[Standing, dict[str, Any]]]:
    """Models of fewer layers, the least first; none where no shorter model has the layers of the whole one."""
    if rhythm.copies < 1 or not _repeat(job, config, rhythm):
        return
    model, small = program_of(job).model, with_layers(config, rhythm.small)
    kinds = _kinds(model, _key(small))
    tight = tightened(rhythm, kinds)
    attentions = _attentions(model, _key(small)) if tight.built < rhythm.small else ()
    if attentions:
        first = [tight.short.index(layer) for layer in range(tight.built)]
        few = with_these_layers(config, attentions, first)
        if _kinds(model, _key(few)) == tuple([kinds[layer] for layer in first]):
            yield tight, few
    yield as_they_are(rhythm), small


def _rhythm(job: Job, config: Mapping[str, Any]) -> Rhythm:
    """In what rhythm the layers repeat, by what they are made of."""
    program = program_of(job)
    rhythm = rhythm_of(_kinds(program.model, _key(config)))
    return rhythm._replace(tail=getattr(program, "LAST_LAYERS", 1))


def _repeat(job: Job, config: Mapping[str, Any], rhythm: Rhythm) -> bool:
    """Whether the short model's layers are those of the whole model that they stand for."""
    return _stand_for_all(program_of(job).model, config, rhythm)


def _stand_for_all(model: ModelOf, config: Mapping[str, Any], rhythm: Rhythm) -> bool:
    short, whole = (_kinds(model, _key(with_layers(config, count))) for count in (rhythm.small, rhythm.total))
    return all(kind == short[stand_in(rhythm, layer)] for layer, kind in enumerate(whole))


def repeating(model: ModelOf, config: Mapping[str, Any]) -> Rhythm | None:
    """In what rhythm a model's layers repeat; None where no shorter model has them all."""
    rhythm = rhythm_of(_kinds(model, _key(config)))
    return rhythm if rhythm.copies >= 1 and _stand_for_all(model, config, rhythm) else None


ModelOf = Callable[[Machine, Mapping[str, Any]], Any]


def _key(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True, default=str)


@lru_cache(maxsize=256)
def _attentions(model_of: ModelOf, config: str) -> tuple[str, ...]:
    """Of each layer, as a config.json names it; () where a model does not tell."""
    model = model_of(Machine(Card()), json.loads(config))
    return next((tuple(module.kinds) for module in model.modules() if hasattr(module, "kinds")), ())


@lru_cache(maxsize=256)
def _kinds(model_of: ModelOf, config: str) -> tuple[Any, ...]:
    """What each layer is made of, as far as memory can tell layers apart."""
    model = model_of(Machine(Card()), json.loads(config))
    return () if model is None else tuple(_kind(layer) for layer in model.layers())


def _kind(module: Module) -> tuple[Any, ...]:
    plain = {
        name: value
        for name, value in vars(module).items()
        if name != "path" and isinstance(value, (bool, int, float, str, type(None)))
    }
    return (
        type(module).__name__,
        tuple(sorted(plain.items())),
        tuple((name, tensor.shape) for name, tensor in module.own.items()),
        tuple((name, _kind(child)) for name, child in module.children.items()),
    )
