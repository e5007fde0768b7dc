"""A job's need against every card of the catalogue: what a memory bar shows while a slider moves.

    a prediction of one card per generation ──► its replays ──► held against each card's capacity ──► a verdict each

Kernels are chosen by the card, and what they borrow moves the need: by an eighth between Ada and Hopper for a LoRA of
Llama 3.2 1B, by 12 % where attention has no flash kernel, by less than 2 % within a generation. So the run is replayed
once per generation, and every other card of it is judged by what that run needs; `tunecast predict --gpu` on a card
replays its own. Context, NCCL's buffers and ranges are each card's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Literal

from tunecast.advise.smallest_card import BFLOAT16 as AMPERE
from tunecast.errors import TunecastError
from tunecast.hardware.catalog import gpus
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.job.model import ModelConfig
from tunecast.prediction.memory.nccl import NONE, nccl_bytes
from tunecast.prediction.memory.replay import Replay
from tunecast.prediction.memory.vllm import vllm_share
from tunecast.prediction.on_card import OF_AMD, OnCard, context_of, others_of
from tunecast.prediction.prediction import Prediction
from tunecast.prediction.verdict import Verdict
from tunecast.records import dataclass, replace
from tunecast.result import Result
from tunecast.tape.card import Card
from tunecast.tape.kernels.blas import workspace_bytes
from tunecast.units import MIB

SMALL_WORKSPACE_BYTES = 16 * MIB
"""Between cuBLAS's two sizes, 8 and 32 MiB (tape/kernels/blas.py)."""
NVIDIA, AMD = MODELLED = ("NVIDIA", "AMD")
"""Vendors whose cards can be predicted (prediction/modelled.py)."""


@dataclass(frozen=True)
class CardNeed(Result):
    """One card. What is not known, since the job is refused there, is None."""

    gpu: str
    vendor: str
    nominal_bytes: int | None
    memory_bytes: int
    capacity_bytes: int | None = None
    """What PyTorch may have of it."""
    needs_bytes: int | None = None
    """The least capacity the run completes with."""
    range_bytes: tuple[int, int] | None = None
    """80 %, of the same."""
    verdict: Verdict | Literal["refused"] = "refused"
    reason: str | None = None
    """Why it is refused, or what else speaks against the card."""


@dataclass(frozen=True)
class Cards(Result):
    """`tunecast.cards/1`."""

    schema: ClassVar[str] = "tunecast.cards/1"
    KEYS: ClassVar[tuple[str, ...]] = ("schema", "gpu", "replayed", "smallest", "cards")

    gpu: str
    """The job's own."""
    replayed: Literal["generation", "every"]
    """Whether every card's own run was replayed, or that of one card per generation held against the others."""
    cards: tuple[CardNeed, ...]
    """The least memory first."""

    @property
    def smallest(self) -> str | None:
        """The NVIDIA card with the least memory that it fits for sure, and that multiplies in the job's dtype."""
        fitting = (card for card in self.cards if card.verdict == "fits" and card.vendor == NVIDIA)
        return next((card.gpu for card in fitting if card.reason is None), None)


def generation(card: Gpu) -> str:
    """The card that stands for those whose kernels are chosen alike: without flash attention, with cuBLAS's large
    workspace, or with neither. By the compute capability alone, of AMD's cards too, whose kernels are taken from CUDA
    (`OF_AMD`)."""
    if card.compute_capability < AMPERE:
        return "t4"
    large = workspace_bytes(Card(capability=card.compute_capability), shared=True) > SMALL_WORKSPACE_BYTES
    return "rtx-5090" if large else "rtx-3090"


def cards_by_generation(prediction: Prediction, predict: Callable[[str], Prediction]) -> Cards:
    """`predict`: the same job on another card, which stands for its generation unless the job's own card does."""
    own, job, model = prediction.on_card, prediction.job, prediction.model
    replayed: dict[str, OnCard] = {generation(own.gpu): own}

    def held(card: Gpu) -> OnCard:
        name = generation(card)
        if name not in replayed:
            replayed[name] = predict(name).on_card
        found = replayed[name]
        return found if card.name == found.gpu.name else on_other_card(found, job, model, card)

    return _cards(own.gpu.name, "generation", job, held)


def cards_by_every_replay(prediction: Prediction, predict: Callable[[str], Prediction]) -> Cards:
    """`predict`: the same job on another card."""
    own = prediction.on_card

    def held(card: Gpu) -> OnCard:
        return own if card.name == own.gpu.name else predict(card.name).on_card

    return _cards(own.gpu.name, "every", prediction.job, held)


def on_other_card(own: OnCard, job: Job, model: ModelConfig, card: Gpu) -> OnCard:
    """The run of one card, on another."""
    context, cluster = context_of(card), others_of(job, card)
    buffers = NONE if cluster is None else nccl_bytes(cluster, own.versions.get("torch", "2.11"))
    vllm = vllm_share(job, model, card)
    left_bytes = card.memory_bytes - context.nbytes - buffers.nbytes - job.hardware.reserve_bytes - vllm.nbytes
    capacity_bytes = max(1, left_bytes)
    unmeasured = [OF_AMD] if card.vendor == AMD and not context.measured else []
    return replace(
        own,
        guesses=(*(guess for guess in own.guesses if guess != OF_AMD), *unmeasured),
        gpu=card,
        context=context,
        communication=buffers,
        cluster=cluster,
        vllm=vllm,
        capacity_bytes=capacity_bytes,
        limited=_limited(own, capacity_bytes),
    )


def _limited(own: OnCard, capacity_bytes: int) -> Replay:
    """Replayed only between the least capacity and what the run reserves without a limit. A run may also complete a
    little below that boundary (`needs.smallest_capacity_bytes`): here it counts as one that does not."""
    if capacity_bytes < own.smallest_capacity_bytes:
        return replace(own.unlimited, completed=False)
    if own.settings.needs_capacity:
        return own.limited if own.fits else own.unlimited
    return own.runs.within(capacity_bytes)


def _cards(name: str, replayed: Literal["generation", "every"], job: Job, held: Callable[[Gpu], OnCard]) -> Cards:
    ordered = sorted(gpus().values(), key=lambda card: (card.memory_bytes, card.name))
    return Cards(name, replayed, tuple(_needs(job, ordered, held)))


def _needs(job: Job, cards: list[Gpu], held: Callable[[Gpu], OnCard]) -> Iterator[CardNeed]:
    needs_bfloat16 = "bfloat16" in (job.weights_dtype, job.autocast)
    for card in cards:
        plain = CardNeed(card.name, card.vendor, card.nominal_bytes, card.memory_bytes)
        if card.vendor not in MODELLED:
            yield replace(plain, reason=f"only cards of {' and '.join(MODELLED)} are modelled yet")
            continue
        try:
            on_card = held(card)
            room = on_card.room.in_need(on_card.smallest_capacity_bytes)
        except TunecastError as error:
            yield replace(plain, reason=error.message.splitlines()[0])
            continue
        lacks = card.vendor == NVIDIA and needs_bfloat16 and card.compute_capability < AMPERE
        yield replace(
            plain,
            capacity_bytes=room.capacity_bytes,
            needs_bytes=room.needs_bytes,
            range_bytes=(room.low_bytes, room.high_bytes),
            verdict=on_card.verdict,
            reason="has no bfloat16: emulated, and slow" if lacks else None,
        )
