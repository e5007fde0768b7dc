"""Ranges of time: wider where less is known."""

from __future__ import annotations

import pytest

from tunecast.job import job_from_dict
from tunecast.predict.evidence import FAMILIES
from tunecast.predict.time_ranges import (
    BANDS,
    CARD,
    HOST,
    LEAST,
    MEASURED_CARD,
    PUBLISHED,
    SEVERAL,
    SHORT_S,
    UNSEEN,
    Band,
    band_of,
    kinds_of,
    least_of,
)


@pytest.mark.parametrize("waits", [CARD, HOST])
@pytest.mark.parametrize("several", [False, True])
def test_a_card_nobody_timed_is_never_surer_than_one_that_was(waits: str, several: bool) -> None:
    unseen, published = (band_of(name, waits, several) for name in ("l40s", "a100-sxm-80gb"))
    assert unseen.below >= UNSEEN and unseen.above >= UNSEEN
    assert published.below >= (0.0 if several else LEAST)
    assert band_of("h200-sxm-141gb", waits).below <= published.below


def test_several_cards_are_never_surer_than_the_measured_one() -> None:
    alone = Band(*BANDS[MEASURED_CARD, CARD])
    for name in PUBLISHED:
        for stack in FAMILIES:
            for low in (False, True):
                band = band_of(name, CARD, True, kinds_of(stack, low, 10.0))
                assert band.below >= alone.below and band.above >= alone.above


def test_the_most_alike_kind_that_was_timed_is_taken() -> None:
    known = Band(*BANDS[SEVERAL, "16 bits"])
    assert kinds_of("litgpt", False, 2 * SHORT_S) == ("16 bits", CARD)
    assert band_of("a100-sxm-80gb", CARD, True, ("nobody's", "16 bits", CARD)).runs == known.runs
    low = kinds_of("nemo", True, SHORT_S / 2)
    assert low[0] == "megatron, 8 or 4 bits, short" and low[-2:] == ("8 or 4 bits", CARD)
    short, long = (band_of("h100-sxm-80gb", CARD, True, kinds_of("nemo", True, s)) for s in (0.2, 5.0))
    assert short.above > long.above
    assert band_of("l40s", CARD, True, low).below == UNSEEN
    assert band_of("a100-sxm-80gb", HOST, True, low) == band_of("a100-sxm-80gb", HOST, True)


def test_what_nobody_timed_on_a_known_card_is_as_uncertain_as_an_unknown_card() -> None:
    def least(gpu: str, several: bool = False, **fields: object) -> float:
        made = {"model": "llama-3.1-8b", "method": "lora", "seq_len": 512, "hardware": {"gpu": gpu}, **fields}
        return least_of(job_from_dict(made), gpu, several)

    assert least("h200-sxm-141gb") == 0.0, "106 steps of its own"
    assert least("h200-sxm-141gb", stack="torchtune") == LEAST, "timed on A100s only"
    assert least("h200-sxm-141gb", stack="unsloth") == UNSEEN
    assert least("h200-sxm-141gb", matmul_dtype="float8") == UNSEEN
    assert least("a100-sxm-80gb", several=True) == 0.0
    assert least("b200-sxm-180gb") == UNSEEN, "46 steps, none in 16 bits"
    assert least("b200-sxm-180gb", several=True, stack="nemo", matmul_dtype="float8") == 0.0


def test_a_card_nobody_timed_is_never_surer_than_steps_of_the_same_kind() -> None:
    """float8 of torchtitan is 33 % longer than predicted and more, on cards that were timed."""
    kinds = kinds_of("torchtitan", True, 2 * SHORT_S)
    known, unknown = (band_of(name, CARD, True, kinds) for name in ("h100-sxm-80gb", "l40s"))
    assert unknown.above >= known.above > UNSEEN and unknown.below == UNSEEN
