"""What follows from the data a job names: its model's tokenizer, where that is here, and how many samples are left to
train on where a share is held back."""

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
    left where a share is held back."""
    data = job.data
    if data.path is not None and data.tokenizer is None and _nbytes(data.path) <= MOST_TOKENISED_BYTES:
        data = replace(data, tokenizer=tokenizer_of(job.model))
    if data.path is not None and data.append_eos is None:
        data = replace(data, append_eos=stack_of(job).ends_texts)
    data = without_held_back(data)
    return job if data == job.data else replace(job, data=data)


def tokenizer_of(model: str) -> str | None:
    """The folder of a model's own tokenizer, where it is here: the folder that is trained from, or the Hub's cache."""
    folder = Path(model) if os.path.isdir(model) else cached_folder(model, settings()) if is_hub_id(model) else None
    if folder is None or not (folder / "tokenizer.json").is_file() or find_spec("tokenizers") is None:
        return None
    return str(folder)


def without_held_back(data: Data) -> Data:
    """The data with a share for evaluation taken off its samples, where their number is known; rounded as the
    `datasets` library does (`Dataset.train_test_split`)."""
    if data.eval_share is None:
        return data
    samples = data.samples
    if samples is None and (found := sample_lengths(data)) is not None:
        samples = found.samples
    if samples is None or samples < 2:
        return data
    held_back = min(samples - 1, ceil(samples * data.eval_share))
    return replace(data, samples=samples - held_back, eval_samples=held_back, eval_share=None)


def _nbytes(path: str) -> int:
    return sum(file.size_bytes for file in files_of(path).files)
