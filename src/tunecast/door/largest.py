"""The most that fits a card: the largest bundled model, the longest sequence, the largest micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike, fspath
from typing import Any, TypeVar

from tunecast.advise import largest as search
from tunecast.advise import most
from tunecast.advise.most import Largest, LargestBatch, LargestModel, LongestSequence, SizedModel
from tunecast.door.asking import Predictions, Tick, no_tick
from tunecast.door.read import Source, dotted, read_on_card
from tunecast.errors import NotResolved, UsageError
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.job.job import Job
from tunecast.job.mapping import check_overrides, job_from_dict, with_overrides
from tunecast.job.model import ModelConfig, bundled_models, resolve_model
from tunecast.job.names import METHODS
from tunecast.job.readers import is_job_file
from tunecast.prediction.engines import DEFAULT_ENGINE
from tunecast.prediction.evidence import evidence_of
from tunecast.report.draw.adapters import adapters_words
from tunecast.tape.build.fill_in import fill_in_of

Overrides = Mapping[str, object]


def largest(
    job: Source | None = None,
    overrides: Overrides | None = None,
    *,
    engine: str = DEFAULT_ENGINE,
    python: str | None = None,
    tick: Tick = no_tick,
    **fields: object,
) -> Largest:
    """Without a job the largest bundled model by method; of a job, or of a model by its name, the longest sequence and
    the largest micro-batch. Of a model all three methods are asked for, unless `method` names one.

    `overrides` by dotted name and `fields` by the names of flags, as `read` takes them: `largest(gpu="rtx-4090")`.
    """
    given = dotted(overrides, fields)
    check_overrides(given)
    if job is None and "model" in given:
        job = str(given.pop("model"))
    predictions = Predictions(engine, python, tick=tick)
    return _models(given, predictions) if job is None else _most(job, given, predictions)


def _models(overrides: Overrides, predictions: Predictions) -> Largest:
    """The largest bundled model of each method."""
    rows: list[LargestModel] = []
    firsts: list[Job] = []
    sizes = {name: int(entry["parameters"]) for name, entry in bundled_models().items()}
    methods = (str(overrides["method"]),) if "method" in overrides else METHODS

    def sized(job: Job | None) -> SizedModel | None:
        return None if job is None else SizedModel(job.model, sizes[job.model], *_needs(job, predictions))

    for fields in _by_method({"micro_batch": 1, **overrides}, methods):
        jobs = [
            search.of_model(
                job_from_dict(with_overrides({"model": name}, fields)),
                size,
                all_used=not {"parts", "active_parameters"} & set(bundled_models()[name]),
            )
            for name, size in sizes.items()
        ]
        firsts.append(jobs[0].item)
        surely, found = search.largest_model(jobs, predictions.predict, search.capacity_of(jobs[0].item))
        rows.append(
            LargestModel(
                method=str(fields["method"]),
                surely=sized(surely),
                likely=sized(found.item),
                beyond=found.beyond.model if found.beyond else None,
                unanswered=tuple(most.UnansweredModel(job.model, why.splitlines()[0]) for job, why in found.unanswered),
            )
        )
    unanswered = [each for row in rows for each in row.unanswered]
    if not any(row.likely or row.beyond for row in rows) and unanswered:
        raise NotResolved(f"no bundled model could be predicted: {unanswered[0].message}")
    return _largest(firsts, predictions, models=tuple(rows))


def _most(source: Source, overrides: Overrides, predictions: Predictions) -> Largest:
    """The longest sequence and the largest micro-batch of a model or a job."""
    jobs = list(_jobs(source, overrides))
    model = resolve_model(jobs[0].model)
    positions = search.positions_of(model.raw)
    sequences, batches = [], []
    refused: list[UsageError | NotResolved] = []
    for job in jobs:
        try:
            length, rows = (
                search.longest_sequence(job, predictions.predict, positions),
                search.largest_batch(job, predictions.predict),
            )
        except (UsageError, NotResolved) as error:
            if len(jobs) == 1:
                raise
            refused.append(error)
            why = error.message.splitlines()[0]
            sequences.append(LongestSequence(job.method, job.micro_batch, None, None, None, why))
            batches.append(LargestBatch(job.method, job.seq_len, None, None, None, why))
            continue
        sequences.append(_row(LongestSequence, most.SequenceFigure, job, length, search.with_rows_of, predictions))
        batches.append(_row(LargestBatch, most.BatchFigure, job, rows, search.with_rows, predictions))
    if len(refused) == len(jobs) and len({error.message for error in refused}) == 1:
        raise refused[0]  # what was asked is wrong, whatever the method
    return _largest(
        jobs, predictions, model, longest_sequence=tuple(sequences), largest_batch=tuple(batches), positions=positions
    )


def _jobs(source: Source, overrides: Overrides) -> Iterator[Job]:
    """Of a model's name one for each method; what only another method has is left out then."""
    by_name = isinstance(source, (str, PathLike)) and not is_job_file(fspath(source))
    if not by_name:
        yield read_on_card(source, overrides)
    elif "method" in overrides:
        yield read_on_card(source, {"micro_batch": 1, **overrides})
    else:
        yield from (read_on_card(source, fields) for fields in _by_method({"micro_batch": 1, **overrides}, METHODS))


