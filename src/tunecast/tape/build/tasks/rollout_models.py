"""Models of a rollout: who scores completions beside the model that writes them, and how that one is called."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.further import REWARD, TEACHER, further_config, has_second_teacher
from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.tape.build import functional as F
from tunecast.tape.build.adapters import LoraLinear, adapters_off
from tunecast.tape.build.beside import caching, frozen_model
from tunecast.tape.build.chunked import LOG_PROBS
from tunecast.tape.build.decoder import CheckpointingLayer
from tunecast.tape.build.dtypes import INT64
from tunecast.tape.build.families import model_of
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.score import with_score
from tunecast.tape.build.sharding.second import second_scheme
from tunecast.tape.build.stacks import TRACE_INSTEAD
from tunecast.tape.build.stacks.transformers import load
from tunecast.tape.build.tasks.generation import last_logits
from tunecast.tape.build.tasks.reference import as_loaded
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import PASS

OF_POLICY = (LOG_PROBS, "entropy")
"""What `__init__` asks the policy's head for; the reference's is asked for log-probabilities alone."""
REWARDED = "rl.reward_model: completions are as long in its tokens as in the policy's; nobody traced it"
PACKED = "rl.engine vllm: how adapters are added to quantised weights before vLLM reads them is left out"


TAUGHT = "distill.teacher: a teacher is asked as a reference is, as ms-swift's source says; nobody traced it"


class Others:
    """Models that score completions, beside the one that writes them: a reference, a teacher, and one that rewards."""

    def __init__(self, job: Job, config: Mapping[str, Any], machine: Machine) -> None:
        self.job, self.config, self.machine = job, config, machine
        self.reference: Any = None
        self.scheme: Any = None
        """How this rank holds it."""
        self.teacher: Any = None
        self.teacher_scheme: Any = None
        self.reward: Any = None

    def prepare(self, policy: Any) -> None:
        """What `__init__` does when the model is there."""
        job, machine = self.job, self.machine
        if job.rl.reward_model is not None:
            self.reward = frozen_model(machine, further_config(self.config, REWARD), REWARD, job.seq_len, rewarding)
            machine.guesses[REWARDED] = None
        if job.rl.beta and job.method == "full":
            self.scheme = second_scheme(job, machine)
            self.reference = load(as_loaded(job), self.config, machine)
            with machine.on_stream(0):
                self.scheme.wrap(self.reference)
        if job.distill.teacher is not None:
            machine.guesses[TAUGHT] = None
        if has_second_teacher(job):
            self.teacher_scheme = second_scheme(job, machine)
            with self.teacher_scheme.loading():
                self.teacher = frozen_model(machine, further_config(self.config, TEACHER), TEACHER, job.seq_len)
            with machine.on_stream(0):
                self.teacher_scheme.wrap(self.teacher)

    @contextlib.contextmanager
    def referring(self, policy: Any) -> Iterator[tuple[Any, Sequence[str]]]:
        """The model to be asked, and what of its head: all that the policy gives, where it is the policy without its
        adapters (`use_adapter`)."""
        if self.reference is not None:
            with self.machine.held_by(self.scheme):
                self.scheme.begin_forward()
                yield self.reference, (LOG_PROBS,)
            return
        with adapters_off(policy):
            yield policy, OF_POLICY

    @contextlib.contextmanager
    def teaching(self, policy: Any) -> Iterator[tuple[Any, Sequence[str]]]:
        """The same of a teacher (swift/rlhf_trainers/grpo_trainer.py, `_compute_teacher_logps`)."""
        if self.teacher is not None:
            with self.machine.held_by(self.teacher_scheme):
                self.teacher_scheme.begin_forward()
                yield self.teacher, (LOG_PROBS,)
            return
        with adapters_off(policy):
            yield policy, OF_POLICY

    def score(self, rows: int, length: int) -> None:
        """`_calculate_rewards`: all completions at once, as long in the other's tokens as in the policy's."""
        machine = self.machine
        if self.reward is None:
            return
        input_ids, attention_mask = [machine.run("_to_copy", (), (rows, length), INT64) for _ in range(2)]
        machine.of_host(PASS)
        with machine.no_grad(), caching(self.reward, REWARD), machine.autocasting(machine.scheme.autocast):
            self.reward(input_ids, attention_mask).float()


def rewarding(machine: Machine, config: Mapping[str, Any]) -> Any:
    """`AutoModelForSequenceClassification` with one label."""
    model = model_of(machine, config)
    return None if model is None else with_score(model, 1)


def synchronize_weights(policy: Any) -> None:
    """trl/generation/vllm_generation.py, `sync_weights`: adapters are added to their layers' weights, which are read,
    and taken off again (peft/tuners/lora/layer.py, `merge` and `unmerge`)."""
    machine = policy.machine
    adapted = [module for module in policy.modules() if isinstance(module, LoraLinear)]
    if any(not module.base_layer.weight.dtype.floating for module in adapted):
        machine.guesses[PACKED] = None
        return
    with machine.no_grad():
        for name in ("add_", "sub_"):
            for module in adapted:
                with machine.within(module.path):
                    weight = module.base_layer.weight
                    delta_weight = F.mm(module.lora_B.weight, module.lora_A.weight) * module.scaling
                    if name == "sub_":
                        delta_weight = delta_weight.to(weight.dtype)
                    machine.launch(name, (weight, delta_weight), weight.dtype, weight.nbytes)
                    del delta_weight


def refuse_gathering(job: Job) -> None:
    """ZeRO-3 gathers all weights while it generates (`ds3_gather_for_generation`), FSDP those of a layer."""
    sharding = sharding_of(job)
    if sharding.is_zero and sharding.cuts_weights:
        told = f"got {sharding.name}, which gathers the whole model on every card while it generates; not written down"
        raise Unsupported.at(
            "parallel.data", f"{told}. To fix: rl.engine vllm; or {TRACE_INSTEAD.removeprefix('To fix: ')}"
        )


@contextlib.contextmanager
def not_recomputed(model: Any) -> Iterator[None]:
    """`disable_gradient_checkpointing`, and what `unwrap_model_for_generation` does."""
    layers = [module for module in model.modules() if isinstance(module, CheckpointingLayer) and module.checkpoint]
    for layer in layers:
        layer.checkpoint = False
    yield
    for layer in layers:
        layer.checkpoint = True


def inner_logits(model: Any, input_ids: Tensor, attention_mask: Tensor, **images: Tensor) -> Tensor:
    with model.machine.within(model.path):
        return last_logits(model, input_ids, attention_mask, **images)
