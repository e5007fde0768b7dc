"""LLaMA-Factory's reward models on paper (llamafactory/train/rm/trainer.py of 0.9.5, `PairwiseTrainer`): a value head
beside the vocabulary's (trl/models/modeling_value_head.py of TRL 0.24, `AutoModelForCausalLMWithValueHead`), whose
logits are made for nothing, and widened.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

from tunecast.job.job import Job
from tunecast.tape.build import functional as F
from tunecast.tape.build.adapters import adapt
from tunecast.tape.build.beside import give_logits
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Dropout, Linear, Module, bring
from tunecast.tape.build.score import gather
from tunecast.tape.build.stacks.trainer import Batch
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Role

TAKEN = "task reward: LLaMA-Factory's value head beside the vocabulary's was read, and nobody traced it"
SUMMARY_DROPOUT = 0.1


class ValueHead(Module):
    def __init__(self, machine: Machine, hidden: int) -> None:
        super().__init__(machine)
        self.dropout = Dropout(machine, SUMMARY_DROPOUT)
        self.summary = Linear(machine, hidden, 1, bias=True)

    def forward(self, hidden_states: Tensor) -> Tensor:
        output = self.dropout(hidden_states)
        output = output.to(self.summary.weight.dtype)
        output = self.summary(output)
        return output


def adapt_and_value(job: Job, model: Any) -> None:
    """`load_model` with add_valuehead: the head comes last, in float32, and is trained."""
    adapt(job, model)
    head = model.output_embedding()
    model.v_head = ValueHead(model.machine, getattr(head, "base_layer", head).inputs)
    model.v_head.name_all("v_head")
    for tensor in model.v_head.summary.own.values():
        bring(tensor, model.v_head.summary.path, Role.WEIGHTS if job.method == "full" else Role.ADAPTERS, FLOAT32)
    keep_layer_inputs(model)


def keep_layer_inputs(model: Any) -> None:
    """`output_hidden_states`: what each layer is given is there until the model's outputs go, in passes that have a
    list for it."""
    for layer in model.layers():
        layer.forward = MethodType(kept_with(model, layer.forward), layer)


def kept_with(model: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
    def with_input(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        kept = vars(model).get("hidden_states")
        if kept is not None and not model.machine.in_backward:
            kept.append(hidden_states)
        return forward(hidden_states, *args, **kwargs)

    return with_input


def value_forward(self: Any, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and values."""
    hidden_states: list[Tensor] = []
    vars(self)["hidden_states"] = hidden_states
    last_hidden_state = self.base()(input_ids, attention_mask=attention_mask)
    lm_logits = self.output_embedding()(last_hidden_state[:])
    for step in self.logit_steps:
        lm_logits = step(lm_logits)
    value = self.v_head(last_hidden_state).squeeze(-1)
    lm_logits = lm_logits.float()
    del self.hidden_states
    return lm_logits, value


def use_value_forward(model: Any) -> None:
    give_logits(model)
    model.forward = MethodType(value_forward, model)


def pairwise_loss(job: Job, model: Any, inputs: Batch, num_items_in_batch: None) -> Tensor:
    """`PairwiseTrainer.compute_loss`."""
    scheme, rows = model.machine.scheme, job.micro_batch
    scheme.begin_forward()
    with model.machine.autocasting(scheme.autocast):
        outputs = model(inputs[0], inputs[1])
    values = scheme.end_forward(outputs[1].float() if scheme.autocast is not None else outputs[1])
    del outputs
    masks = inputs[1].split([rows, rows], 0)
    chosen, rejected = [
        gather(each, mask.sum(-1, keepdim=True) - 1).squeeze(-1)
        for each, mask in zip(values.split([rows, rows], 0), masks, strict=True)
    ]
    return -F.logsigmoid(chosen.float() - rejected.float()).mean(0)
