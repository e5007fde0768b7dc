"""What `tunecast predict` prints for people: the report, and with it the changes that would help."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from tunecast.cli.terminal import terminal_of
from tunecast.cli.trials import rent_of_run
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.hardware.catalog import meant_by
from tunecast.hardware.names import card_name
from tunecast.job.job import Job
from tunecast.job.readers import is_job_file
from tunecast.predict.evidence import evidence_of
from tunecast.predict.least_card import largest_memory_bytes, least_card
from tunecast.predict.outside import Outside
from tunecast.predict.prediction import Predicted, context_of
from tunecast.records import replace
from tunecast.report.advice import ROOMY, advice_text, as_flags, with_flags
from tunecast.report.answer import Sections, answer_text, details_text
from tunecast.report.evidence import trust
from tunecast.report.figures import Figures, LeastCard
from tunecast.report.outside import host_text, outside_text, outside_warnings
from tunecast.report.plan_words import seller
from tunecast.report.price import cost_words, rent_words
from tunecast.report.taken import taken_text
from tunecast.report.text import Terminal
from tunecast.report.time import host_words, time_text
from tunecast.report.traced import card_figures
from tunecast.report.verdict import short_line
from tunecast.tape.build.sharding.scheme import ranks_of
from tunecast.units import gib

if TYPE_CHECKING:
    from tunecast.cli.predict import How
    from tunecast.cli.trials import Tried

METHODS = {"full": "full fine-tune", "lora": "LoRA", "qlora": "QLoRA"}


def tell(done: Predicted, outside: Outside | None, tried: Tried, number: int, how: How) -> Figures:
    """Print the how-manieth job's answer; what it is made of."""
    figures = card_figures(
        done.held, done.prediction, title_of(done.job), details=how.with_blocks, least_card=smallest(done)
    )
    if is_by_flags(how.sources[number - 1]):
        assumed, warned = (tuple(map(with_flags, told)) for told in (figures.assumptions, figures.warnings))
        figures = replace(figures, assumptions=assumed, warnings=warned)
    if how.short:
        print(short_line(figures, done.prediction.time, short_cost(done)), end="", flush=True)
        return figures
    terminal = terminal_of(sys.stdout)
    sections = sections_of(done, outside, tried, how, how.sources[number - 1], terminal)
    if number > 1:
        print()
    text = details_text if how.details else answer_text
    print(text(figures, terminal, sections), end="", flush=True)
    return figures


def is_by_flags(source: str) -> bool:
    """Whether the job was given by flags, not by a file. `source`: the model or file that holds it alone, else ''."""
    return bool(source) and not is_job_file(source)


def warnings_on(done: Predicted, outside: Outside | None, source: str) -> list[str]:
    """Where the training itself does not fit, that loading or evaluation do not either is no news."""
    if outside is None or not done.held.fits:
        return []
    evaluates = done.job.run.eval_strategy != "no"
    return outside_warnings(outside, done.held.capacity_bytes, evaluates=evaluates, flags=is_by_flags(source))


def cost_of(tried: Tried) -> str:
    """Of the whole run, where it says how much data it trains on and its machines are for rent."""
    return "" if tried.rent is None or tried.rent.bill is None else rent_words(tried.rent)


def short_cost(done: Predicted) -> str:
    """`$8.23 (6.51 to 11.54)`; '' of a job that does not fit or does not say how much data there is."""
    from tunecast.cli.predict import extra

    if not done.held.fits or done.prediction.time is None:
        return ""
    rent = extra("what it costs", lambda: rent_of_run(done))
    return "" if rent is None or rent.bill is None else f"{cost_words(rent)} at {seller(rent.offer)}"


def trust_in(done: Predicted) -> str:
    held, said = done.held, done.prediction
    room = held.room.in_need(said.smallest_capacity_bytes)
    return trust(evidence_of(done.job, held.gpu.name), held.basis, room, said.time)


