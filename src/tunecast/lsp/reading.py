"""A file as its readers understand it, from an editor's buffer: what it says, what is wrong with it, whether it fits.

text, settings ──► `reading` ──► `Look`: problems and verdict, at their lines
                      └──► the job and its prediction, from which what takes longer begins (costs.py, remedies.py)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tunecast.door.predict import predict
from tunecast.errors import TunecastError
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.job.comment import FileComment, comment_of
from tunecast.job.job import Job, all_knobs
from tunecast.job.readers import read_jobs
from tunecast.job.readers.bounds import MOST_FILE_BYTES, unsaved
from tunecast.job.recipes import ENDINGS, PARTS, SCRIPTS, find_recipe, looks_like_job, recipe_of_job
from tunecast.job.recipes.document import read_document
from tunecast.job.recipes.recipe import Recipe
from tunecast.lsp.asked import Asked, asked_in, both, card_fields
from tunecast.lsp.severity import ERROR, INFORMATION, WARNING
from tunecast.prediction.prediction import Prediction
from tunecast.prediction.verdict import Room
from tunecast.records import NamedTuple, dataclass
from tunecast.result import Result
from tunecast.units import GIB

OWN = "tunecast"
UNKNOWN = "not-understood"
DECIDES = ("seq_len", "rl.completion_length", "micro_batch", "gradient_checkpointing", "optimizer", "method", "model")
"""Where a verdict is shown until it is known what frees most: the first of these that the file says."""
_NOT_READ = re.compile(r"line (\d+)(?:, column (\d+))?")


class FileProblem(NamedTuple):
    line: int
    """As the reader counts, from 1 on; 0: of the whole file."""
    key: str
    severity: int
    message: str
    code: str


@dataclass(frozen=True)
class FileVerdict(Result):
    verdict: str
    gpu: str
    cards: int
    needs_bytes: int
    low_bytes: int
    high_bytes: int
    capacity_bytes: int
    message: str


@dataclass(frozen=True)
class Look(Result):
    KEYS: ClassVar[tuple[str, ...]] = (
        *("known", "framework", "release", "places", "problems", "verdict", "unsaid", "not_understood", "ignored"),
        *("line", "key"),
    )

    known: bool
    """Whether it is a file of a training; of others nothing is said."""
    framework: str = ""
    release: str = ""
    places: Mapping[str, tuple[int, str]] = {}
    """Of each field that this file says, line and key."""
    problems: tuple[FileProblem, ...] = ()
    verdict: FileVerdict | None = None
    unsaid: tuple[str, ...] = ()
    """Fields of cards that nobody said."""
    not_understood: Mapping[str, str] = {}
    """Why a key matters that nothing tells."""
    ignored: tuple[str, ...] = ()
    line: int = 0
    key: str = ""
    """Where the verdict is shown."""


NOTHING = Look(known=False)


class Reading(NamedTuple):
    look: Look
    recipe: Recipe | None = None
    job: Job | None = None
    prediction: Prediction | None = None
    overrides: Mapping[str, object] = {}
    """What settings and comment add to the file."""


def reading(path: Path, text: str, settings: Asked, *, known_before: bool = False, brief: bool = False) -> Reading:
    """`known_before`: it was recognised when it could be read, so what keeps it from being read now is told, as where a
    comment is for us. `brief`: of a job's own batches the first alone are predicted."""
    if path.suffix.lower() not in ENDINGS or path.name == "config.json" or len(text) > MOST_FILE_BYTES:
        return Reading(NOTHING)
    comment = FileComment() if path.suffix.lower() in (".json", ".ipynb") else comment_of(text)
    sure = known_before or bool(comment.line)
    with unsaved(path, text):
        try:
            recipe = recipe_at(path, sure=sure)
        except TunecastError as error:
            if not sure or error.field == "task":
                return Reading(NOTHING)
            return Reading(Look(True, problems=(unreadable(error, path),)))
        if recipe is None or recipe.framework in PARTS:
            return Reading(NOTHING)
        return _reading(path, recipe, comment, both(settings, asked_in(comment)), brief=brief)


def recipe_at(path: Path, *, sure: bool) -> Recipe | None:
    recipe = find_recipe(path)
    if recipe is not None or path.suffix.lower() in (*SCRIPTS, ".py", ".ipynb"):
        return recipe
    document = read_document(path)
    return recipe_of_job(document) if looks_like_job(document, sure=sure) else None


def unreadable(error: TunecastError, path: Path) -> FileProblem:
    message = error.message.removeprefix(f"{path}: ")
    found = _NOT_READ.search(message)
    plain = message[found.end() :].lstrip(":, ") if found and message.startswith(found[0]) else message
    return FileProblem(int(found[1]) if found else 0, error.field or "", ERROR, plain, "unreadable")


