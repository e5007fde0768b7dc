"""The files people already train with, as jobs. A file is recognised by what it holds, and never executed.

A new framework is one file in frameworks/ with NAME, RELEASE, `recognises(document)` and `read(draft, request)`, and
its name in `FRAMEWORKS`; one that is called by a command also has `invocation(words)`, one that names training data
`DATA`, one whose files show the command that starts them `with_shown_command(request)`, and one with files that train
nothing `use_without_training(document)`, which says what they are for.

cards.py              What follows from how many cards there are: the launcher may say it, or the user, after the file
                      was read
commands.py           The commands of a shell script, as far as its text tells them
data_sets.py          The training data that a file names, where it is at hand: its lengths are then counted, not
                      assumed
document.py           A file as a trainer wrote it: what it holds, and on which line
draft.py              A recipe in the making: a reader takes keys one by one, and what it leaves is reported
frozen_layers.py      Which layers of a model are trained while the rest is frozen, by their names
huggingface.py        Keys of transformers' TrainingArguments, TRL's SFTConfig and ModelConfig, wherever they stand
huggingface_keys.py   Which keys transformers' TrainingArguments, TRL's SFTConfig and ModelConfig have: their
                      defaults, those that move nothing, and which say a field
huggingface_tasks.py  Keys of TRL's trainers beyond SFT: preferences, heads, rollouts, teachers
images.py             What files say of images: how many a sample has, how large they are, which parts of a model are
                      trained on them
nesting.py            what decides whether a command of a shell script runs: `if`, loops, pipes, `||`
own_words.py          Changes to a job in the words of the trainer whose file it is, read back before they count
recipe.py             What was understood: the job, where each field comes from, what was assumed, what was not read
references.py         Values that name other values of their file, `${output_dir}/logs`, as OmegaConf has them
                      (torchtune, Automodel)
request.py            What a reader is asked: a file with what its command line sets, and what stands around it
trainings.py          The trainings among the commands of a script
values.py             Numbers and switches as YAML and JSON files spell them
words.py              Words of a command, and what flags among them say
frameworks/           A trainer each
launch/               What stands around a training: who starts it, and who orders machines for it
parts/                Files that go with several trainers: accelerate's, DeepSpeed's, PEFT's
scripts/              Python scripts and notebooks, read without running them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from tunecast import __version__
from tunecast.errors import TunecastError, Unsupported, UsageError
from tunecast.job.check_tasks import task_is_modelled
from tunecast.job.job import all_knobs, sections
from tunecast.job.names import ROLLOUTS, TASKS
from tunecast.job.readers.bounds import MOST_YAML_BYTES, bounded_text
from tunecast.job.recipes.data_sets import take_data
from tunecast.job.recipes.document import Document, read_document
from tunecast.job.recipes.draft import Draft
from tunecast.job.recipes.launch.schedulers import Ordered, is_task, of_skypilot, of_slurm
from tunecast.job.recipes.launch.servers import take_server
from tunecast.job.recipes.parts.accelerate import read_accelerate
from tunecast.job.recipes.recipe import Place, Recipe
from tunecast.job.recipes.request import Launch, ReadRequest
from tunecast.job.recipes.trainings import request_of, trainings_of, without_training
from tunecast.job.stacks import DEFAULT_STACK, STACKS

FRAMEWORKS: tuple[str, ...] = (
    "torchtune",
    "litgpt",
    "torchtitan",
    "automodel",
    "megatron_bridge",
    "axolotl",
    "llama_factory",
    "ms_swift",
    "unsloth",
    "script",
    "trl",
    "training_arguments",
)
SPELL_AS_ARGUMENTS = ("axolotl", "llama-factory", "ms-swift", "trl", "transformers", "unsloth")
"""Frameworks whose values are those of transformers' own arguments, as a job's are."""
"""Files of frameworks/, in the order they are asked: what others could take for theirs comes first."""
PARTS: tuple[str, ...] = (
    "accelerate",
    "deepspeed",
    "peft",
)
"""Files of parts/ that are recognised where they stand alone: a training without a model."""
LAUNCHERS = ("accelerate", "deepspeed")
"""Those of them that train nothing without a program that is launched."""
NAMED_BY = {
    "megatron-bridge": ": `run_recipe.py --recipe NAME` does",
    "transformers": ": the command line of its script does (--model_name_or_path NAME)",
    **dict.fromkeys(LAUNCHERS, ", and no training by itself: the program that is launched with it is one"),
}
"""What names the model in their place, by framework."""
SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
ENDINGS = (".yaml", ".yml", ".json", ".toml", ".py", ".ipynb", *SCRIPTS)


def find_recipe(path: Path, values: Mapping[str, Any] | None = None) -> Recipe | None:
    """What a trainer's file says; None where it is none. `values`: keys as the command line sets them.

    Raises what is wrong with a file that cannot be read at all, and says what a trainer's file is for that trains
    nothing: an export, a server.
    """
    if path.suffix.lower() not in ENDINGS:
        return None
    if path.suffix.lower() in SCRIPTS:
        return recipe_of_script(of_slurm(bounded_text(path, MOST_YAML_BYTES), str(path)), path, values or {})
    document = read_document(path)
    if is_task(document):
        return recipe_of_script(of_skypilot(document), path, values or {})
    document = document.with_values(values or {})
    if is_job(document):
        return None
    found = recipe_of(ReadRequest(document, path.parent))
    if found is None:
        raise_if_without_training(path, (use_of(document) for use_of in uses_without_training()))
    return found


def read_recipe(path: Path, values: Mapping[str, Any] | None = None) -> Recipe:
    """The same, and of a job of ours. Raises `UsageError` where the file describes no training."""
    found = find_recipe(path, values)
    if found is None and path.suffix.lower() in ENDINGS and path.suffix.lower() not in SCRIPTS:
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


def recipe_of(request: ReadRequest) -> Recipe | None:
    names = [f"frameworks.{name}" for name in FRAMEWORKS] + [f"parts.{name}" for name in PARTS]
    for name in names:
        framework = import_module(f"{__name__}.{name}")
        if framework.recognises(request.document):
            return draft_of(framework, request).finish()
    return None


def keys_looked_at(path: Path) -> frozenset[str]:
    """Keys that the reader of a trainer's file asks for, by dotted name, be they written there or not. Which these are
    may follow from what is written: keys of a task are asked for where it is the task."""
    document = read_document(path)
    request = ReadRequest(document, path.parent)
    framework = next((each for each in map(load_framework, FRAMEWORKS) if each.recognises(document)), None)
    return frozenset() if framework is None else draft_of(framework, request).looked_at(document.file)


def draft_of(framework: ModuleType, request: ReadRequest) -> Draft:
    draft = Draft(framework.NAME, framework.RELEASE)
    if hasattr(framework, "with_shown_command"):
        request = framework.with_shown_command(request)
    framework.read(draft, request)
    accelerate = request.launch.accelerate
    if accelerate is not None and not draft.has_read(accelerate):
        read_accelerate(draft, accelerate, request)
    take_launch(draft, request.launch)
    take_data(draft, request, getattr(framework, "DATA", ()))
    return draft


def recipe_of_script(ordered: Ordered, path: Path, values: Mapping[str, Any]) -> Recipe | None:
    """Of the first training among its commands; others are named."""
    trainings, others = trainings_of(ordered, path, map(load_framework, FRAMEWORKS))
    if not trainings:
        raise_if_without_training(path, [without_training(ordered, path)])
        return None
    first, *more = trainings
    draft = draft_of(first.framework, request_of(first, path, values))
    for other in more:
        draft.note(Place(str(path), other.line, other.told), "another training of the same file: it is not counted")
    for words in others:
        if take_server(draft, words, str(path)):
            continue
        draft.note(Place(str(path), words[0].line, " ".join(words[:2])), "runs beside it: its cards are not counted")
    return draft.finish()


def raise_if_without_training(path: Path, uses: Iterable[str | None]) -> None:
    told = next(filter(None, uses), None)
    if told is not None:
        raise UsageError(f"{path}: no training: {told}. To fix: give the file or command that trains", field="task")


def uses_without_training() -> Iterator[Callable[[Document], str | None]]:
    """Of frameworks that have such files."""
    for framework in map(load_framework, FRAMEWORKS):
        if hasattr(framework, "use_without_training"):
            yield framework.use_without_training


def load_framework(name: str) -> ModuleType:
    return import_module(f"{__name__}.frameworks.{name}")


def is_job(document: Document) -> bool:
    """Whether it is a job of ours: every key is a field, and the model is a name."""
    return isinstance(document.get("model"), str) and set(document.tree) <= _job_keys()


LEAST_KNOWN = 3
"""Top-level keys that have to be ours, and two of three, where not all of them are."""


def looks_like_job(document: Document, *, sure: bool = False) -> bool:
    """Also a job of ours with a key that is not one: mistyped, or half typed. `sure`: something else says it is one."""
    ours = _job_keys()
    known = [name for name in document.tree if name in ours]
    mostly = 3 * len(known) >= 2 * len(document.tree) and (sure or len(known) >= LEAST_KNOWN)
    return is_job(document) or (isinstance(document.get("model"), str) and mostly)


def _job_keys() -> set[str]:
    return {name.partition(".")[0] for name in all_knobs()} | set(sections())


def words_for(recipe: Recipe, field: str, value: object) -> Mapping[str, object] | None:
    """The keys of its file that say this of a field, by dotted name; None where none is known. Not every value can be
    said: whoever writes them reads them back."""
    if field == "seq_len" and recipe.job.get("task") in ROLLOUTS:
        return {}  # a prompt and a completion, whose own keys say it
    its_own = (each for each in map(load_framework, FRAMEWORKS) if recipe.framework == each.NAME)
    said = getattr(next(its_own, None), "WORDS", {}).get(field)
    if callable(said):
        found: Mapping[str, object] | None = said(value)
        return found
    place = recipe.places.get(field)
    key = said or (place.key if place is not None and place.line else None)
    return None if key is None else {key: value}


def take_launch(draft: Draft, launch: Launch) -> None:
    for field, value in (
        ("hardware.gpu", launch.gpu),
        ("hardware.gpus", launch.gpus),
        ("hardware.nodes", launch.nodes),
    ):
        if value is not None and field not in draft.fields and field in launch.places:
            draft.fields[field], draft.places[field] = value, launch.places[field]
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        settings = launch.environment.get(name, "").replace(" ", "").lower()
        if "expandable_segments:true" in settings and "allocator" not in draft.places:
            draft.fields["allocator"] = "expandable_segments"
            draft.assumed.pop("allocator", None)


def require_modelled(recipe: Recipe, content: Mapping[str, Any], file: str) -> None:
    """Before anything else is said of it. `content`: its job, with what the user overrides."""
    if recipe.refused:
        raise Unsupported(f"{file}: {recipe.framework}: {recipe.refused}", field="task")
    task, stack = content.get("task"), content.get("stack", DEFAULT_STACK)
    is_known = task in TASKS and stack in STACKS and stack != DEFAULT_STACK
    told = task_is_modelled(task, stack) if is_known else None
    if told is not None:
        raise UsageError(f"{recipe.places.get('task') or file}: task: {told}", field="task")


def at_its_place(error: TunecastError, recipe: Recipe, file: str) -> TunecastError:
    """The same error with the line that says the field it names."""
    if error.field == "model" and "model" not in recipe.job:
        alone = recipe.framework in LAUNCHERS
        why = NAMED_BY.get(recipe.framework, "")
        told = f"{file}: a file of {recipe.framework} that names no model{why}. To fix: --model NAME, such as"
        other = "or the shell script that starts the training" if why else "or the path of a config.json"
        return type(error)(f"{told} --model llama-3.1-8b, {other}", field="task" if alone else "model")
    place = recipe.places.get(error.field or "")
    if file in error.message:
        return error
    return type(error)(f"{place or file}: {error.message}", field=error.field)
