"""The file somebody trains with, as it is: other values go on the command line, in the words of its framework.

    trl             accelerate launch … -m trl.scripts.sft --config FILE --key value
    llama-factory   llamafactory-cli train FILE key=value                 (llamafactory/hparams/parser.py, `read_args`)
    axolotl         accelerate launch … -m axolotl.cli.train FILE --key=value        (axolotl/cli/config.py, `load_cfg`)
    torchtune       tune run … RECIPE --config FILE key=value             (torchtune/config/_parse.py)
    scripts         bash run.sh, python train.py, torchrun train.py: they take no other values

It is started in its own folder, where what it names lies; on a machine that does not see that, in a copy of it
(own_folder.py), and writes beside it what engines keep.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.job.recipes import SCRIPTS
from tunecast.job.recipes.own_words import own_words
from tunecast.job.recipes.recipe import Recipe
from tunecast.job.releases import FIELDS
from tunecast.job.shardings import sharding_of
from tunecast.launching.pins import releases_of, unpinned_of
from tunecast.launching.programs import axolotl, llama_factory, torchtune, trl
from tunecast.launching.programs.accelerate import PRECISIONS, deepspeed_section, fsdp_section
from tunecast.launching.programs.own_folder import OWN, own_folder
from tunecast.launching.programs.settings import (
    MASTER_ADDR,
    MASTER_PORT,
    NODE_RANK,
    environment_of,
    machines_of,
    torchrun_words,
)
from tunecast.launching.rendering import CHECKPOINT, OUTPUT, Command, TrainingProgram
from tunecast.launching.texts import scalar
from tunecast.records import replace

AROUND = ("hardware.", "parallel.data")
"""What the command around a training may say in the place of its file; what it cannot is found when it is read back."""
RELEASED = ("stack_version", *FIELDS)
"""What is installed, which no file that trains says: requirements.txt does."""


def own_program(
    path: Path, recipe: Recipe, job: Job, changes: Mapping[str, object], *, elsewhere: bool = False, output: str = ""
) -> TrainingProgram:
    """`changes`: fields of the job that the file says otherwise. Raises `Unsupported` where it cannot be told them.
    `elsewhere`: on a machine that does not see the files of this one. `output`: the folder beside the file that results
    go to; '': where it says."""
    whole = path.absolute()
    settings = {name: value for name, value in changes.items() if not name.startswith(AROUND) and name not in RELEASED}
    kind = "script" if whole.suffix.lower() in (*SCRIPTS, ".py") else recipe.framework
    if kind not in STARTS:
        raise Unsupported(
            f"{path}: a file of {recipe.framework}; started are those of {', '.join(STARTS)}", field="source"
        )
    words = own_words(path, recipe, settings) if settings and kind != "script" else {}
    if words is None or (settings and kind == "script"):
        told = ", ".join(settings)
        raise Unsupported(f"{path}: {recipe.framework} is not told {told} on its command line. To fix: edit the file")
    words = {**words, **({"output_dir": output} if output and kind != "script" else {})}
    environment = {
        **environment_of(job),
        **(llama_factory.cards(job, machines_of(job)) if kind == llama_factory.NAME else {}),
    }
    here = TrainingProgram(
        recipe.framework,
        STARTS[kind](str(whole), job, words, recipe),
        {},
        environment,
        INSTALLED_FROM.get(recipe.framework, releases_of)(job),
        torchtune.unpinned(job) if recipe.framework == torchtune.NAME else unpinned_of(job),
        folder=str(whole.parent),
        first_steps=TWO_STEPS.get(kind, ()),
    )
    if not elsewhere:
        return here
    if kind != "script":
        words = {**words, "output_dir": f"../{OUTPUT}"}
    return replace(
        here,
        command=STARTS[kind](whole.name, job, words, recipe),
        carried=own_folder(whole, job).carried,
        folder=OWN,
        resumes=tuple(word.replace(CHECKPOINT, f"../{CHECKPOINT}") for word in RESUMES.get(kind, ())),
    )


def accelerate_words(job: Job, *, shares: bool) -> Command:
    """`shares`: whether accelerate is to say how processes share the model; else the training's file does."""
    hardware, sharding = job.hardware, sharding_of(job)
    kind: Command = ("--multi_gpu",) if hardware.cards > 1 else ()
    if shares and sharding.is_fsdp:
        kind = ("--use_fsdp", *_flags(fsdp_section(job)))
    elif shares and sharding.is_zero:
        kind = ("--use_deepspeed", *_flags(deepspeed_section(job)))
    several = ("--machine_rank", NODE_RANK, "--main_process_ip", MASTER_ADDR, "--main_process_port", MASTER_PORT)
    return (
        *("accelerate", "launch", "--num_machines", str(hardware.nodes), "--num_processes", str(hardware.cards)),
        *("--mixed_precision", PRECISIONS[job.autocast], *kind),
        *(several if hardware.nodes > 1 else ()),
    )


