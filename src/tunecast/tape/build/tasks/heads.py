"""Reward models and classifiers on paper: TRL's RewardTrainer (trl/trainer/reward_trainer.py of 1.16.0), and
transformers' Trainer with a head in the vocabulary's place.

A reward model's rows are pairs: the chosen answers of a batch, then the rejected ones, in one forward pass. Process
rewards are classes of tokens, as TRL's PRMTrainer had them until 1.13 (trl/experimental/prm/prm_trainer.py there).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.job.stacks import stack_of
from tunecast.tape.build import functional as F
from tunecast.tape.build.adapters import adapt
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64
from tunecast.tape.build.families import model_of
from tunecast.tape.build.machine import Machine, Setup
from tunecast.tape.build.optimizers import Optimizer
from tunecast.tape.build.score import save_whole, use_own_forward, with_score, with_token_scores
from tunecast.tape.build.stacks import Refusals, module_of, trainer, transformers, trl
from tunecast.tape.build.stacks.trainer import Batch, models_loss, rows, take_steps
from tunecast.tape.build.stacks.transformers import Making, evaluation_loop, prepared, scheme
from tunecast.tape.build.tasks import value_head
from tunecast.tape.build.tasks.reference import disable_dropout
from tunecast.tape.build.tasks.value_head import adapt_and_value, pairwise_loss, use_value_forward
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.batches import image_tensors, images_in

__all__ = ["REFUSES", "defaults", "evaluate", "making", "model", "save_beside_adapters", "scheme", "setup", "train"]

REFUSES: Refusals = trainer.REFUSES
OF_TRL = ("reward", "prm")
"""Tasks that TRL has trainers of; the others are a script with transformers' Trainer, whoever's stack it is."""
LAST_PRM = (1, 13)
TAKEN = "{stack} is taken to train heads as TRL and transformers' Trainer do with the same settings"
OLDER = "of transformers before 5 the classifiers of 5.17 are taken"
CUT = "heads in the vocabulary's place are taken to be cut as the vocabulary's is; nobody traced one that is"
IMAGES = "a head in the vocabulary's place of a model that sees: nobody traced it"
LONGER = "data.lengths: of a pair the longer answer"
NO_PRM = "task prm: TRL has had no trainer of process rewards since 1.14; what that of 1.13 did is taken"


def model(machine: Machine, config: Mapping[str, Any], labels: int = 1) -> Any:
    """With as many outputs as the head has; for those who look at layers alone, one does."""
    made = model_of(machine, config)
    return None if made is None else with_score(made, labels)


def token_model(machine: Machine, config: Mapping[str, Any], labels: int) -> Any:
    made = model_of(machine, config)
    return None if made is None else with_token_scores(made, labels)


def making(job: Job) -> Making:
    """The job's own model, of a config.json."""
    if has_value_head(job):
        return model_of
    assert job.head.labels is not None, "the number of labels follows from the task: settled comes first"
    return partial(token_model if job.task == "prm" else model, labels=job.head.labels)


def has_value_head(job: Job) -> bool:
    return job.task == "reward" and stack_of(job).has_value_head


def save_beside_adapters(model: Any) -> None:
    """What PEFT trains whole (peft/peft_model.py, `PeftModelForSequenceClassification`)."""
    if hasattr(model, "score"):
        save_whole(model)


def setup(job: Job, given: Setup) -> Setup:
    """As the job's stack has it; Unsloth patches TRL's trainers."""
    return module_of(job.stack).setup(job, given) if stack_of(job).uses_accelerate else trl.setup(job, given)


def defaults(job: Job) -> dict[str, Any]:
    """TRL's own ways, where its trainers run."""
    return trl.defaults(job) if job.task in OF_TRL else {}


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    compute_loss, collated = parts(job)
    model, parameters, optimizer = set_up(job, config, machine)
    take_steps(job, model, parameters, optimizer, lengths, compute_loss, collated, shifts=False)
    machine.end()


