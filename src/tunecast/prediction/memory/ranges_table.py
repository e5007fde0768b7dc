"""How far measured runs lie from their predictions. Written by `benchmarks/ranges.py`; do not edit.

From 133 runs of one H200 (2026-11-15) and 309 published ones, as benchmarks/data and benchmarks/results have
them. A line: a group and a kind, and of it the fields of `tunecast.prediction.memory.ranges.Band`.
"""

from __future__ import annotations

BANDS: dict[tuple[str, str], tuple[float, float, int, int, float | None]] = {
    ("measured card", "allocated"): (0.00000, 0.00000, 115, 37, 0.957),
    ("measured card", "reserved"): (0.00000, 0.00000, 115, 37, 0.922),
    ("measured card", "device"): (0.00000, 0.00060, 105, 34, 0.829),
    ("elsewhere", "allocated"): (0.01000, 0.01000, 0, 0, None),
    ("elsewhere", "reserved"): (0.01399, 0.04476, 10, 1, None),
    ("accelerate, several cards", "allocated"): (0.00347, 0.00002, 60, 2, 0.733),
    ("accelerate, several cards", "device"): (0.00000, 0.26818, 60, 2, 0.817),
    ("fsdp_qlora, several cards", "reserved"): (0.07571, 0.08803, 13, 3, None),
    ("litgpt", "allocated"): (0.00775, 0.00124, 33, 10, 0.788),
    ("litgpt, several cards", "allocated"): (0.14135, 0.00011, 9, 5, 0.778),
    ("megatron, several cards", "allocated"): (0.00000, 0.02481, 49, 2, 0.816),
    ("torchtitan, several cards", "reserved"): (0.00918, 0.06002, 59, 5, 0.881),
    ("torchtune", "allocated"): (0.06497, 0.06497, 8, 2, None),
    ("trl", "allocated"): (0.00003, 0.00003, 65, 2, 0.785),
    ("trl", "device"): (0.02207, 0.18709, 65, 2, 0.831),
    ("varying lengths", "allocated"): (0.00037, 0.00029, 14, 14, 0.857),
    ("varying lengths", "reserved"): (0.06531, 0.04999, 14, 14, 0.857),
    ("varying lengths", "device"): (0.06281, 0.04453, 14, 14, 0.857),
    ("guessed", "allocated"): (0.20374, 0.20374, 4, 4, None),
    ("guessed", "reserved"): (0.17106, 0.17106, 4, 4, None),
    ("guessed", "device"): (0.15948, 0.15948, 4, 4, None),
    ("unseen", "allocated"): (0.06001, 0.06001, 703, 64, 0.88),
    ("unseen", "reserved"): (0.06001, 0.06001, 703, 64, 0.88),
    ("unseen", "device"): (0.06001, 0.06001, 703, 64, 0.88),
    ("accelerate, several cards", "reserved"): (0.00000, 0.26818, 60, 2, 0.817),
    ("trl", "reserved"): (0.02207, 0.18709, 65, 2, 0.831),
}
