"""What was rendered, read back: the reader of the trainer's files has to find the job that was predicted.

The reader (job/recipes) knows the frameworks' keys and defaults by their own sources, and was written for other
people's files. So a setting that a renderer forgot, misspelt or cannot say is found before anything is started.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job, all_knobs
from tunecast.job.kernels import INSTALLED
from tunecast.job.knob import shown
from tunecast.job.model import resolve_model
from tunecast.job.readers import read_job
from tunecast.job.recipes import find_recipe
from tunecast.job.shardings import sharding_of
from tunecast.job.task_sections import OF_TASKS
from tunecast.launching.rendering import SCRIPT
from tunecast.launching.texts import comment
from tunecast.records import NamedTuple, replace
from tunecast.tape.build.fill_in import fill_in_of

NOT_SETTINGS = (
    *("id", "model", "unsaid", "stack_version"),
    *(name for name in all_knobs() if name.endswith("_version") and "." not in name),
    *(name for name in all_knobs() if name.startswith("hardware.") and name not in ("hardware.gpus", "hardware.nodes")),
    *("lengths", "data.tokens", "data.samples", "data.lengths", "data.path", "data.tokenizer", "data.append_eos"),
    *("data.eval_samples", "run.eval_max_batches", "vision.images", "vision.pixels", "vision.frames", "vision.tiles"),
)
"""What no trainer's file sets: releases, which requirements.txt pins; machines; the data's own properties. The model is
compared by its configuration."""


class TrainingRead(NamedTuple):
    """What was rendered, as the reader understands it."""

    job: Job
    assumed: frozenset[str]
    """Fields that its files do not say: the framework decides them."""


class Disagreement(NamedTuple):
    field: str
    wanted: object
    read: object

    def __str__(self) -> str:
        return f"{self.field}: {shown(self.wanted)} is read back as {shown(self.read)}"


def require_same(job: Job, framework: str, files: Mapping[str, str], *, all_of_it: bool = True) -> None:
    """Raises `Unsupported` with every field that the files say otherwise, or not at all; and, where `all_of_it`, with
    keys that no field tells."""
    require_equal(job, framework, read_back(job, files, all_of_it=all_of_it).job, all_of_it=all_of_it)


def require_equal(job: Job, framework: str, read: Job, *, all_of_it: bool = False) -> None:
    found = differences(job, read)
    if found:
        told, other = "; ".join(map(str, found)), ", or launch your own training file" if all_of_it else ""
        raise Unsupported(
            f"the job cannot be said in {framework}'s own words: {told}. To fix: change these fields{other}",
            field=found[0].field,
        )


def read_back(job: Job, files: Mapping[str, str], *, all_of_it: bool = True) -> TrainingRead:
    """The job that the rendered training is, on the card of the one that was rendered."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        script = Path(folder) / SCRIPT
        recipe = find_recipe(script)
        if recipe is None:
            raise Unsupported(f"the rendered {SCRIPT} is not read back as a training")
        if recipe.not_understood and all_of_it:
            told = "; ".join(comment(f"{each.key}: {each.why}") for each in recipe.not_understood)
            raise Unsupported(f"what was rendered says more than the job: {told}")
        return TrainingRead(read_job(str(script), {"hardware.gpu": job.hardware.gpu}), frozenset(recipe.assumed))


def differences(wanted: Job, read: Job) -> list[Disagreement]:
    """Of the settings that count, those that are not the same, with what stack and model decide filled in."""
    model, other = resolve_model(wanted.model), resolve_model(read.model)
    mine = replace(fill_in_of(wanted, model), data=wanted.data).flat()
    theirs = replace(fill_in_of(read, other), data=read.data).flat()
    found = [] if model.raw == other.raw else [Disagreement("model", wanted.model, read.model)]
    return [
        *found,
        *(
            Disagreement(name, mine[name], theirs[name])
            for name in counting(wanted)
            if _comparable(name, mine[name]) != _comparable(name, theirs[name])
        ),
    ]


def _comparable(name: str, value: Any) -> Any:
    """In which order kernels and targets are named says nothing; what is installed is no setting."""
    if name == "kernels":
        return sorted(each for each in value if each not in INSTALLED)
    if name == "run.eval_steps" and value is None:
        return 500
    if name.endswith("s_per_epoch") and value is not None:
        return f"{value:.9g}"  # told as a share of the run, of which it is worked out again
    return sorted(value) if isinstance(value, tuple) else value


def counting(job: Job) -> Iterator[str]:
    """Settings that mean something in this job."""
    for name in all_knobs():
        if name in NOT_SETTINGS:
            continue
        section = name.partition(".")[0]
        condition = CONDITIONS.get(name) or CONDITIONS.get(section)
        if (condition is None or condition(job)) and job.task in OF_TASKS.get(section, (job.task,)):
            yield name


def _is_fsdp(job: Job) -> bool:
    return sharding_of(job).is_fsdp


def _is_zero(job: Job) -> bool:
    return sharding_of(job).is_zero


def _is_zero_3(job: Job) -> bool:
    return _is_zero(job) and sharding_of(job).cuts_weights


CONDITIONS: Mapping[str, Callable[[Job], bool]] = {
    "lora": lambda job: job.method != "full",
    "quantization": lambda job: job.quantization.format is not None,
    "checkpoint_reentrant": lambda job: job.gradient_checkpointing and job.checkpoint_reentrant is not None,
    "data.packing_strategy": lambda job: job.data.packing,
    "data.epochs": lambda job: job.run.max_steps is None,
    "run.eval_steps": lambda job: job.run.eval_strategy == "steps",
    "run.eval_batch": lambda job: job.run.eval_strategy != "no",
    "run.save_steps": lambda job: job.run.save_strategy == "steps",
    "parallel.data": lambda job: job.hardware.cards > 1,
    "parallel.fsdp_version": lambda job: _is_fsdp(job) and job.parallel.fsdp_version is not None,
    "parallel.use_orig_params": lambda job: _is_fsdp(job) and job.parallel.fsdp_version == 1,
    "parallel.replicate": lambda job: job.parallel.replicate is not None,
    **dict.fromkeys(("parallel.cpu_ram_efficient_loading", "parallel.state_dict_type"), _is_fsdp),
    **dict.fromkeys(("parallel.reshard_after_forward",), _is_fsdp),
    **dict.fromkeys(("parallel.overlap_comm", "parallel.reduce_bucket_size"), _is_zero),
    "parallel.round_robin_gradients": lambda job: _is_zero(job) and not _is_zero_3(job),
    **dict.fromkeys(
        (
            *("parallel.prefetch_bucket_size", "parallel.param_persistence_threshold", "parallel.max_live_parameters"),
            *("parallel.max_reuse_distance", "parallel.sub_group_size"),
        ),
        _is_zero_3,
    ),
    "parallel.offload_device": lambda job: job.parallel.offload != "none",
}
"""By field or section: the jobs that it counts in; of others in all."""
