"""A job's prediction for people: its figures, the sections beside them, one line, and what its page shows."""

from __future__ import annotations

from tunecast.advise.smallest_card import largest_memory_bytes, least_card
from tunecast.advise.suggestions import NO_SUGGESTIONS, Suggestions, is_roomy
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.hardware.catalog import meant_by
from tunecast.hardware.spec import card_name
from tunecast.job.job import Job
from tunecast.job.names import PAIRS, ROLLOUTS, TITLES
from tunecast.planning.price import Rent
from tunecast.prediction.evidence import evidence_of
from tunecast.prediction.lessons.nearest import like_runs, shipped, traits_of
from tunecast.prediction.memory.vllm import requested_bytes
from tunecast.prediction.on_card import context_of
from tunecast.prediction.prediction import Prediction
from tunecast.records import NamedTuple, replace
from tunecast.report.draw.figures import Figures, LeastCard
from tunecast.report.draw.text import Terminal
from tunecast.report.page.document import Provenance
from tunecast.report.page.job import PageExtras
from tunecast.report.plan.price import cost_words, rent_words
from tunecast.report.plan.words import seller
from tunecast.report.run.advice import advice_text
from tunecast.report.run.answer import Sections, answer_text, details_text
from tunecast.report.run.evidence import trust
from tunecast.report.run.on_card import run_figures
from tunecast.report.run.outside import host_text, outside_text, outside_warnings
from tunecast.report.run.time import host_words, time_text
from tunecast.report.run.unstated import taken_lines, taken_text
from tunecast.report.run.verdict import short_line
from tunecast.report.run.wording import FIELDS, Wording
from tunecast.tape.build.sharding.scheme import ranks_of
from tunecast.units import gib

METHODS = {"full": "full fine-tune", "lora": "LoRA", "qlora": "QLoRA"}


class JobReport(NamedTuple):
    """A prediction and what is said beside it."""

    prediction: Prediction
    rent: Rent | None = None
    """Of the whole run."""
    suggestions: Suggestions = NO_SUGGESTIONS
    fit_command: str = ""
    """What finds the smallest set of changes; '' where nothing of the kind is to be said."""
    wording: Wording = FIELDS
    """Of changes to it."""
    with_blocks: bool = False
    """Modules and the largest blocks of the peak are shown: the tape is written out for them."""

    @property
    def figures(self) -> Figures:
        found, title = self.prediction, title_of(self.prediction.job)
        figures = run_figures(found, title, details=self.with_blocks, least_card=smallest_card(found))
        spell = self.wording.sentence
        assumed, warned = (tuple(map(spell, lines)) for lines in (figures.assumptions, figures.warnings))
        return replace(figures, assumptions=assumed, warnings=warned)

    def line(self) -> str:
        """`--short`."""
        rent = self.rent
        cost = "" if rent is None or rent.bill is None else f"{cost_words(rent)} at {seller(rent.offer)}"
        return short_line(self.figures, self.prediction.time, cost)

    def text(self, terminal: Terminal, *, details: bool) -> str:
        return (details_text if details else answer_text)(self.figures, terminal, self.sections(terminal, details))

    def sections(self, terminal: Terminal, details: bool) -> Sections:
        """What is said besides the memory."""
        found, on_card, job, tried = self.prediction, self.prediction.on_card, self.prediction.job, self.suggestions
        changes = () if is_roomy(found) and not details else tried.changes
        amount = "--samples N or --tokens N" if self.wording.by_flags else "data.samples or data.tokens"
        say = self.wording.sentence
        each = " per machine" if job.hardware.nodes > 1 else ""
        needs = "".join(f"{words.removeprefix('host ')}{each}" for words in host_words(found.utilization))
        links = [] if on_card.cluster is None else [f"links: {say(words)}" for words in on_card.cluster.assumptions]
        return Sections(
            remarks=self.remarks(),
            taken=taken_text(tried.unstated, tried.effects, on_card.verdict, terminal),
            warnings=self.warnings(),
            time=time_text(
                found.time,
                found.utilization,
                found.energy,
                terminal,
                fits=on_card.fits,
                details=details,
                hint=f"{amount} adds the time of the whole job",
                say=say,
            ),
            cost=self.cost(),
            host=host_text(found.outside, needs, terminal, links=links),
            advice=advice_text(changes, terminal, verdict=on_card.verdict, fit=self.fit_command, wording=self.wording),
            outside="" if found.outside is None else outside_text(found.outside, terminal),
            trust=self.trust(),
        )

    def beside(self, made: Provenance, fit_command: str) -> PageExtras:
        """What the page shows beside the memory."""
        found, tried = self.prediction, self.suggestions
        return PageExtras(
            made,
            found,
            found.outside,
            tuple(tried.changes),
            fit_command,
            self.wording,
            tuple(taken_lines(tried.unstated, tried.effects, found.on_card.verdict)),
            self.cost(),
            tuple(self.remarks()),
            tuple(self.warnings()),
            trust=self.trust(),
        )

    def cost(self) -> str:
        """Where the job says how much data it trains on and its machines are for rent."""
        return "" if self.rent is None or self.rent.bill is None else rent_words(self.rent)

    def warnings(self) -> list[str]:
        """Where the training itself does not fit, that loading or evaluation do not either is no news."""
        found = self.prediction
        if found.outside is None or not found.fits:
            return []
        evaluates = found.job.run.eval_strategy != "no"
        return outside_warnings(found.outside, found.capacity_bytes, evaluates=evaluates, wording=self.wording)

    def trust(self) -> str:
        found, on_card = self.prediction, self.prediction.on_card
        room = on_card.room.in_need(found.smallest_capacity_bytes)
        asked = traits_of(found.job, found.model, on_card.gpu)
        like = like_runs(asked, shipped(asked))
        return trust(
            evidence_of(found.job, on_card.gpu.name), on_card.basis, room, found.time, like, found.timing.learned
        )

    def remarks(self) -> list[str]:
        """What belongs to the verdict: which card a name was taken for, and host memory where that decides."""
        job, card, used = self.prediction.job, self.prediction.on_card.gpu, self.prediction.utilization
        note = meant_by(job.hardware.gpu).note(job.hardware.gpu)
        remarks = [] if note is None else [note]
        ram_bytes = None if used is None else used.host.ram_bytes
        offloads = job.parallel.offload != "none"
        # Machines mostly have as much RAM as their cards have memory, or more: what needs more has to be looked for.
        if ram_bytes is not None and (offloads or ram_bytes > job.hardware.gpus * card.memory_bytes):
            why = f" (offload: {job.parallel.offload})" if offloads else ""
            remarks.append(f"also needs {gib(ram_bytes)} of host RAM per machine{why}")
        return remarks


