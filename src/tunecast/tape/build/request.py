"""What a run is built of, and which of it decides the structure of its program."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from enum import StrEnum
from typing import Any

from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.records import NamedTuple, fields, replace_unchecked
from tunecast.tape.card import Card
from tunecast.tape.pattern import Values
from tunecast.tape.symbols import Guards

APART = ("allocator", "data", "given", "hardware", "id", "lora", "micro_batch", "run", "seq_len")
"""Fields of a job that its structure does not depend on, or only in part: see `structure_key`."""


class Contents(StrEnum):
    """Which parts of a run somebody needs."""

    PROGRAM = "program"
    """What it does to memory."""
    OPERATIONS = "operations"
    """What is priced, of two steps: what later ones do to memory is not needed."""
    BOTH = "both"


class BuildRequest(NamedTuple):
    """A run to be built: of numbers, or with `guards` of symbols."""

    job: Job
    config: Mapping[str, Any]
    card: Card
    length: int
    """Of the rows; `job.seq_len` is what the longest may have."""
    contents: Contents = Contents.PROGRAM
    masked: bool = False
    """Attention is given a mask: of padding, or of samples that share a row."""
    evaluates: bool = False
    """Not a training step, but a batch that is evaluated on."""
    padding: int = 0
    """Tokens without a label, where the loss leaves them out."""
    answers: tuple[int, int] | None = None
    """Of preferences, labels of the chosen and of the rejected answers, where they are counted."""
    guards: Guards | None = None

    @property
    def values(self) -> Values:
        """Of `structure.SYMBOLS`, in that order."""
        job, card = self.job, self.card
        sizes = job.micro_batch, self.length, job.seq_len, job.lora.rank
        on_card = card.sm_count, card.capability, card.total_bytes
        return (*sizes, *on_card, *cards_of(job), *counted(self.padding, self.answers))

    def with_symbols(self, guards: Guards) -> BuildRequest:
        job, card = self.job, self.card
        gpus, nodes = cards_of(job)
        hardware = {"gpus": guards.symbol("gpus", gpus), "nodes": guards.symbol("nodes", nodes)}
        return self._replace(
            job=replace_unchecked(
                job,
                lora=replace_unchecked(job.lora, rank=guards.symbol("rank", job.lora.rank)),
                hardware=replace_unchecked(job.hardware, **hardware),
                micro_batch=guards.symbol("batch", job.micro_batch),
                seq_len=guards.symbol("longest", job.seq_len),
            ),
            card=replace_unchecked(
                card,
                sm_count=guards.symbol("sms", card.sm_count),
                capability=guards.fact("capability", card.capability),
                total_bytes=guards.fact("card_bytes", card.total_bytes),
            ),
            length=guards.symbol("length", self.length),
            padding=guards.count("padding", self.padding),
            answers=self._answers(guards),
            guards=guards,
        )

    def _answers(self, guards: Guards) -> tuple[int, int] | None:
        _, *answers = counted(self.padding, self.answers)
        chosen, rejected = map(guards.count, ("chosen", "rejected"), answers)
        return None if self.answers is None else (chosen, rejected)


def counted(padding: int, answers: tuple[int, int] | None) -> tuple[int, int, int]:
    """What is counted of a batch, as `structure.SYMBOLS` ends with."""
    return (padding, *(answers or (0, 0)))


class StructureKey(NamedTuple):
    """What decides which operations run, but for sizes and the card."""

    fields: tuple[Any, ...]
    """All of the job's but those `APART`."""
    lora: tuple[Any, ...]
    """All but the rank."""
    packing: Hashable
    """Whether and how rows are packed."""
    several_cards: bool
    loads_checkpoint: bool
    """stacks/transformers.py, `reads_checkpoint`."""
    config: str
    contents: Contents
    masked: bool
    evaluates: bool
    per_micro_batch: bool
    """Built for single micro-batches of a run with many."""


def structure_key(request: BuildRequest, *, per_micro_batch: bool = False) -> StructureKey:
    """How a run is saved, evaluated and paid for is outside its steps, and the allocator takes what the program asks
    for: none of that is in the key."""
    job = request.job
    return StructureKey(
        tuple([getattr(job, field.name) for field in fields(job) if field.name not in APART]),
        tuple([getattr(job.lora, field.name) for field in fields(job.lora) if field.name != "rank"]),
        job.data.packing and job.data.packing_strategy,
        cards_of(job) != (1, 1),
        job.data.has_lengths,
        json.dumps(request.config, sort_keys=True),
        request.contents,
        request.masked,
        request.evaluates,
        per_micro_batch,
    )


def cards_of(job: Job) -> tuple[int, int]:
    """The cards of each machine, and the number of machines: one with all cards, except where every machine holds a
    whole copy of the weights."""
    gpus, nodes = job.hardware.gpus, job.hardware.nodes
    return (gpus, nodes) if sharding_of(job).replicates_machines else (gpus * nodes, 1)
