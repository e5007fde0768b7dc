"""The programs of programs.toml: where each comes from, how it is started, and what is expected."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MANIFEST = Path(__file__).parents[1] / "programs.toml"


@dataclass(frozen=True)
class Source:
    """A repository at a commit, or an installed release."""

    name: str
    commit: str = ""
    release: str = ""
    paths: tuple[str, ...] = ()
    """What of the repository is checked out; nothing: all of it."""
    environment: str = "programs"
    """Which has its packages: tests/environments/NAME.txt."""

    @property
    def version(self) -> str:
        return self.commit or self.release


@dataclass(frozen=True)
class Program:
    name: str
    source: Source
    command: tuple[str, ...]
    """As it is started; {source} is the checkout, or the folder of the installed package, {data} the stand-ins."""
    by_hand: str = ""
    """What the peak should be, worked out without the tracer."""
    least_gib: float = 0.0
    """Of which this much at least is certain: weights, and gradients and optimizer states where they are trained."""
    refused: str = ""
    """Words of the message with which it is expected to be refused."""
    why: str = ""
    """Why it is refused, or what it is run for."""
    folder: str = "{data}"
    """Where it is started."""
    steps: int = 2
    """Optimizer steps after which it is stopped; 0: it is traced to its end."""
    options: tuple[str, ...] = ()
    """Further options of `tunecast trace`."""
    files: Mapping[str, str] = field(default_factory=dict)
    """What the program expects beside itself: its path within the source, and the stand-in that takes its place."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the process."""
    prepare: tuple[str, ...] = ()
    """A command run before it, not traced: what the program's authors say has to be done first."""


def read_programs(path: Path = MANIFEST) -> list[Program]:
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    sources = {key: source_of(values) for key, values in content["sources"].items()}
    return [program_of(values, sources) for values in content["programs"]]


def source_of(values: Mapping[str, Any]) -> Source:
    return Source(**{**values, "paths": tuple(values.get("paths", ()))})


def program_of(values: Mapping[str, Any], sources: Mapping[str, Source]) -> Program:
    changed = dict(values)
    changed["source"] = sources[changed["source"]]
    changed["command"] = tuple(changed["command"].split())
    for name in ("options", "prepare"):
        changed[name] = tuple(changed.get(name, "").split())
    return Program(**changed)
