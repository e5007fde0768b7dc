"""What the page shows while a slider moves, of one prediction and in one answer.

The verdict in the words of the command, the job with every default, the prediction, every card, memory phase by phase.
"""

from __future__ import annotations

from typing import Any

from tunecast.advise.every_card import cards_by_generation
from tunecast.door.predict import predict
from tunecast.door.read import with_values
from tunecast.job.job import Job
from tunecast.prediction import engines
from tunecast.prediction.prediction import Prediction
from tunecast.report.run.job import JobReport
from tunecast.report.run.verdict import verdict_lines


def look(job: Job, *, every_card: bool = True) -> dict[str, Any]:
    """`tunecast.look/1`. Without `every_card` its `cards` is null, which take longer than all else together, and so is
    the prediction's `outside.evaluation`, for which the run is replayed once more."""
    found = predict(job, engine="analytic")
    report = JobReport(found)
    figures = report.figures
    phrase, *lines = verdict_lines(figures)

    def on_card(gpu: str) -> Prediction:
        return engines.predict(with_values(job, {"hardware.gpu": gpu}), timed=False)

    return {
        "schema": "tunecast.look/1",
        "title": figures.title,
        "gpu": found.on_card.gpu.name,
        "verdict": found.on_card.verdict,
        "phrase": phrase,
        "lines": lines,
        "trust": report.trust(),
        "card_bytes": figures.card_bytes,
        "phases": [phase._asdict() for phase in figures.phases],
        "job": found.job.to_dict(),
        "prediction": (found if every_card else found.without_evaluation()).to_dict(),
        "cards": cards_by_generation(found, on_card).to_dict() if every_card else None,
    }
