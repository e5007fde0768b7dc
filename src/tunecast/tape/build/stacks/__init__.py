"""Whose program trains: the loop, the modules, the casts and the loss of each `stack`, one file each.

A stack's file has two functions. `model(machine, config)` makes the module tree of a config.json (or None where the
stack does not know it); `train(job, config, lengths, machine)` is the whole program, from loading to the last step,
and says `machine.end()` there, before its variables die.
What a program does not do it lists in `REFUSES`: the job's field, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, cast

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.records import replace_unchecked
from tunecast.tape.build.eras import era_of, numbers
from tunecast.tape.build.tensor import Machine

TRACED_INSTEAD = "To fix: --engine traced (it needs torch: pip install 'tunecast[trace]')"
TRACE_INSTEAD = "To fix: trace your own script, `tunecast trace -- train.py`"
STACKS: Mapping[str, str] = {
    "transformers": "tunecast.tape.build.stacks.transformers",
    "trl": "tunecast.tape.build.stacks.trl",
    "axolotl": "tunecast.tape.build.stacks.trainer",
    "llama-factory": "tunecast.tape.build.stacks.trainer",
    "litgpt": "tunecast.tape.build.stacks.litgpt",
    "fsdp_qlora": "tunecast.tape.build.stacks.fsdp_qlora",
    "megatron": "tunecast.tape.build.stacks.megatron",
    "nemo": "tunecast.tape.build.stacks.megatron",
    "automodel": "tunecast.tape.build.stacks.automodel",
    "llm-foundry": "tunecast.tape.build.stacks.foundry",
    "torchtitan": "tunecast.tape.build.stacks.torchtitan",
    "torchtune": "tunecast.tape.build.stacks.torchtune",
    "unsloth": "tunecast.tape.build.stacks.unsloth",
}

TORCH = {"torch": "2.11.0"}
HUGGING_FACE = {**TORCH, "transformers": "5.17.0", "peft": "0.21.0", "bitsandbytes": "0.50.2"}
TRAINER = {**HUGGING_FACE, "liger-kernel": "0.8.5", "accelerate": "1.15.0"}
MEGATRON = {**TORCH, "megatron-core": "0.13", "transformer-engine": "2.5"}
FOLLOWED: Mapping[str, Mapping[str, str]] = {
    "transformers": {**HUGGING_FACE, "liger-kernel": "0.8.5"},
    "trl": {**TRAINER, "trl": "1.16.0"},
    "axolotl": TRAINER,
    "llama-factory": TRAINER,
    "litgpt": {**TORCH, "litgpt": "0.5.13", "bitsandbytes": "0.49.2"},
    "megatron": MEGATRON,
    "nemo": MEGATRON,
    "automodel": {**HUGGING_FACE, "nemo-automodel": "0.5.0"},
    "llm-foundry": {"torch": "2.1.0", "llm-foundry": "0.4.0", "mosaicml": "0.17.1", "flash-attn": "2.3.2"},
    "torchtitan": {**TORCH, "torchtitan": "0.2.2", "torchao": "0.18.0"},
    "fsdp_qlora": {"torch": "2.2.0", "transformers": "4.37.2", "peft": "0.8.2", "bitsandbytes": "0.43.0"},
    "torchtune": {**TORCH, "torchtune": "0.6.1"},
    "unsloth": {**HUGGING_FACE, "unsloth": "2026.10.9"},
}
"""The releases whose code is written down, where a job names no other."""


def followed(job: Job) -> Mapping[str, str]:
    """The releases this job's tape follows."""
    torch = job.torch_version
    if torch is None:
        torch = era_of(job.transformers_version).torch
    else:
        numbers(torch, "torch_version", "2.13")
    asked = {"torch": torch, "transformers": job.transformers_version, job.stack: job.stack_version}
    default = FOLLOWED[job.stack]
    return {**default, **{name: version for name, version in asked.items() if version and name in default}}