def sections_of(
    done: Predicted, outside: Outside | None, tried: Tried, how: How, source: str, terminal: Terminal
) -> Sections:
    """What is said besides the memory. `source`: the model or file that holds this job alone, else ''."""
    said, held, job = done.prediction, done.held, done.job
    by_flags = is_by_flags(source)
    roomy = held.verdict == "fits" and held.room.needs_bytes < ROOMY * held.capacity_bytes
    changes = () if roomy and not how.details else tried.changes
    fit = fit_command(source, how) if how.advice else ""
    advice = advice_text(changes, terminal, verdict=held.verdict, fit=fit, flags=by_flags)
    amount = "--samples N or --tokens N" if by_flags else "data.samples or data.tokens"
    say = with_flags if by_flags else str
    clock = time_text(
        said.time,
        said.utilization,
        said.energy,
        terminal,
        fits=held.fits,
        details=how.details,
        hint=f"{amount} adds the time of the whole job",
        say=say,
    )
    each = " per machine" if job.hardware.nodes > 1 else ""
    needs = "".join(f"{told.removeprefix('host ')}{each}" for told in host_words(said.utilization))
    links = [] if held.cluster is None else [f"links: {say(told)}" for told in held.cluster.assumptions]
    return Sections(
        remarks=remarks_on(done),
        taken=taken_text(tried.taken, tried.effects, held.verdict, terminal),
        warnings=warnings_on(done, outside, source),
        time=clock,
        cost=cost_of(tried),
        host=host_text(outside, needs, terminal, links=links),
        advice=advice,
        outside="" if outside is None else outside_text(outside, terminal),
        trust=trust_in(done),
    )


def remarks_on(done: Predicted) -> list[str]:
    """What belongs to the verdict: which card a name was taken for, and host memory where that decides."""
    job, card = done.job, done.held.gpu
    told = []
    taken = meant_by(job.hardware.gpu).note(job.hardware.gpu)
    if taken is not None:
        told.append(taken)
    needs = (done.prediction.utilization or {}).get("host")
    ram_bytes = None if needs is None else needs.get("ram_bytes")
    offloads = job.parallel.offload != "none"
    # Machines have as much RAM as their cards have memory, as a rule and more: what needs more has to be looked for.
    if ram_bytes is not None and (offloads or ram_bytes > job.hardware.gpus * card.memory_bytes):
        why = f" (offload: {job.parallel.offload})" if offloads else ""
        told.append(f"also needs {gib(ram_bytes)} of host RAM per machine{why}")
    return told


def smallest(done: Predicted) -> LeastCard:
    """Large enough at the high end of the range too."""
    room, needs_bytes = done.held.room, done.prediction.smallest_capacity_bytes
    if room.needs_bytes:
        needs_bytes = max(needs_bytes, int(needs_bytes * room.high_bytes / room.needs_bytes))
    # A capacity the job pretends is no card's: what fits into it says nothing about the card it names.
    tried = {done.held.gpu.name: room.surely} if done.job.hardware.capacity_bytes is None else {}
    outside_bytes = done.held.communication.nbytes + done.job.hardware.reserve_bytes
    card = least_card(done.job, needs_bytes + done.held.communication.nbytes, tried)
    if card is None:
        return LeastCard(None, largest_memory_bytes() - done.held.context.nbytes - outside_bytes, measured=False)
    context = context_of(card)
    return LeastCard(card.name, card.memory_bytes - context.nbytes - outside_bytes, context.measured)


def fit_command(source: str, how: How) -> str:
    """The same job as it was given; '' where its file holds others too."""
    return (
        " ".join(filter(None, ["tunecast fit", source and shlex.quote(source), as_flags(how.overrides)]))
        if source
        else ""
    )


def title_of(job: Job) -> str:
    """`my-run: llama-3.1-8b, QLoRA, 1 x 2,048 tokens on 1 x RTX 4090`."""
    name = f"{job.id}: " if job.id is not None else ""
    length = max(job.lengths) if job.lengths else job.seq_len
    tokens = f"{job.micro_batch} x {'up to ' if job.lengths else ''}{length:,} tokens"
    accumulated = f" x {job.grad_accum} accumulated" if job.grad_accum > 1 else ""
    cards, machines = job.hardware.gpus * job.hardware.nodes, job.hardware.nodes
    # Cards that share a row, or a model's layers, are one replica.
    replicas = ranks_of(job)
    each = "" if replicas == 1 else " per GPU" if replicas == cards else " per replica"
    card = f"{cards} x {card_name(gpu_named(job.hardware.gpu).name)}"
    several = f" in {machines} machines" if machines > 1 else ""
    return f"{name}{job.model}, {METHODS.get(job.method, job.method)}, {tokens}{accumulated}{each} on {card}{several}"
