"""What a page says of itself: the command, tunecast's version, the day, and the job it is of."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

from tunecast import __version__
from tunecast.cli.told import cost_of, fit_command, is_by_flags, remarks_on, trust_in, warnings_on
from tunecast.job.job import Job
from tunecast.predict.outside import Outside
from tunecast.predict.prediction import Predicted
from tunecast.report.document import Provenance
from tunecast.report.html import Beside
from tunecast.report.job_yaml import job_in_yaml
from tunecast.report.taken import taken_lines

if TYPE_CHECKING:
    from tunecast.cli.predict import How
    from tunecast.cli.trials import Tried

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


def beside_of(done: Predicted, job: Job, outside: Outside | None, tried: Tried, how: How) -> Beside:
    """What the page of a job shows beside its memory. `job`: as the user wrote it."""
    source = how.sources[0]
    return Beside(
        provenance("predict", how.argv, job, done.held.versions, traced=how.engine == "traced"),
        done.prediction,
        outside,
        tuple(tried.changes),
        fit_command(source, how),
        is_by_flags(source),
        tuple(taken_lines(tried.taken, tried.effects, done.held.verdict)),
        cost_of(tried),
        tuple(remarks_on(done)),
        tuple(warnings_on(done, outside, source)),
        trust=trust_in(done),
    )
