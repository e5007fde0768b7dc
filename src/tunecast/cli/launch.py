"""`tunecast launch JOB --on slurm`: a job, a plan or a trainer's file, started; `--dry-run` shows what would be.
Several jobs (JSON Lines, a sweep) are started together."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser, add_json_flag, count, number
from tunecast.cli.filters import options_from as filters_from
from tunecast.cli.plan import day, duration
from tunecast.cli.read import values_from
from tunecast.cli.several import LINES, jobs_of
from tunecast.cli.terminal import Counting
from tunecast.door.launch import RunsAlready, launch
from tunecast.door.launch_many import LaunchedTogether, RenderedTogether, Together, Variant, launch_many
from tunecast.door.launch_source import own_file
from tunecast.errors import UsageError, printable
from tunecast.job.flags import SweepPoint, add_job_flags, sweep_from
from tunecast.job.job import Job
from tunecast.job.readers import is_job_file
from tunecast.launching.rendering import Rendering
from tunecast.report.lists.launch import launched_text, launched_together_text, rendered_together_text, rendering_text

USAGE = "tunecast launch JOB|JOBS.jsonl --on ENGINE [options]"
DESCRIPTION = """\
Starts a job on an engine. The training program is not tunecast's: a file you train with is started as it is, with your
overrides on its command line; a job is rendered for TRL, Axolotl, LLaMA-Factory or torchtune (--stack), with exactly
the settings and releases that were predicted. The rendered files are parsed again before anything starts, and refused
if they would train another job.

--dry-run shows every file and command, and starts nothing; --out writes the files. A job without data (--data-path) is
shown with a placeholder, and not started. Tokens and keys stay in the environment and with the engine.

Several jobs, from JSON Lines or a sweep (--set lora.rank=8,16,64; two sweeps: every combination), form one group. Each
gets its machine from a plan (--within for each, --max-usd for all of them), or with --share they share your own and
reserved machines under one deadline. The engine queues them (Slurm as arrays). A job that is already queued, running or
done is not started again, so the same command continues where it was interrupted."""
EPILOG = """\
examples:
  tunecast launch llama-3.1-8b --method lora --stack trl --gpu h100 --on slurm --dry-run
  tunecast launch job.yaml --data-path train.jsonl --on slurm --option partition=gpu --option gres=gpu:h100:8
  tunecast plan job.yaml --json > plan.json && tunecast launch plan.json --on slurm
  tunecast launch plan.json --on skypilot --option bucket=s3://my-checkpoints    in the plan's order, at its prices
  tunecast launch axolotl.yml --gpu h100 --gpus 1 --micro-batch 2 --on local    the file you train with, as it is
  tunecast launch job.yaml --data-path train.jsonl --gpu h100 --set lora.rank=8,16,64 --on slurm --at-once 2
  tunecast launch jobs.jsonl --on slurm --share --within 2d     on your own machines: tunecast offers add
  tunecast jobs; tunecast logs ID; tunecast cancel ID, or cancel GROUP
