"""Checkpoints beside that of the model which is trained: a teacher's, a reward model's, a reference's.

A teacher and a reward model are downloaded, and loaded in the dtype they are stored in, by way of mapped pages
(trl/experimental/gkd/gkd_trainer.py and trl/trainer/grpo_trainer.py of 1.16.0, `from_pretrained` without a dtype). A
reference is the trained model's own checkpoint, loaded once more (trl/trainer/dpo_trainer.py).
They are loaded one after another, so that none adds to what another needs of the host.
Ignored  the models of PPO, which are an estimate as a whole; a teacher on cards of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tunecast.job.further import FURTHER, REWARD
from tunecast.job.job import Job
from tunecast.job.model import ModelConfig
from tunecast.job.stacks import SFT_STACK
from tunecast.prediction.outside.checkpoint import WIDTHS
from tunecast.prediction.outside.paper import tensors_on_paper
from tunecast.records import NamedTuple


class FurtherFiles(NamedTuple):
    """Bytes of other models' checkpoints."""

    downloaded_bytes: int = 0
    largest_bytes: int = 0
    """Of one of them: as many pages are mapped while it is loaded."""
    references: int = 0
    """How often the trained model's own checkpoint is loaded once more."""

    def read_bytes(self, own_bytes: int) -> int:
        """From disk, `own_bytes` being the trained model's checkpoint."""
        return self.downloaded_bytes + self.references * own_bytes


NO_FURTHER_FILES = FurtherFiles()


def further_files(job: Job, model: ModelConfig) -> FurtherFiles:
    """`job` with its defaults filled in."""
    further: Mapping[str, Any] = model.raw.get(FURTHER, {})
    sizes = [checkpoint_bytes(json.dumps(config, sort_keys=True), role == REWARD) for role, config in further.items()]
    return FurtherFiles(sum(sizes), max(sizes, default=0), int(has_second_model(job)))


def has_second_model(job: Job) -> bool:
    """Whether a reference is a model of its own; with adapters it is the trained one without them."""
    if job.task in ("dpo", "kto"):
        return job.preference.reference == "model"
    return job.task in ("grpo", "rloo") and job.method == "full" and job.rl.beta > 0


@lru_cache(maxsize=64)
def checkpoint_bytes(config_json: str, rewards: bool) -> int:
    """As it is stored. A reward model has a head of its own in the vocabulary's place."""
    config = json.loads(config_json)
    dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
    width = WIDTHS.get(dtype, WIDTHS["float32"])
    job = Job("any", task="reward", stack=SFT_STACK) if rewards else Job("any")
    return width * sum(each.elements for each in tensors_on_paper(job, config))
