"""What a page says of itself: the command, tunecast's version, the day, and the job it is of."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import date

from tunecast import __version__
from tunecast.job.job import Job
from tunecast.report.draw.job_yaml import job_in_yaml
from tunecast.report.page.document import Provenance
from tunecast.tape.trace.secrets import without_secrets


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