class Program(Protocol):
    REFUSES: Mapping[str, Callable[[Job], bool]]

    def model(self, machine: Machine, config: Mapping[str, Any]) -> Any: ...

    def train(self, job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None: ...

    def evaluate(self, job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
        """Of stacks that evaluate with the Trainer."""


def program_of(job: Job) -> Program:
    """Raises `Unsupported` for what the stack's program does not do, a line for each field."""
    place = STACKS.get(job.stack)
    if place is None:
        raise not_known("stack", job.stack)
    program = cast(Program, import_module(place))
    found = [not_done(job, field, refused) for field, refused in program.REFUSES.items() if refused(job)]
    if found:
        raise Unsupported("\n".join(found), field=found[0].partition(":")[0])
    return program


VALUES: Mapping[str, tuple[Any, ...]] = {
    "method": ("lora", "full", "qlora"),
    "quantization.format": (None, "nf4"),
    "attention": ("sdpa",),
    "autocast": (None,),
    "checkpoint_reentrant": (None,),
    "compile": (False,),
    "kernels": ((),),
    "loss": (None,),
    "matmul_dtype": (None,),
    "offload_activations": (False,),
    "optimizer": ("adamw_torch_fused",),
    "optimizer_in_backward": (False,),
    "recompute": (None, "all"),
    "lora.dora": (False,),
    "stack_version": (None,),
    "transformers_version": (None,),
}
"""Of a field that a stack refuses, what it may take instead."""
TRACED_FIELDS = ("compile", "loss", "matmul_dtype")
"""Fields whose values the traced engine runs where the closed form has none, on one card with transformers alone."""


def not_done(job: Job, field: str, refused: Callable[[Job], bool]) -> str:
    """One line: what was given, what the stack's program takes instead, and what else can be done."""
    name = "quantization.format" if field == "quantization" else field
    got = job.flat()[name]
    packed = field == "quantization" and job.method == "qlora"  # which is no qlora without
    values = VALUES[name][1:] if packed else VALUES[name]
    allowed = [value for value in values if value != got and not refused(_with(job, name, value))]
    told = f"{name}: got {_in_words(got)}, which the closed form does not know of {job.stack}"
    one_card = job.hardware.gpus * job.hardware.nodes == 1
    traced = job.stack == "transformers" and field in TRACED_FIELDS and one_card
    instead = (TRACED_INSTEAD if traced else TRACE_INSTEAD).removeprefix("To fix: ")
    if allowed:
        told, change = f"{told}; allowed: {', '.join(map(_in_words, allowed))}", f"{name} {_in_words(allowed[0])}"
    elif packed:
        change = "method lora"
    else:
        return f"{told}. To fix: {instead}"
    return f"{told}. To fix: {change}; or {instead}"


def _with(job: Job, name: str, value: Any) -> Job:
    section, _, leaf = name.rpartition(".")
    if section:
        return replace_unchecked(job, **{section: replace_unchecked(getattr(job, section), **{leaf: value})})
    return replace_unchecked(job, **{name: value})


def _in_words(value: Any) -> str:
    if value is None or value == ():
        return "null" if value is None else "none"
    return str(value).lower() if isinstance(value, bool) else ", ".join(value) if isinstance(value, tuple) else value


def not_known(field: str, got: Any, remedy: str = TRACE_INSTEAD) -> Unsupported:
    return Unsupported(f"{field}: got {_in_words(got)}, which the closed form does not know. {remedy}", field=field)


def no_such_model(stack: str, model_type: object) -> Unsupported:
    """Of a stack with models of its own. transformers' is named only where it is written down."""
    from tunecast.tape.build.families import FAMILIES

    told = f"model: of {stack}, {model_type!r} is not written down"
    known = isinstance(model_type, str) and model_type in FAMILIES
    instead = TRACE_INSTEAD.removeprefix("To fix: ")
    return Unsupported(f"{told}. To fix: {'stack transformers, or ' if known else ''}{instead}", field="model")
