"""What a card is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True)
class Gpu:
    name: str
    vendor: str
    compute_capability: tuple[int, int]
    sm_count: int | None
    memory_bytes: int
    """What torch sees: `torch.cuda.mem_get_info()[1]`, less than nvidia-smi's total. Of a range, the least."""
    context_bytes: int | None
    """Held by a process before it trains (the CUDA context); None where nobody measured it."""
    training_context_bytes: int | None
    """Held above what torch reserved while it trains: the context and the libraries' kernels and workspaces."""
    source: str
    checked: date
    recalled: tuple[str, ...] = ()
    """Fields no source at hand confirms."""
