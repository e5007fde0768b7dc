"""The measured runs nearest to a job: those that come with the package, and those in the store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import log2
from typing import Any, ClassVar

from tunecast.errors import TunecastError
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.job.job import Job, all_knobs
from tunecast.job.model import ModelConfig, language_part, resolve_model
from tunecast.job.registry import bundled_name
from tunecast.learn.recordable import ran_as_planned
from tunecast.prediction.evidence import LOW_PRECISION, ONE, SEVERAL, SIXTEEN_BITS, family_of
from tunecast.prediction.lessons.nearest import (
    ErrorRange,
    LikeRuns,
    NearRun,
    RunTraits,
    like_runs,
    near,
    shipped,
    size_of,
    task_group,
    traits_of,
)
from tunecast.records import dataclass
from tunecast.result import Result

SHIPPED, OWN = "shipped", "yours"
MEMORIES = ("reserved_bytes", "allocated_bytes", "device_bytes")
"""What is compared, the first that was measured and predicted: a card changes the third, and the first decides
whether a job fits."""
Record = Mapping[str, Any]


@dataclass(frozen=True)
class ComparedRun(Result):
    """Errors are measured over predicted, less 1; None where one of the two is not known."""

    id: str
    origin: str
    """`shipped` or `yours`."""
    distance: float
    gpu: str
    cards: str
    family: str
    precision: str
    method: str
    model: str
    tokens: int
    """Of a micro-batch."""
    gradient_checkpointing: bool
    memory_error: float | None
    time_error: float | None


@dataclass(frozen=True)
class RunsComparison(Result):
    """`memory` and `time` are the middle 80 % of the errors of the nearest runs that have them."""

    KEYS: ClassVar[tuple[str, ...]] = ("schema", "words", "memory", "time", "runs", "own_runs")
    schema: ClassVar[str] = "tunecast.runs-comparison/1"

    memory: ErrorRange | None
    time: ErrorRange | None
    runs: tuple[ComparedRun, ...]
    """The nearest first."""
    own_runs: int
    """Of the store that were looked at."""
    words: str


def compare_runs(job: Job, model: ModelConfig | None, own: Iterable[Record] = ()) -> RunsComparison:
    """The runs nearest to a job, of the package's and of `own` records."""
    asked = traits_of(job, model, gpu_named(job.hardware.gpu))
    mine = list(near_runs(own))
    found = like_runs(asked, [*shipped(asked), *near(asked, mine)])
    known = {run.id for run in mine}
    runs = dict.fromkeys((*found.memory_runs, *found.time_runs))
    shown = sorted(runs, key=lambda run: (run.distance, run.id))
    return RunsComparison(
        found.memory,
        found.time,
        tuple(_shown(run, OWN if run.id in known else SHIPPED) for run in shown),
        len(mine),
        comparison_words(found),
    )


def comparison_words(found: LikeRuns) -> str:
    return found.words or "no three measured runs are like yours"


def _shown(run: NearRun, origin: str) -> ComparedRun:
    traits = run.traits
    return ComparedRun(
        run.id, origin, round(run.distance, 2), traits.card, traits.cards, traits.family, traits.precision,
        traits.method, traits.model, round(2**traits.tokens), traits.recomputes, run.memory_error, run.time_error,
    )  # fmt: skip


def near_runs(records: Iterable[Record]) -> Iterator[NearRun]:
    for record in records:
        traits, (memory, time) = traits_of_record(record), errors_of(record)
        if traits is not None and (memory is not None or time is not None):
            yield NearRun(str(record["id"]), traits, memory, time)


def errors_of(record: Record) -> tuple[float | None, float | None]:
    """Of memory and of a step's time: measured over predicted, less 1."""
    if record.get("state") not in ("done", "stopped"):
        return None, None
    if not ran_as_planned(record.get("job") or {}, record.get("hardware") or {}):
        return None, None
    said, memory, time = (record.get(name) or {} for name in ("predicted", "memory", "time"))
    held = next(
        (memory[name] / said[name] - 1 for name in MEMORIES if memory.get(name) and said.get(name)),
        None,
    )
    taken = time["step_s"] / said["step_s"] - 1 if time.get("step_s") and said.get("step_s") else None
    return held, taken


def traits_of_record(record: Record) -> RunTraits | None:
    """None where the job or the card is not known."""
    job, hardware = record.get("job"), record.get("hardware") or {}
    card = hardware.get("gpu")
    if not job or not card:
        return None
    try:
        gpu = gpu_named(card)
    except TunecastError:
        return None
    several = (hardware.get("gpus") or 1) * (hardware.get("nodes") or 1) > 1
    name = job.get("model") or ""

    def field(dotted: str) -> Any:
        return job[dotted] if job.get(dotted) is not None else all_knobs()[dotted].default

    return RunTraits(
        card=gpu.name,
        generation=gpu.architecture.partition(" ")[0],
        family=family_of(field("stack")),
        cards=SEVERAL if several else ONE,
        precision=LOW_PRECISION if job.get("matmul_dtype") else SIXTEEN_BITS,
        method=field("method"),
        task=task_group(field("task")),
        model=name,
        size=_size(name, record.get("model_shape")),
        tokens=log2(field("micro_batch") * field("seq_len")),
        recomputes=bool(job.get("gradient_checkpointing")),
    )


def _size(model: str, shape: Mapping[str, Any] | None) -> float | None:
    """By the model's own sizes where the record has them, else of a bundled model by its name; nothing is fetched."""
    if shape is not None:
        _, text = language_part(shape)
        layers, hidden = (_first(text, names) for names in (LAYERS, HIDDEN))
        return None if not layers or not hidden else size_of(layers, hidden, _first(text, WIDTH) or 4 * hidden)
    return _bundled_size(model)


@cache
def _bundled_size(model: str) -> float | None:
    name = bundled_name(model)
    if name is None:
        return None
    found = resolve_model(name, offline=True)
    return size_of(found.layers, found.hidden_size, found.intermediate_size)


LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
WIDTH = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff")


def _first(text: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    found = next((text[name] for name in names if isinstance(text.get(name), int)), None)
    return found if found is not None and 0 < found < 10**9 else None


MOST_OWN = 20_000
"""Of the store's runs, those that are looked at."""


def own_records(environ: Mapping[str, str] = os.environ) -> list[Record]:
    """The newest of the store, where there is one."""
    from tunecast.learn.lessons import has_runs
    from tunecast.learn.runs_store.place import has_store
    from tunecast.learn.runs_store.rows import RunFilters
    from tunecast.learn.runs_store.store import open_store

    if not has_runs(environ) or not has_store(environ):
        return []
    with open_store(environ) as store:
        newest = store.summaries(MOST_OWN)
        if not newest:
            return []
        bad: list[str] = []
        return [run.to_dict() for run in store.records(RunFilters(since=newest[-1].began), bad)]
