"""The first ten lines of the accuracy pages: how far memory and time are off, by card and by stack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from figures import table

from tunecast.prediction.evidence import MEMORY, TIME, ErrorSpread, Runs, spread
from tunecast.prediction.evidence import table as evidence

CARDS: Mapping[str, tuple[str, ...]] = {
    "H200": ("h200-sxm-141gb", "h200-nvl-141gb"),
    "H100": ("h100-sxm-80gb", "h100-sxm-96gb"),
    "A100": ("a100-sxm-80gb", "a100-sxm-40gb"),
    "B200, B300, GB200, GB300": ("b200-sxm-180gb", "b300-sxm-288gb", "gb200-186gb", "gb300-288gb"),
    "MI300X, MI325X": ("mi300x", "mi325x"),
    "RTX 3090, RTX 4090": ("rtx-3090", "rtx-4090"),
    "A10G, L40S, RTX A5000, RTX 6000 Ada": ("a10g", "l40s", "rtx-a5000", "rtx-6000-ada"),
}
STACKS: Mapping[str, str] = {
    "accelerate": "transformers Trainer, TRL, PEFT", "unsloth": "Unsloth", "torchtune": "torchtune",
    "litgpt": "LitGPT", "fsdp_qlora": "fsdp_qlora", "torchtitan": "torchtitan, fms-fsdp", "llm-foundry": "LLM Foundry",
    "megatron": "Megatron, NeMo, MLPerf's",
}  # fmt: skip
"""Families of stacks, by the packages people know."""
HEAD = ["", "memory: runs", "median error", "p90", "time: runs", "median error", "p90"]


def by_card() -> list[str]:
    return table(["card", *HEAD[1:]], [_line(name, lambda runs, of=of: runs.card in of) for name, of in CARDS.items()])


def by_stack() -> list[str]:
    rows = [_line(name, lambda runs, of=family: runs.family == of) for family, name in STACKS.items()]
    return table(["training code", *HEAD[1:]], [*rows, _line("**all**", lambda _: True)])


def summary() -> list[str]:
    """The top of both accuracy pages."""
    apart = spread(_of_kind(evidence(), TIME), lambda runs: runs.left_out)
    return [
        *by_card(),
        *by_stack(),
        "Errors are sizes, relative to what was measured: half of the runs are off by less than the median, nine of "
        "ten by less than p90. Memory is reserved memory on our H200, elsewhere whatever the source measured; time is "
        "one training step. Some rates behind times are estimated from these runs; with the card predicted left out "
        f"of them, the {apart.runs} steps timed by others are off by {apart.median:.1%} (p90 {apart.p90:.1%}). An "
        "empty cell: no such runs are known; a prediction there is about as far off as those of like cards, and its "
        "range is wider. Sources: our own runs on one H200, and published ones (`prediction/evidence.csv`, "
        "written by `benchmarks/evidence.py`).",
        "",
    ]


def _line(name: str, chosen: Callable[[Runs], bool]) -> list[str]:
    found = [runs for runs in evidence() if chosen(runs)]
    return [name, *(cell for kind in (MEMORY, TIME) for cell in _cells(spread(_of_kind(found, kind))))]


def _of_kind(found: Iterable[Runs], kind: str) -> Sequence[Runs]:
    return [runs for runs in found if runs.kind == kind]


def _cells(found: ErrorSpread) -> tuple[str, str, str]:
    if found.median is None or found.p90 is None:
        return "", "", ""
    return str(found.runs), f"{found.median:.1%}", f"{found.p90:.1%}"


def as_appendix(lines: Sequence[str]) -> list[str]:
    """Sections below a heading of their own, one level down."""
    return ["## Appendix", "", *(f"#{line}" if line.startswith("##") else line for line in lines)]
