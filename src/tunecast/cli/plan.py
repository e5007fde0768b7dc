"""`tunecast plan JOB`, `tunecast plan -- train.py`: which machines to rent, with which settings, at what total cost."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import cast

from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser, add_calibration_flag, add_json_flag, count, number, size
from tunecast.cli.asking import QUIET_S
from tunecast.cli.files import require_writable
from tunecast.cli.filters import FILTERS, add_filter_flags, add_money_flags, options_from
from tunecast.cli.several import answer_each, is_several, jobs_of, refuse_one_file
from tunecast.cli.terminal import Counting
from tunecast.door.plan import Planner, PlanOptions
from tunecast.door.read import read
from tunecast.errors import OverBudget, printable
from tunecast.job.flags import add_job_flags, sweep_from
from tunecast.job.job import Job
from tunecast.job.writer import write_file
from tunecast.planning.choice import Plan
from tunecast.planning.space import ALLOWABLE, KEEPABLE
from tunecast.units import duration_s

USAGE = "tunecast plan JOB [options], or tunecast plan [options] -- train.py ARGS..."
DESCRIPTION = """\
Finds which machines to rent for a job, with which settings, how long it takes and what it costs in total: the cheapest,
the fastest and a balanced option, and with --within the cheapest that meets the deadline.

It picks machines that you can sign a contract for: on demand, from known companies, at recent prices. What spot
machines, marketplaces and reservations would cost is shown next to them; --spot, --marketplace and --reserved allow
picking them.

What the job says stays as it is. The plan chooses the cards, how the job is spread over them, how the global batch is
split (micro_batch x grad_accum x cards stays the same), and gradient_checkpointing and kernels if the job does not set
them. --keep fixes more, --allow frees more. For several jobs (JSON Lines, or a sweep: --set lora.rank=8,16,64) there is
one plan for each; tunecast launch plans them together."""
EPILOG = """\
examples:
  tunecast plan llama-3.1-8b --method lora --tokens 20000000
  tunecast plan job.yaml --within 6h --max-usd 50 --html plan.html
  tunecast plan job.yaml --eu --no-cloud-act                    certainly in the EU, no known US parent
  tunecast plan job.yaml --runs 8                               8 variants, one after another on one machine
  tunecast plan job.yaml --set lora.rank=8,16,64 --json         one plan per rank, one line each; or jobs.jsonl
  tunecast plan job.yaml --gpu rtx-4090                         only on this card; to add yours: tunecast offers add
  tunecast plan --eu --within 6h -- train.py --epochs 3         your own script, traced (its flags: plan --help --)
