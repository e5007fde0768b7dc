"""Every recorded golden says which releases it was recorded with; those older than what is followed are listed."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tunecast.job.stacks import STACKS

HERE = Path(__file__).parent
RELEASES: Mapping[str, Mapping[str, Any]] = tomllib.loads((HERE / "releases.toml").read_text("utf-8"))


def recorded() -> set[str]:
    """Folders with recorded tapes, and files of what a card was seen to do."""
    folders = {str(path.parent.relative_to(HERE)) for path in HERE.rglob("events.json.gz")}
    return folders | {str(path.relative_to(HERE)) for path in (HERE / "data").glob("h200_*")}


def numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".") if part.isdecimal())


def newest_followed() -> dict[str, str]:
    """The newest release of each package that any stack follows."""
    newest: dict[str, str] = {}
    for stack in STACKS.values():
        for package, release in stack.follows.items():
            if numbers(release) > numbers(newest.get(package, "0")):
                newest[package] = release
    return newest


def behind() -> Iterator[str]:
    newest = newest_followed()
    for name, golden in RELEASES.items():
        for package, release in golden["releases"].items():
            if package in newest and numbers(release) < numbers(newest[package]):
                day = golden["recorded"]
                yield f"{name} was recorded with {package} {release} ({day}); followed is {newest[package]}"


def test_every_golden_says_its_releases() -> None:
    assert set(RELEASES) == recorded()
    for name, golden in RELEASES.items():
        assert isinstance(golden["recorded"], date), name
        assert "torch" in golden["releases"], name


@pytest.mark.parametrize("name", sorted(name for name in RELEASES if (HERE / name).is_dir()))
def test_the_releases_are_those_its_own_pages_name(name: str) -> None:
    text = "".join((HERE / name / file).read_text("utf-8") for file in ("README.md", "make.py"))
    golden = RELEASES[name]
    releases = [*golden["releases"].values(), *(each for old in golden.get("old", {}).values() for each in old)]
    assert not [release for release in releases if release not in text]


def test_goldens_behind_what_is_followed_are_listed() -> None:
    """Not a failure: what changed between the two may not touch what was recorded."""
    for line in behind():
        warnings.warn(line, stacklevel=1)
