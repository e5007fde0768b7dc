"""Jobs from wherever they are written: a file of one of the formats below, or a model's name with flags.

A new format is one file with `documents(path) -> Iterator[Found]` and a line in `FORMATS`, loaded when one is read.

bounds.py     Limits on what is read: a job file or a config.json may come from anyone
json.py       A job in JSON: one object a file
jsonlines.py  Many jobs in JSON Lines: one object a line, read a line at a time
toml.py       A job in TOML: one file, its sections the mappings of the job
yaml.py       A job in YAML: one mapping a file, read by PyYAML's safe loader
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from os.path import basename, isfile, splitext
from typing import TYPE_CHECKING, Any, TypeGuard

from tunecast.errors import NotResolved, TunecastError, Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.job.knob import shown
from tunecast.job.mapping import check_overrides, job_from_dict, with_overrides
from tunecast.job.readers.json import Found
from tunecast.job.registry import bundled_names
from tunecast.records import dataclass, replace

if TYPE_CHECKING:
    from pathlib import Path

    from tunecast.job.recipes.recipe import Recipe

DATA_FILES = ("lengths", "path", "tokenizer")
"""Of a job's `data`, what may name a file."""
FORMATS: Mapping[str, str] = {".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml", ".jsonl": "jsonlines"}
"""By ending, the file here that reads it."""


@dataclass(frozen=True)
class JobError:
    """A job that could not be read, in its place among the others."""

    id: str | int | None
    code: str
    field: str | None
    message: str
    exit_code: int

    def to_dict(self) -> dict[str, Any]:
        """As the contract has it."""
        return {"id": self.id, "error": {"code": self.code, "field": self.field, "message": self.message}}


def job_error(error: TunecastError, id: str | int | None = None) -> JobError:
    return JobError(id, error.code, error.field, error.message, error.exit_code)


def require_job(read: Job | JobError) -> Job:
    """Raises what is wrong with it."""
    if isinstance(read, Job):
        return read
    kinds = {kind.code: kind for kind in (UsageError, NotResolved, Unsupported)}
    raise kinds.get(read.code, TunecastError)(read.message, field=read.field)


def is_job_file(source: str) -> bool:
    """Whether a source is read as a file of jobs, and not as a model."""
    _, ending = splitext(source)
    return ending.lower() in (*FORMATS, ".py", ".ipynb") and basename(source) != "config.json"


def read_jobs(source: str, overrides: Mapping[str, object] | None = None) -> Iterator[Job | JobError]:
    """The jobs of a file, or the one job of a model's name; overrides (dotted fields, as flags give them) win.

    A job that cannot be read comes as a `JobError` in its place. Overrides that no job could take raise a
    `UsageError` at once, before anything is read.
    """
    overrides = dict(overrides or {})
    check_overrides(overrides)
    return _jobs(source, overrides)


def read_job(source: str, overrides: Mapping[str, object] | None = None) -> Job:
    """The one job of a file or a model's name. Raises what is wrong with it, or that there are several."""
    jobs = list(read_jobs(source, overrides))
    if len(jobs) != 1:
        raise UsageError(f"{source}: got {len(jobs)} jobs; allowed: one. To fix: ask for each of read_jobs({source!r})")
    return require_job(jobs[0])


def _jobs(source: str, overrides: Mapping[str, object]) -> Iterator[Job | JobError]:
    if source in bundled_names() and not isfile(source):
        yield _job(Found("", {"model": source}), overrides, None)
        return
    from pathlib import Path

    path = Path(source)
    reader = FORMATS.get(path.suffix.lower())
    try:
        if path.name == "config.json":
            yield _job(Found("", {"model": source}), overrides, None)
        elif (recipe := _recipe(path)) is not None:
            yield _job_of_recipe(recipe, overrides, path)
        elif reader is not None:
            documents = import_module(f"{__name__}.{reader}").documents(path)
            for number, found in enumerate(documents):
                if number == 0 and _is_training_data(found.content):
                    raise UsageError(f"{path}: {TRAINING_DATA}", field="job")
                yield _job(found, overrides, path)
        else:
            _refuse_other_files(path)
            yield _job(Found("", {"model": source}), overrides, None)
    except TunecastError as error:  # the file itself: nothing was found in it, or no more will be
        yield job_error(error)


