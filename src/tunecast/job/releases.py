"""The releases that are followed: of each package the oldest whose code was read, and those our tapes were compared
with, event for event.

From the oldest to the last of them an answer can be exact: what changed in between is known (tape/build/eras.py and the
stacks' own). Before and after, it is an estimate that says so. `./dev follow` holds them against a package index.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tunecast.records import NamedTuple

if TYPE_CHECKING:
    from tunecast.job.job import Job

Numbers = tuple[int, ...]


class Followed(NamedTuple):
    oldest: str
    compared: tuple[str, ...]
    """Oldest first."""
    field: str = "stack_version"
    """Where a job says which it means."""
    measured: str | None = None
    """What runs on a card were measured with (benchmarks/data); None: with none of it, or with several."""

    @property
    def newest(self) -> str:
        return self.compared[-1]


RELEASES: Mapping[str, Followed] = {
    "torch": Followed("2.1.0", ("2.8.0", "2.11.0", "2.13.0", "2.15.0"), "torch_version", "2.11.0"),
    "transformers": Followed(
        "4.43.0", ("4.45.2", "4.48.1", "4.57.1", "5.17.0", "5.22.2"), "transformers_version", "5.17.0"
    ),
    "peft": Followed("0.13.2", ("0.13.2", "0.17.1", "0.21.0", "0.21.2"), "peft_version", "0.21.0"),
    "trl": Followed("0.13.0", ("0.24.0", "1.16.0"), "trl_version", "1.16.0"),
    "bitsandbytes": Followed("0.42.0", ("0.42.0", "0.49.2", "0.50.2"), "bitsandbytes_version", "0.50.2"),
    "liger-kernel": Followed("0.8.5", ("0.8.5",), "liger_version", "0.8.5"),
    "unsloth": Followed("2026.10.9", ("2026.10.9",), "unsloth_version", "2026.10.9"),
    "unsloth-zoo": Followed("2026.10.9", ("2026.10.9",)),
    "accelerate": Followed("1.15.0", ("1.15.0",)),
    "deepspeed": Followed("0.19.8", ("0.19.8",)),
    "torchtune": Followed("0.1.1", ("0.1.1", "0.4.0", "0.6.1")),
    "litgpt": Followed("0.3.1", ("0.3.1", "0.4.13", "0.5.13")),
    "torchtitan": Followed("0.1.0", ("0.1.0", "0.2.0", "0.2.2")),
    "torchao": Followed("0.18.0", ("0.18.0",)),
    "megatron-core": Followed("0.13.0", ("0.13.0", "0.16.1")),
    "nemo-automodel": Followed("0.5.0", ("0.5.0",)),
}
FIELDS: Mapping[str, str] = {
    followed.field: package for package, followed in RELEASES.items() if followed.field != "stack_version"
}
"""A job's field to the package it is of."""


def numbers(release: str) -> Numbers:
    """5.22.2 as numbers to compare; what stands behind them (rc1, +cu130) is left out."""
    found = re.match(r"\d+(\.\d+)*", release)
    return tuple(map(int, found[0].split("."))) if found else ()


def minor(release: str) -> tuple[int, int]:
    """(5, 22) of 5.22.2."""
    major, second, *_ = (*numbers(release), 0)
    return major, second


def beyond(releases: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each release that no tape was compared with, nor with one before and one after it."""
    for package, release in releases.items():
        followed = RELEASES.get(package)
        if followed is None:
            continue
        asked = numbers(release)
        if asked[: len(numbers(followed.newest))] > numbers(followed.newest)[: len(asked)]:
            yield f"{package} {release} is newer than what is followed, {followed.newest}, whose code is taken"
        elif asked < numbers(followed.oldest)[: len(asked)]:
            yield f"{package} {release} is older than what is followed, {followed.oldest}"


def not_measured(releases: Mapping[str, str]) -> str | None:
    """A sentence where a run's releases are others than those of the runs that were measured; patches are alike."""
    other = {
        package: followed.measured
        for package, release in releases.items()
        if (followed := RELEASES.get(package)) and followed.measured and minor(release) != minor(followed.measured)
    }
    if not other:
        return None
    asked = ", ".join(f"{package} {releases[package]}" for package in other)
    measured = ", ".join(f"{package} {release}" for package, release in other.items())
    return f"no run was measured with {asked}; measured: {measured}"


def stated(job: Job) -> dict[str, str]:
    """The releases a job names, by package."""
    given = {package: getattr(job, field) for field, package in FIELDS.items()}
    return {package: release for package, release in given.items() if release is not None}
