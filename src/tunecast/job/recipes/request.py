"""What a reader is asked: a file with what its command line sets, and what stands around it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunecast.errors import TunecastError
from tunecast.job.recipes.document import Document, read_document
from tunecast.job.recipes.recipe import Place
from tunecast.records import NamedTuple, dataclass


@dataclass(frozen=True)
class Launch:
    """What the launcher around a training says: torchrun, accelerate, Slurm, SkyPilot. None: it does not say."""

    gpu: str | None = None
    gpus: int | None = None
    """Cards of one node."""
    nodes: int | None = None
    accelerate: Document | None = None
    """The file `accelerate launch --config_file` names."""
    environment: Mapping[str, str] = {}
    places: Mapping[str, Place] = {}
    """Where it says the fields of a job: hardware.gpu, hardware.gpus, hardware.nodes."""


class Invocation(NamedTuple):
    """A training command as a shell has it, without its launcher."""

    config: str | None
    """The configuration file it names."""
    values: Mapping[str, Any]
    """What it sets, by dotted key as the file would have it."""
    lines: Mapping[str, int] = {}
    command: str = ""
    """What its program is asked for, where that says more than the file: `dpo` of `trl dpo`."""


class ReadRequest(NamedTuple):
    document: Document
    folder: Path
    """That of the file."""
    launch: Launch = Launch()
    command: str = ""
    """As `Invocation` has it; '': the file was given, and no command."""
    entered: Path | None = None
    """The folder that its script went into before; None: none, or which is not known."""

    def open(self, name: object) -> Document | None:
        """A YAML or JSON file that this one names, looked for where its script went, where the command is given and
        beside the file; None where it is not there. Files outside are not special: what is opened is only ever read as
        data."""
        if not isinstance(name, str) or not name or "\0" in name or "://" in name:
            return None
        entered = () if self.entered is None else (self.entered / name,)
        for path in (*entered, Path(name), self.folder / name, *(parent / name for parent in self.folder.parents)):
            try:
                if path.is_file():
                    return read_document(path)
            except (OSError, TunecastError):
                return None
        return None
