"""The files people already train with, as jobs. A file is recognised by what it holds, and never executed.

A new framework is one file in frameworks/ with NAME, RELEASE, `recognises(document)` and `read(draft, request)`, and
its name in `FRAMEWORKS`; one that is called by a command also has `invocation(words)`.

document.py   A file as a trainer wrote it: what it holds, and on which line
draft.py      A recipe in the making: a reader takes keys one by one, and what it leaves is reported
huggingface.py  Keys of transformers' TrainingArguments, TRL's SFTConfig and ModelConfig, wherever they stand
recipe.py     What was understood: the job, where each field comes from, what was assumed, what was not read
request.py    What a reader is asked: a file with what its command line sets, and what stands around it
values.py     Numbers and switches as YAML and JSON files spell them
frameworks/   A trainer each
parts/        Files that go with several trainers: accelerate's, DeepSpeed's, PEFT's
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tunecast import __version__
from tunecast.errors import TunecastError, Unsupported, UsageError
from tunecast.job.job import all_knobs, sections
from tunecast.job.recipes.document import Document, read_document
from tunecast.job.recipes.draft import Draft
from tunecast.job.recipes.recipe import Recipe
from tunecast.job.recipes.request import Launch, Request

FRAMEWORKS: tuple[str, ...] = (
    "axolotl",
    "trl",
    "training_arguments",
    "automodel",
)
"""Files of frameworks/, in the order they are asked: what others could take for theirs comes first."""
PARTS: tuple[str, ...] = (
    "accelerate",
    "deepspeed",
)
"""Files of parts/ that are recognised where they stand alone: a training without a model."""
ENDINGS = (".yaml", ".yml", ".json")


def find_recipe(path: Path, values: Mapping[str, Any] | None = None) -> Recipe | None:
    """What a trainer's file says; None where it is none. `values`: keys as the command line sets them.

    Raises what is wrong with a file that cannot be read at all.
    """
    if path.suffix.lower() not in ENDINGS:
        return None
    document = read_document(path).with_values(values or {})
    if is_job(document):
        return None
    return recipe_of(Request(document, path.parent))


def read_recipe(path: Path, values: Mapping[str, Any] | None = None) -> Recipe:
    """The same, and of a job of ours. Raises `UsageError` where the file describes no training."""
    found = find_recipe(path, values)
    if found is None and path.suffix.lower() in ENDINGS:
        document = read_document(path).with_values(values or {})
        found = recipe_of_job(document) if is_job(document) else None
    if found is None:
        raise UsageError(
            f"{path}: no training that is known here. Read are files of {', '.join((*FRAMEWORKS, *PARTS))}"
        )
    return found


def recipe_of_job(document: Document) -> Recipe:
    draft = Draft("tunecast", __version__)
    keys = draft.keys(document)
    for name in all_knobs():
        if document.has(name):
            draft.put(name, keys.get(name), keys, name)
    return draft.finish()


def recipe_of(request: Request) -> Recipe | None:
    names = [f"frameworks.{name}" for name in FRAMEWORKS] + [f"parts.{name}" for name in PARTS]
    for name in names:
        framework = import_module(f"{__name__}.{name}")
        if framework.recognises(request.document):
            draft = Draft(framework.NAME, framework.RELEASE)
            framework.read(draft, request)
            take_cards(draft, request.launch)
            return draft.finish()
    return None


def is_job(document: Document) -> bool:
    """Whether it is a job of ours: every key is a field, and the model is a name."""
    known = {name.partition(".")[0] for name in all_knobs()} | set(sections())
    return isinstance(document.get("model"), str) and set(document.tree) <= known


def take_cards(draft: Draft, launch: Launch) -> None:
    for field, value in (
        ("hardware.gpu", launch.gpu),
        ("hardware.gpus", launch.gpus),
        ("hardware.nodes", launch.nodes),
    ):
        if value is not None and field not in draft.fields and launch.files:
            draft.put(field, value, draft.keys(launch.files[-1]), field)


def require_modelled(recipe: Recipe, file: str) -> None:
    if recipe.refused:
        raise Unsupported(f"{file}: {recipe.framework}: {recipe.refused}", field="task")


SPLITS = ("tensor", "pipeline", "context", "expert", "layers")


def unsaid(job: Mapping[str, Any], global_batch: int | None = None) -> tuple[str, ...]:
    """Fields about cards that nobody said; how many there are matters where it is spread over them, or where they
    share a batch."""
    hardware, parallel = job.get("hardware") or {}, job.get("parallel") or {}
    spread = parallel.get("data") not in (None, "none", "ddp") or any((parallel.get(name) or 1) != 1 for name in SPLITS)
    asked = {"hardware.gpu": True, "hardware.gpus": spread or global_batch is not None}
    return tuple(field for field, needed in asked.items() if needed and not hardware.get(field.partition(".")[2]))


def at_its_place(error: TunecastError, recipe: Recipe, file: str) -> TunecastError:
    """The same error with the line that says the field it names."""
    if error.field == "model" and "model" not in recipe.job:
        told = f"{file}: a file of {recipe.framework} that names no model. To fix: --model NAME, such as"
        return type(error)(f"{told} --model llama-3.1-8b", field="model")
    place = recipe.places.get(error.field or "")
    if file in error.message:
        return error
    return type(error)(f"{place or file}: {error.message}", field=error.field)
