"""Cards: what torch sees of their memory, and what they can do.

catalog.py  The cards tunecast knows, by name
cluster.py  The cards of a job, and what joins them: `cluster_of`
grids.py    What a country's electricity emits: one table, `grids.toml`
links.py    Links between cards, and the machines that have them: `links.toml`, `nodes.toml`
spec.py     What a card is
"""

from __future__ import annotations

from tunecast.hardware.catalog import gpu, gpus, known_gpu
from tunecast.hardware.spec import Gpu

__all__ = ["Gpu", "gpu", "gpus", "known_gpu"]