"""


def duration(text: str) -> float:
    """`6h`, `90min`, `2d`."""
    seconds = duration_s(text)
    if seconds is None:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: a time such as 6h, 90min or 2d")
    return seconds


def day(text: str) -> date:
    try:
        return date.fromisoformat(text.strip()[:40])
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text[:40]!r}; allowed: a day such as 2026-09-01") from None


SHORT = (
    *("--within", "--max-usd", "--eu", "--no-cloud-act", "--spot", "--gpu", "--gpus", "--runs", "--json", "--html"),
    *("--short", "--details", "--method", "--rank", "--weights-dtype", "--seq-len", "--micro-batch", "--grad-accum"),
    *("--gradient-checkpointing", "--optimizer", "--stack", "--samples", "--tokens", "--epochs", "--set", "--help-all"),
)
"""Flags that --help shows."""


def parser() -> Parser:
    made = Parser("plan", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument("source", metavar="JOB", help="the file you train with, a job file, or a model")
    wanted = add_question_flags(made)
    wanted.add_argument(
        "--nodes-up-to",
        metavar="N",
        type=count,
        help="most machines joined for one run (default: one, if that is enough)",
    )
    wanted.add_argument(
        "--keep",
        metavar="FIELD,…",
        action="append",
        default=[],
        help=f"also keep as the job has them: {', '.join(KEEPABLE)}",
    )
    wanted.add_argument(
        "--allow", metavar="FIELD,…", action="append", default=[],
        help=f"also choose: {', '.join(ALLOWABLE)}",
    )  # fmt: skip
    add_calibration_flag(wanted)
    add_job_flags(made, without=FILTERS)
    return made


def add_question_flags(made: Parser) -> argparse._ArgumentGroup:
    """What a plan of a job and one of a script are asked; the group of what is wanted."""
    wanted = made.add_argument_group("what is wanted")
    wanted.add_argument(
        "--within", metavar="TIME", type=duration, help="deadline from order to trained model, such as 6h"
    )
    wanted.add_argument(
        "--max-usd", metavar="N", type=number(0, 1e9, "dollars"), help="budget for the likely total cost, in US dollars"
    )
    wanted.add_argument(
        "--runs",
        metavar="N",
        type=count,
        default=1,
        help="number of runs, one after another on one machine (default: 1)",
    )
    wanted.add_argument("--validated", action="store_true", help="only cards and stacks whose runs were measured")
    wanted.add_argument("--weekly", action="store_true", help="the job runs every week: also show the cost per year")
    which = made.add_argument_group("which offers")
    which.add_argument("--spot", action="store_true", help="may also pick spot machines")
    which.add_argument("--no-spot", action="store_true", help="leave spot machines out")
    which.add_argument(
        "--marketplace", action="store_true", help="may also pick marketplaces, and sellers whose company is not known"
    )
    which.add_argument(
        "--reserved", action="store_true", help="may also pick reservations, each at the cost of its whole term"
    )
    which.add_argument(
        "--max-age", metavar="DAYS", type=count, help="oldest price that counts (default: 180, for spot prices 30)"
    )
    which.add_argument(
        "--available", action="store_true", help="ask providers that need no account whether one is free"
    )
    which.add_argument("--as-of", metavar="DATE", type=day, help="plan as of that day, such as 2026-09-01")
    add_filter_flags(which)
    bill = made.add_argument_group("the bill")
    add_money_flags(bill)
    bill.add_argument(
        "--storage", metavar="SIZE", type=size, help="storage paid for a month (default: checkpoints and model)"
    )
    bill.add_argument(
        "--egress", metavar="SIZE", type=size, help="data downloaded at the end (default: the model, or its adapters)"
    )
    bill.add_argument(
        "--interruptions",
        metavar="N",
        type=number(0, 3600, "interruptions"),
        help="interruptions per hour of a spot machine (default: an estimate)",
    )
    output = made.add_argument_group("output")
    add_json_flag(output)
    output.add_argument("--html", metavar="FILE", help="write the plan as an HTML page")
    output.add_argument("--md", metavar="FILE", help="write the plan as Markdown, for a pull request")
    output.add_argument("--short", action="store_true", help="one line instead of the whole answer")
    output.add_argument("--details", action="store_true", help="also the plot, every line of the bill, all assumptions")
    output.add_argument("--quiet", action="store_true", help="show no progress on stderr")
    return wanted


def run(argv: Sequence[str]) -> int:
    if "--" in argv:
        from tunecast.cli import plan_script

        return plan_script.run(argv)
    arguments = parser().read(argv)
    require_files(arguments)
    points = sweep_from(arguments)
    if not is_several(arguments.source, points):
        return answer_job(read(arguments.source, points[0].overrides), arguments, argv, arguments.source)
    jobs = [each.named for each in jobs_of(arguments.source, points)]
    refuse_one_file(arguments, ("html", "md"), len(jobs))

    def ask(job: Job, number: int) -> int:
        if arguments.short:
            print(f"{printable(str(job.id or job.model))}: ", end="")
        return answer_job(job, arguments, argv, arguments.source)

    return answer_each(jobs, ask, arguments)


def answer_job(job: Job, arguments: argparse.Namespace, argv: Sequence[str], source: str) -> int:
    title, live = f"planning {job.id or job.model}", not arguments.quiet
    with Counting(title, "settings looked at", after_s=QUIET_S, live=live) as counting:
        planner = Planner(job, plan_options(arguments), counting)
        in_full = arguments.html is not None
        plan = planner.plan(front_in_full=in_full, unstated=not arguments.json or in_full)
    return answer(plan, arguments, argv, source)


def require_files(arguments: argparse.Namespace) -> None:
    for flag, name in (("--html", arguments.html), ("--md", arguments.md)):
        require_writable(flag, name)


def plan_options(arguments: argparse.Namespace) -> PlanOptions:
    return cast(PlanOptions, options_from(arguments, PlanOptions.__annotations__))


def answer(plan: Plan, arguments: argparse.Namespace, argv: Sequence[str], source: str | None) -> int:
    """Print it, write what was asked for, and say how it ends. `source`: of a job, what it was read from."""
    print_plan(plan, arguments, source)
    write_files(plan, arguments, argv)
    failure = plan.failure
    if failure is None:
        return 0
    if arguments.json or not plan.choices:  # else the first line of the text says it, in the same words
        from tunecast.report.plan.words import nothing

        why = nothing(plan) if isinstance(failure, OverBudget) else failure.message
        print(f"tunecast: error: {why}", file=sys.stderr)
    return failure.exit_code


def print_plan(plan: Plan, arguments: argparse.Namespace, source: str | None) -> None:
    """As text only where there is something to choose from."""
    if not (arguments.json or plan.choices):
        return
    from tunecast.report.plan.text import short, text
    from tunecast.report.run.wording import wording_of

    as_text = partial(text, plan, details=arguments.details, wording=wording_of(source))
    print_answer(plan, arguments, as_text, partial(short, plan))


def write_files(plan: Plan, arguments: argparse.Namespace, argv: Sequence[str]) -> None:
    if arguments.html is not None:
        from tunecast.cli.pages import provenance
        from tunecast.report.plan.page import page

        write_file(Path(arguments.html), page(plan, provenance("plan", argv, plan.job)), flag="--html")
    if arguments.md is not None:
        from tunecast.report.plan.markdown import markdown

        write_file(Path(arguments.md), markdown(plan), flag="--md")
