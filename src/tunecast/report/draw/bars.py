"""Memory as one stacked bar of letters: readable without colour, in ASCII, and in any width.

WWWWWWWWWWWWDOAAAAAALLLLLLLLLLLL······|      what is left of the card
WWWWWWWWWWWWDOAAAAAALLLLLLLLLLLL|LLLcc       what is more than the card
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from tunecast.records import NamedTuple

FREE, END, UNKNOWN = "·", "|", "?"
LETTERS: Mapping[str, str] = {
    "weights": "W", "adapters": "D", "gradients": "G", "optimizer": "O", "activations": "A", "logits_and_loss": "L",
    "temporaries": "T", "allocator": "c", "paged_optimizer": "p", "context": "x", "communication": "n", "vllm": "v",
    "others": "o",
}  # fmt: skip
"""In the order they are stacked: what stays, what comes and goes, what PyTorch keeps, what is not PyTorch's."""
MEANINGS: Mapping[str, str] = {
    **{letter: part.replace("_", " ") for part, letter in LETTERS.items()},
    "c": "cached by the allocator", "x": "CUDA context", "n": "NCCL", "v": "vLLM", "o": "held by others",
    FREE: "free", END: "end of the card", UNKNOWN: "other",
}  # fmt: skip


class BarRun(NamedTuple):
    """So many columns of one letter."""

    letter: str
    columns: int


def stacked(parts: Mapping[str, int], room: int, longest_bytes: int, card_bytes: int | None = None) -> list[BarRun]:
    """`longest_bytes` take `room` columns; the end of the card, where there is one, takes a column of it.

    Each part ends where its bytes end, to the nearest column: what is smaller than half of one may not show.
    """
    room -= card_bytes is not None
    if room < 1 or longest_bytes < 1:
        return []

    def column(nbytes: int) -> int:
        return min(room, (2 * nbytes * room + longest_bytes) // (2 * longest_bytes))

    cells: list[str] = []
    total_bytes = 0
    order = [*LETTERS, *(part for part in parts if part not in LETTERS)]
    for part in order:
        total_bytes += parts.get(part, 0)
        cells += [LETTERS.get(part, UNKNOWN)] * (column(total_bytes) - len(cells))
    if card_bytes is not None:
        end = column(card_bytes)
        if total_bytes > card_bytes:
            # However little is too much, it shows.
            end = min(end, len(cells) - 1) if cells else 0
        cells += [FREE] * (end - len(cells))
        cells.insert(max(0, end), END)
    return [BarRun(letter, len(list(same))) for letter, same in groupby(cells)]


def legend(bars: Iterable[Sequence[BarRun]]) -> list[tuple[str, str]]:
    """(letter, meaning) of every letter drawn, in the order they are stacked."""
    drawn = {run.letter for bar in bars for run in bar}
    return [(letter, meaning) for letter, meaning in MEANINGS.items() if letter in drawn]
