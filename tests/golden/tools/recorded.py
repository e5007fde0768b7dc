"""A job as a golden was recorded: with the releases that releases.toml has of it, where the job names no others."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunecast.job import Job, job_from_dict
from tunecast.job.releases import FIELDS

RELEASES = Path(__file__).parents[1] / "releases.toml"


def as_recorded(golden: str, values: Mapping[str, Any]) -> Job:
    releases = tomllib.loads(RELEASES.read_text("utf-8"))[golden]["releases"]
    fields = {field: releases[package] for field, package in FIELDS.items() if package in releases}
    return job_from_dict(fields | dict(values))