"""
SHORT = (
    *("--on", "--dry-run", "--out", "--option", "--with", "--cpu", "--again", "--no-preflight", "--json"),
    *("--data-path", "--stack"),
    *("--method", "--seq-len", "--micro-batch", "--gpu", "--gpus", "--set"),
    *("--at-once", "--share", "--within", "--max-usd", "--eu", "--help-all"),
)
"""Flags that --help shows."""


def parser() -> Parser:
    made = Parser("launch", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument(
        "source",
        metavar="JOB",
        help="the file you train with, a job file, JSON Lines of jobs, a plan's JSON, or a model",
    )
    engines = "local, slurm, ssh:HOST, kubernetes, skypilot, dstack or lyceum"
    made.add_argument("--on", metavar="ENGINE", required=True, help=engines)
    made.add_argument("--dry-run", action="store_true", help="show every file and command, and start nothing")
    made.add_argument("--out", metavar="DIR", help="write the files into this folder")
    made.add_argument(
        "--option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="option of the engine, such as partition=gpu (repeatable)",
    )
    made.add_argument(
        "--with", metavar="KEY=VALUE", action="append", default=[], dest="extra",
        help="further setting of the trainer, such as learning_rate=2e-4 (repeatable)",
    )  # fmt: skip
    made.add_argument("--cpu", action="store_true", default=None, help="run on the CPU, as a rehearsal")
    made.add_argument("--again", action="store_true", help="start it even if the same job is already running")
    made.add_argument(
        "--no-preflight", action="store_false", dest="preflight", help="train without checking the machine first"
    )
    made.add_argument(
        "--no-record", action="store_false", dest="record", help="train without measuring (tunecast runs)"
    )
    add_json_flag(made)
    add_many_flags(made)
    add_job_flags(made)
    return made


PLAN_OPTIONS = (
    *("within", "max_usd", "eu", "no_cloud_act", "spot", "marketplace", "reserved", "provider", "exclude_provider"),
    *("nodes_up_to", "as_of"),
)


def add_many_flags(made: Parser) -> None:
    group = made.add_argument_group("several jobs, and the machines of their plans")
    group.add_argument("--at-once", metavar="N", type=count, help="most jobs that run at the same time (slurm)")
    group.add_argument(
        "--share", action="store_true", help="share your own and reserved machines (tunecast offers add)"
    )
    group.add_argument(
        "--within", metavar="TIME", type=duration, help="deadline from order to trained model, such as 6h"
    )
    group.add_argument(
        "--max-usd", metavar="N", type=number(0, 1e9, "dollars"), help="budget for all jobs together, in US dollars"
    )
    group.add_argument("--eu", action="store_true", help="only machines certain to be in one of the EU's 27 countries")
    group.add_argument("--no-cloud-act", action="store_true", help="only companies without a known parent under US law")
    group.add_argument("--spot", action="store_true", help="may also pick spot machines")
    group.add_argument("--marketplace", action="store_true", help="may also pick marketplaces")
    group.add_argument(
        "--reserved", action="store_true", help="may also pick reservations, each at the cost of its whole term"
    )
    group.add_argument(
        "--provider", metavar="NAME", action="append", default=[], help="only this provider (repeatable)"
    )
    group.add_argument(
        "--exclude-provider", metavar="NAME", action="append", default=[], help="not this provider (repeatable)"
    )
    group.add_argument("--nodes-up-to", metavar="N", type=count, help="most machines joined for one job")
    group.add_argument("--as-of", metavar="DATE", type=day, help="plan as of that day, such as 2026-09-01")


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    if arguments.out == "":
        raise UsageError("--out: got ''; allowed: a folder, such as out, or . for this one", field="out")
    points = sweep_from(arguments)
    variants = variants_of(arguments.source, points)
    if variants or points[0].label or arguments.share or any(planned(arguments).values()):
        return run_many(
            variants or [Variant(arguments.source, each.overrides, each.label) for each in points], arguments
        )
    if arguments.at_once is not None:
        raise UsageError("--at-once: is of several jobs, and this is one. To fix: leave it out", field="at_once")
    asked = partial(
        launch,
        arguments.source,
        points[0].overrides,
        on=arguments.on,
        dry_run=arguments.dry_run,
        out=arguments.out,
        cpu=arguments.cpu,
        options=options_from(arguments.option),
        extra=values_from(arguments.extra),
        preflight=arguments.preflight,
        record=arguments.record,
    )
    try:
        found = asked(again=arguments.again)
    except RunsAlready as error:
        if arguments.json or not confirms(f"{error.message.partition('. To fix')[0]}. Start it once more?"):
            raise
        found = asked(again=True)
    if isinstance(found, Rendering):
        print_answer(found, arguments, lambda terminal: rendering_text(found))
    else:
        print_answer(found, arguments, lambda terminal: launched_text(found))
    return 0


def confirms(question: str) -> bool:
    """At a terminal; elsewhere nobody is asked."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def planned(arguments: argparse.Namespace) -> dict[str, Any]:
    return filters_from(arguments, PLAN_OPTIONS)


def variants_of(source: str, points: Sequence[SweepPoint]) -> list[Variant]:
    """The jobs of a file of several; none where it is one job. Raises what is wrong with any of them."""
    if own_file(source) is not None or not source.lower().endswith(LINES):
        return []
    jobs = jobs_of(source, points)
    found = [Variant(each.job, {}, each.label) for each in jobs if isinstance(each.job, Job)]
    wrong = [
        told if told.startswith(source) else f"{source}: {each.job.id or f'job {number}'}: {told}"
        for number, each in enumerate(jobs, start=1)
        if not isinstance(each.job, Job) and (told := each.job.message)
    ]
    if wrong or not found:
        raise UsageError("; ".join(wrong) or f"{source}: holds no job", field="source")
    return found


def run_many(variants: Sequence[Variant], arguments: argparse.Namespace) -> int:
    with Counting("planning", "jobs planned", after_s=1.0, live=True) as counting:
        planned_so_far: list[str] = []

        def tick(name: str) -> None:
            planned_so_far.append(name)
            counting(0.0, len(planned_so_far), max(len(planned_so_far), len(variants)))

        found = launch_many(
            variants,
            Together(
                None,
                arguments.cpu,
                options_from(arguments.option),
                values_from(arguments.extra),
                arguments.preflight,
                arguments.record,
            ),
            on=arguments.on,
            dry_run=arguments.dry_run,
            out=arguments.out,
            again=arguments.again,
            at_once=arguments.at_once,
            share=arguments.share,
            name=group_name(arguments.source),
            tick=tick,
            **planned(arguments),
        )
    print_together(found, arguments)
    return 0


def print_together(found: RenderedTogether | LaunchedTogether, arguments: argparse.Namespace) -> None:
    if isinstance(found, RenderedTogether):
        print_answer(found, arguments, lambda terminal: rendered_together_text(found))
    else:
        print_answer(found, arguments, lambda terminal: launched_together_text(found))


def group_name(source: str) -> str:
    """Letters, digits and dashes: of the file's name, or the model's."""
    stem = Path(source).stem if is_job_file(source) else Path(source).name
    return (
        "-".join("".join(each if each.isalnum() and each.isascii() else " " for each in stem.lower()).split())[:40]
        or "jobs"
    )


def options_from(words: Sequence[str]) -> dict[str, str]:
    for word in words:
        if "=" not in word:
            raise UsageError(f"--option: got {word[:80]!r}; allowed: KEY=VALUE, such as partition=gpu", field="option")
    return {name: value for name, _, value in (word.partition("=") for word in words)}
