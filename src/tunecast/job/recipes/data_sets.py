"""Well-known data sets that files name: their lengths are known (job/lengths.toml), and stand for the job's own."""

from __future__ import annotations

import re

from tunecast.job.lengths import data_set_of
from tunecast.job.recipes.draft import Draft, Keys

FIRST_ROWS = re.compile(r"\w+\[:(\d{1,12})\]")
"""A split of the `datasets` library: `train[:3000]`."""


def take_data_set(draft: Draft, keys: Keys, key: str, name: object, split: object = None) -> None:
    """`name`: of the one data set that is trained on, which `key` says."""
    if not isinstance(name, str) or "data.lengths" in draft.fields:
        return
    known = data_set_of(name)
    if known is None:
        return
    draft.put("data.lengths", known, keys, key)
    part = FIRST_ROWS.fullmatch(split) if isinstance(split, str) else None
    if part is not None and "data.samples" not in draft.fields and int(part[1]) > 0:
        draft.put("data.samples", int(part[1]), keys, key)