def _recipe(path: Path) -> Recipe | None:
    """What a trainer's file says; None where it is none, or is told below what is wrong with it as a job's."""
    from tunecast.job import recipes

    try:
        return recipes.find_recipe(path)
    except TunecastError as error:
        if path.suffix.lower() in FORMATS and error.field != "task":  # a file that trains nothing says so
            return None
        raise


def _job_of_recipe(recipe: Recipe, overrides: Mapping[str, object], path: Path) -> Job | JobError:
    from tunecast.job import recipes
    from tunecast.job.recipes import cards

    content = with_overrides(recipe.job, overrides)
    unsaid = cards.unsaid(content, recipe.global_batch)
    try:
        recipes.require_modelled(recipe, content, str(path))
        content = cards.in_its_dtype(content, recipe.assumed, overrides)
        job = job_from_dict(cards.on_its_cards(content, recipe.global_batch, "grad_accum" in overrides))
    except TunecastError as error:
        return job_error(recipes.at_its_place(error, recipe, str(path)))
    return replace(job, not_modelled=tuple(map(str, recipe.not_understood)), unsaid=unsaid)


TRAINING_TEXTS = frozenset(
    {"text", "messages", "conversations", "prompt", "completion", "instruction", "output", "response", "chosen"}
)
"""Columns of the data sets that TRL's and Axolotl's documentation name."""
TRAINING_DATA = (
    "this looks like training data, not like jobs. To fix: tunecast data PATH says how long its samples are, and a job "
    "names it as data.path, such as tunecast predict llama-3.1-8b --data-path PATH"
)


def _is_training_data(content: object) -> bool:
    return isinstance(content, Mapping) and "model" not in content and bool(TRAINING_TEXTS & set(map(str, content)))


def _refuse_other_files(path: Path) -> None:
    """A model's name is taken as it is; a plain file that is there but has another ending is no model."""
    try:
        is_file = path.is_file()
    except (OSError, ValueError):
        raise UsageError(f"{shown(str(path))}: neither a path nor a model's name", field="model") from None
    if is_file:
        allowed = ", ".join(FORMATS)
        raise NotResolved(
            f"{path}: unknown ending {shown(path.suffix)}; allowed: {allowed}, or a folder with config.json"
        )


def _job(found: Found, overrides: Mapping[str, object], path: Path | None) -> Job | JobError:
    content = found.content
    if isinstance(content, TunecastError):
        return job_error(content)
    if not isinstance(content, Mapping):
        return _error(found.where, UsageError(_not_a_mapping(content), field="job"), None)
    if path is not None:
        content = _as_job(content, path)
    try:
        return job_from_dict(with_overrides(content, overrides))
    except TunecastError as error:
        return _error(found.where, error, content.get("id"))


def _as_job(content: Mapping[Any, object], path: Path) -> Mapping[Any, object]:
    """A file that describes a model and no job is that model; a path written ./ or ../ starts at the file."""
    if "model" not in content and "model_type" in content:
        return {"model": str(path)}
    model, data = content.get("model"), content.get("data")
    if isinstance(model, str) and model.startswith(("./", "../")):
        content = {**content, "model": str(path.parent / model)}
    if isinstance(data, Mapping):
        files = {name: data.get(name) for name in DATA_FILES}
        here = {name: str(path.parent / file) for name, file in files.items() if _starts_here(file)}
        content = {**content, "data": {**data, **here}} if here else content
    return content


def _starts_here(file: object) -> TypeGuard[str]:
    return isinstance(file, str) and file.startswith(".")


def _not_a_mapping(content: object) -> str:
    if isinstance(content, list):
        return "got a list; allowed: a mapping of fields; many jobs go into a .jsonl file, one a line"
    return f"got {shown(content)}; allowed: a mapping of fields, of which only model is required"


def _error(where: str, error: TunecastError, id: object) -> JobError:
    message = error.message
    if where:
        message = f"{where}: {message}" if "\n" not in message else f"{where}:\n{message}"
    echoed = id if isinstance(id, (str, int)) and not isinstance(id, bool) and len(str(id)) <= 4096 else None
    return JobError(echoed, error.code, error.field, message, error.exit_code)
