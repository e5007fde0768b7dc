"""Models that a job names beside the one it trains, by the part they play: a teacher, a reward model.

They come with the configuration of the model that is trained, under a key of its own (`FURTHER`): whoever is given the
one has the others, and what is built for one teacher serves no other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tunecast.errors import NotResolved
from tunecast.job.model import ModelConfig, resolve_model
from tunecast.job.names import ROLLOUTS, TAUGHT
from tunecast.job.stacks import stack_of
from tunecast.records import replace

if TYPE_CHECKING:
    from tunecast.job.job import Job

FURTHER = "further_models"
"""Among the keys of a config.json, which has none of that name."""
TEACHER, REWARD = "teacher", "reward"


def models_of(job: Job) -> ModelConfig:
    """The model that a job trains, and in its `raw` the configurations of others that are on the card with it."""
    model = resolve_model(job.model)
    others = {role: _config(name, field) for role, (name, field) in _named(job).items()}
    return replace(model, raw_json=json.dumps({**model.raw, FURTHER: others})) if others else model


def further_config(config: Mapping[str, Any], role: str) -> Mapping[str, Any]:
    """Of a model beside the one whose configuration this is."""
    found: Mapping[str, Any] = config[FURTHER][role]
    return found


def has_second_teacher(job: Job) -> bool:
    """Of ms-swift a teacher of the model's own name is, with adapters, that model without them (swift/arguments/
    rlhf_args.py, `_check_teacher`); of TRL it is loaded all the same."""
    own = stack_of(job).hears_teachers and job.method != "full" and job.distill.teacher == job.model
    return job.distill.teacher is not None and job.distill.place == "card" and not own


def _named(job: Job) -> dict[str, tuple[str, str]]:
    """By role: the name, and the field that has it."""
    named: dict[str, tuple[str, str]] = {}
    if job.task in TAUGHT and job.distill.teacher is not None and has_second_teacher(job):
        named[TEACHER] = job.distill.teacher, "distill.teacher"
    if job.task in ROLLOUTS and job.rl.reward_model is not None:
        named[REWARD] = job.rl.reward_model, "rl.reward_model"
    return named


def _config(name: str, field: str) -> dict[str, Any]:
    """With the dtype its checkpoint is stored in, where headers say it and config.json does not."""
    try:
        model = resolve_model(name)
    except NotResolved as error:
        raise NotResolved(f"{field}: {error.message.removeprefix('model: ')}", field=field) from None
    return {**model.raw, **({} if model.dtype is None else {"dtype": model.dtype})}
