"""A job's need against every card of the catalogue, in one answer."""

from __future__ import annotations

from collections.abc import Mapping

from tunecast.advise.every_card import Cards, cards_by_every_replay, cards_by_generation
from tunecast.door.read import Source, read_on_card, with_values
from tunecast.prediction import engines
from tunecast.prediction.prediction import Prediction


def cards(job: Source, overrides: Mapping[str, object] | None = None, *, every_replay: bool = False) -> Cards:
    """Whether the job fits each card, and what it needs there. One run per generation of cards is held against
    all of it, in a moment; `every_replay` replays each card's own, in seconds."""
    found = read_on_card(job, overrides)

    def predict(gpu: str) -> Prediction:
        return engines.predict(with_values(found, {"hardware.gpu": gpu}), timed=False)

    own = engines.predict(found, timed=False)
    return (cards_by_every_replay if every_replay else cards_by_generation)(own, predict)
