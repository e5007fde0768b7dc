"""`tunecast largest [MODEL] --gpu 4090`: the most that fits a card."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from tunecast.cli.arguments import Parser
from tunecast.cli.asking import Asking, add_asking_flags, say_card
from tunecast.cli.terminal import terminal_of
from tunecast.errors import DoesNotFit, NotResolved, UsageError
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.job.flags import COMMON, add_job_flags, overrides_from
from tunecast.job.job import Job
from tunecast.job.mapping import check_overrides, job_from_dict, with_overrides
from tunecast.job.model import ModelConfig, bundled_models, resolve_model
from tunecast.job.names import METHODS
from tunecast.job.readers import is_job_file
from tunecast.predict.engines import the_job
from tunecast.predict.evidence import evidence_of
from tunecast.predict.largest import (
    Reach,
    capacity_of,
    largest_batch,
    largest_model,
    longest_sequence,
    of_model,
    positions_of,
    with_rows,
    with_rows_of,
)
from tunecast.report.adapters import adapters_words
from tunecast.report.largest import (
    Figure,
    Largest,
    Most,
    Settings,
    Top,
    TopModel,
    largest_dict,
    largest_short,
    largest_text,
)
from tunecast.tape.build.fill_in import fill_in_of

USAGE = "tunecast largest [JOB] [options]"
DESCRIPTION = """\
The most that fits a card. Without a JOB: the largest bundled model by method. With one (a model, or a job file): the
longest sequence, and the largest micro-batch; for all three methods unless --method or the file names one."""
EPILOG = """\
examples:
  tunecast largest --gpu 4090                                        the largest bundled model: full, LoRA, QLoRA
  tunecast largest --gpu 4090 --seq-len 4096 --rank 64
  tunecast largest llama-3.1-8b --gpu a100-80gb-sxm --method lora    the longest sequence, the largest batch
  tunecast largest job.yaml --gpu l40s --reserve 2GiB

