"""What a page says of itself: the command, tunecast's version, the day, and the job it is of."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import date

from tunecast import __version__
from tunecast.job.job import Job
from tunecast.report.draw.job_yaml import job_in_yaml
from tunecast.report.page.document import Provenance

_SECRET = re.compile(r"(?i)--?([a-z0-9_.-]*[-_.])?(token|secret|password|((api|access|secret|private|wandb)[-_]?)key)")
"""A flag whose value is not for others: pages are sent around."""
HIDDEN = "***"


def provenance(
    command: str,
    argv: Sequence[str],
    job: Job | None = None,
    versions: Mapping[str, str] | None = None,
    *,
    traced: bool = False,
) -> Provenance:
    """`versions`: of the packages whose code was traced, or is followed."""
    packages = ", ".join(f"{name} {version}" for name, version in sorted((versions or {}).items()))
    return Provenance(
        shlex.join(["tunecast", command, *without_secrets(argv)]),
        __version__,
        date.today(),
        job_in_yaml(job) if job else "",
        f"{'traced with' if traced else 'follows'} {packages}" if packages else "",
    )


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
