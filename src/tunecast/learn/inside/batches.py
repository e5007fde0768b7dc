"""The batches of a data loader, counted on the host before they go to the card, and how long the loop waits for them.

torch's `DataLoader.__iter__` asks its own `_get_iterator`, under accelerate too (accelerate/data_loader.py,
`DataLoaderShard.__iter__`, iterates over `base_dataloader`): one such function of one loader is replaced, so that
workers, pinned memory and what accelerate does stay as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

IDS, MASK = "input_ids", "attention_mask"
Counted = Callable[[float, "tuple[int, int] | None"], None]
"""Takes the seconds that a batch was waited for and its tokens, real and padding."""


class CountedBatches:
    """An iterator of torch's in all but `__next__`."""

    def __init__(self, inner: Any, counted: Counted) -> None:
        self._inner, self._counted = inner, counted

    def __iter__(self) -> CountedBatches:
        return self

    def __next__(self) -> Any:
        began = time.perf_counter()
        batch = next(self._inner)
        waited_s = time.perf_counter() - began
        try:
            tokens = tokens_of(batch)
        except Exception:  # batches are whatever a collator makes
            tokens = None
        self._counted(waited_s, tokens)
        return batch

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def count_batches(loader: Any, counted: Counted) -> bool:
    """Whether it is a loader that can be followed."""
    inner = getattr(loader, "base_dataloader", loader)
    make = getattr(inner, "_get_iterator", None)
    if make is None:
        return False
    if isinstance(getattr(make, "__self__", None), type(None)):  # followed already
        return True

    def counting() -> Any:
        return CountedBatches(make(), counted)

    inner._get_iterator = counting
    return True


def tokens_of(batch: Any) -> tuple[int, int] | None:
    """Tokens that a mask lets through, and the rest. Rows without a mask have no padding that the model knows of.
    A mask that is on the card already is not looked at: that would wait for it."""
    if not hasattr(batch, "keys"):
        return None
    real = whole = 0
    for name in batch:
        if not str(name).endswith(IDS) or not hasattr(batch[name], "numel"):
            continue
        ids = batch[name]
        mask = batch.get(f"{str(name)[: -len(IDS)]}{MASK}")
        whole += ids.numel()
        if hasattr(mask, "sum") and getattr(mask, "shape", None) == ids.shape and mask.device.type == "cpu":
            real += int(mask.sum())
        else:
            real += ids.numel()
    return (real, whole - real) if whole else None
