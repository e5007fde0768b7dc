"""A job: what is to be trained, how and where; read from a file, flags or a model's name."""

from __future__ import annotations

from tunecast.job.job import Data, Hardware, Job, Lora, Parallel, Quantization, Run
from tunecast.job.mapping import job_from_dict
from tunecast.job.readers import JobError, read_jobs

__all__ = [
    "Data",
    "Hardware",
    "Job",
    "JobError",
    "Lora",
    "Parallel",
    "Quantization",
    "Run",
    "job_from_dict",
    "read_jobs",
]
