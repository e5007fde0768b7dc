"""What a job's adapters are, in a few words: `rank 16 on q_proj, v_proj`."""

from __future__ import annotations

from tunecast.job.job import Job
from tunecast.job.stacks import stack_of


def adapters_words(job: Job) -> str:
    """Of a job whose targets `fill_in` has settled; else whose choice they are."""
    return f"rank {job.lora.rank} on {_targets(job)}"


def _targets(job: Job) -> str:
    given = job.lora.targets
    if given == "all-linear":
        return "all linear layers"
    if given is None:
        return f"the default targets of {'PEFT' if stack_of(job).by_script else job.stack}"
    return given if isinstance(given, str) else ", ".join(given)