def _reading(path: Path, recipe: Recipe, comment: FileComment, asked: Asked, *, brief: bool) -> Reading:
    file = str(path)
    places = {field: (place.line, place.key) for field, place in recipe.places.items() if place.file == file}
    overrides = _overrides(recipe, asked_in(comment), asked)
    problems = [FileProblem(each.line, "", WARNING, each.message, "comment") for each in comment.problems]
    missing, written = {}, dict(places)
    for each in recipe.not_understood:
        here = each.file == file
        if here:
            written.setdefault(each.key, (each.line, each.key))
        missing[each.key if here else f"{each.file} {each.key}"] = each.why
        where = "" if here else f" (in {Path(each.file).name})"
        why = f"{each.key}: {each.why}{where}; the prediction is an estimate"
        problems.append(FileProblem(each.line if here else 0, each.key if here else "", INFORMATION, why, UNKNOWN))

    def tell(errors: list[FileProblem]) -> None:
        """What is refused is not also said to be not understood."""
        at = {(each.line, each.key) for each in errors}
        problems[:] = [each for each in problems if each.code != UNKNOWN or (each.line, each.key) not in at] + errors

    def done(**more: Any) -> Look:
        return Look(
            True, recipe.framework, recipe.release, places, tuple(problems),
            not_understood=missing, ignored=recipe.ignored, **more,
        )  # fmt: skip

    read = list(read_jobs(file, overrides))
    if len(read) != 1:
        return Reading(NOTHING)
    job = read[0]
    if not isinstance(job, Job):
        tell(refused(job.message, job.field, job.code, file, written, comment))
        return Reading(done(), recipe, overrides=overrides)
    if job.unsaid:
        return Reading(done(unsaid=job.unsaid), recipe, job, overrides=overrides)
    try:
        found = predict(job, engine="analytic", timed=False, brief=brief)
        verdict = verdict_of(found)
    except TunecastError as error:
        tell(refused(error.message, error.field, error.code, file, written, comment))
        return Reading(done(), recipe, job, overrides=overrides)
    field = next((field for field in DECIDES if field in places), "")
    line, key = places.get(field, (0, ""))
    return Reading(done(verdict=verdict, line=line, key=key), recipe, job, found, overrides)


def _overrides(recipe: Recipe, comment: Asked, asked: Asked) -> dict[str, object]:
    """The comment's card wins over the file's, that of the settings is for files that are silent."""
    hardware = recipe.job.get("hardware")
    said = hardware if isinstance(hardware, Mapping) else {}
    mine = card_fields(comment)
    return {
        field: value
        for field, value in card_fields(asked).items()
        if field in mine or said.get(field.partition(".")[2]) is None
    }


def refused(
    message: str, field: str | None, code: str, file: str, places: Mapping[str, tuple[int, str]], comment: FileComment
) -> list[FileProblem]:
    """Each line of a refusal where it belongs."""
    return [_placed(line, field, code, file, places, comment) for line in message.split("\n") if line.strip(" :")]


def _placed(
    told: str, field: str | None, code: str, file: str, places: Mapping[str, tuple[int, str]], comment: FileComment
) -> FileProblem:
    at = re.match(rf"{re.escape(file)}(?::(\d+) (\S+?))?: ", told)
    line, key = (int(at[1]), at[2]) if at and at[1] else (0, "")
    plain = told[at.end() :] if at else told
    named = re.match(r"([a-z_0-9.]+): ", plain)
    own = named[1] if named and (named[1] in all_knobs() or named[1] in places) else field or ""
    if not line and own in places:
        line, key = places[own]
    if not line and comment.line and own in card_fields(asked_in(comment)):
        line = comment.line
    return FileProblem(line, key, ERROR, plain, code)


def verdict_of(found: Prediction) -> FileVerdict:
    room = found.on_card.room.in_need(found.smallest_capacity_bytes)
    gpu, cards = gpu_named(found.job.hardware.gpu).name, found.job.hardware.cards
    return FileVerdict(
        room.verdict, gpu, cards, room.needs_bytes, room.low_bytes, room.high_bytes, room.capacity_bytes,
        verdict_words(room, gpu, cards),
    )  # fmt: skip


def verdict_words(room: Room, gpu: str, cards: int) -> str:
    """`needs 31.3 of 23.5 GiB on the rtx-4090`."""
    each = f"each of {cards} x {gpu}" if cards > 1 else f"the {gpu}"
    needs, has = room.needs_bytes / GIB, room.capacity_bytes / GIB
    decimals = next((count for count in (1, 2) if f"{needs:.{count}f}" != f"{has:.{count}f}"), 3)
    said = f"needs {needs:.{decimals}f} of {has:.{decimals}f} GiB on {each}"
    if room.verdict == "may not fit":
        return f"may not fit: {said} (80 % range up to {room.high_bytes / GIB:.{decimals}f})"
    return said
