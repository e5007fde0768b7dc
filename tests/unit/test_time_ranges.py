"""Ranges of time: wider where less is known."""

from __future__ import annotations

import pytest

from tunecast.predict.time_ranges import CARD, HOST, LEAST, PUBLISHED, UNSEEN, band_of


@pytest.mark.parametrize("waits", [CARD, HOST])
@pytest.mark.parametrize("several", [False, True])
def test_a_card_nobody_timed_is_never_surer_than_one_that_was(waits: str, several: bool) -> None:
    unseen, published = (band_of(name, waits, several) for name in ("l40s", "a100-sxm-80gb"))
    assert unseen.below >= UNSEEN and unseen.above >= UNSEEN
    assert published.below >= min(LEAST.values())
    assert band_of("h200-sxm-141gb", waits).below <= published.below


def test_several_cards_are_less_sure_than_one() -> None:
    for name in PUBLISHED:
        alone, together = band_of(name, CARD), band_of(name, CARD, several=True)
        assert together.below + together.above >= alone.below + alone.above
