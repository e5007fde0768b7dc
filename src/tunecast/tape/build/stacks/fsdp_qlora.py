"""AnswerDotAI's fsdp_qlora on paper: `train.py` of March 2024, LoRA and QLoRA under FSDP 1 on a few small cards.

PEFT's adapters in bf16 over Hugging Face's model; a unit a decoder layer, one an adapter's weight, one around the model
(`get_wrapping_policy`); flat parameters as they are (`use_orig_params=False`), no mixed precision. Recomputation is put
around the layers after FSDP, so inside their units. The logits live through the optimizer's step (`output = None` comes
after it). Weights are read on the host and sent from there (`low_memory`); what that leaves in the allocator's cache
stays there.

Fixed    no attention mask; AdamW, clipping by FSDP; backward_prefetch is torch's default, BACKWARD_PRE.
Source   fsdp_qlora, train.py, before and after benchmarks_03_2024.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.tape.build.adapters import adapt
from tunecast.tape.build.autograd import backward
from tunecast.tape.build.dtypes import FLOAT32, INT64
from tunecast.tape.build.eras import era_of, guesses
from tunecast.tape.build.machine import Machine, Setup
from tunecast.tape.build.modules import bring
from tunecast.tape.build.optimizers import Optimizer
from tunecast.tape.build.sharding.accelerate import AccelerateFsdp1
from tunecast.tape.build.sharding.scheme import Scheme
from tunecast.tape.build.stacks import Refusals, leaves_out, no_such_model, transformers
from tunecast.tape.build.stacks.transformers import load, model
from tunecast.tape.op import Phase

__all__ = ["REFUSES", "model", "train"]

REFUSES: Refusals = {
    **transformers.REFUSES,
    **leaves_out("kernels", "compile", "loss", "optimizer_in_backward", "autocast"),
    "method": lambda job: job.method == "full",
}


def defaults(job: Job) -> dict[str, Any]:
    """All in bfloat16, `precision: "bf16"`, and no preparation of PEFT's."""
    return {"autocast": None, **({"quantization.prepare_kbit": False} if job.method == "qlora" else {})}


MODELS = ("llama", "mistral")
"""Those whose layers its train.py wraps and replaces."""
RELEASE = "4.37.2"
"""Of transformers: its README leaves 4.38 and 4.39 out."""


class QloraFsdp(AccelerateFsdp1):
    def __init__(self, job: Job, machine: Machine) -> None:
        super().__init__(job, machine)
        self.options = replace(
            self.options, use_orig_params=False, upcast=False, inside_checkpoint=False, sync_module_states=True,
            shards=not sharding_of(job).is_replicated,
        )  # fmt: skip


def setup(job: Job, given: Setup) -> Setup:
    """What of the machine is the stack's own: its transformers, and the kind of checkpointing."""
    era = given.era if job.transformers_version else era_of(RELEASE)
    return given._replace(era=era, reentrant=bool(job.checkpoint_reentrant))


def scheme(job: Job, machine: Machine) -> Scheme:
    return QloraFsdp(job, machine)


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    if config["model_type"] not in MODELS:
        raise no_such_model(job.stack, config["model_type"])
    machine.run("zeros", (), (1,), FLOAT32)
    scheme = machine.scheme
    with scheme.loading():
        model = load(job, config, machine)
        machine.guesses.update(dict.fromkeys(guesses(machine.era, model.model_type)))
        add_tables(config, model)
        adapt(job, model)
    machine.empty_cache()
    scheme.wrap(model)
    parameters = scheme.parameters(model)
    take_steps(job, model, scheme.optimizer(parameters, (), ()), lengths)
    machine.end()


def add_tables(config: Mapping[str, Any], model: Any) -> None:
    """transformers 4.37, modeling_llama.py, `LlamaRotaryEmbedding`: cosines and sines of every position, a layer."""
    for layer in model.layers():
        attention = layer.self_attn
        for name in ("cos_cached", "sin_cached"):
            table = attention.buffer(
                config["max_position_embeddings"], attention.head_dim, dtype=attention.machine.weights_dtype
            )
            setattr(attention, name, table)
            bring(table, attention.path)


def take_steps(job: Job, model: Any, optimizer: Optimizer, lengths: Sequence[int]) -> None:
    machine, scheme = model.machine, model.machine.scheme
    model.gives_logits = True
    ddp_loss = machine.run("zeros", (), (2,), FLOAT32)
    for length in machine.steps(lengths):
        for micro in range(job.grad_accum):
            machine.take_turn(micro)
            input_ids, labels = [machine.run("_to_copy", (), (job.micro_batch, length), INT64) for _ in range(2)]
            machine.phase, machine.in_forward = Phase.FORWARD, True
            with scheme.micro_batch(last=True) if micro else contextlib.nullcontext():
                loss, logits = model(input_ids, labels, labels)  # all ones are no mask, and none is given
                loss = loss / job.grad_accum
                backward(loss)
        scheme.end_step((), optimizer)
        del loss, logits
    scheme.end()
    del ddp_loss
