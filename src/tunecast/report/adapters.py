"""What a job trains, in a few words: `rank 16 on q_proj, v_proj`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.job.job import Job
from tunecast.job.model import language_part
from tunecast.tape.build.adapters import USUAL_TARGETS

WITH_PEFT = ("transformers", "trl")
"""Stacks that take PEFT's own choice of targets; the others have one of theirs."""


def adapters_words(job: Job, config: Mapping[str, Any] | None = None) -> str:
    """`rank 16 on q_proj, v_proj (PEFT's choice)`. `config`: the model's, where it is one model's."""
    return f"rank {job.lora.rank} on {_targets(job, config)}"


def _targets(job: Job, config: Mapping[str, Any] | None) -> str:
    given = job.lora.targets
    if given == "all-linear":
        return "all linear layers"
    if given is not None:
        return given if isinstance(given, str) else ", ".join(given)
    if job.stack not in WITH_PEFT:
        return f"the default targets of {job.stack}"
    if config is None:
        return "PEFT's default targets"
    text = language_part(config)[1]
    names = USUAL_TARGETS.get(str(text.get("model_type") or config.get("model_type")), ())
    return f"{', '.join(names)} (PEFT's choice)" if names else "PEFT's default targets"
