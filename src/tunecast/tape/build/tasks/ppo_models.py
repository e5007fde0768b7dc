"""Models of PPO (trl/experimental/ppo/ppo_trainer.py of 1.12.0, `PPOTrainer.__init__`, `PolicyAndValueWrapper`, and
trl/experimental/utils.py, `get_reward`): a reference, one that rewards, and one that values and is trained.

All are asked for the hidden states of every layer (`output_hidden_states`), which stay as long as their outputs do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from tunecast.job.further import REWARD
from tunecast.job.job import Job
from tunecast.records import NamedTuple
from tunecast.tape.build.adapters import adapters_off
from tunecast.tape.build.beside import caching, frozen_model
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.sharding.second import second_scheme
from tunecast.tape.build.stacks.transformers import load
from tunecast.tape.build.tasks.reference import as_loaded, disable_dropout
from tunecast.tape.build.tasks.rollout_models import rewarding
from tunecast.tape.build.tasks.value_head import keep_layer_inputs
from tunecast.tape.build.tensor import Tensor

VALUE, REFERENCE = "value", "reference"


class CausalOutput(NamedTuple):
    """What a causal language model gives, as far as it takes memory."""

    logits: Tensor
    hidden_states: list[Tensor]
    past_key_values: Any = None

    def detach(self) -> CausalOutput:
        """What the names of a trainer hold when the graph is gone."""
        return CausalOutput(self.logits.detach(), self.hidden_states)


class PpoModels:
    """Models beside the policy: the one that values is a part of it, as in `PolicyAndValueWrapper`."""

    def __init__(self, job: Job, config: Mapping[str, Any], scoring: Mapping[str, Any], machine: Machine) -> None:
        """`scoring`: the configuration of those that reward and value."""
        self.job, self.config, self.machine = job, config, machine
        self.scoring = {**scoring, "dtype": machine.weights_dtype.name}
        self.reference: Any = None
        self.scheme: Any = None
        """How this rank holds it."""
        self.reward: Any = None

    def prepare(self, policy: Any) -> None:
        """What a script and `__init__` do when the policy is there."""
        policy.value_model = self.scorer(VALUE)
        for parameter in policy.value_model.parameters():
            parameter.requires_grad = True
        self.reward = self.scorer(REWARD)
        disable_dropout(policy)
        keep_layer_inputs(policy)
        if self.job.method != "full":
            return
        self.scheme = second_scheme(self.job, self.machine)
        self.reference = load(as_loaded(self.job), self.config, self.machine)
        disable_dropout(self.reference)
        keep_layer_inputs(self.reference)
        with self.machine.on_stream(0):
            self.scheme.wrap(self.reference)

    def scorer(self, role: str) -> Any:
        """`AutoModelForSequenceClassification` with one label, in the policy's dtype."""
        is_twin = self.job.rl.reward_model is None
        model = frozen_model(self.machine, self.scoring, role, self.job.seq_len, rewarding, is_twin=is_twin)
        disable_dropout(model)
        keep_layer_inputs(model)
        return model

    def reference_output(self, policy: Any, input_ids: Tensor, attention_mask: Tensor) -> CausalOutput:
        """`forward(ref_policy, ...)`, or that of the policy under `null_ref_context`; keys and values are kept."""
        if self.reference is None:
            with adapters_off(policy), caching(policy, REFERENCE) as cache:
                return causal_output(policy, input_ids, attention_mask)._replace(past_key_values=cache)
        with self.machine.held_by(self.scheme), caching(self.reference, REFERENCE) as cache:
            self.scheme.begin_forward()
            return causal_output(self.reference, input_ids, attention_mask)._replace(past_key_values=cache)

    def scores(self, model: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """`get_reward`: of every token."""
        return token_scores(model, input_ids, attention_mask)[0]


@contextlib.contextmanager
def hidden_states_of(model: Any) -> Iterator[list[Tensor]]:
    """What `keep_layer_inputs` collects during a pass."""
    hidden_states: list[Tensor] = []
    vars(model)["hidden_states"] = hidden_states
    yield hidden_states
    del vars(model)["hidden_states"]


def token_scores(model: Any, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, list[Tensor]]:
    with hidden_states_of(model) as hidden_states:
        hidden_states.append(model.base()(input_ids, attention_mask=attention_mask))
    return model.score(hidden_states[-1]), hidden_states


def causal_output(model: Any, input_ids: Tensor, attention_mask: Tensor) -> CausalOutput:
    machine = model.machine
    with machine.within(model.path), hidden_states_of(model) as hidden_states:
        hidden_states.append(model.base()(input_ids, attention_mask=attention_mask))
        logits = model.output_embedding()(hidden_states[-1][:])
        for step in model.logit_steps:
            logits = step(logits)
        if machine.era.widens_logits(model.model_type):
            logits = logits.float()
    return CausalOutput(logits, hidden_states)


def policy_and_value(policy: Any, input_ids: Tensor, attention_mask: Tensor) -> tuple[CausalOutput, Tensor]:
    """`PolicyAndValueWrapper.forward`, as accelerate wraps it: all outputs, hidden states with them, are widened where
    autocast was on (accelerate/utils/operations.py, `convert_to_fp32`). Gradients of hidden states are nobody's."""
    machine = policy.machine
    scheme = machine.scheme
    scheme.begin_forward()
    with machine.autocasting(scheme.autocast):
        values, hidden_states = token_scores(policy.value_model, input_ids, attention_mask)
        output = causal_output(policy, input_ids, attention_mask)
        del hidden_states
    logits = output.logits
    kept = [each.detach() for each in output.hidden_states]
    del output
    if scheme.autocast is not None:
        logits, values = logits.float(), values.float()
        kept = widened(policy, kept)
    logits, values = scheme.end_forward((logits, values))
    return CausalOutput(logits, kept), values


def widened(model: Any, hidden_states: list[Tensor]) -> list[Tensor]:
    """Those of each layer as a part of it, so that they are as many as layers are."""
    paths = [*[layer.path for layer in model.layers()], model.path]
    made = []
    with model.machine.no_grad():
        for path, each in zip(paths, hidden_states, strict=True):
            with model.machine.within(path):
                made.append(each.float())
    return made
