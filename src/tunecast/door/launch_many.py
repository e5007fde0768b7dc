"""Several jobs launched together: each gets its machine, the engine queues them, and a rerun starts what is missing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, cast

from tunecast.door.launch import (
    entries_like,
    name_of,
    now,
    prepare,
    require_startable,
    start,
    write_files,
)
from tunecast.door.launch_source import OneSource, job_of, machines_in, own_file
from tunecast.door.launched import Launched, launched_of
from tunecast.door.placing import NamedJob, PlacedTogether, Placement, Tick, no_tick, place_each, place_shared
from tunecast.door.plan import PlanOptions
from tunecast.door.predict import predict
from tunecast.door.read import dotted, read
from tunecast.errors import TunecastError, UsageError
from tunecast.job.job import Job
from tunecast.job.writer import write_file
from tunecast.launching import ledger
from tunecast.launching.engines import Engine, engine_of, rendering_of
from tunecast.launching.ledger import LedgerEntry, NotKnown
from tunecast.launching.offers import with_offers
from tunecast.launching.programs import files_of
from tunecast.launching.rendering import JobArray, Order, Rendering
from tunecast.planning.choice import Choice, Plan
from tunecast.planning.plan import ASSUMED_TOKENS
from tunecast.records import NamedTuple, dataclass, replace
from tunecast.result import Result

WITH_MACHINES = ("local", "slurm", "ssh")
"""Engines that have machines of their own: jobs are planned there only where that is asked for."""
WITHOUT_QUEUE = ("local", "ssh")
"""Of those, one machine that queues nothing: jobs take turns (`Order.in_turn`)."""
THERE = (*ledger.ACTIVE, "done")
"""States in which a job that is launched again is left as it is."""


class Together(NamedTuple):
    """What holds for all of the jobs."""

    overrides: Mapping[str, object] | None = None
    cpu: bool | None = None
    options: Mapping[str, str] = {}
    extra: Mapping[str, object] = {}
    preflight: bool = True
    record: bool = True


class Variant(NamedTuple):
    """One job of a sweep: `rank-8`."""

    source: OneSource
    overrides: Mapping[str, object]
    label: str


class ArrayShown(NamedTuple):
    jobs: tuple[str, ...]
    files: Mapping[str, str]
    """In the folder of the first of them."""
    commands: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class RenderedTogether(Result):
    """What `--dry-run` shows of several jobs."""

    schema: ClassVar[str] = "tunecast.launch-many/1"
    KEYS: ClassVar[tuple[str, ...]] = ("schema", "group", "engine", "placed", "arrays", "jobs", "notes")

    group: str
    engine: str
    jobs: tuple[Rendering, ...]
    """Of one that belongs to an array the training's files alone."""
    arrays: tuple[ArrayShown, ...] = ()
    placed: PlacedTogether | None = None
    """None where the jobs say their cards."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LaunchedTogether(Result):
    """Jobs that were started together."""

    schema: ClassVar[str] = "tunecast.launched-many/1"
    KEYS: ClassVar[tuple[str, ...]] = ("schema", "group", "engine", "placed", "jobs", "there_before", "notes")

    group: str
    engine: str
    jobs: tuple[Launched, ...]
    there_before: tuple[str, ...] = ()
    """Those of them that were queued, running or done already, and were not started again."""
    placed: PlacedTogether | None = None
    notes: tuple[str, ...] = ()


class Prepared(NamedTuple):
    order: Order
    rendering: Rendering
    at_once: int | None
    """Of those on the same machines."""


def launch_many(
    sources: Sequence[OneSource | Variant],
    together: Together,
    *,
    on: str,
    dry_run: bool = False,
    out: str | os.PathLike[str] | None = None,
    again: bool = False,
    at_once: int | None = None,
    share: bool = False,
    name: str = "jobs",
    tick: Tick = no_tick,
    **plan_options: Any,
) -> RenderedTogether | LaunchedTogether:
    """Several jobs, each an entry of the ledger. Nothing is started where one of them cannot be.

    at_once  how many of them may run at the same time, where the engine queues arrays
    share    on the user's own and reserved machines, all by one deadline (`within`) and budget (`max_usd`)
    name     of the group, by which `cancel` stops all of them
    Others are options of `plan`: then, and where the engine rents machines, each job gets its own; one that says its
    card one with such cards.
    """
    engine = engine_of(on)
    if not sources:
        raise UsageError("got no job; allowed: one or more", field="source")
    if share and engine.name in WITHOUT_QUEUE:
        raise UsageError(
            f"--share: {engine.name} is one machine. To fix: --on slurm, or leave --share out", field="share"
        )
    if at_once is not None and not hasattr(engine.module, "render_many"):
        why = "one job runs after another" if engine.name in WITHOUT_QUEUE else "how many run is its own affair"
        raise UsageError(f"--at-once: on {engine.name} {why}. To fix: leave it out", field="at_once")
    variants = _named([_variant(each, together) for each in sources])
    options = cast(PlanOptions, {key: value for key, value in plan_options.items() if value})
    placed = _placed(variants, engine, together, options, share=share, tick=tick)
    prepared = list(_prepare_all(variants, placed, engine, together, at_once, dry_run=dry_run))
    arrays = arrays_of(prepared, engine, together.options)
    digest = hashlib.sha256("".join(ledger.digest_of(each.rendering) for each in prepared).encode()).hexdigest()
    group, notes = f"{name}-{digest[:6]}", _notes(prepared)
    if dry_run or out is not None:
        shown = rendered_together(group, engine, prepared, arrays, placed, notes)
        if out is not None:
            write_out(Path(out), shown)
        if dry_run:
            return shown
    for each in prepared:
        require_startable(each.rendering, engine)
        engine.require(each.order, together.options)
    entries, before = start_all(prepared, arrays, engine, together.options, group, again=again)
    return LaunchedTogether(group, engine.spelled, launched_of(entries), before, placed, notes)


def _variant(each: OneSource | Variant, together: Together) -> Variant:
    if isinstance(each, Variant):
        return each._replace(overrides={**(together.overrides or {}), **each.overrides})
    return Variant(each, together.overrides or {}, "")


class NamedVariant(NamedTuple):
    name: str
    variant: Variant


def _named(variants: Sequence[Variant]) -> list[NamedVariant]:
    """Each by a name of its own: that of its job, with what makes it another one in a sweep."""
    found: list[NamedVariant] = []
    taken: set[str] = set()
    for variant in variants:
        first = name_of(_job(variant))
        base = f"{first[: 40 - len(variant.label)].strip('-')}-{variant.label}" if variant.label else first
        name = next(
            each for n in range(1, len(variants) + 1) if (each := base if n == 1 else f"{base}-{n}") not in taken
        )
        taken.add(name)
        found.append(NamedVariant(name, variant))
    return found


def _job(variant: Variant) -> Job:
    source = variant.source
    if isinstance(source, (Plan, Choice)) or own_file(source) is None:
        return job_of(source, variant.overrides)[0]
    return read(source, variant.overrides)


def _placed(
    variants: Sequence[NamedVariant],
    engine: Engine,
    together: Together,
    options: PlanOptions,
    *,
    share: bool,
    tick: Tick,
) -> PlacedTogether | None:
    if together.cpu or not (share or options or engine.name not in WITH_MACHINES):
        return None
    cards = [_card(variant) for _, variant in variants]
    if all(cards) and not (share or options):
        return None
    jobs = [NamedJob(name, _job(variant), card) for (name, variant), card in zip(variants, cards, strict=True)]
    return place_shared(jobs, options, tick) if share else place_each(jobs, options, tick)


def _card(variant: Variant) -> str | None:
    """That it says to run on; None where that is open."""
    if isinstance(variant.source, (Plan, Choice)):
        return _job(variant).hardware.gpu
    job = read(variant.source, variant.overrides)
    return job.hardware.gpu if job.is_given("hardware.gpu") and not job.unsaid else None


def _prepare_all(
    variants: Sequence[NamedVariant],
    placed: PlacedTogether | None,
    engine: Engine,
    together: Together,
    at_once: int | None,
    *,
    dry_run: bool,
) -> Iterator[Prepared]:
    """In the order in which they are queued. Raises what is wrong with them, all of it."""
    places = {} if placed is None else {each.name: each for each in placed.jobs}
    first = sorted(variants, key=lambda each: places[each.name].starts_s) if placed is not None else variants
    in_turn = len(variants) > 1 and engine.name in WITHOUT_QUEUE
    failures: list[tuple[str, TunecastError]] = []
    for name, variant in first:
        place = places.get(name)
        source, overrides = _with_place(variant, place)
        try:
            order, notes = prepare(
                source, overrides, engine, cpu=together.cpu, extra=together.extra, dry_run=dry_run,
                preflight=together.preflight,
                record=together.record, output=name if len(variants) > 1 else "",
            )  # fmt: skip
            if place is not None:
                order = with_offers(order, machines_in(place.choice), predict)
            order = replace(order, name=name, in_turn=in_turn, of_several=len(variants) > 1)
            rendering = rendering_of(order, engine, together.options)
        except TunecastError as error:
            failures.append((name, error))
            continue
        if place is not None and _data_assumed(variant, place):
            notes = (*notes, f"costs and times are of {ASSUMED_TOKENS:,} tokens: give yours (--samples, --tokens)")
        machines = None if place is None or placed is None or not placed.shared else _alike(place, placed)
        yield Prepared(order, replace(rendering, notes=(*notes, *rendering.notes)), at_once or machines)
    if failures:
        worst = max((error for _, error in failures), key=lambda each: each.exit_code)
        told = "; ".join(f"{name}: {error.message}" for name, error in failures)
        raise type(worst)(told if len(variants) > 1 else worst.message, field=worst.field)


def _with_place(variant: Variant, place: Placement | None) -> tuple[OneSource, Mapping[str, object]]:
    """A file of one's own stays what is started: the plan's settings go on its command line."""
    if place is None:
        return variant.source, variant.overrides
    source = variant.source
    if _data_assumed(variant, place) or (not isinstance(source, (Plan, Choice)) and own_file(source) is not None):
        return source, {**dotted(variant.overrides), **place.choice.changes}
    return (place.plan if place.plan is not None else place.choice), {}


def _data_assumed(variant: Variant, place: Placement) -> bool:
    """Whether the plan took an amount of data that nobody gave: what is started has no limit that follows from it."""
    planned = place.choice.job
    own, taken = _job(variant).data, None if planned is None else planned.data
    return taken is not None and (own.tokens, own.samples) != (taken.tokens, taken.samples)


def _alike(place: Placement, placed: PlacedTogether) -> int:
    """How many of the shared machines are of its kind."""
    return len({each.machine for each in placed.jobs if each.choice.fleet.offer == place.choice.fleet.offer})


def arrays_of(prepared: Sequence[Prepared], engine: Engine, options: Mapping[str, str]) -> tuple[JobArray, ...]:
    """What the engine takes as one: each job is in one of them, alone where it takes none."""
    if len(prepared) == 1 or not hasattr(engine.module, "render_many"):
        return tuple(JobArray((n,), {}, ()) for n in range(len(prepared)))
    found: list[JobArray] = []
    for at_once in dict.fromkeys(each.at_once for each in prepared):
        numbers = [n for n, each in enumerate(prepared) if each.at_once == at_once]
        of = engine.module.render_many([prepared[n].order for n in numbers], options, engine.host, at_once)
        found += [each._replace(members=tuple(numbers[n] for n in each.members)) for each in of]
    return tuple(found)


def _notes(prepared: Sequence[Prepared]) -> tuple[str, ...]:
    """Each once."""
    return tuple(dict.fromkeys(note for each in prepared for note in each.rendering.notes))


def rendered_together(
    group: str,
    engine: Engine,
    prepared: Sequence[Prepared],
    arrays: Sequence[JobArray],
    placed: PlacedTogether | None,
    notes: tuple[str, ...],
) -> RenderedTogether:
    renderings = [replace(each.rendering, notes=()) for each in prepared]
    shown = []
    for array in arrays:
        if len(array.members) == 1:
            continue
        for n in array.members:
            renderings[n] = replace(renderings[n], files=_training_files(prepared[n].order), commands=())
        names = tuple(prepared[n].order.name for n in array.members)
        shown.append(ArrayShown(names, array.files, array.commands))
    return RenderedTogether(group, engine.spelled, tuple(renderings), tuple(shown), placed, notes)


def _training_files(order: Order) -> Mapping[str, str]:
    return files_of(order.program, order.job)


def write_out(folder: Path, shown: RenderedTogether) -> None:
    for each in shown.jobs:
        for name, text in each.files.items():
            write_file(folder / each.name / name, text, flag="--out", folder_too=True)
    for array in shown.arrays:
        for name, text in array.files.items():
            write_file(folder / array.jobs[0] / name, text, flag="--out", folder_too=True)


def start_all(
    prepared: Sequence[Prepared],
    arrays: Sequence[JobArray],
    engine: Engine,
    options: Mapping[str, str],
    group: str,
    *,
    again: bool,
) -> tuple[list[LedgerEntry], tuple[str, ...]]:
    """One array after another. Killed in between, what is there stays, and the same command starts the rest."""
    entries: list[LedgerEntry] = []
    before: list[str] = []
    for array in arrays:
        of = [prepared[n] for n in array.members]
        with ExitStack() as held:
            with ledger.exclusive():
                there = {} if again else entries_like([each.rendering for each in of], THERE)
                new = [each for each in of if ledger.digest_of(each.rendering) not in there]
                reserved = [ledger.reserve(each.rendering, now(), group) for each in new]
                reserved = reserved if len(reserved) < 2 else list(ledger.as_array(reserved))
                reserved[:1] = [held.enter_context(ledger.submission(each)) for each in reserved[:1]]
            known = [there[digest] for each in of if (digest := ledger.digest_of(each.rendering)) in there]
            entries += known
            before += [each.id for each in known]
            if len(reserved) == 1:
                entries.append(start(reserved[0], new[0].order, engine, options)[0])
            elif reserved:
                entries += start_array(reserved, new, engine, options)
    return entries, tuple(before)


def start_array(
    entries: Sequence[LedgerEntry], new: Sequence[Prepared], engine: Engine, options: Mapping[str, str]
) -> list[LedgerEntry]:
    """While the submission of the first is held, in whose folder all are submitted."""
    orders = [replace(each.order, name=entry.id) for each, entry in zip(new, entries, strict=True)]
    (array,) = engine.module.render_many(orders, options, engine.host, new[0].at_once)
    try:
        for entry, order in zip(entries, orders, strict=True):
            write_files(entry, _training_files(order))
        write_files(entries[0], array.files)
        numbers = engine.module.submit_many(entries, array.commands, dict(os.environ))
    except NotKnown:
        raise
    except TunecastError:
        for entry in entries:
            ledger.drop(entry)
        raise
    return [ledger.with_number(entry, number) for entry, number in zip(entries, numbers, strict=True)]
