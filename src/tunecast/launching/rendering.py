"""What a launch is made of: a training program, and the files and commands with which an engine runs it.

    job ──► TrainingProgram (programs/) ──► Rendering (engines/) ──► written (--out), shown (--dry-run), or submitted
            the trainer's files      and the engine's

All of it is text that follows from the job, the engine and the releases that the prediction is of: the same job gives
the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tunecast.job.job import Job
from tunecast.records import NamedTuple, dataclass, field
from tunecast.result import Result

SCRIPT, RESUME = "train.sh", "resume.sh"
"""The one command of a training, with its environment; and the same from its last checkpoint on, where there is one,
which engines run that may start a job again."""
REQUIREMENTS, CONTAINER = "requirements.txt", "Containerfile"
OUTPUT = "output"
"""The folder that a rendered training writes to, beside its files."""

Command = tuple[str, ...]
"""Words, as `execve` takes them."""


class Placeholder(NamedTuple):
    """What a job does not say and a training needs, marked where it stands in a rendered file."""

    field: str
    text: str


DATA = Placeholder("data.path", "PLACEHOLDER_data.path")


@dataclass(frozen=True)
class TrainingProgram:
    """One training of a framework: its own files, and the command that starts it on each machine."""

    framework: str
    command: Command
    files: Mapping[str, str] = field(default_factory=dict)
    """By name, as the command finds them in the folder it is started in."""
    environment: Mapping[str, str] = field(default_factory=dict)
    releases: Mapping[str, str] = field(default_factory=dict)
    """Of each package the release that was predicted."""
    unpinned: tuple[str, ...] = ()
    """Packages it needs of which no release is followed."""
    placeholders: tuple[Placeholder, ...] = ()
    carried: Mapping[str, str] = field(default_factory=dict)
    """What it reads of the user's, for engines that have to take it along: the path here, by that beside its files."""
    folder: str = ""
    """Where it is started; '': where its files are."""
    resumes: Command = ()
    """Words after which a checkpoint is named; none: it finds its own."""


@dataclass(frozen=True)
class Order:
    """What an engine is asked to run, on what, and for how long."""

    name: str
    """Letters, digits and dashes: every engine takes it for a name."""
    job: Job
    program: TrainingProgram
    expected_s: float | None
    """The whole run, as predicted; None where the job does not say how much there is to train on."""
    limit_s: float | None
    """The high end of its 80 % range."""
    cpu_cores: int = 1
    """Of a machine."""
    ram_bytes: int | None = None
    """Of a machine's host memory."""
    disk_bytes: int | None = None
    usd_per_hour: float | None = None
    """Of the machines that were picked; None where nothing was."""


@dataclass(frozen=True)
class Rendering(Result):
    """What `--dry-run` shows."""

    schema: ClassVar[str] = "tunecast.launch/1"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("schema", "name", "engine", "framework", "files", "commands", "environment", "notes", "placeholders"),
    )
    FROM: ClassVar[Mapping[str, str]] = {"placeholders": "placeholder_fields"}

    name: str
    engine: str
    framework: str
    files: Mapping[str, str]
    """By name, in the folder that the commands are given in."""
    commands: tuple[Command, ...]
    """One after another; the last one starts the job."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of the commands, beside the user's own."""
    notes: tuple[str, ...] = ()
    placeholders: tuple[Placeholder, ...] = ()

    @property
    def placeholder_fields(self) -> tuple[str, ...]:
        return tuple(each.field for each in self.placeholders)