First what fits for sure, at the high end of the prediction's 80 % range too; then what fits by the prediction itself,
the next step up being predicted not to. Lengths go in steps of 64 tokens, up to what the model has positions for. A
micro-batch that is not given is 1, not trainers' 8.
"""

Overrides = Mapping[str, object]

SHORT = (*COMMON, "--reserve", "--set", "--short", "--json", "--help-all")
"""Flags that --help shows."""


def parser() -> Parser:
    made = Parser("largest", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument("source", metavar="JOB", nargs="?", help="a model, or a job file")
    made.add_argument("--short", action="store_true", help="one line for each method instead of the whole answer")
    add_asking_flags(made)
    add_job_flags(made)
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    overrides = overrides_from(arguments)
    check_overrides(overrides)
    source: str | None = arguments.source
    if source is None and "model" in overrides:
        source = str(overrides.pop("model"))
    with Asking(arguments, f"searching {source or 'the bundled models'}") as asking:
        found = models_that_fit(overrides, asking) if source is None else most_that_fits(source, overrides, asking)
    if arguments.json:
        print(json.dumps(largest_dict(found)))
    elif arguments.short:
        print(largest_short(found), end="")
    else:
        print(largest_text(found, terminal_of(sys.stdout)), end="")
    return 0 if found.any else DoesNotFit.exit_code


def models_that_fit(overrides: Overrides, asking: Asking) -> Largest:
    """The largest bundled model of each method."""
    rows: list[TopModel] = []
    told: list[Job] = []
    sizes = {name: int(entry["parameters"]) for name, entry in bundled_models().items()}
    for asked in by_method({"micro_batch": 1, **overrides}, methods_of(overrides)):
        jobs = [
            of_model(
                job_with(name, asked), size, all_used=not {"parts", "active_parameters"} & set(bundled_models()[name])
            )
            for name, size in sizes.items()
        ]
        told.append(jobs[0].item)
        surely, found = largest_model(jobs, asking.predict, capacity_of(jobs[0].item))
        rows.append(
            TopModel(
                method=str(asked["method"]),
                surely=top(surely, sizes, asking),
                likely=top(found.item, sizes, asking),
                beyond=found.beyond.model if found.beyond else None,
                unanswered=tuple((job.model, why.splitlines()[0]) for job, why in found.unanswered),
            )
        )
    if not any(row.likely or row.beyond for row in rows) and any(row.unanswered for row in rows):
        raise NotResolved(
            f"no bundled model could be predicted: {next(r for r in rows if r.unanswered).unanswered[0][1]}"
        )
    say_card(told[0])
    return Largest(settings_of(told), asking.engine, asking.asked, models=tuple(rows))


def most_that_fits(source: str, overrides: Overrides, asking: Asking) -> Largest:
    """The longest sequence and the largest micro-batch of a model or a job file."""
    if is_job_file(source) or "method" in overrides:
        first = {} if is_job_file(source) else {"micro_batch": 1}
        jobs = [the_job(source, {**first, **overrides})]
    else:
        jobs = [the_job(source, asked) for asked in by_method({"micro_batch": 1, **overrides}, METHODS)]
    model = resolve_model(jobs[0].model)
    positions = positions_of(model.raw)
    sequences, batches = [], []
    for job in jobs:
        try:
            length, rows = longest_sequence(job, asking.predict, positions), largest_batch(job, asking.predict)
        except (UsageError, NotResolved) as error:
            if len(jobs) == 1:
                raise
            why = error.message.splitlines()[0]
            sequences.append(Most(job.method, job.micro_batch, None, None, None, why))
            batches.append(Most(job.method, job.seq_len, None, None, None, why))
            continue

        def at_length(most: int, job: Job = job) -> Job:
            return with_rows_of(job, most)

        def at_rows(most: int, job: Job = job) -> Job:
            return with_rows(job, most)

        sequences.append(most_of(job.method, job.micro_batch, length, at_length, asking))
        batches.append(most_of(job.method, job.seq_len, rows, at_rows, asking))
    say_card(jobs[0])
    return Largest(
        settings_of(jobs, model), asking.engine, asking.asked, sequences=tuple(sequences), batches=tuple(batches),
        model=jobs[0].model, positions=positions,
    )  # fmt: skip


def most_of(method: str, at: int, found: Reach, job_at: Callable[[int], Job], asking: Asking) -> Most:
    def figure(most: int | None) -> Figure | None:
        return None if most is None else Figure(most, *needs(job_at(most), asking))

    return Most(method, at, figure(found.surely), figure(found.likely.most), found.likely.beyond, jagged=found.jagged)


def top(job: Job | None, sizes: Mapping[str, int], asking: Asking) -> Top | None:
    return None if job is None else Top(job.model, sizes[job.model], *needs(job, asking))


def needs(job: Job, asking: Asking) -> tuple[int, tuple[int, int]]:
    """The least capacity it completes with, and the range of what PyTorch holds, in which it is sure to."""
    held = asking.predict(job).held
    return held.smallest_capacity_bytes, (held.room.low_bytes, held.room.high_bytes)


def methods_of(overrides: Overrides) -> tuple[str, ...]:
    return (str(overrides["method"]),) if "method" in overrides else METHODS


def by_method(overrides: Overrides, methods: Sequence[str]) -> Iterator[dict[str, object]]:
    """The flags for each method; what only another method has is left out where several are asked for."""
    for method in methods:
        foreign = ("lora.", "quantization.") if method == "full" else ("quantization.",) if method == "lora" else ()
        dropped = foreign if len(methods) > 1 else ()
        yield {name: value for name, value in overrides.items() if not name.startswith(dropped)} | {"method": method}


def job_with(model: str, overrides: Overrides) -> Job:
    return job_from_dict(with_overrides({"model": model}, overrides))


def settings_of(jobs: Sequence[Job], model: ModelConfig | None = None) -> Settings:
    """What was held fixed; of one model, with what follows from it."""
    if model is not None:
        jobs = [fill_in_of(job, model) for job in jobs]
    job, card = jobs[0], gpu_named(jobs[0].hardware.gpu).name
    adapted = next((each for each in jobs if each.method != "full"), None)
    return Settings(
        gpu=card,
        capacity_bytes=capacity_of(job),
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