def evaluate(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    """Trainer.evaluate, with the loss of training."""
    compute_loss, collated = parts(job)
    model, _, _ = set_up(job, config, machine)

    def loss_of(inputs: Sequence[Tensor]) -> Tensor:
        return compute_loss(job, model, tuple(inputs), None)

    evaluation_loop(job, model, lengths, loss_of, collated)
    machine.end()


def set_up(job: Job, config: Mapping[str, Any], machine: Machine) -> tuple[Any, list[Tensor], Optimizer]:
    if job.task == "prm" and trl.release_of(job, machine.era) > LAST_PRM:
        machine.guesses[NO_PRM] = None
    if module_of(job.stack) not in (trl, transformers) and not has_value_head(job):
        machine.guesses[TAKEN.format(stack=job.stack)] = None
    if machine.era.release < (5, 0):
        machine.guesses[OLDER] = None
    if sharding_of(job).cuts_weights:
        machine.guesses[CUT] = None
    if machine.pictures is not None:
        machine.guesses[IMAGES] = None
    if job.task == "reward" and job.data.has_lengths:
        machine.assumptions[LONGER] = None
    adapting = as_trl_adapts if job.task in OF_TRL else adapt_and_save
    if has_value_head(job):
        adapting = adapt_and_value
        machine.guesses[value_head.TAKEN] = None
    made, parameters, optimizer = prepared(job, config, machine, adapting, in_trainer=True, making=making(job))
    if has_value_head(job):
        use_value_forward(made)
    else:
        use_own_forward(made)
    return made, parameters, optimizer


def adapt_and_save(job: Job, model: Any) -> None:
    adapt(job, model)
    if job.method != "full":
        save_beside_adapters(model)


def as_trl_adapts(job: Job, model: Any) -> None:
    """`RewardTrainer.__init__`."""
    adapt_and_save(trl.as_peft_makes_them(job), model)
    trl.cast(job, model, trl.release_of(job, model.machine.era))
    disable_dropout(model)


# -------------------------------------------------------------------------------------------------------------- batches


def pairs(job: Job, machine: Machine, length: int) -> Batch:
    """trl/trainer/reward_trainer.py, `DataCollatorForPreference`: tokens and mask, no labels."""
    ids, mask = [machine.run("_to_copy", (), (2 * job.micro_batch, length), INT64) for _ in range(2)]
    return ids, mask, *image_tensors(machine, 2 * job.micro_batch, length)


def labelled_rows(job: Job, machine: Machine, length: int) -> Batch:
    """transformers/data/data_collator.py, `DataCollatorWithPadding`: tokens, mask and a label for each row."""
    ids, mask = [machine.run("_to_copy", (), (job.micro_batch, length), INT64) for _ in range(2)]
    images = image_tensors(machine, job.micro_batch, length)
    return ids, mask, machine.run("_to_copy", (), (job.micro_batch,), INT64), *images


# --------------------------------------------------------------------------------------------------------------- losses


def reward_loss(job: Job, model: Any, inputs: Batch, num_items_in_batch: None) -> Tensor:
    """`RewardTrainer.compute_loss`."""
    machine = model.machine
    logits = logits_of(model, inputs)
    rewards_chosen, rewards_rejected = logits.squeeze(-1).split([job.micro_batch] * 2, 0)
    loss = -F.logsigmoid(rewards_chosen - rewards_rejected).mean(0)
    machine.run("sum", (inputs[1].sum(range(2), dtype=INT64),), (), INT64)
    with machine.no_grad():
        all_rewards = logits.detach()
        for statistic in ("min", "mean", "max"):
            machine.run(statistic, (all_rewards,), (), FLOAT32)
        better = machine.run("gt", (rewards_chosen, rewards_rejected), rewards_chosen.shape, BOOL).float()
        machine.run("mean", (better.mean(0),), (), FLOAT32)
        machine.run("mean", ((rewards_chosen - rewards_rejected).mean(0),), (), FLOAT32)
    return loss


def logits_of(model: Any, inputs: Batch) -> Tensor:
    """The model's outputs without a loss, widened where autocast was on."""
    scheme = model.machine.scheme
    scheme.begin_forward()
    with model.machine.autocasting(scheme.autocast):
        logits: Tensor = model(*inputs[:2], **images_in(model.machine, inputs[2:]))
    if scheme.autocast is not None:
        logits = logits.float()
    logits = scheme.end_forward(logits)
    return logits


def parts(job: Job) -> tuple[Callable[..., Tensor], Callable[[Job, Machine, int], Batch]]:
    """Of a job: its loss, and its batches."""
    if job.task == "reward":
        return pairwise_loss if has_value_head(job) else reward_loss, pairs
    return models_loss, rows if job.task == "prm" else labelled_rows
