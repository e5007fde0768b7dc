"""A small data set of random token lists with random lengths, the same for the same seed."""

from __future__ import annotations

import json
import random
from typing import Any


def samples(count: int, vocabulary: int, shortest: int, longest: int, seed: int = 7) -> list[dict[str, Any]]:
    pick = random.Random(seed)
    rows = []
    for _ in range(count):
        ids = [pick.randrange(3, vocabulary) for _ in range(pick.randint(shortest, longest))]
        rows.append({"input_ids": ids, "attention_mask": [1] * len(ids), "labels": list(ids)})
    return rows


def padded(rows: list[dict[str, Any]], pad_id: int = 0) -> dict[str, Any]:
    """A batch padded to its longest sample, as a data collator makes it."""
    import torch

    longest = max(len(row["input_ids"]) for row in rows)
    fill = {"input_ids": pad_id, "attention_mask": 0, "labels": -100}
    return {
        name: torch.tensor([row[name] + [value] * (longest - len(row[name])) for row in rows])
        for name, value in fill.items()
    }


def print_memory() -> None:
    import torch

    peaks = {
        "max_memory_allocated": torch.cuda.max_memory_allocated(),
        "max_memory_reserved": torch.cuda.max_memory_reserved(),
    }
    print(json.dumps(peaks))
