"""How far measured steps lie from their predictions. Written by `benchmarks/time_h200.py`; do not edit.

A line: where it was measured and what it waits for, and of it the fields of `tunecast.predict.time_ranges.Band`.
"""

from __future__ import annotations

BANDS: dict[tuple[str, str], tuple[float, float, int, int, float | None]] = {
    ("measured card", "card"): (0.0251, 0.0757, 64, 21, 0.797),
    ("measured card", "host"): (0.1310, 0.4419, 14, 13, 0.857),
    ("elsewhere", "card"): (0.0258, 0.0384, 70, 3, 0.9),
    ("several cards", "card"): (0.0952, 0.2898, 304, 18, 0.783),
}
