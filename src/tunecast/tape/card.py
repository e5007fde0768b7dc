"""The card the trace pretends to run on: what torch code can ask of it, and what its kernels depend on."""

from __future__ import annotations

from tunecast.records import dataclass


@dataclass(frozen=True)
class Card:
    name: str = "NVIDIA H200"
    total_bytes: int = 150_110_011_392
    capability: tuple[int, int] = (9, 0)
    sm_count: int = 132
