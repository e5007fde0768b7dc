"""A card's name as people write it."""

from __future__ import annotations

import re
from collections.abc import Mapping

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
