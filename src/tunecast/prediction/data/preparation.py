"""Preparing the data before training: its text is downloaded and tokenised on the host, as `datasets.map` does it."""

from __future__ import annotations

from tunecast.job.job import Job
from tunecast.job.stacks import stack_of
from tunecast.prediction.data.lengths import Epoch
from tunecast.records import replace

TOKENS_PER_S = (330_000.0, 640_000.0, 190_000.0)
"""Of one process, on a core of an AMD EPYC (2 cores, 2026-11-15; datasets 5.2.0, tokenizers 0.23.3, TRL 1.16.0;
benchmarks/data/preparation.jsonl): (likely, fast, slow). SFTTrainer's own preparation, row by row, of rows
of 300 tokens; one batched map, the tokenizer on one thread; SFTTrainer's slowest, of rows of 100 tokens. Packing takes
no longer: one pass fewer is made. By CPU time, for the machine had other work; by the wall clock 1 to 4 % less where
it had little."""
TEXT_BYTES_PER_TOKEN = 4.6
"""Of the text of those runs, code and its documentation, under a byte-level tokenizer of 64,000 entries."""


def tokenised_s(job: Job, epoch: Epoch | None) -> float:
    """Of that, what as many processes share as there are: all but the download."""
    rate = job.hardware.download_bytes_per_s
    without = replace(job, hardware=replace(job.hardware, download_bytes_per_s=None)) if rate is not None else job
    return preparation_s(without, epoch)[0]


def preparation_s(job: Job, epoch: Epoch | None) -> tuple[float, float, float]:
    """(likely, low, high) seconds; nothing where the data is prepared, or its amount is not known. Who trains with the
    Trainer makes all rows before the first step; other stacks tokenise on the way, or take files made elsewhere.

    Every row is tokenised once, whatever the epochs; of several ranks one does it and the others wait.
    Ignored  text beyond seq_len, which is tokenised and then cut; a chat template's rendering; images; that on several
             machines without a shared disk the others begin when the first has ended (`global_then_local_main_first`).
    """
    if epoch is None or job.data.prepared or not stack_of(job).uses_trainer:
        return 0.0, 0.0, 0.0
    evaluated = (job.data.eval_samples or 0) / epoch.samples if job.run.eval_strategy != "no" else 0.0
    tokens = epoch.real_tokens * (1 + evaluated)
    rate = job.hardware.download_bytes_per_s
    arrives_s = 0.0 if rate is None else tokens * TEXT_BYTES_PER_TOKEN / rate
    likely, low, high = (arrives_s + tokens / each / job.data.num_proc for each in TOKENS_PER_S)
    return likely, low, high
