"""`tunecast plan JOB`: which machines to rent, with which settings, at what total cost."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

from tunecast.cli.arguments import Parser, count, number, size
from tunecast.cli.asking import QUIET_S
from tunecast.cli.files import require_writable
from tunecast.cli.filters import FILTERS, add_filter_flags, add_money_flags, asked_from, flags_told, rate_from
from tunecast.cli.terminal import Counting, terminal_of
from tunecast.errors import DoesNotFit, OverBudget, TunecastError
from tunecast.job.flags import add_job_flags, overrides_from
from tunecast.job.job import Job
from tunecast.job.readers import is_job_file
from tunecast.job.readers.given import fields_given
from tunecast.job.writer import write_file
from tunecast.offers import store
from tunecast.offers.asked import Asked
from tunecast.offers.offer import RESERVED, SPOT
from tunecast.offers.selection import BESIDE, MARKETPLACE, Rules, Selection, select
from tunecast.plan.bill import Terms
from tunecast.plan.choice import Limits, Money, Plan
from tunecast.plan.constraints import relaxations, verdict
from tunecast.plan.plan import Question, plan_of
from tunecast.plan.space import ALLOWABLE, KEEPABLE, Freedom, freed, kept
from tunecast.plan.taken import with_taken
from tunecast.predict.engines import the_job
from tunecast.records import replace
from tunecast.tape.build.shapes import undisturbed
from tunecast.units import HOUR_S

USAGE = "tunecast plan JOB [options]"
DESCRIPTION = """\
Which machines to rent for a job, with which settings, how long it takes and what it costs in all: the cheapest, the
fastest, the balanced choice, and with --within the cheapest that makes the deadline. JOB is a job file or a model.

Picked are machines one can sign for: on demand, from companies with a contract, at prices that are not old. What spot,
marketplaces and reservations would cost is said beside; --spot, --marketplace and --reserved let them be picked.

What the job says stays as it is; chosen are the cards, how the job is spread over them, how the global batch is split
(micro_batch x grad_accum x cards stays the same), and, where the job does not say them, gradient_checkpointing and
kernels. --keep fixes more, --allow frees more."""
EPILOG = """\
examples:
  tunecast plan llama-3.1-8b --method lora --tokens 20000000
  tunecast plan job.yaml --within 6h --max-usd 50
  tunecast plan job.yaml --eu --no-cloud-act                    in the EU for sure, no US parent known
  tunecast plan job.yaml --spot --exclude-provider gcp          spot machines may be picked too
  tunecast plan job.yaml --runs 8                               a sweep of 8 variants, one after another
  tunecast plan job.yaml --gpu rtx-4090                         on such cards alone; your own: tunecast offers add
  tunecast plan job.yaml --allow method,optimizer --html plan.html
