"""From a job to its run on the fullest card: the layers this card holds, built or served by a structure there is.

    job > the layers of its cards > BuildRequest > Builder > PaperRun > Folded

`fold_job` gives the run as columns of numbers, in a fraction of the time its events take; `whole_tape` writes all of
them out.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import isqrt
from typing import TYPE_CHECKING, Any

from tunecast.errors import TunecastError, Unsupported
from tunecast.job.job import Job
from tunecast.job.releases import beyond, minor, stated
from tunecast.job.shardings import sharding_of
from tunecast.records import replace, replace_unchecked
from tunecast.tape.build.dtypes import DTYPES
from tunecast.tape.build.eras import era_of
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.layer_rhythm import compiles_whole, few_layers, job_rhythm, require_compilable, shorter
from tunecast.tape.build.machine import Detail, Machine, Setup
from tunecast.tape.build.request import BuildRequest, Contents, StructureKey, structure_key
from tunecast.tape.build.sharding.layers import candidates, ends_of, held
from tunecast.tape.build.sharding.scheme import Scheme, ranks_of
from tunecast.tape.build.stacks import followed, program_of
from tunecast.tape.card import Card
from tunecast.tape.fold import Folded, Operations, folded_program
from tunecast.tape.layers import NotRepeating, extended
from tunecast.tape.op import Tape
from tunecast.tape.pattern import Pattern, Values
from tunecast.tape.program import Program
from tunecast.tape.schedule import NotRepeatable, scheduled
from tunecast.tape.shorten import Standing, cycle_of, steps_of, steps_to_trace
from tunecast.tape.structure import SYMBOLS, JobRefusal, PaperRun, Structure
from tunecast.tape.symbols import Guards, NumberNeeded

if TYPE_CHECKING:
    from tunecast.job.images import Pictures

SQUARE = "images are taken to be square, {0} x {0} pixels as they reach the model; of each row they take {1} tokens"
NO_ROWS = Program([], [], None, [], [], [0], [], [])
SERVED_BY = {
    Contents.PROGRAM: (Contents.PROGRAM, Contents.BOTH),
    Contents.BOTH: (Contents.BOTH,),
    Contents.OPERATIONS: (Contents.BOTH, Contents.OPERATIONS),
}
"""What was built with more than a request needs serves it too."""


class _StructuresOfKey:
    """What there is for one key."""

    __slots__ = ("known", "numbers_only")

    def __init__(self) -> None:
        self.known: list[Structure | JobRefusal] = []
        self.numbers_only = False
        """Somewhere its code needs plain numbers: no use in trying symbols again."""

    @property
    def rows(self) -> int:
        return sum([each.rows for each in self.known])


class Builder:
    """Builds runs on paper, and owns the structures they came from.

    `symbolic`: runs are built with symbols, which takes a third longer and serves later requests of other sizes. A
    builder that is asked once does without.
    """

    def __init__(self, *, symbolic: bool = True, most_rows: int = 4_000_000, most_kept: int = 1000) -> None:
        """Structures are kept up to `most_rows` rows in all, at some 75 bytes each in large ones and 140 in small, and
        up to `most_kept`, refusals included: a key may have several."""
        self.symbolic, self._most_rows, self._most_kept = symbolic, most_rows, most_kept
        self._entries: dict[StructureKey, _StructuresOfKey] = {}
        """By age: what was needed last is the last."""
        self.fallbacks: Counter[str] = Counter()
        """How often a run was built of plain numbers because symbols would not do, by the reason."""

    def run(self, request: BuildRequest) -> PaperRun:
        if request.job.lengths or not self.symbolic:
            return paper_run(request)
        return self._run(request)

    def operations(self, request: BuildRequest) -> Operations:
        """The operations alone. They are always built with symbols: who needs them alone has rows of many lengths."""
        operations = self._run(request._replace(contents=Contents.OPERATIONS)).operations
        assert operations is not None
        return operations

    def structures(self, key: StructureKey) -> list[Structure]:
        """Those that were built so far."""
        entry = self._entries.get(key)
        return [] if entry is None else [each for each in entry.known if isinstance(each, Structure)]

    def needs_numbers(self, key: StructureKey) -> bool:
        """Whether building with symbols was tried in vain."""
        entry = self._entries.get(key)
        return entry is not None and entry.numbers_only

    @property
    def keys(self) -> list[StructureKey]:
        return list(self._entries)

    def _run(self, request: BuildRequest) -> PaperRun:
        sized = request.contents is not Contents.OPERATIONS
        key = structure_key(request)
        keys = (key._replace(contents=contents) for contents in SERVED_BY[request.contents])
        return self._served(keys, request.values, sized) or self.build(key, request, sized=sized)

    def _served(self, keys: Iterable[StructureKey], values: Values, sized: bool) -> PaperRun | None:
        for key in keys:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self._entries[key] = entry
                for each in entry.known:
                    run = each.run(values, sized=sized)
                    if run is not None:
                        return run
        return None

    def build(self, key: StructureKey, request: BuildRequest, *, sized: bool) -> PaperRun:
        """Anew, and kept under the key."""
        if self.needs_numbers(key):
            return paper_run(request)
        guards = Guards()
        try:
            structure = Structure(paper_run(request, request.with_symbols(guards)), guards)
        except (NumberNeeded, TunecastError) as error:
            return self._build_of_numbers(key, request, guards, error)
        self._entry(key).known.append(structure)
        self._forget()
        run = structure.run(request.values, sized=sized)
        assert run is not None
        return run

    def _build_of_numbers(
        self, key: StructureKey, request: BuildRequest, guards: Guards, error: NumberNeeded | TunecastError
    ) -> PaperRun:
        """Where symbols end in an error: one of theirs, or the job's own, which numbers end in too."""
        try:
            run = paper_run(request)
        except TunecastError as refusal:
            if type(refusal) is type(error) and str(refusal) == str(error):
                self._entry(key).known.append(JobRefusal(guards, refusal))
            raise
        self._entry(key).numbers_only = True
        self.fallbacks[f"{type(error).__name__}: {error}"] += 1
        return run

    def _entry(self, key: StructureKey) -> _StructuresOfKey:
        """Needed now: the last to be forgotten."""
        entry = self._entries.pop(key) if key in self._entries else _StructuresOfKey()
        self._entries[key] = entry
        return entry

    def _forget(self) -> None:
        """What was not needed for the longest time."""
        rows = sum([entry.rows for entry in self._entries.values()])
        kept = sum([max(1, len(entry.known)) for entry in self._entries.values()])
        while len(self._entries) > 1 and (rows > self._most_rows or kept > self._most_kept):
            oldest = self._entries.pop(next(iter(self._entries)))
            rows, kept = rows - oldest.rows, kept - max(1, len(oldest.known))


