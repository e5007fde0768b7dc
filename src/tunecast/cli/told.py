"""What `tunecast predict` prints for people: the report, and with it the changes that would help."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from tunecast.cli.asking import QUIET_S
from tunecast.cli.terminal import Progress, terminal_of
from tunecast.hardware.catalog import gpu
from tunecast.job.job import Job
from tunecast.predict import engines
from tunecast.predict.changes import changes_tried, reserved
from tunecast.predict.least_card import largest_memory_bytes, least_card
from tunecast.predict.outside import Outside
from tunecast.predict.prediction import Predicted, context_of
from tunecast.records import replace
from tunecast.report.advice import advice_text, best_of
from tunecast.report.figures import Figures, LeastCard
from tunecast.report.outside import outside_text
from tunecast.report.text import Terminal, report
from tunecast.report.time import time_text
from tunecast.report.traced import card_figures
from tunecast.tape.build.shapes import only_numbers

if TYPE_CHECKING:
    from tunecast.cli.predict import How


def tell(done: Predicted, outside: Outside | None, number: int, how: How, place: str) -> Figures:
    """Print the how-manieth job's answer; what it is made of."""
    from tunecast.cli.predict import extra

    said, held = done.prediction, done.held
    figures = card_figures(held, said, title_of(done.job), details=how.details, least_card=smallest(done))
    terminal = terminal_of(sys.stdout)
    advice = extra("changes to the job", lambda: advice_on(done, terminal, how, place)) if how.advice else None
    # Where the training itself does not fit, that loading or evaluation do not either is no news.
    capacity_bytes = held.capacity_bytes if held.fits else None
    around = "" if outside is None else outside_text(outside, terminal, capacity_bytes=capacity_bytes)
    if number > 1:
        print()
    clock = time_text(said.time, said.utilization, said.energy, terminal)
    print(report(figures, terminal, time=clock, advice=advice or "", outside=around), end="", flush=True)
    return figures


def smallest(done: Predicted) -> LeastCard:
    # A capacity the job pretends is no card's: what fits into it says nothing about the card it names.
    tried = {done.held.gpu.name: done.held.fits} if done.job.hardware.capacity_bytes is None else {}
    card = least_card(done.job, done.prediction.smallest_capacity_bytes, tried)
    if card is None:
        return LeastCard(None, largest_memory_bytes(), measured=False)
    return LeastCard(card.name, card.memory_bytes, context_of(card).measured)


def advice_on(done: Predicted, terminal: Terminal, how: How, place: str) -> str:
    """The changes that help most, each predicted."""
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
    fitted = done.held.fits
    return advice_text(best_of(tried, reserved(done), fitted), terminal, fitted=fitted)


def is_resized(job: Job, of: Job) -> bool:
    """Whether it runs the same program, with other sizes."""
    lora = replace(job.lora, rank=of.lora.rank, alpha=of.lora.alpha)
    return replace(job, allocator=of.allocator, seq_len=of.seq_len, lora=lora) == of


def title_of(job: Job) -> str:
    """`my-run: llama-3.1-8b, qlora, 1 x 2048 tokens on rtx-4090`."""
    name = f"{job.id}: " if job.id is not None else ""
    length = max(job.lengths) if job.lengths else job.seq_len
    tokens = f"{job.micro_batch} x {'up to ' if job.lengths else ''}{length} tokens"
    cards = job.hardware.gpus * job.hardware.nodes
    several = f"{cards} " if cards > 1 else ""
    card = gpu(job.hardware.gpu).name
    return f"{name}{job.model}, {job.method}, {tokens}{' each' if several else ''} on {several}{card}"
