"""What training data holds: how many samples and tokens, how long they are, and what a job makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath

from tunecast.door.read import dotted
from tunecast.job.mapping import check_overrides, job_from_dict, with_overrides
from tunecast.job.own_data import appends_eos
from tunecast.job.texts.scan import Progress, scan
from tunecast.prediction.data.training_data import TrainingData, training_data

ANY_MODEL = "llama-3.1-8b"
"""Rows and batches are the same of every model."""
APART = ("data.path", "data.tokenizer")
"""Fields that say which data, and nothing of a job that trains on it."""


def data(
    path: str | PathLike[str],
    overrides: Mapping[str, object] | None = None,
    *,
    tokenizer: str | PathLike[str] | None = None,
    progress: Progress | None = None,
    **fields: object,
) -> TrainingData:
    """Of a file or a folder; with the model's `tokenizer` (a folder with tokenizer.json) to the token, else estimated
    from characters. With settings of a job (`seq_len=2048, micro_batch=4, packing=True`) also what is cut, packed and
    padded. `progress` is told the bytes that were read, of how many.

    Raises `NotResolved` where the file cannot be read, `UsageError` where nothing in it is a sample.
    """
    given = dotted(overrides, fields)
    given["data.path"] = fspath(path)
    if tokenizer is not None:
        given["data.tokenizer"] = fspath(tokenizer)
    check_overrides(given)
    job = job_from_dict(with_overrides({"model": ANY_MODEL}, given))
    assert job.data.path is not None
    found = scan(job.data.path, job.data.tokenizer, progress, append_eos=appends_eos(job))
    return training_data(found, job if set(given) - set(APART) else None)