SHARED = Builder()
"""For those who do not care whose structures serve them."""


def fold_job(
    job: Job, config: Mapping[str, Any], card: Card, *, keeps_ops: bool = False, for_time: bool = False,
    builder: Builder = SHARED,
) -> Folded:  # fmt: skip
    """The run as columns of numbers; `make_tape` writes it out. With `keeps_ops` its operations come along, for those
    who price them too (tape/timed.py). Of cards that hold different layers it is the fullest one's, or `for_time` that
    of the one whose work is priced."""
    job = fill_in(job, config)
    model = program_of(job).model
    require_compilable(job, config)
    cards = (held(job, config, model),) if for_time else candidates(job, config, model)
    runs = [_fold_card(job, here, card, keeps_ops, builder) for here in cards]
    return runs[0] if len(runs) == 1 else max(runs, key=lambda run: run.program.most_alive_bytes)


def fold_rank(job: Job, config: Mapping[str, Any], card: Card, *, last: bool) -> Folded:
    """The run of a pipeline's first or last stage, whichever is the fullest."""
    job = fill_in(job, config)
    cards = candidates(job, config, program_of(job).model)
    return _fold_card(job, cards[-1 if last else 0], card, False, SHARED)


def _fold_card(job: Job, config: Mapping[str, Any], card: Card, keeps_ops: bool, builder: Builder) -> Folded:
    def make_tape() -> Tape:
        return _card_tape(job, config, card)

    contents = Contents.BOTH if keeps_ops else Contents.PROGRAM
    run = builder.run(BuildRequest(job, config, card, job.seq_len, contents))
    return Folded(run.program, make_tape, run.guesses, run.assumptions, followed(job), run.operations)


