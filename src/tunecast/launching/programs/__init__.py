"""Training programs of other people, with a job's settings in their own words.

accelerate.py        accelerate's YAML for `accelerate launch --config_file`: processes, and how they share the model
axolotl.py           Axolotl: `accelerate launch -m axolotl.cli.train axolotl.yaml`
columns.py           Which columns of the training data hold what: frameworks that want to be told are told what the
                     first row shows
llama_factory.py     LLaMA-Factory: `llamafactory-cli train train.yaml`, with its data described in dataset_info.json
own.py               The file somebody trains with, as it is: other values go on the command line, in the words of its
                     framework
own_folder.py        What of the folder of somebody's own training file goes along to a machine that does not see it,
                     and what stays here
settings.py          What every framework is told the same way: where model and data lie, what the job says of a
                     number of cards
torchtune.py         torchtune: `tune run lora_finetune_single_device --config torchtune.yaml`
torchtune_models.py  What torchtune is told of a model: its builder, the files of its weights, its tokenizer
trainer.py           Keys of transformers' TrainingArguments that say a job's fields: what TRL and LLaMA-Factory are
                     told alike
trl.py               TRL's own scripts, started by accelerate: `accelerate launch -m trl.scripts.sft --config
                     sft.yaml`
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job, all_knobs
from tunecast.job.knob import shown
from tunecast.job.mapping import job_from_flat
from tunecast.job.model import resolve_model
from tunecast.job.readers import read_job
from tunecast.job.recipes import SCRIPTS, find_recipe
from tunecast.job.stacks import DEFAULT_STACK, SFT_STACK, stack_of, stacks_where
from tunecast.launching.pins import container_text, requirements_text
from tunecast.launching.programs.accelerate import START_SHARE, zero_defaults
from tunecast.launching.programs.own import own_program
from tunecast.launching.programs.settings import machines_of, places_of, with_counted_steps
from tunecast.launching.referee import differences, read_back, require_equal, require_same
from tunecast.launching.rendering import (
    CHECKPOINT,
    CONTAINER,
    OUTPUT,
    PREFLIGHT,
    PREFLIGHT_PASSED,
    PREFLIGHT_STATUS,
    RECORDER,
    REQUIREMENTS,
    RESUME,
    SCRIPT,
    TrainingProgram,
)
from tunecast.launching.texts import shell_script, shell_word
from tunecast.records import replace
from tunecast.tape.build.fill_in import fill_in_of


def framework_of(job: Job) -> Any:
    """The file that renders it. Raises `Unsupported` where none does."""
    name = stack_of(job).rendered_by
    if name is None:
        known = stacks_where(lambda stack: stack.rendered_by is not None)
        near = f"; nearest: {SFT_STACK}" if job.stack == DEFAULT_STACK else ""
        raise Unsupported.at("stack", f"got {job.stack}; rendered are {known}{near}")
    return import_module(f"{__name__}.{name}")


def launcher_share(job: Job) -> float:
    """Of what the training's own Python takes to start, what its launcher takes before (`accelerate.START_SHARE`). Who
    names no stack that is rendered is trained by TRL."""
    return START_SHARE if stack_of(job).rendered_by in (None, *BY_ACCELERATE) else 0.0


BY_ACCELERATE = ("trl", "axolotl")
"""Whatever the cards; LLaMA-Factory's own program starts alone on one."""


def as_framework(job: Job) -> tuple[Job, tuple[str, ...]]:
    """The job with what nobody said of it as its framework does it: the releases it can be installed with, and what its
    files cannot say. Each is told."""
    framework = framework_of(job)
    decided = {**framework.defaults(job), **zero_defaults(job)}
    decided = {name: value for name, value in decided.items() if not job.is_given(name)}
    job = _with(job, decided)
    filled = _filled(job)
    here: TrainingProgram = framework.program(filled, machines_of(job), places_of(job, elsewhere=False), {})
    read = read_back(filled, {**here.files, SCRIPT: script_of(here, filled)})
    own = {
        each.field: each.read
        for each in differences(filled, read.job)
        if each.field in read.assumed and not job.is_given(each.field)
    }
    told = ", ".join(f"{name} {shown(value)}" for name, value in {**decided, **own}.items())
    return _with(job, own), (f"as {framework.NAME} does: {told}",) if told else ()


def as_installed(job: Job) -> tuple[Job, tuple[str, ...]]:
    """Of somebody's own file: the job with the releases that its framework can be installed with, where nobody said
    others."""
    if stack_of(job).rendered_by is None:
        return job, ()
    framework = framework_of(job)
    decided = {name: release for name, release in framework.INSTALLABLE.items() if not job.is_given(name)}
    told = ", ".join(f"{name} {release}" for name, release in decided.items())
    return _with(job, decided), (f"as {framework.NAME} is installed: {told}",) if told else ()


def _with(job: Job, values: Mapping[str, Any]) -> Job:
    """Nobody gave them."""
    return job_from_flat(
        {**job.flat(), **values}, job.given or frozenset(name for name in all_knobs() if job.is_given(name))
    )


def _filled(job: Job) -> Job:
    """With what stack and model decide; its data as they were said."""
    return with_counted_steps(replace(fill_in_of(job, resolve_model(job.model)), data=job.data))


