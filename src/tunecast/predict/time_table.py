"""How far measured steps lie from their predictions. Written by `benchmarks/time_h200.py`; do not edit.

A line: where it was measured and what it waits for or what it is alike to, and of it the fields of
`tunecast.predict.time_ranges.Band`.
"""

from __future__ import annotations

BANDS: dict[tuple[str, str], tuple[float, float, int, int, float | None]] = {
    ("measured card", "card"): (0.0251, 0.0757, 64, 21, 0.797),
    ("measured card", "host"): (0.1310, 0.4419, 14, 13, 0.857),
    ("elsewhere", "card"): (0.0258, 0.0336, 70, 3, 0.9),
    ("several cards", "card"): (0.0848, 0.1932, 602, 27, 0.792),
    ("several cards", "16 bits"): (0.0880, 0.1047, 311, 21, 0.797),
    ("several cards", "8 or 4 bits"): (0.0747, 0.2313, 291, 15, 0.78),
    ("several cards", "llm-foundry, 16 bits"): (0.1185, 0.0706, 142, 9, 0.789),
    ("several cards", "llm-foundry, 16 bits, long"): (0.1073, 0.0567, 119, 9, 0.79),
    ("several cards", "megatron, 16 bits"): (0.0280, 0.0636, 54, 6, 0.759),
    ("several cards", "megatron, 16 bits, long"): (0.0280, 0.0636, 54, 6, 0.759),
    ("several cards", "megatron, 8 or 4 bits"): (0.0702, 0.2231, 262, 15, 0.771),
    ("several cards", "megatron, 8 or 4 bits, long"): (0.0747, 0.1605, 213, 15, 0.775),
    ("several cards", "megatron, 8 or 4 bits, short"): (0.0011, 0.4821, 49, 5, 0.776),
    ("several cards", "torchtitan, 16 bits"): (0.0327, 0.3259, 53, 7, 0.774),
    ("several cards", "torchtitan, 16 bits, long"): (0.0348, 0.1966, 47, 7, 0.787),
    ("several cards", "torchtitan, 8 or 4 bits"): (0.1795, 0.3323, 29, 3, 0.793),
    ("several cards", "torchtitan, 8 or 4 bits, long"): (0.1905, 0.3640, 27, 3, 0.778),
}
