"""What goes to the traced process and what comes back: plain values, as JSON files in a folder of their own."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunecast.tape.card import Card


@dataclass(frozen=True)
class Request:
    folder: Path
    """Made by the asking process; everything the traced one writes goes here."""
    card: Card = field(default_factory=Card)
    devices: int = 1

    @property
    def tape_path(self) -> Path:
        return self.folder / "tape.gz"

    @property
    def answer_path(self) -> Path:
        return self.folder / "answer.json"

    def write(self) -> Path:
        path = self.folder / "request.json"
        values = dataclasses.asdict(self) | {"folder": str(self.folder), "kind": type(self).__name__}
        path.write_text(json.dumps(values))
        return path

    @staticmethod
    def read(path: Path) -> Request:
        values = json.loads(path.read_text())
        kind = {"JobRequest": JobRequest, "ScriptRequest": ScriptRequest}[values.pop("kind")]
        card = values.pop("card")
        card = Card(**card | {"capability": tuple(card["capability"])})
        return kind(folder=Path(values.pop("folder")), card=card, **values)


@dataclass(frozen=True)
class JobRequest(Request):
    job: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()
    """Padded length of each optimizer step to trace."""


@dataclass(frozen=True)
class ScriptRequest(Request):
    script: str = ""
    """A path, or a module's name with `as_module` (python -m)."""
    args: tuple[str, ...] = ()
    as_module: bool = False
    steps: int = 3
    """Optimizer steps to run; 0: all the script takes."""
    skips: bool = False
    """Calls of the model whose kind is known are skipped (skip.py)."""
    cpu_s: float = 0
    """After so many seconds of CPU the script is stopped where its next call would begin; 0: never."""
    wall_s: float = 0
    """The same of the clock on the wall."""
    nproc_per_node: int = 1
    nnodes: int = 1
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """config.json by the name a script may load it under, resolved by the asking process."""


@dataclass(frozen=True)
class Answer:
    steps: int = 0
    finished: bool = False
    """The script ended by itself rather than being stopped after the steps asked for."""
    error: str | None = None
    code: str | None = None
    field: str | None = None
    detail: str = ""
    untraced: tuple[str, ...] = ()
    """What could not be traced, a sentence each."""
    skipped: int = 0
    """Calls, backward passes and steps that were skipped, since their kind was known."""
    too_long: bool = False
    """It was stopped since it took too long."""
    all_traced: str = ""
    """Why nothing was skipped, though it might have been."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self)))

    @staticmethod
    def read(path: Path) -> Answer:
        values = json.loads(path.read_text())
        return Answer(**values | {"untraced": tuple(values["untraced"])})