def operations_of(
    job: Job, config: Mapping[str, Any], card: Card, length: int, builder: Builder = SHARED
) -> Operations:
    """The operations of a job whose rows all have `length`, which may be shorter than its longest."""
    job = fill_in(job, config)
    return builder.operations(BuildRequest(job, held(job, config, program_of(job).model), card, length))


def evaluation_run(
    job: Job, config: Mapping[str, Any], card: Card, batch: int, length: int, contents: Contents = Contents.PROGRAM,
    builder: Builder = SHARED,
) -> PaperRun:  # fmt: skip
    """The batches of an evaluation, all of one size; raises `Unsupported` where the stack's way to evaluate is not
    known. Its last step is like all that follow."""
    job = replace_unchecked(evaluated(fill_in(job, config)), micro_batch=batch, grad_accum=1, lengths=None)
    request = BuildRequest(job, held(job, config, program_of(job).model), card, length, contents, evaluates=True)
    return builder.run(request)


def evaluated(job: Job) -> Job:
    """As `model.eval()` has it: nothing is dropped, and nothing computed again."""
    return replace_unchecked(job, lora=replace_unchecked(job.lora, dropout=0.0), gradient_checkpointing=False)


def whole_tape(job: Job, config: Mapping[str, Any], card: Card) -> Tape:
    """The tape of the run the contract defines, every layer and every step of it, on the fullest card."""
    job = fill_in(job, config)
    cards = candidates(job, config, program_of(job).model)
    return _card_tape(job, cards[0], card) if len(cards) == 1 else fold_job(job, config, card).make_tape()


def _card_tape(job: Job, config: Mapping[str, Any], card: Card) -> Tape:
    lengths, order = steps_to_trace(job)
    try:
        tape = scheduled(_with_all_layers(job, config, card, lengths), order)
    except NotRepeatable:  # what a step leaves behind dies in none it was built with: all of them are built
        every = steps_of(job)
        tape = scheduled(_with_all_layers(job, config, card, every), range(len(every)))
    return replace(tape, versions=followed(job))


def _with_all_layers(job: Job, config: Mapping[str, Any], card: Card, lengths: list[int]) -> Tape:
    head, period, total, _ = rhythm = job_rhythm(job, config)
    small, large = rhythm.small, rhythm.small + period
    if large < total and not compiles_whole(job):
        short, longer = (shorter(program_of(job).model, config, rhythm, count) for count in (small, large))
        if short is not None and longer is not None:
            with contextlib.suppress(NotRepeating):
                few, more = (build(job, each, lengths, card) for each in (short, longer))
                return extended(few, more, small, large, total, head=head)
    return build(job, config, lengths, card)


# ---------------------------------------------------------------------------------- a run, built


def build(
    job: Job, config: Mapping[str, Any], lengths: Sequence[int], card: Card,
    *, keeps_ops: bool = True, standing: Standing | None = None, priced_from: int = 0,
    written: Callable[[Any], int] | None = None, masked: bool = False, evaluates: bool = False,
    padding: int = 0, answers: tuple[int, int] | None = None, for_memory: bool = True,
) -> Tape:  # fmt: skip
    """The tape of one optimizer step for each of `lengths`; see `Detail` for how much of it is written down.
    `written` says how a request's size is written down where it is no number. `masked`: batches have padding, or
    samples that share a row. `evaluates`: batches are evaluated on instead, one for each of `lengths`."""
    job = fill_in(job, config)
    stack = program_of(job)
    machine = paper_machine(
        job, config, card, Detail(keeps_ops, priced_from, standing, for_memory),
        masked=masked, padding=padding, answers=answers, evaluates=evaluates,
    )  # fmt: skip
    if machine.pictures is not None:
        from tunecast.job.images import require_room

        require_room(job.vision, config, job.seq_len)
    if not evaluates:
        stack.train(job, config, lengths, machine)
    elif hasattr(stack, "evaluate"):
        stack.evaluate(job, config, lengths, machine)
    else:
        raise Unsupported.at("run.eval_strategy", f"how {job.stack} evaluates is not known")
    return Tape(machine.tape_events(written), tuple(machine.guesses), tuple(machine.assumptions))


