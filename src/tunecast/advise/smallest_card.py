"""The smallest card of the catalogue a job completes on."""

from __future__ import annotations

from collections.abc import Mapping

from tunecast.hardware.catalog import gpus
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.prediction.memory.vllm import requested_bytes
from tunecast.prediction.on_card import context_of

USUAL = "NVIDIA"
"""The only vendor of which a card was measured."""
BFLOAT16 = (8, 0)
"""The first compute capability that multiplies in bfloat16 (torch.cuda.is_bf16_supported, emulation aside)."""


def least_card(job: Job, need_bytes: int, tried: Mapping[str, bool]) -> Gpu | None:
    """The card with the least memory that leaves PyTorch `need_bytes`; None where no card does.

    `tried` holds verdicts that are known, by the card's name; they count instead. Ignored: kernels are chosen by the
    card, so what they borrow differs by some MiB from card to card, and by more where attention has no flash kernel.
    """
    needs_bfloat16 = "bfloat16" in (job.weights_dtype, job.autocast)

    def is_large_enough(card: Gpu) -> bool:
        left_bytes = card.memory_bytes - context_of(card).nbytes - job.hardware.reserve_bytes
        left_bytes -= requested_bytes(job, card)
        return left_bytes >= need_bytes and (card.compute_capability >= BFLOAT16 or not needs_bfloat16)

    cards = (card for card in gpus().values() if card.vendor == USUAL)
    fitting = (card for card in cards if tried.get(card.name, is_large_enough(card)))
    return min(fitting, key=lambda card: card.memory_bytes, default=None)


def largest_memory_bytes() -> int:
    return max(card.memory_bytes for card in gpus().values() if card.vendor == USUAL)
