"""The least card, from the catalogue's own figures."""

from __future__ import annotations

from dataclasses import replace

from tunecast.advise.smallest_card import largest_memory_bytes, least_card
from tunecast.hardware.catalog import gpus
from tunecast.job.job import Job
from tunecast.job.sections import Hardware
from tunecast.prediction.on_card import context_of
from tunecast.units import GIB

JOB = Job("gpt2", weights_dtype="bfloat16", autocast="bfloat16")
NEED = int(9.5 * GIB)
"""Beyond a card of 10 GB; a 2080 Ti has 10.57 GiB less 767 MiB of context, the smallest with bfloat16 11.49 GiB."""
HALF = replace(JOB, weights_dtype="float32", autocast="float16")


def named(job: Job, need_bytes: int, **tried: bool) -> str | None:
    card = least_card(job, need_bytes, {name.replace("_", "-"): fits for name, fits in tried.items()})
    return None if card is None else card.name


def test_the_card_that_is_just_large_enough() -> None:
    for card in gpus().values():
        if card.vendor != "NVIDIA" or card.compute_capability < (8, 0):
            continue
        room = card.memory_bytes - context_of(card).nbytes
        found, beyond = least_card(JOB, room, {}), least_card(JOB, room + 1, {})
        assert found is not None and found.memory_bytes == card.memory_bytes
        assert beyond is None or beyond.memory_bytes > card.memory_bytes


def test_no_card_is_large_enough() -> None:
    assert named(JOB, largest_memory_bytes()) is None


def test_cards_without_bfloat16_are_for_jobs_without_it() -> None:
    assert named(HALF, NEED) == "rtx-2080-ti"
    assert named(JOB, NEED) == "rtx-5070"


def test_what_others_hold_is_not_there() -> None:
    assert named(HALF, NEED) == "rtx-2080-ti"
    shared = replace(HALF, hardware=Hardware(reserve_bytes=GIB))
    assert named(shared, NEED) == "rtx-5070"


def test_a_verdict_counts_more_than_the_memory() -> None:
    """A job that was predicted to fit a card fits it, however slow bfloat16 is on it; and the other way round."""
    assert named(JOB, NEED, rtx_2080_ti=True) == "rtx-2080-ti"
    assert named(HALF, NEED, rtx_2080_ti=False) == "rtx-5070"
