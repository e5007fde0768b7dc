"""Ranges of time: wider where less is known."""

from __future__ import annotations

import pytest

from tunecast.predict.time_ranges import (
    BANDS,
    CARD,
    FAMILIES,
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