def program_of(
    job: Job, *, elsewhere: bool = False, cpu: bool = False, extra: Mapping[str, object] | None = None
) -> TrainingProgram:
    """The training that the job is, read back before it counts. `elsewhere`: on a machine that does not see the files
    of this one. `cpu`: without cards. `extra`: further keys of the framework's.

    Raises `Unsupported` where no framework here can be told all of it.
    """
    framework, job, more = framework_of(job), _filled(job), extra or {}
    require_no_place_or_secret(more)
    here: TrainingProgram = framework.program(job, machines_of(job), places_of(job, elsewhere=False), more)
    require_same(job, framework.NAME, {**here.files, SCRIPT: script_of(here, job)})
    if not (elsewhere or cpu):
        return here
    found: TrainingProgram = framework.program(
        job, machines_of(job, cpu=cpu), places_of(job, elsewhere=elsewhere), more
    )
    return found


SECRETS = re.compile(r"(.*[._])?(hub_token|api_key|password|secret)")


def require_no_place_or_secret(extra: Mapping[str, object]) -> None:
    """Where results go is what resuming and keeping them rests on; what is rendered is shown and copied."""
    for name in extra:
        if name.rpartition(".")[2] == "output_dir":
            raise UsageError(
                f"--with {name}: results go to {OUTPUT}, beside the files of the launch. To fix: leave it out",
                field="extra",
            )
        if SECRETS.fullmatch(name.lower()):
            raise UsageError(
                f"--with {name}: no secret is written into a file. To fix: in the training's environment, such as "
                "HF_TOKEN",
                field="extra",
            )


def program_of_file(
    path: Path, job: Job, changes: Mapping[str, object], cpu: bool, *, elsewhere: bool = False, output: str = ""
) -> TrainingProgram:
    """The training of somebody's own file, which stays as it is, with other values on its command line."""
    recipe = find_recipe(path)
    if recipe is None or cpu:
        what = "files of your own are started on cards" if cpu else f"{path}: no training that is known here"
        raise Unsupported(f"{what}. To fix: without --cpu" if cpu else what, field="source")
    program = own_program(path, recipe, job, changes)
    if path.suffix.lower() in SCRIPTS:  # one that starts another is not read through
        require_equal(job, program.framework, read_job(str(path), {"hardware.gpu": job.hardware.gpu}))
    else:
        require_same(job, program.framework, {SCRIPT: script_of(program, job)}, all_of_it=False)
    if not (elsewhere or output):
        return program
    return own_program(path, recipe, job, changes, elsewhere=elsewhere, output=output)


def script_of(program: TrainingProgram, job: Job) -> str:
    machines = f"{job.hardware.nodes} x " if job.hardware.nodes > 1 else ""
    heading = [f"{job.task} of {job.model}, method {job.method}, on {machines}{job.hardware.gpus} x {job.hardware.gpu}"]
    if job.hardware.nodes > 1:
        heading.append(
            "on each machine, with NODE_RANK (0 on the first), MASTER_ADDR and MASTER_PORT (the first one's)"
        )
    return shell_script(program.command, program.environment, heading, program.folder, program.before)


def files_of(program: TrainingProgram, job: Job) -> dict[str, str]:
    """Everything that a training is started from, whatever starts it."""
    return {
        SCRIPT: script_of(program, job),
        RESUME: resume_text(program, job.hardware.nodes),
        **program.files,
        REQUIREMENTS: requirements_text(program),
        CONTAINER: container_text(program),
    }


FROM_THE_BEGINNING = "From the beginning: where its checkpoints lie is not known here."


def resume_text(program: TrainingProgram, nodes: int = 1) -> str:
    """A checkpoint counts once it is whole. A machine that passed its check is not checked again; several are at every
    start: they have to agree."""
    words = " ".join(map(_resume_word, program.resumes))
    goes_on = "From the last checkpoint on, where there is one." if words else FROM_THE_BEGINNING
    lines = ["#!/usr/bin/env bash", f"# {goes_on}", "set -euo pipefail"]
    lines.append('cd "$(dirname "${BASH_SOURCE[0]}")"')
    if PREFLIGHT in program.files:
        check = f'"$(command -v python || command -v python3)" {PREFLIGHT} || exit {PREFLIGHT_STATUS}'
        if nodes == 1:
            lines += [
                f'passed="{PREFLIGHT_PASSED}.$(uname -n)"',
                f'if [ ! -e "$passed" ]; then {check}; touch "$passed"; fi',
            ]
        else:
            lines.append(check)
    if words:
        lines += [
            f"last=$(find -H {OUTPUT} -path '*/{program.checkpoint_end}' 2>/dev/null | sort -V | tail -n 1 || true)",
            f'if [ -n "$last" ]; then set -- {words}; fi',
        ]
    return "\n".join([*lines, f'exec {_recorder(program)}bash {SCRIPT} "$@"', ""])


def _recorder(program: TrainingProgram) -> str:
    """What measures the training runs it, and passes signals on."""
    return f'"$(command -v python || command -v python3)" {RECORDER} -- ' if RECORDER in program.files else ""


def _resume_word(word: str) -> str:
    """`--resume_from_checkpoint=CHECKPOINT`, with the folder of the file that was found."""
    return f'"{word.replace(CHECKPOINT, "${last%/*}")}"' if CHECKPOINT in word else shell_word(word)
