"""What goes to the traced process and what comes back: plain values, as JSON files in a folder of their own."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunecast.tape.card import Card
from tunecast.tape.trace.facts import ScriptFacts, SettingOverride
from tunecast.tape.trace.secrets import without_values


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

    @property
    def steps_path(self) -> Path:
        """Whole optimizer steps so far: all that is known of a script that crashes."""
        return self.folder / "steps.txt"

    def steps_done(self) -> int:
        try:
            return int(self.steps_path.read_text()[:9]) if self.steps_path.is_file() else 0
        except (OSError, ValueError):
            return 0

    def write(self) -> Path:
        path = self.folder / "request.json"
        values = dataclasses.asdict(self) | {"folder": str(self.folder), "kind": type(self).__name__}
        path.write_text(json.dumps(values))
        return path

    @staticmethod
    def read(path: Path) -> Request:
        values = json.loads(path.read_text())
        kind = {"JobRequest": JobRequest, "ScriptRequest": ScriptRequest}[values.pop("kind")]
        if "overrides" in values:
            values["overrides"] = tuple(SettingOverride(**each) for each in values["overrides"])
        if values.get("allocator"):
            values["allocator"] = AllocatorRequest(**values["allocator"])
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
class AllocatorRequest:
    """By what the script's questions about memory are answered (meter.py)."""

    module: str
    """Of a `MemorySoFar`: it stands above this package, so that whoever asks names it."""
    settings: Mapping[str, Any]
    context_bytes: int
    """What a process holds of the card beside what it reserves."""
    capacity_bytes: int | None = None
    """What it may reserve; a script that needs more is answered as on a larger card."""


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
    traced_steps: tuple[int, ...] = ()
    """Of which nothing is skipped."""
    cpu_s: float = 0
    """After so many seconds of CPU the script is stopped where its next call would begin; 0: never."""
    wall_s: float = 0
    """The same of the clock on the wall."""
    nproc_per_node: int = 1
    nnodes: int = 1
    rank_variables: bool = True
    """Several processes are told RANK and WORLD_SIZE, as torchrun does."""
    names_devices: bool = False
    """CUDA_VISIBLE_DEVICES is set for the run."""
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """config.json by the name a script may load it under, resolved by the asking process."""
    allocator: AllocatorRequest | None = None
    overrides: tuple[SettingOverride, ...] = ()
    """Other values for what the script sets in calls and files."""


@dataclass(frozen=True)
class Answer:
    steps: int = 0
    finished: bool = False
    """The script ended by itself rather than being stopped after the steps asked for."""
    error: str | None = None
    code: str | None = None
    field: str | None = None
    detail: str = ""
    place: str = ""
    """The line of the script's own code that the error comes from."""
    untraced: tuple[str, ...] = ()
    """What could not be traced, a sentence each."""
    skipped: int = 0
    """Calls, backward passes and steps that were skipped, since their kind was known."""
    too_long: bool = False
    """It was stopped since it took too long."""
    all_traced: str = ""
    """Why nothing was skipped, though it might have been."""
    launches: tuple[str, ...] = ()
    """A launcher's command that the script was about to start, and that is to be traced in its place."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    folder: str | None = None
    """What the script has changed for that command."""
    facts: ScriptFacts = dataclasses.field(default_factory=ScriptFacts)

    def write(self, path: Path) -> None:
        """Without what the script may have said of the tokens in its environment: answers are sent around."""
        told = dataclasses.replace(
            self,
            error=None if self.error is None else without_values(self.error, os.environ),
            detail=without_values(self.detail, os.environ),
            untraced=tuple(without_values(sentence, os.environ) for sentence in self.untraced),
        )
        path.write_text(json.dumps(dataclasses.asdict(told)))

    @staticmethod
    def read(path: Path) -> Answer:
        values = json.loads(path.read_text())
        tuples = {name: tuple(values[name]) for name in ("untraced", "launches")}
        return Answer(**values | tuples | {"facts": ScriptFacts.from_json(values["facts"])})
