"""What every framework is told the same way: where model and data lie, what the job says of a number of cards."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.job.kernels import LIGER_PARTS
from tunecast.job.registry import bundled_models, bundled_name, hub_ids
from tunecast.launching.rendering import DATA, Command, Placeholder
from tunecast.prediction.data.batches import steps_between_evaluations, steps_between_saves
from tunecast.records import NamedTuple, replace

ALLOCATOR = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
"""The name that every release of torch reads (c10/core/AllocatorConfig.h: PYTORCH_ALLOC_CONF is another, since 2.9)."""
ONE_CARD = ("CUDA_VISIBLE_DEVICES", "${CUDA_VISIBLE_DEVICES:-0}")
NODE_RANK, MASTER_ADDR, MASTER_PORT = "${NODE_RANK:-0}", "${MASTER_ADDR:-localhost}", "${MASTER_PORT:-29500}"
"""Of several machines: which this one is, and where the first one listens. The engine says it, in the environment."""


class Places(NamedTuple):
    """Where a training finds what it reads, and which files of the user an engine elsewhere has to take along."""

    model: str
    """A Hub id, or a path."""
    data: str | None
    """A path; None: the job names none."""
    carried: Mapping[str, str] = {}
    """The user's path of each thing to take along, by its path beside the training's files."""

    @property
    def data_or_placeholder(self) -> str:
        return DATA.text if self.data is None else self.data

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        return (DATA,) if self.data is None else ()


class Machines(NamedTuple):
    """What a training is started on."""

    gpus: int
    nodes: int
    cpu: bool = False
    """Without cards, a process for each: as a rehearsal."""

    @property
    def processes(self) -> int:
        return self.gpus * self.nodes


def places_of(job: Job, *, elsewhere: bool) -> Places:
    """`elsewhere`: on a machine that does not see this one's files."""
    carried: dict[str, str] = {}

    def found(path: str, folder: str) -> str:
        whole = os.path.abspath(path)
        if not elsewhere:
            return whole
        there = f"{folder}/{os.path.basename(whole)}"
        carried[there] = whole
        return there

    data = None if job.data.path is None else found(job.data.path, "data")
    model = found(job.model, "model") if os.path.isdir(job.model) else hub_id(job.model)
    return Places(model, data, carried)


def hub_id(model: str) -> str:
    """As the Hub calls it. Raises where a training could not load it."""
    if os.path.isfile(model):
        raise UsageError.at(
            "model", f"got {model}, a configuration without weights; allowed: a folder with weights, or a Hub id"
        )
    name = bundled_name(model)
    if name is None:
        return model
    known = hub_ids(bundled_models()[name])
    return next((each for each in known if each.lower() == model.lower()), known[0])


def machines_of(job: Job, *, cpu: bool = False) -> Machines:
    return Machines(job.hardware.gpus, job.hardware.nodes, cpu)


def torchrun_words(machines: Machines) -> Command:
    """torchrun's flags that say machines and processes."""
    several = (
        *("--nnodes", str(machines.nodes), "--node_rank", NODE_RANK),
        *("--master_addr", MASTER_ADDR, "--master_port", MASTER_PORT),
    )
    return (*(several if machines.nodes > 1 else ()), "--nproc_per_node", str(machines.gpus))


def environment_of(job: Job) -> dict[str, str]:
    """A training on one card is shown one: the Trainer spreads over all it sees. What a scheduler chose stays."""
    allocator = ALLOCATOR if job.allocator == "expandable_segments" else {}
    return {**({ONE_CARD[0]: ONE_CARD[1]} if job.hardware.cards == 1 else {}), **allocator}


def whole(value: float) -> int | float:
    """16 of 16.0: trainers declare whole numbers."""
    return int(value) if float(value).is_integer() else value


def with_counted_steps(job: Job) -> Job:
    """So many checkpoints or evaluations an epoch, as steps between two, where the run's steps are given."""
    run, steps = job.run, job.run.max_steps
    if steps is None:
        return job
    if run.saves_per_epoch is not None:
        run = replace(run, saves_per_epoch=None, save_steps=steps_between_saves(job, steps))
    if run.evals_per_epoch is not None:
        run = replace(run, evals_per_epoch=None, eval_steps=steps_between_evaluations(job, steps))
    return job if run is job.run else replace(job, run=run)


def share_of_run(job: Job, field: str, per_epoch: float) -> float:
    """What lies between two of so many an epoch, as transformers' `save_steps` and `eval_steps` take it
    (transformers/trainer_callback.py, `TrainerState.compute_steps`)."""
    times = per_epoch * job.data.epochs
    if times <= 1:
        raise Unsupported.at(field, f"got {per_epoch:g}, not one between the first step and the last; nearest: null")
    return 1 / times


def liger_config(job: Job) -> dict[str, bool] | None:
    """What Liger is told where its kernels are chosen one by one (transformers/integrations/liger.py); None: all."""
    if "liger" in job.kernels:
        return None
    return {name: part in job.kernels for part, names in LIGER_PARTS.items() for name in names if name != "geglu"}
