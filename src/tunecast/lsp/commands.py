"""What `tunecast plan`, `fit` and `launch --dry-run` say of a file as its editor has it: text, JSON, and the command
that asks the same of the file once it is saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tunecast.door.read import read
from tunecast.job.comment import comment_of
from tunecast.job.readers.bounds import unsaved
from tunecast.lsp.asked import Asked, asked_in, both, card_flags, plan_flags, plan_options
from tunecast.lsp.reading import reading
from tunecast.records import dataclass
from tunecast.report.draw.text import Terminal
from tunecast.report.run.wording import wording_of
from tunecast.result import Result

PLAIN = Terminal()


@dataclass(frozen=True)
class Shown(Result):
    title: str
    text: str
    json: Any
    command: tuple[str, ...]


def command_result(kind: str, path: Path, text: str, settings: Asked) -> Shown:
    """Raises a `TunecastError` where the command would."""
    asked = both(settings, Asked() if path.suffix.lower() == ".json" else asked_in(comment_of(text)))
    with unsaved(path, text):
        return COMMANDS[kind](path, asked, _overrides(path, text, settings))


def _overrides(path: Path, text: str, settings: Asked) -> Mapping[str, object]:
    return reading(path, text, settings, brief=True).overrides


def plan(path: Path, asked: Asked, overrides: Mapping[str, object]) -> Shown:
    from tunecast.door.plan import Planner
    from tunecast.report.plan.text import text

    file = str(path)
    made = Planner(read(file, overrides), plan_options(asked)).plan(unstated=True)  # type: ignore[arg-type]
    words = ("tunecast", "plan", file, *flags_of(overrides), *plan_flags(asked))
    failure = "" if made.choices or made.failure is None else f"{made.failure.message}\n"
    told = text(made, PLAIN, wording=wording_of(file)) if made.choices else failure
    return Shown(f"plan of {path.name}", told, made.to_dict(), words)


def fit(path: Path, asked: Asked, overrides: Mapping[str, object]) -> Shown:
    from tunecast.door.fit import fit
    from tunecast.report.lists.fit import fit_text, how_to, winning_flags
    from tunecast.report.run.job import title_of

    file = str(path)
    job, found = read(file, overrides), fit(file, overrides)
    steps = how_to(found.chosen, found.file_patch, file, winning_flags(found.chosen, overrides))
    told = fit_text(found, title_of(job), steps, PLAIN, wording=wording_of(file))
    return Shown(f"fit of {path.name}", told, found.to_dict(), ("tunecast", "fit", file, *flags_of(overrides)))


def launch(path: Path, asked: Asked, overrides: Mapping[str, object]) -> Shown:
    """Nothing is started, and no file is written."""
    from tunecast.door.launch import launch
    from tunecast.report.lists.launch import rendering_text

    file = str(path)
    made = launch(file, overrides, on="local", dry_run=True)
    words = ("tunecast", "launch", file, *flags_of(overrides), "--on", "local", "--dry-run")
    return Shown(f"launch of {path.name}, dry run", rendering_text(made), made.to_dict(), words)  # type: ignore[arg-type]


def flags_of(overrides: Mapping[str, object]) -> list[str]:
    """What settings and comment add to the file, as the command line takes it."""
    gpu, gpus = overrides.get("hardware.gpu"), overrides.get("hardware.gpus")
    return card_flags(Asked(gpu=None if gpu is None else str(gpu), gpus=gpus if isinstance(gpus, int) else None))


COMMANDS: Mapping[str, Callable[[Path, Asked, Mapping[str, object]], Shown]] = {
    "plan": plan,
    "fit": fit,
    "launch": launch,
}