def _by_method(overrides: Overrides, methods: Sequence[str]) -> Iterator[dict[str, object]]:
    for method in methods:
        foreign = ("lora.", "quantization.") if method == "full" else ("quantization.",) if method == "lora" else ()
        dropped = foreign if len(methods) > 1 else ()
        yield {name: value for name, value in overrides.items() if not name.startswith(dropped)} | {"method": method}


Row = TypeVar("Row", bound=most.Most)


def _row(
    kind: type[Row],
    figure: type[most.MostFigure],
    job: Job,
    found: search.Reach,
    at: Callable[[Job, int], Job],
    predictions: Predictions,
) -> Row:
    def figure_of(count: int | None) -> most.MostFigure | None:
        return None if count is None else figure(count, *_needs(at(job, count), predictions))

    held = job.micro_batch if kind is LongestSequence else job.seq_len
    likely = found.likely
    return kind(job.method, held, figure_of(found.surely), figure_of(likely.most), likely.beyond, jagged=found.jagged)


def _needs(job: Job, predictions: Predictions) -> tuple[int, tuple[int, int]]:
    """The smallest capacity it completes with, and the range of what PyTorch holds, in which it is sure to."""
    on_card = predictions.predict(job).on_card
    return on_card.smallest_capacity_bytes, (on_card.room.low_bytes, on_card.room.high_bytes)


def _largest(jobs: Sequence[Job], predictions: Predictions, model: ModelConfig | None = None, **rows: Any) -> Largest:
    settings = _settings([fill_in_of(job, model) for job in jobs] if model is not None else jobs)
    name, card = None if model is None else jobs[0].model, jobs[0].hardware.gpu
    return Largest(
        **vars(settings), engine=predictions.engine, predictions=predictions.count, model=name, card=card, **rows
    )


def _settings(jobs: Sequence[Job]) -> most.FixedSettings:
    """What was held fixed; of one model, with what follows from it."""
    job, card = jobs[0], gpu_named(jobs[0].hardware.gpu).name
    adapted = next((each for each in jobs if each.method != "full"), None)
    return most.FixedSettings(
        gpu=card,
        capacity_bytes=search.capacity_of(job),
        micro_batch=job.micro_batch,
        seq_len=job.seq_len,
        weights_dtype=job.weights_dtype,
        autocast=job.autocast,
        optimizer=job.optimizer,
        gradient_checkpointing=job.gradient_checkpointing,
        stack=job.stack,
        adapters=None if adapted is None else adapters_words(adapted),
        quantization=next((each.quantization.format for each in jobs if each.quantization.format), None),
        evidence=evidence_of(job, card),
    )