def smallest_card(prediction: Prediction) -> LeastCard:
    """Large enough at the high end of the range too."""
    job, on_card = prediction.job, prediction.on_card
    room, needs_bytes = on_card.room, prediction.smallest_capacity_bytes
    if room.needs_bytes:
        needs_bytes = max(needs_bytes, int(needs_bytes * room.high_bytes / room.needs_bytes))
    # A capacity the job pretends is no card's: what fits into it says nothing about the card it names.
    tried = {on_card.gpu.name: room.surely} if job.hardware.capacity_bytes is None else {}
    outside_bytes = on_card.communication.nbytes + job.hardware.reserve_bytes
    card = least_card(job, needs_bytes + on_card.communication.nbytes, tried)
    if card is None:
        return LeastCard(None, largest_memory_bytes() - on_card.context.nbytes - outside_bytes, measured=False)
    context = context_of(card)
    outside_bytes += requested_bytes(job, card)
    return LeastCard(card.name, card.memory_bytes - context.nbytes - outside_bytes, context.measured)


def title_of(job: Job) -> str:
    """`my-run: llama-3.1-8b, QLoRA, 1 x 2,048 tokens on 1 x RTX 4090`."""
    name = f"{job.id}: " if job.id is not None else ""
    tokens = rows_words(job)
    accumulated = f" x {job.grad_accum} accumulated" if job.grad_accum > 1 else ""
    cards, machines = job.hardware.cards, job.hardware.nodes
    # Cards that share a row, or a model's layers, are one replica.
    replicas = ranks_of(job)
    each = "" if replicas == 1 else " per GPU" if replicas == cards else " per replica"
    card = f"{cards} x {card_name(gpu_named(job.hardware.gpu).name)}"
    several = f" in {machines} machines" if machines > 1 else ""
    task = f"{TITLES[job.task]}, " if job.task in TITLES else ""
    return f"{name}{job.model}, {task}{_method(job)}, {tokens}{accumulated}{each} on {card}{several}"


def rows_words(job: Job) -> str:
    """`8 x 1,024 tokens`, `8 pairs x 2 x 1,024 tokens`, `8 completions x 1,024 tokens with images`."""
    length = max(job.lengths) if job.lengths else job.seq_len
    kind = " pair" if job.task in PAIRS else " completion" if job.task in ROLLOUTS else ""
    kind += "s" if kind and job.micro_batch > 1 else ""
    kind += " x 2" if job.task in PAIRS else ""
    seen = " with images" if job.vision.images else " with videos" if job.vision.frames else ""
    return f"{job.micro_batch}{kind} x {'up to ' if job.lengths else ''}{length:,} tokens{seen}"


def _method(job: Job) -> str:
    """`QLoRA`, `fine-tune of layers.31 and 1 more alone`."""
    if job.trained is None:
        return METHODS.get(job.method, job.method)
    more = len(job.trained) - 1
    return f"fine-tune of {job.trained[0]}{f' and {more} more' if more else ''} alone"
