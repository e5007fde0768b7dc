"""A job of the packages that are installed here, which the tracer runs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from tunecast.job import Job, job_from_dict

PACKAGES = {"torch_version": "torch", "transformers_version": "transformers"}


def as_installed(values: Mapping[str, Any]) -> Job:
    return job_from_dict({field: version(package) for field, package in PACKAGES.items()} | dict(values))