"""
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(s|m|min|h|d)")
UNITS_S = {"s": 1, "m": 60, "min": 60, "h": HOUR_S, "d": 24 * HOUR_S}


def duration(text: str) -> float:
    """`6h`, `90min`, `2d`."""
    found = _DURATION.fullmatch(text.strip()[:40])
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: a time such as 6h, 90min or 2d")
    return float(found[1]) * UNITS_S[found[2]]


def day(text: str) -> date:
    try:
        return date.fromisoformat(text.strip()[:40])
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text[:40]!r}; allowed: a day such as 2026-09-01") from None


def spelled(seconds: float) -> str:
    """As it may be typed."""
    unit, size = next((unit, UNITS_S[unit]) for unit in ("h", "min", "s") if seconds >= UNITS_S[unit] or unit == "s")
    return f"{seconds / size:g}{unit}"


def names(text: str) -> list[str]:
    return [name.strip().replace("-", "_") for name in text.split(",") if name.strip()]


SHORT = (
    *("--within", "--max-usd", "--eu", "--no-cloud-act", "--spot", "--gpu", "--gpus", "--runs", "--json", "--html"),
    *("--short", "--details", "--method", "--rank", "--weights-dtype", "--seq-len", "--micro-batch", "--grad-accum"),
    *("--gradient-checkpointing", "--optimizer", "--stack", "--samples", "--tokens", "--epochs", "--set", "--help-all"),
)
"""Flags that --help shows."""


def parser() -> Parser:
    made = Parser("plan", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument("source", metavar="JOB", help="a job file, or a model")
    wanted = made.add_argument_group("what is wanted")
    wanted.add_argument("--within", metavar="TIME", type=duration, help="deadline, such as 6h, from order to model")
    wanted.add_argument("--max-usd", metavar="N", type=number(0, 1e9, "dollars"), help="budget: the likely cost")
    wanted.add_argument(
        "--nodes-up-to", metavar="N", type=count, help="machines joined at most (default: one, unless it is not enough)"
    )
    wanted.add_argument("--runs", metavar="N", type=count, default=1, help="variants, one after another on one machine")
    wanted.add_argument("--validated", action="store_true", help="only cards and stacks whose runs were measured")
    wanted.add_argument("--weekly", action="store_true", help="it runs every week: also say what a year costs")
    wanted.add_argument(
        "--keep", metavar="FIELD,…", type=names, action="extend", default=[], help=f"fix too: {', '.join(KEEPABLE)}"
    )
    wanted.add_argument(
        "--allow", metavar="FIELD,…", type=names, action="extend", default=[],
        help=f"choose too: {', '.join(ALLOWABLE)}",
    )  # fmt: skip
    which = made.add_argument_group("which offers")
    which.add_argument("--spot", action="store_true", help="spot machines may be picked too")
    which.add_argument("--no-spot", action="store_true", help="say nothing of spot machines")
    which.add_argument(
        "--marketplace", action="store_true", help="marketplaces, and sellers without a known company, too"
    )
    which.add_argument("--reserved", action="store_true", help="reservations too, each at the cost of its whole term")
    which.add_argument("--max-age", metavar="DAYS", type=count, help="of a price (default: 180, of spot prices 30)")
    which.add_argument("--available", action="store_true", help="ask providers that tell anybody whether one is free")
    which.add_argument("--as-of", metavar="DATE", type=day, help="plan as on that day, such as 2026-09-01")
    add_filter_flags(which)
    bill = made.add_argument_group("the bill")
    add_money_flags(bill)
    bill.add_argument("--storage", metavar="SIZE", type=size, help="kept for a month (default: checkpoints and model)")
    bill.add_argument("--egress", metavar="SIZE", type=size, help="taken home (default: the model, or its adapters)")
    bill.add_argument(
        "--interruptions", metavar="N", type=number(0, 3600, "interruptions"), help="of a spot machine, an hour"
    )
    output = made.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="JSON instead of text")
    output.add_argument("--html", metavar="FILE", help="write the plan as a page of its own")
    output.add_argument("--md", metavar="FILE", help="write the plan as Markdown, for a pull request")
    output.add_argument("--short", action="store_true", help="one line instead of the whole answer")
    output.add_argument("--details", action="store_true", help="the plot, every line of the bill, all that was assumed")
    output.add_argument("--quiet", action="store_true", help="no progress on stderr")
    add_job_flags(made, without=FILTERS)
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    for flag, name in (("--html", arguments.html), ("--md", arguments.md)):
        require_writable(flag, name)
    plan, failed = answer(arguments)
    tell(plan, arguments, argv)
    if failed is None:
        return 0
    if arguments.json or not plan.choices:  # else the first line of the text says it, in the same words
        from tunecast.report.plan_words import nothing

        told = nothing(plan) if isinstance(failed, OverBudget) else failed.message
        print(f"tunecast: error: {told}", file=sys.stderr)
    return failed.exit_code


def answer(arguments: argparse.Namespace) -> tuple[Plan, TunecastError | None]:
    """The plan, and why it answers less than was asked, where it does."""
    overrides = overrides_from(arguments)
    freedom = Freedom(
        fields_given(arguments.source, overrides), kept(arguments.keep), freed(arguments.allow), arguments.nodes_up_to
    )
    job = the_job(arguments.source, overrides)
    today = arguments.as_of or date.today()
    vat_fraction = (arguments.vat or 0.0) / 100
    terms = Terms(
        arguments.interruptions,
        arguments.storage,
        arguments.egress,
        vat_fraction,
        arguments.runs,
        chooses_saves=not freedom.written & {"run.save_strategy", "run.save_steps"},
    )
    question = Question(
        today,
        freedom,
        Limits(arguments.within, arguments.max_usd),
        terms,
        tuple(told_of(arguments)),
        Money(arguments.eur, rate_from(arguments, today), vat_fraction),
        arguments.weekly,
        arguments.validated,
    )
    asking = Asking(arguments, job, question)
    offers = asking.selected(asked_from(arguments))
    if not offers.offers:
        raise asking.none(offers)
    plan = asking.plan(offers, question)
    failed = verdict(plan)
    if isinstance(failed, DoesNotFit):
        failed = verdict(plan, asking.nearest(offers, is_known=_is_known(plan)))
    if not arguments.json or arguments.html:
        plan = with_taken(plan, terms)
    return _with_availability(plan) if arguments.available else plan, failed


def _is_known(plan: Plan) -> bool:
    """Whether more memory, or another way to use it, would help on most of what was refused."""
    small = sum(each.too_small for each in plan.refused)
    return 2 * small >= len(plan.refused)


def _with_availability(plan: Plan) -> Plan:
    from tunecast.offers.availability import availability, doors

    offers = dict.fromkeys(each.machine.offer for each in plan.picks.values() if each is not None)
    answers = availability(offers, datetime.now(UTC), doors())
    return plan.with_availability({offer: each.answer for offer, each in answers.items()})


class Asking:
    """The same question, of more or fewer offers, with more or less freedom."""

    def __init__(self, arguments: argparse.Namespace, job: Job, question: Question) -> None:
        self.arguments, self.job, self.question = arguments, job, question
        self.known, self.own = store.offers(), frozenset(store.kept(store.OWN))

    def selected(self, wanted: Asked, *, everything: bool = False) -> Selection:
        given = self.arguments
        named = {SPOT: given.spot, MARKETPLACE: given.marketplace, RESERVED: given.reserved}
        allow = frozenset(name for name, is_allowed in named.items() if is_allowed or name in given.kind or everything)
        show = frozenset(BESIDE) - ({SPOT} if given.no_spot else set())
        return select(self.known, wanted, Rules(allow, show, given.max_age), self.question.today, self.own)

    def none(self, offers: Selection) -> DoesNotFit:
        """What is said where no offer is left, with what would leave some."""
        told = self.question.asked
        after = f" after {', '.join(told)}" if told else ""
        tries = [f"--{name} would leave {len(of)}" for name, of in offers.beside.items()]
        tries += [f"{n} left out: {why}" for why, n in offers.unknown.items()]
        tries += [f"not proven of {', '.join(sorted(offers.unproven))}"] if offers.unproven else []
        tries += [f"{offers.old} left out for the age of their prices: --max-age"] if offers.old else []
        tries += ["your own machines: tunecast offers add"] if self.arguments.gpu else []
        return DoesNotFit("; ".join([f"no offer is left{after}: {offers.cut} leaves none", *tries]))

    def plan(self, offers: Selection, question: Question) -> Plan:
        given = self.arguments
        title = f"planning {self.job.id or self.job.model}"
        with undisturbed(), Counting(title, "settings looked at", after_s=QUIET_S, live=not given.quiet) as counting:
            return plan_of(self.job, offers, question, progress=counting, front_in_full=given.html is not None)

    def nearest(self, offers: Selection, *, is_known: bool) -> list[str]:
        """What would run the job: each of these is a plan that was made. Where no setting of it is known at all, only
        another method can help."""
        question, flags = self.question, flags_told(self.arguments)
        tried: list[tuple[str, Freedom, Selection]] = []
        everything = self.selected(Asked(), everything=True)
        if is_known and len(everything.offers) > len(offers.offers):
            name = f"without {', '.join(flags)}" if flags else "--spot --marketplace"
            tried.append((name, question.freedom, everything))
        wider = relaxations(question.freedom)
        tried += [(name, wider[name], offers) for name in wider if is_known or name == "--allow method"]
        for name, freedom, of in tried:
            try:
                found = self.plan(of, replace(question, freedom=freedom))
            except TunecastError:
                continue
            if found.choices:
                best = found.choices[0]
                what = f"{best.hardware} at {best.machine.offer.provider} for {best.total_usd:.2f} USD"
                method = f", method {best.job.method}" if best.job.method != self.job.method else ""
                return [f"what would: {name}: {what}{method}"]
        return ["what would: nothing that was tried; a smaller model, or shorter rows"]


def told_of(arguments: argparse.Namespace) -> list[str]:
    """The constraints as they were typed."""
    told = flags_told(arguments)
    told += [] if arguments.max_age is None else [f"--max-age {arguments.max_age}"]
    told += [] if arguments.as_of is None else [f"--as-of {arguments.as_of}"]
    told += ["--validated"] if arguments.validated else []
    told += [] if arguments.runs == 1 else [f"--runs {arguments.runs}"]
    told += [] if arguments.within is None else [f"--within {spelled(arguments.within)}"]
    told += [] if arguments.max_usd is None else [f"--max-usd {arguments.max_usd:g}"]
    told += [f"--keep {name}" for name in arguments.keep] + [f"--allow {name}" for name in arguments.allow]
    return told + ([] if arguments.nodes_up_to is None else [f"--nodes-up-to {arguments.nodes_up_to}"])


def tell(plan: Plan, arguments: argparse.Namespace, argv: Sequence[str]) -> None:
    if arguments.json:
        print(json.dumps(plan.to_dict()), flush=True)
    elif plan.choices:
        from tunecast.report.plan import short, text

        if arguments.short:
            print(short(plan), end="", flush=True)
        else:
            by_flags, terminal = not is_job_file(arguments.source), terminal_of(sys.stdout)
            print(text(plan, terminal, details=arguments.details, flags=by_flags), end="", flush=True)
    if arguments.html is not None:
        from tunecast.cli.pages import provenance
        from tunecast.report.plan_html import page

        write_file(Path(arguments.html), page(plan, provenance("plan", argv, plan.job)), flag="--html")
    if arguments.md is not None:
        from tunecast.report.plan_md import markdown

        write_file(Path(arguments.md), markdown(plan), flag="--md")
