"""Which part of the square of a step's deviation is whose. Written by `benchmarks/learning_spreads.py`; do
not edit.

A line: what the step waits for, and the fields of `tunecast.prediction.lessons.correction.Prior`.
"""

from __future__ import annotations

SHARES: dict[str, tuple[float, float, float, float, float, float]] = {
    "card": (0.050, 0.087, 0.183, 0.128, 0.552, 1.486),
    "host": (0.000, 0.000, 0.759, 0.065, 0.176, 1.486),
}
