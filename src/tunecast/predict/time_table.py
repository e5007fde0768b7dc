"""How far measured steps lie from their predictions. Written by `benchmarks/time_ranges.py`; do not edit.

A line: a group of alike steps, and of it the fields of `tunecast.predict.time_ranges.Band`.
"""

from __future__ import annotations

BANDS: dict[str, tuple[float, float, int, int, float | None]] = {
    "unseen": (0.2023, 0.2023, 814, 52, 0.854),
    "one a100-sxm-80gb, accelerate, card": (0.0258, 0.0333, 65, 2, 0.862),
    "one h200-sxm-141gb, accelerate, card": (0.0251, 0.0757, 64, 21, 0.797),
    "one h200-sxm-141gb, accelerate, host": (0.1310, 0.4419, 14, 13, 0.857),
    "several a100-sxm-80gb, llm-foundry, 16 bits": (0.0738, 0.1586, 39, 6, 0.846),
    "several a100-sxm-80gb, llm-foundry, 16 bits, long": (0.0824, 0.1782, 36, 6, 0.833),
    "several a100-sxm-80gb, torchtitan, 16 bits": (0.0202, 0.1531, 11, 6, 0.818),
    "several a100-sxm-80gb, torchtitan, 16 bits, long": (0.0202, 0.1531, 11, 6, 0.818),
    "several b200-sxm-180gb, megatron, 8 or 4 bits, long": (0.0743, 0.2506, 31, 5, 0.871),
    "several b200-sxm-180gb, megatron, 8 or 4 bits, short": (0.0000, 0.2964, 15, 3, 0.933),
    "several gb200-186gb, megatron, 8 or 4 bits": (0.0378, 0.2476, 65, 7, 0.785),
    "several gb300-288gb, megatron, 8 or 4 bits": (0.0825, 0.0764, 26, 3, 0.923),
    "several gb300-288gb, megatron, 8 or 4 bits, long": (0.0825, 0.0764, 26, 3, 0.923),
    "several h100-sxm-80gb, llm-foundry, 16 bits": (0.0397, 0.1910, 48, 5, 0.812),
    "several h100-sxm-80gb, llm-foundry, 16 bits, long": (0.0516, 0.1813, 35, 5, 0.829),
    "several h100-sxm-80gb, llm-foundry, 16 bits, short": (0.0058, 0.2665, 13, 3, 0.846),
    "several h100-sxm-80gb, megatron, 16 bits": (0.0280, 0.0568, 51, 6, 0.784),
    "several h100-sxm-80gb, megatron, 16 bits, long": (0.0280, 0.0568, 51, 6, 0.784),
    "several h100-sxm-80gb, megatron, 8 or 4 bits, long": (0.0457, 0.1288, 105, 15, 0.752),
    "several h100-sxm-80gb, megatron, 8 or 4 bits, short": (0.1248, 0.5177, 19, 4, 0.895),
    "several h100-sxm-96gb, torchtitan, 16 bits": (0.0524, 0.3837, 33, 4, 0.758),
    "several h100-sxm-96gb, torchtitan, 16 bits, long": (0.0793, 0.3265, 28, 4, 0.75),
    "several h100-sxm-96gb, torchtitan, 8 or 4 bits": (0.1866, 0.3651, 28, 3, 0.786),
    "several h100-sxm-96gb, torchtitan, 8 or 4 bits, long": (0.1866, 0.3651, 26, 3, 0.769),
    "several h200-sxm-141gb, megatron, 8 or 4 bits": (0.0000, 0.3539, 27, 3, 1.0),
    "several h200-sxm-141gb, megatron, 8 or 4 bits, long": (0.0000, 0.1411, 24, 2, 1.0),
    "several rtx-3090, fsdp_qlora, 16 bits": (0.0451, 0.2551, 12, 3, 1.0),
    "several rtx-3090, fsdp_qlora, 16 bits, long": (0.0451, 0.2551, 12, 3, 1.0),
    "several, 16 bits": (0.0606, 0.1514, 327, 22, 0.804),
    "several, 16 bits, long": (0.0629, 0.1484, 294, 22, 0.803),
    "several, 16 bits, short": (0.0318, 0.3441, 33, 7, 0.818),
    "several, 8 or 4 bits": (0.1165, 0.1930, 338, 15, 0.787),
    "several, 8 or 4 bits, long": (0.1344, 0.1571, 283, 15, 0.77),
    "several, fsdp_qlora, 16 bits": (0.0451, 0.4972, 18, 3, 0.778),
    "several, fsdp_qlora, 16 bits, long": (0.0451, 0.4972, 18, 3, 0.778),
    "several, megatron, 8 or 4 bits": (0.1067, 0.1801, 309, 15, 0.793),
    "several, megatron, 8 or 4 bits, long": (0.1344, 0.1467, 256, 15, 0.777),
    "several, torchtitan, 16 bits, long": (0.0626, 0.2559, 47, 7, 0.766),
}
