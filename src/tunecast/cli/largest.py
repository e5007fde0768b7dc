"""`tunecast largest [MODEL] --gpu 4090`: the most that fits a card."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tunecast.cli.arguments import Parser
from tunecast.cli.asking import Asking, add_asking_flags
from tunecast.cli.terminal import terminal_of
from tunecast.cli.usage import COMMON
from tunecast.errors import DoesNotFit, NotResolved, UsageError
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.job.flags import add_job_flags, overrides_from
from tunecast.job.job import Job
from tunecast.job.mapping import check_overrides, job_from_dict, with_overrides
from tunecast.job.model import bundled_models, resolve_model
from tunecast.job.names import METHODS
from tunecast.job.readers import FORMATS
from tunecast.predict.engines import the_job
from tunecast.predict.largest import capacity_of, largest_batch, largest_model, longest_sequence, of_model, positions_of
from tunecast.records import replace
from tunecast.report.largest import Largest, Most, Settings, TopModel, largest_dict, largest_text

USAGE = "tunecast largest [JOB] [options]"
DESCRIPTION = """\
What fits a card at most. Without a JOB: the largest bundled model by method. With one (a model, or a job file): the
longest sequence, and the largest micro-batch; for all three methods unless --method or the file names one."""
EPILOG = """\
examples:
  tunecast largest --gpu 4090                                        the largest bundled model: full, LoRA, QLoRA
  tunecast largest --gpu 4090 --weights-dtype bfloat16 --seq-len 4096
  tunecast largest llama-3.1-8b --gpu a100-80gb-sxm --method lora    the longest sequence, the largest batch
  tunecast largest job.yaml --gpu l40s --reserve 2GiB

A micro-batch that is not given is 1, not trainers' 8. What is found was predicted, and the next step up was predicted
not to fit; lengths go in steps of 64 tokens, up to what the model has positions for.
"""

Overrides = Mapping[str, object]

SHORT = (*COMMON, "--reserve", "--set", "--json", "--help-all")
"""Flags that --help shows."""


def parser() -> Parser:
    made = Parser("largest", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument("source", metavar="JOB", nargs="?", help="a model, or a job file")
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
        found = largest_model(jobs, asking.predict, capacity_of(jobs[0].item))
        best = found.item
        rows.append(
            TopModel(
                method=str(asked["method"]),
                model=best.model if best else None,
                parameters=sizes[best.model] if best else None,
                needs_bytes=need_of(best, asking),
                beyond=found.beyond.model if found.beyond else None,
                unanswered=tuple((job.model, why.splitlines()[0]) for job, why in found.unanswered),
            )
        )
    if not any(row.model or row.beyond for row in rows) and any(row.unanswered for row in rows):
        raise NotResolved(
            f"no bundled model could be predicted: {next(r for r in rows if r.unanswered).unanswered[0][1]}"
        )
    return Largest(settings_of(told[0]), asking.engine, asking.asked, models=tuple(rows))


def most_that_fits(source: str, overrides: Overrides, asking: Asking) -> Largest:
    """The longest sequence and the largest micro-batch of a model or a job file."""
    if is_job_file(source) or "method" in overrides:
        first = {} if is_job_file(source) else {"micro_batch": 1}
        jobs = [the_job(source, {**first, **overrides})]
    else:
        jobs = [the_job(source, asked) for asked in by_method({"micro_batch": 1, **overrides}, METHODS)]
    positions = positions_of(resolve_model(jobs[0].model).raw)
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
        at_length = None if length.most is None else replace(job, seq_len=length.most, lengths=None)
        at_rows = None if rows.most is None else replace(job, micro_batch=rows.most)
        sequences.append(Most(job.method, job.micro_batch, length.most, length.beyond, need_of(at_length, asking)))
        batches.append(Most(job.method, job.seq_len, rows.most, rows.beyond, need_of(at_rows, asking)))
    settings = settings_of(jobs[0])
    return Largest(
        settings, asking.engine, asking.asked, sequences=tuple(sequences), batches=tuple(batches),
        model=jobs[0].model, positions=positions,
    )  # fmt: skip


def need_of(job: Job | None, asking: Asking) -> int | None:
    return None if job is None else asking.predict(job).prediction.smallest_capacity_bytes


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


def is_job_file(source: str) -> bool:
    path = Path(source)
    return path.suffix.lower() in FORMATS and path.name != "config.json"


def settings_of(job: Job) -> Settings:
    return Settings(
        gpu=gpu_named(job.hardware.gpu).name,
        capacity_bytes=capacity_of(job),
        micro_batch=job.micro_batch,
        seq_len=job.seq_len,
        weights_dtype=job.weights_dtype,
        autocast=job.autocast,
        optimizer=job.optimizer,
        gradient_checkpointing=job.gradient_checkpointing,
    )
