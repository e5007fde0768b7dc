"""What follows from the data a job names: its model's tokenizer, where that is here, and how many samples are left to
train on where some are held back."""

from __future__ import annotations

import os
from importlib.util import find_spec
from math import ceil
from pathlib import Path

from tunecast.job.hub import cached_folder, is_hub_id, settings
from tunecast.job.job import Data, Job
from tunecast.job.lengths import sample_lengths
from tunecast.job.stacks import stack_of
from tunecast.job.texts.files import files_of
from tunecast.records import replace
from tunecast.units import MIB

MOST_TOKENISED_BYTES = 64 * MIB
"""Of a data set that goes through the model's tokenizer unasked: that takes some ten seconds."""


def with_own_data(job: Job) -> Job:
    """With what follows from the data a job names: its model's tokenizer, where that is here, and how many samples are
    left where some are held back."""
    data = job.data
    if data.path is not None and data.tokenizer is None and _nbytes(data.path) <= MOST_TOKENISED_BYTES:
        data = replace(data, tokenizer=tokenizer_of(job.model))
    if data.path is not None:
        data = replace(data, append_eos=appends_eos(job))
    data = without_held_back(data)
    return job if data == job.data else replace(job, data=data)


def appends_eos(job: Job) -> bool:
    """Whether each text ends with a token of its own."""
    said = job.data.append_eos
    return stack_of(job).ends_texts if said is None else said


def tokenizer_of(model: str) -> str | None:
    """The folder of a model's own tokenizer, where it is here: the folder that is trained from, or the Hub's cache."""
    folder = Path(model) if os.path.isdir(model) else cached_folder(model, settings()) if is_hub_id(model) else None
    if folder is None or not (folder / "tokenizer.json").is_file() or find_spec("tokenizers") is None:
        return None
    return str(folder)


def without_held_back(data: Data) -> Data:
    """The data with what is held back taken off its samples, where their number is known; a share is rounded as the
    `datasets` library does (`Dataset.train_test_split`)."""
    part = data.held_back
    if part is None:
        return data
    samples = data.samples
    if samples is None and (found := sample_lengths(data)) is not None:
        samples = found.samples
    if samples is None:
        return data if part < 1 else replace(data, eval_samples=int(part), held_back=None)
    evaluated = min(max(samples - 1, 1), ceil(samples * part) if part < 1 else int(part))
    return replace(data, samples=max(1, samples - evaluated), eval_samples=evaluated, held_back=None)


def _nbytes(path: str) -> int:
    return sum(file.size_bytes for file in files_of(path).files)
