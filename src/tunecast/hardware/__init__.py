"""Cards: what torch sees of their memory, and what they can do."""

from __future__ import annotations

from tunecast.hardware.catalog import gpu, gpus, known_gpu
from tunecast.hardware.spec import Gpu

__all__ = ["Gpu", "gpu", "gpus", "known_gpu"]
