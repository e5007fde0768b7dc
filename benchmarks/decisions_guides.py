"""What guides recommend to rent for which size and method: data for the decision tables, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

A100, A100_PCIE, A100_40 = "a100-sxm-80gb", "a100-pcie-80gb", "a100-pcie-40gb"
H100, H100_PCIE, B200 = "h100-sxm-80gb", "h100-pcie-80gb", "b200-sxm-180gb"
GUIDES: Mapping[str, str] = {
    "70B": "Which GPU for Fine-Tuning 70B Models? (Lyceum, 2026-02-23)",
    "2026": "Best GPU for LLM Fine-Tuning in 2026 (Lyceum, 2026-05-10)",
    "hardware": "LLM fine-tuning hardware guide (Lyceum, 2026)",
    "March": "Best GPU for Fine Tuning (guide, March 2026)",
}
"""By the short name the tables use."""


class Recommendation(NamedTuple):
    guide: str
    """A name of `GUIDES`."""
    size: str
    method: str
    gpu: str
    gpus: int = 1
    nodes: int = 1
    told: str = ""
    """Where the guide says less than a card and a number: what was taken."""

    @property
    def hardware(self) -> str:
        one = f"{self.gpus} x {self.gpu}"
        return one if self.nodes == 1 else f"{self.nodes} machines of {one}"


RECOMMENDED: tuple[Recommendation, ...] = (
    Recommendation("March", "7B", "full", A100, 8),
    Recommendation("2026", "7B", "full", A100, 2),
    Recommendation("March", "7B", "lora", "rtx-4090"),
    Recommendation("March", "7B", "lora", "l40s"),
    Recommendation("2026", "7B", "qlora", "l40s"),
    Recommendation("2026", "7B", "qlora", A100_40, told="40 GB, PCIe taken"),
    Recommendation("March", "13B", "full", A100, 2),
    Recommendation("March", "13B", "full", H100, 8),
    Recommendation("2026", "13B", "full", A100, 2),
    Recommendation("March", "13B", "lora", "rtx-4090", told="first of its ranking by cost"),
    Recommendation("March", "13B", "lora", A100_PCIE),
    Recommendation("March", "13B", "lora", "l40s"),
    Recommendation("2026", "13B", "qlora", "l40s"),
    Recommendation("2026", "13B", "qlora", A100_40, told="40 GB, PCIe taken"),
    Recommendation("March", "34B", "full", A100, 4),
    Recommendation("March", "34B", "full", H100, 8),
    Recommendation("March", "34B", "lora", "l40s", told="48 GB; a card of that size taken"),
    Recommendation("March", "34B", "qlora", "rtx-4090", told="16 GB; the next larger card taken"),
    Recommendation("March", "70B", "full", A100, 8),
    Recommendation("March", "70B", "full", H100, 8),
    Recommendation("2026", "70B", "full", H100, 8),
    Recommendation("2026", "70B", "full", B200, 8),
    Recommendation("70B", "70B", "full", H100, 8, 2, told="16 cards of 80 GB"),
    Recommendation("March", "70B", "lora", H100_PCIE),
    Recommendation("March", "70B", "lora", A100, 8),
    Recommendation("70B", "70B", "lora", B200, told="the 16-bit weights on one B200"),
    Recommendation("March", "70B", "qlora", "rtx-4090"),
    Recommendation("70B", "70B", "qlora", "rtx-6000-ada", told="one card of 48 GB"),
    Recommendation("70B", "70B", "qlora", A100, 2),
    Recommendation("2026", "70B", "qlora", A100),
    Recommendation("2026", "70B", "qlora", H100),
    *(
        Recommendation("hardware", size, method, B200, 8, told="B200 above 150B; a machine of 8 taken")
        for size in ("180B", "405B")
        for method in ("full", "lora", "qlora")
    ),
)


def recommended(size: str, method: str) -> list[Recommendation]:
    """Each hardware once, whoever says it first."""
    found: dict[str, Recommendation] = {}
    for each in RECOMMENDED:
        if (each.size, each.method) == (size, method):
            found.setdefault(each.hardware, each)
    return list(found.values())