def _trl(path: str, job: Job, words: Mapping[str, Any], recipe: Recipe) -> Command:
    told = [word for name, value in words.items() for word in (f"--{name}", *_values(value))]
    return (
        *accelerate_words(job, shares=not _says_sharing(path, recipe)),
        "-m",
        f"trl.scripts.{job.task}",
        "--config",
        path,
        *told,
    )


def _axolotl(path: str, job: Job, words: Mapping[str, Any], recipe: Recipe) -> Command:
    """Python's words: it is read by fire."""
    told = [
        f"--{name}={value!r}" if not isinstance(value, str) else f"--{name}={value}" for name, value in words.items()
    ]
    return (*accelerate_words(job, shares=False), "-m", "axolotl.cli.train", path, *told)


def _llama_factory(path: str, job: Job, words: Mapping[str, Any], recipe: Recipe) -> Command:
    return ("llamafactory-cli", "train", path, *_assignments(words))


def _torchtune(path: str, job: Job, words: Mapping[str, Any], recipe: Recipe) -> Command:
    return (*torchtune.tune_words(job, machines_of(job)), "--config", path, *_assignments(words))


def _script(path: str, job: Job, words: Mapping[str, Any], recipe: Recipe) -> Command:
    if path.lower().endswith(SCRIPTS):
        return ("bash", path)
    return ("torchrun", *torchrun_words(machines_of(job)), path) if job.hardware.cards > 1 else ("python", path)


STARTS: Mapping[str, Callable[[str, Job, Mapping[str, Any], Recipe], Command]] = {
    "trl": _trl,
    "axolotl": _axolotl,
    "llama-factory": _llama_factory,
    "torchtune": _torchtune,
    "script": _script,
}
"""By framework: the command of a file."""


INSTALLED_FROM: Mapping[str, Callable[[Job], dict[str, str]]] = {
    axolotl.NAME: axolotl.releases,
    llama_factory.NAME: llama_factory.releases,
    torchtune.NAME: torchtune.releases,
}
"""By framework, where more is needed than a stack follows: the framework itself."""


TWO_STEPS: Mapping[str, Command] = {
    "trl": trl.TWO_STEPS,
    "axolotl": axolotl.TWO_STEPS,
    "llama-factory": llama_factory.TWO_STEPS,
    "torchtune": torchtune.TWO_STEPS,
}


RESUMES: Mapping[str, Command] = {
    "trl": trl.RESUMES,
    "axolotl": axolotl.RESUMES,
    "llama-factory": llama_factory.RESUMES,
}
"""torchtune goes on from files that its own configuration names."""


def _says_sharing(path: str, recipe: Recipe) -> bool:
    place = recipe.places.get("parallel.data")
    return place is not None and os.path.basename(place.file) == os.path.basename(path)


def _values(value: object) -> list[str]:
    return [_word(each) for each in value] if isinstance(value, (list, tuple)) else [_word(value)]


def _flags(section: Mapping[str, object]) -> list[str]:
    return [word for name, value in section.items() for word in (f"--{name}", _word(value))]


def _word(value: object) -> str:
    return value if isinstance(value, str) else scalar(value)


def _assignments(words: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_word(value)}" for name, value in words.items()]