def paper_machine(job: Job, config: Mapping[str, Any], card: Card, detail: Detail, **batches: Any) -> Machine:
    """Before anything ran on it; `batches` is what `Setup` has of them."""
    stack = program_of(job)
    setup = Setup(
        DTYPES[job.weights_dtype],
        job.attention,
        minor(followed(job)["torch"]),
        era_of(job),
        ends=ends_of(config),
        kernels=job.kernels,
        pictures=_pictures(job, config),
        **batches,
    )
    if hasattr(stack, "setup"):
        setup = stack.setup(job, setup)
    machine = Machine(card, setup, detail, partial(getattr(stack, "scheme", Scheme), job))
    machine.guesses.update(dict.fromkeys(beyond(stated(job))))
    if setup.pictures is not None:
        machine.assumptions[SQUARE.format(isqrt(job.vision.pixels or 0), setup.pictures.tokens)] = None
    return machine


def _pictures(job: Job, config: Mapping[str, Any]) -> Pictures | None:
    """What images each sample has."""
    if not job.vision.has_images:
        return None
    from tunecast.job.images import processor_of  # few jobs have any

    return processor_of(config).pictures(job.vision)


def paper_run(request: BuildRequest, symbolic: BuildRequest | None = None) -> PaperRun:
    """`symbolic` is the same request with symbols in the place of its numbers; None: it is built of the numbers."""
    paper = symbolic or request
    job = request.job
    cycle = cycle_of(job)
    if request.contents is Contents.OPERATIONS:
        return _run_in_order(paper, [paper.length] * (cycle + 1), list(range(cycle + 1)))._replace(program=NO_ROWS)
    lengths, order = steps_to_trace(job)
    every, uniform = steps_of(job), len(set(lengths)) == 1
    if not job.lengths:
        lengths, every = [paper.length] * len(lengths), [paper.length] * len(every)
    if (
        uniform and cycle == 1 and not _settles_late(job)
    ):  # two are enough where what the first leaves dies as the second's
        with contextlib.suppress(NotRepeatable):
            return _run_in_order(paper, lengths[:2], [0, *[1] * (len(order) - 1)])
    with contextlib.suppress(NotRepeatable):
        return _run_in_order(paper, lengths, order)
    return _run_in_order(paper, every, list(range(len(every))))


def _settles_late(job: Job) -> bool:
    """Two steps would not do: DDP makes its buckets anew in the second where it looks for no unused parameters
    (sharding/ddp.py), and ZeRO-3 compares between ranks who runs when (sharding/fetched.py). Where this is not said of
    a job that is so, two are built in vain."""
    if sharding_of(job).is_zero and sharding_of(job).cuts_weights:
        return True
    return sharding_of(job).has_buckets and job.method == "full" and job.gradient_checkpointing and ranks_of(job) > 1


def _run_in_order(request: BuildRequest, lengths: list[int], order: list[int]) -> PaperRun:
    """A step of each of `lengths` is built; the run takes them in `order`."""
    keeps_ops = request.contents is not Contents.PROGRAM
    guards = request.guards
    for standing, config in _models(request.job, request.config):
        try:
            tape = build(
                request.job, config, lengths, request.card, keeps_ops=keeps_ops, standing=standing,
                priced_from=min(1, len(lengths) - 1), written=None if guards is None else guards.place,
                masked=request.masked, evaluates=request.evaluates, padding=request.padding,
                answers=request.answers,
                for_memory=request.contents is not Contents.OPERATIONS,
            )  # fmt: skip
            rows = folded_program(tape, None if standing is None else standing.whole, order)
            break
        except NotRepeating:
            if standing is None:
                raise
    cycle = cycle_of(request.job)
    pattern = Pattern(tape, standing, guards, SYMBOLS, several=cycle > 1) if keeps_ops else None
    operations = None if pattern is None else Operations(pattern, tuple(lengths), cycle=cycle)
    return PaperRun(rows, tape.guesses, tape.assumptions, operations)


def _models(job: Job, config: Mapping[str, Any]) -> Iterator[tuple[Standing | None, Mapping[str, Any]]]:
    """Models that may stand for the whole one, the smallest first, and last the whole one itself."""
    if not compiles_whole(job):
        yield from few_layers(job, config, job_rhythm(job, config))
    yield None, config
