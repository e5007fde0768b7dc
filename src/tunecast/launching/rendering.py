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
from tunecast.units import HOUR_S

SCRIPT, RESUME = "train.sh", "resume.sh"
"""The one command of a training, with its environment; and the same from its last checkpoint on, where there is one,
which engines run that may start a job again."""
REQUIREMENTS, CONTAINER = "requirements.txt", "Containerfile"
OUTPUT = "output"
"""The folder that a rendered training writes to, beside its files."""
PREFLIGHT, PREFLIGHT_EXPECTED, PREFLIGHT_PASSED = "preflight.py", "preflight.json", "preflight.passed"
PREFLIGHT_DATA, PREFLIGHT_LINKS = "preflight_data.py", "preflight_links.py"
"""What checks a machine before it trains, against what; and what is left behind where it passed."""
PREFLIGHT_VERDICT, PREFLIGHT_STATUS = "preflight.txt", 78
"""Its last line; and the exit status of a job that it stopped: EX_CONFIG of sysexits.h."""
FIRST_STEPS = "preflight_output"
"""The folder that the first steps write to, which is thrown away."""
RECORDER, RECORDER_SOURCES, RECORDER_EXPECTED = "record.py", "record_sources.txt", "record.json"
RECORDED = "record"
"""What measures a job while it trains, against what; and the folder of what it found."""
VENDOR = "NVIDIA"
"""Whose cards what is rendered is for: torch's wheels on PyPI are CUDA's, and a machine is checked by nvidia-smi."""
CHECKPOINT = "CHECKPOINT"
TRAINER_STATE = "checkpoint-*/trainer_state.json"
"""transformers/trainer.py, `_save_checkpoint`."""

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
    """Words that make it go on from its last checkpoint, whose folder stands where they say `CHECKPOINT`."""
    checkpoint_end: str = TRAINER_STATE
    """What it writes last of a checkpoint, so that one with it is whole: a pattern of paths below `OUTPUT`."""
    before: tuple[Command, ...] = ()
    """Commands that bring what it reads, before it is started."""
    columns: tuple[tuple[str, ...], ...] = ()
    """Of its data, one of these sets; none: they are not known."""
    first_steps: Command = ()
    """Words after which it trains two steps and keeps nothing; none: it takes none."""


@dataclass(frozen=True)
class MachineOffer:
    """Machines that a plan would rent for the job as it is launched."""

    provider: str
    kind: str
    """on-demand, spot, reserved or owned."""
    gpu: str
    gpus: int
    """Of one machine."""
    nodes: int
    usd_per_hour: float
    """Of one machine."""
    total_s: float
    """The whole run there, as predicted."""
    regions: tuple[str, ...] = ()
    """The provider's own names; none where nobody says."""
    instance: str = ""
    source: str = ""
    """The price list: a name of market/catalog/sources.csv."""

    @property
    def total_usd(self) -> float:
        """Of all machines, while it trains."""
        return self.usd_per_hour * self.nodes * self.total_s / HOUR_S


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
    """The high end of its 80 % range, and the check of its machine."""
    cpu_cores: int = 1
    """Of a machine."""
    ram_bytes: int | None = None
    """Of a machine's host memory."""
    disk_bytes: int | None = None
    """Of a machine's disk, for what it downloads and what it saves."""
    in_turn: bool = False
    """One of several on one machine that has no queue of its own: each waits for those before it."""
    of_several: bool = False
    """One of several that are launched together: where the engine has a queue, it is for that."""
    offers: tuple[MachineOffer, ...] = ()
    """Of a plan: its pick, then what else runs the same settings on as many cards, the cheapest run first."""
    anywhere: bool = True
    """Whether others than `offers` may be rented; not where the plan was asked for places or providers."""
    max_usd: float | None = None
    """The most that the run may cost, where the plan was asked for that."""

    @property
    def usd_per_hour(self) -> float | None:
        """Of the machines that were picked; None where nothing was."""
        return self.offers[0].usd_per_hour * self.offers[0].nodes if self.offers else None


class JobArray(NamedTuple):
    """Jobs that an engine takes as one, and what it is given for them in the folder of the first."""

    members: tuple[int, ...]
    """Which of the orders, counted from 0."""
    files: Mapping[str, str]
    commands: tuple[Command, ...]


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
