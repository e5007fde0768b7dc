"""What `tunecast predict` prints for people: the report, and with it the changes that would help."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING

from tunecast.cli.asking import QUIET_S
from tunecast.cli.terminal import Progress, terminal_of
from tunecast.hardware.catalog import candidates_for
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.hardware.names import card_name
from tunecast.job.job import Job
from tunecast.job.readers import is_job_file
from tunecast.predict import engines
from tunecast.predict.changes import changes_tried, reserved
from tunecast.predict.evidence import evidence_of
from tunecast.predict.least_card import largest_memory_bytes, least_card
from tunecast.predict.outside import Outside
from tunecast.predict.prediction import Predicted, context_of
from tunecast.records import replace
from tunecast.report.advice import MOST, advice_text, as_flags, best_of
from tunecast.report.answer import Sections, answer_text, details_text
from tunecast.report.evidence import trust
from tunecast.report.figures import Figures, LeastCard
from tunecast.report.outside import host_text, outside_text, outside_warnings
from tunecast.report.text import Terminal
from tunecast.report.time import host_words, time_text
from tunecast.report.traced import card_figures
from tunecast.report.verdict import short_line
from tunecast.tape.build.shapes import only_numbers
from tunecast.units import gib

if TYPE_CHECKING:
    from tunecast.cli.predict import How

FEW = 3
"""Changes to a job that fits anyway."""
METHODS = {"full": "full fine-tune", "lora": "LoRA", "qlora": "QLoRA"}


def tell(done: Predicted, outside: Outside | None, number: int, how: How, place: str) -> Figures:
    """Print the how-manieth job's answer; what it is made of."""
    figures = card_figures(
        done.held, done.prediction, title_of(done.job), details=how.with_blocks, least_card=smallest(done)
    )
    if how.short:
        print(short_line(figures, done.prediction.time), end="", flush=True)
        return figures
    terminal = terminal_of(sys.stdout)
    sections = sections_of(done, outside, how, how.sources[number - 1], terminal, place)
    if number > 1:
        print()
    text = details_text if how.details else answer_text
    print(text(figures, terminal, sections), end="", flush=True)
    return figures


def sections_of(
    done: Predicted, outside: Outside | None, how: How, source: str, terminal: Terminal, place: str
) -> Sections:
    """What is said besides the memory. `source`: the model or file that holds this job alone, else ''."""
    from tunecast.cli.predict import extra

    said, held, job = done.prediction, done.held, done.job
    by_flags = bool(source) and not is_job_file(source)
    advice = extra("changes to the job", lambda: advice_on(done, terminal, how, source, place)) if how.advice else None
    # Where the training itself does not fit, that loading or evaluation do not either is no news.
    warnings: list[str] = []
    if outside is not None and held.fits:
        evaluates = job.run.eval_strategy != "no"
        warnings = outside_warnings(outside, held.capacity_bytes, evaluates=evaluates, flags=by_flags)
    amount = "--samples N or --tokens N" if by_flags else "data.samples or data.tokens"
    clock = time_text(
        said.time,
        said.utilization,
        said.energy,
        terminal,
        fits=held.fits,
        details=how.details,
        hint=f"{amount} adds the time of the whole job",
    )
    each = " per machine" if job.hardware.nodes > 1 else ""
    needs = "".join(f"{told.removeprefix('host ')}{each}" for told in host_words(said.utilization))
    links = [] if held.cluster is None else [f"links: {told}" for told in held.cluster.assumptions]
    return Sections(
        remarks=remarks_on(done),
        warnings=warnings,
        time=clock,
        host=host_text(outside, needs, terminal, links=links),
        advice=advice or "",
        outside="" if outside is None else outside_text(outside, terminal),
        trust=trust(evidence_of(job, held.gpu.name), timed=said.time is not None),
    )


def remarks_on(done: Predicted) -> list[str]:
    """What belongs to the verdict: which card a name was taken for, and host memory where that decides."""
    job, card = done.job, done.held.gpu
    told = []
    given = job.hardware.gpu
    if card.name != given and len(candidates_for(given)) > 1:
        told.append(f"{given} is taken as {card.name}; others: {', '.join(others_than(card.name, given))}")
    needs = (done.prediction.utilization or {}).get("host")
    ram_bytes = None if needs is None else needs.get("ram_bytes")
    offloads = job.parallel.offload != "none"
    # Machines have as much RAM as their cards have memory, as a rule and more: what needs more has to be looked for.
    if ram_bytes is not None and (offloads or ram_bytes > job.hardware.gpus * card.memory_bytes):
        why = f", where the offloaded {job.parallel.offload.replace('_', ' ')} stay" if offloads else ""
        told.append(f"also needs {gib(ram_bytes)} of host RAM per machine{why}")
    return told


def others_than(taken: str, given: str) -> list[str]:
    return [name for name in candidates_for(given) if name != taken]


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


def advice_on(done: Predicted, terminal: Terminal, how: How, source: str, place: str) -> str:
    """The changes that help most, each predicted; and the command that tries them together."""
    began_s = time.monotonic()
    with Progress(f"trying changes to {done.job.id or done.job.model}{place}") as progress:

        def predict(job: Job) -> Predicted:
            passed_s = time.monotonic() - began_s
            if passed_s >= QUIET_S:
                progress(passed_s)
            if is_resized(job, done.job):  # what was built for the job serves it
                return engines.predicted(job, engine=how.engine, timed=True)
            with only_numbers():
                return engines.predicted(job, engine=how.engine)

        tried = changes_tried(done.job, done, predict, reserved)
    verdict = done.held.verdict
    return advice_text(
        best_of(tried, reserved(done), verdict, most=FEW if verdict == "fits" else MOST),
        terminal,
        verdict=verdict,
        fit=fit_command(source, how),
        flags=bool(source) and not is_job_file(source),
    )


def fit_command(source: str, how: How) -> str:
    """The same job as it was given; '' where its file holds others too."""
    return (
        " ".join(filter(None, ["tunecast fit", source and shlex.quote(source), as_flags(how.overrides)]))
        if source
        else ""
    )


def is_resized(job: Job, of: Job) -> bool:
    """Whether it runs the same program, with other sizes."""
    lora = replace(job.lora, rank=of.lora.rank, alpha=of.lora.alpha)
    return replace(job, allocator=of.allocator, seq_len=of.seq_len, lora=lora) == of


def title_of(job: Job) -> str:
    """`my-run: llama-3.1-8b, QLoRA, 1 x 2,048 tokens on 1 x RTX 4090`."""
    name = f"{job.id}: " if job.id is not None else ""
    length = max(job.lengths) if job.lengths else job.seq_len
    tokens = f"{job.micro_batch} x {'up to ' if job.lengths else ''}{length:,} tokens"
    accumulated = f" x {job.grad_accum} accumulated" if job.grad_accum > 1 else ""
    cards, machines = job.hardware.gpus * job.hardware.nodes, job.hardware.nodes
    each = " per GPU" if cards > 1 else ""
    card = f"{cards} x {card_name(gpu_named(job.hardware.gpu).name)}"
    several = f" in {machines} machines" if machines > 1 else ""
    return f"{name}{job.model}, {METHODS.get(job.method, job.method)}, {tokens}{accumulated}{each} on {card}{several}"
