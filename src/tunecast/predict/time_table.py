"""How far measured steps lie from their predictions. Written by `benchmarks/time_h200.py`; do not edit.

A line: where it was measured and what it waits for or what it is alike to, and of it the fields of
`tunecast.predict.time_ranges.Band`.
"""

from __future__ import annotations

BANDS: dict[tuple[str, str], tuple[float, float, int, int, float | None]] = {
    ("measured card", "card"): (0.0251, 0.0757, 64, 21, 0.797),
    ("measured card", "host"): (0.1310, 0.4419, 14, 13, 0.857),
    ("elsewhere", "card"): (0.0258, 0.0336, 70, 3, 0.9),
    ("several cards", "card"): (0.0406, 0.1976, 602, 27, 0.796),
    ("several cards", "16 bits"): (0.0348, 0.1531, 311, 21, 0.794),
    ("several cards", "8 or 4 bits"): (0.0457, 0.2371, 291, 15, 0.797),
    ("several cards", "llm-foundry, 16 bits"): (0.0553, 0.1677, 142, 9, 0.782),
    ("several cards", "llm-foundry, 16 bits, long"): (0.0604, 0.1705, 115, 9, 0.774),
    ("several cards", "llm-foundry, 16 bits, short"): (0.0155, 0.1910, 27, 5, 0.852),
    ("several cards", "megatron, 16 bits"): (0.0280, 0.0636, 54, 6, 0.759),
    ("several cards", "megatron, 16 bits, long"): (0.0280, 0.0636, 54, 6, 0.759),
    ("several cards", "megatron, 8 or 4 bits"): (0.0446, 0.2334, 262, 15, 0.771),
    ("several cards", "megatron, 8 or 4 bits, long"): (0.0457, 0.1691, 213, 15, 0.77),
    ("several cards", "megatron, 8 or 4 bits, short"): (0.0011, 0.4821, 49, 5, 0.776),
    ("several cards", "torchtitan, 16 bits"): (0.0327, 0.3265, 53, 7, 0.774),
    ("several cards", "torchtitan, 16 bits, long"): (0.0348, 0.1966, 47, 7, 0.787),
    ("several cards", "torchtitan, 8 or 4 bits"): (0.1755, 0.3336, 29, 3, 0.793),
    ("several cards", "torchtitan, 8 or 4 bits, long"): (0.1866, 0.3651, 27, 3, 0.778),
}
