"""What a card is, and its name as people write it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from tunecast.records import dataclass, field
from tunecast.result import Result

if TYPE_CHECKING:
    from datetime import date


@dataclass(frozen=True)
class Gpu(Result):
    """One device of torch. What nobody is known to have published or measured is None."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("name", "vendor", "architecture", "released", "compute_capability", "sm_count", "memory_bytes"),
        *("nominal_bytes", "memory_type", "memory_bytes_per_s", "dense_flop_per_s", "achieved_flop_per_s", "l2_bytes"),
        *("tdp_w", "pcie", "link", "link_bytes_per_s", "context_bytes", "training_context_bytes", "notes"),
        *("unverified", "source", "checked"),
    )
    FROM: ClassVar[Mapping[str, str]] = {"compute_capability": "capability"}

    name: str
    vendor: str
    compute_capability: tuple[int, int]
    """Of torch.cuda.get_device_capability(): of an AMD card its gfx version; (0, 0) where there is no torch.cuda."""
    memory_bytes: int
    """What torch sees: `torch.cuda.mem_get_info()[1]`, less than nvidia-smi's total. Of a range, the least."""
    source: str
    checked: date
    sm_count: int | None = None
    context_bytes: int | None = None
    """Held by a process before it trains (the CUDA context); None where nobody measured it."""
    training_context_bytes: int | None = None
    """Held above what torch reserved while it trains: the context and the libraries' kernels and workspaces."""
    unverified: tuple[str, ...] = ()
    """Fields of gpus.toml no source at hand confirms; a rate as `dense_tflop_per_s.bf16`."""
    architecture: str = ""
    released: str = ""
    """Year and month."""
    nominal_bytes: int | None = None
    """As sold."""
    memory_type: str = ""
    memory_bytes_per_s: float | None = None
    dense_flop_per_s: Mapping[str, float] = field(default_factory=dict)
    """By bf16, fp16, tf32, fp32, fp8, fp4, int8: without sparsity, accumulated in float32."""
    achieved_flop_per_s: Mapping[str, float] = field(default_factory=dict)
    """The best matrix product anyone measured."""
    l2_bytes: int | None = None
    tdp_w: int | None = None
    pcie: str = ""
    link: str = "none"
    """How cards of one machine are joined."""
    link_bytes_per_s: float | None = None
    """All links of a card together, one way."""
    segment: str = ""
    """consumer: of people's own machines."""
    through_host: bool = False
    """Its driver lets no card reach another's memory: they exchange data through the host's."""
    bridge: str | None = None
    """The NVLink bridge it can have, which is bought apart: it has to be named."""
    offered_as: tuple[str, ...] = ()
    """What price lists call it, in capitals without spaces and dashes."""
    notes: str = ""

    @property
    def is_consumer(self) -> bool:
        return self.segment == "consumer"

    @property
    def capability(self) -> str | None:
        """`9.0`."""
        return ".".join(map(str, self.compute_capability)) if any(self.compute_capability) else None


_WORDS: Mapping[str, str] = {
    **{"pcie": "PCIe", "ada": "Ada", "workstation": "Workstation", "server": "Server"},
    **{"ti": "Ti", "super": "Super", "laptop": "Laptop", "titan": "Titan", "quadro": "Quadro", "max": "Max"},
    **{"gaudi2": "Gaudi 2", "gaudi3": "Gaudi 3"},
}
_SIZE = re.compile(r"(\d+)gb")


def card_name(name: str) -> str:
    """`rtx-4090` is an `RTX 4090`, `a100-sxm-80gb` an `A100 SXM 80 GB`. Of a name in gpus.toml."""
    words = (_WORDS.get(word) or _SIZE.sub(r"\1 GB", word).upper() for word in name.split("-"))
    return " ".join(words)
