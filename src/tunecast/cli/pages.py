"""What a page says of itself: the command, tunecast's version, the day, and the job it is of."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import date

from tunecast import __version__
from tunecast.job.flags import job_flags
from tunecast.job.job import Job
from tunecast.report.document import Provenance
from tunecast.report.job_yaml import job_in_yaml

_SECRET = re.compile(r"(?i)--?([a-z0-9_.-]*[-_.])?(token|secret|password|((api|access|secret|private|wandb)[-_]?)key)")
"""A flag whose value is not for others: pages are sent around."""
HIDDEN = "***"


def provenance(
    command: str, argv: Sequence[str], job: Job | None = None, follows: Mapping[str, str] | None = None
) -> Provenance:
    words = ["tunecast", command, *without_secrets(argv)]
    return Provenance(shlex.join(words), __version__, date.today(), job_in_yaml(job) if job else "", follows or {})


def without_secrets(words: Sequence[str]) -> list[str]:
    """`--hf-token ***` and `--hf-token=***`."""
    kept: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        if kept and _SECRET.fullmatch(kept[-1]) and not word.startswith("-"):
            kept.append(HIDDEN)
        elif equals and value and _SECRET.fullmatch(flag):
            kept.append(f"{flag}={HIDDEN}")
        else:
            kept.append(word)
    return kept


def fit_command(source: str, overrides: Mapping[str, object]) -> str:
    """`tunecast fit llama-3.1-8b --method lora --gpu rtx-4090`: the same job, given to another command."""
    flags = {flag.field: flag.flag for flag in job_flags()}
    words = ["tunecast", "fit", source]
    for name, value in overrides.items():
        if name not in flags:
            words += ["--set", f"{name}={'null' if value is None else value}"]
        elif isinstance(value, bool):
            words.append(flags[name] if value else flags[name].replace("--", "--no-", 1))
        else:
            words += [flags[name], str(value)]
    return shlex.join(words)
