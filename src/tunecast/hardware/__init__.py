"""Cards, as far as memory needs them."""

from __future__ import annotations

from tunecast.hardware.catalog import gpu, gpus
from tunecast.hardware.spec import Gpu

__all__ = ["Gpu", "gpu", "gpus"]
