"""Unsloth's notebooks on paper, then a plain loop: what `tape/trace/recipes_unsloth.py` runs for real."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.job.stacks import STACKS
from tunecast.job.stored import packing_of
from tunecast.tape.build.dtypes import BFLOAT16, FLOAT32
from tunecast.tape.build.families import causal_lm
from tunecast.tape.build.machine import Machine, Setup
from tunecast.tape.build.optimizers import make_optimizer
from tunecast.tape.build.stacks import TRACE_INSTEAD, Refusals, followed, leaves_out, not_known
from tunecast.tape.build.stacks.transformers import take_steps
from tunecast.tape.build.unsloth import loading
from tunecast.tape.build.unsloth.early import is_early
from tunecast.tape.build.unsloth.model import UnslothRun, apply

FAMILIES = STACKS["unsloth"].families
NOT_COMPILED = "Unsloth compiles each layer of {} as one region; taken as run one operation after the other"
LAST_LAYERS = 2
"""Unlike others: the last is not offloaded, and its backward pass is where kernels are first tuned."""
REFUSES: Refusals = {
    "method": lambda job: job.method == "full",
    # it compiles its own parts whatever the job says; over them is another run
    **leaves_out("compile", "kernels", "attention", "matmul_dtype", "offload_activations", "optimizer_in_backward"),
    **leaves_out("stack_version"),
    "quantization": lambda job: job.quantization.format not in (None, "nf4"),
    "loss": lambda job: job.loss is not None,
    "checkpoint_reentrant": lambda job: job.checkpoint_reentrant is not None,
}


def compiles() -> bool:
    """Unsloth compiles each layer unless the environment says not to (`_enabled` of models/_block_compile.py); asked
    here too, so that both engines follow the same run."""
    whole = os.environ.get("UNSLOTH_BLOCK_COMPILE", "1") != "0"
    return whole and os.environ.get("UNSLOTH_COMPILE_DISABLE", "0") not in ("1", "partial")


def model(machine: Machine, config: Mapping[str, Any]) -> Any:
    family = causal_lm(config["model_type"]) if config["model_type"] in FAMILIES else None
    return None if family is None else family(machine, config)


def setup(job: Job, given: Setup) -> Setup:
    """dtype=None: weights are never loaded in fp32."""
    return given._replace(weights_dtype=BFLOAT16) if given.weights_dtype == FLOAT32 else given


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    refuse(job, config, max(lengths))
    loading.probes(machine)
    language_model = model(machine, config)
    language_model.name_all()
    language_model.model_type = config["model_type"]
    machine.name_head(language_model.path)
    marks = loading.rotary_marks(machine)
    packing = packing_of(config)
    if packing is not None and packing.method != "bitsandbytes":  # whose names Unsloth maps to the others
        machine.guesses[f"what Unsloth makes of a checkpoint in {packing.title}; plain weights were taken"] = None
    loading.load(language_model, job.quantization.format == "nf4")
    language_model.tie()
    loading.rotary_repair(machine, language_model.model.rotary_emb.width)
    loading.empty_caches(machine, 3)
    loading.adapt(job, language_model)
    longest = max(job.lengths or (job.seq_len,))
    early = is_early(followed(job)["unsloth"])
    run = UnslothRun(
        language_model,
        job.gradient_checkpointing,
        job.lora.dropout_fraction,
        longest,
        config["max_position_embeddings"],
        early,
    )
    if compiles() and not early and not run.compile(language_model):
        machine.guesses[NOT_COMPILED.format(config["model_type"])] = None
    apply(language_model, run)
    language_model.input_embedding().gives_gradient = True
    loading.empty_caches(machine, 7)
    parameters = [p for p in language_model.parameters() if p.requires_grad]
    optimizer = make_optimizer(job, parameters, ())
    take_steps(job, language_model, parameters, optimizer, lengths)
    machine.end()
    del marks


def refuse(job: Job, config: Mapping[str, Any], longest: int) -> None:
    """What Unsloth does by other code than is written down here."""
    name = config["model_type"]
    if name not in FAMILIES:
        raise Unsupported.at(
            "model",
            f"the closed form knows Unsloth's code for {', '.join(FAMILIES)}, not for {name!r}. {TRACE_INSTEAD}",
        )
    window = config.get("sliding_window") if name == "mistral" else None
    if window and longest > window:
        raise Unsupported.at(
            "seq_len",
            f"rows of {longest} are longer than the model's window of {window}, for which Unsloth makes masks"
            f" the closed form does not know. {TRACE_INSTEAD}",
        )
    if job.lora.dora:
        raise not_known("lora.dora", True, "To fix: lora.dora false")
    wanted = job.lora.targets
    assert wanted is not None, "targets follow from the stack: fill_in comes first"
    if wanted != "all-linear" and set(wanted) != set(loading.TARGETS):
        raise not_known("lora.targets", wanted, "To fix: lora.targets all-linear")
    dtype = "bfloat16" if job.weights_dtype == "float32" else job.weights_dtype
    if job.autocast not in (None, dtype):
        raise not_known("autocast", job.autocast, f"To fix: autocast {dtype}")
