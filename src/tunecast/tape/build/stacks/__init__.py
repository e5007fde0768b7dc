"""Whose program trains: the loop, the modules, the casts and the loss of each `stack`, one module each.

foundry.py       llm-foundry's training of MPT with Composer (llm-foundry 0.4, mosaicml 0.17)
fsdp_qlora.py    AnswerDotAI's fsdp_qlora on paper
trainer.py       transformers' Trainer on paper (trainer.py of 5.17.0, accelerate 1.15), the loop under TRL
transformers.py  transformers' own loop, with PEFT, bitsandbytes and Liger
trl.py           TRL's SFTTrainer on paper
unsloth.py       Unsloth's notebooks on paper, then a plain loop
automodel/       NVIDIA's NeMo Automodel on paper: its fine-tuning recipe under FSDP 2, of transformers' models and
                 three of its own
litgpt/          litgpt's fine-tuning: Fabric's precision, the loop and the loss
megatron/        Megatron Core and NeMo (which runs it): one rank's training program on paper
torchtitan/      torchtitan's pre-training loop on paper, by the month of its code
torchtune/       torchtune's single-device recipes, recipes/{full,lora}_finetune_single_device.py of 0.6.1

A stack is declared in job/stacks.py, which names its module here. The module has two functions.
`model(machine, config)` makes the module tree of a config.json (or None where the stack does not know it);
`train(job, config, lengths, machine)` is the whole program, from loading to the last step, and says `machine.end()`
there, before its variables die. What a program does not do it lists in `REFUSES`: the job's field, and when.

It may have more: `evaluate`, as `train`, where it evaluates with the Trainer; `defaults(job)`, the fields it sets where
a job does not, by dotted name; `packs(job)`, whether it keeps the samples of a packed row apart; `LAST_LAYERS`, how
many layers at the end are unlike the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.job.names import LANGUAGE
from tunecast.job.optimizers import DEFAULT_OPTIMIZER
from tunecast.job.releases import stated
from tunecast.job.stacks import DEFAULT_STACK, STACKS, stack_of
from tunecast.records import replace_unchecked
from tunecast.tape.build.eras import era_of
from tunecast.tape.build.machine import Machine, Setup

if TYPE_CHECKING:
    from tunecast.tape.build.sharding.scheme import Scheme

TRACED_INSTEAD = "To fix: --engine traced (it needs torch: pip install 'tunecast[trace]')"
TRACE_INSTEAD = "To fix: trace your own script, `tunecast trace -- train.py`"


def followed(job: Job) -> Mapping[str, str]:
    """The releases this job's tape follows."""
    stack = stack_of(job)
    asked = {"torch": era_of(job).torch, stack.package or stack.name: job.stack_version, **stated(job)}
    default = stack.follows
    return {**default, **{name: version for name, version in asked.items() if version and name in default}}


class StackProgram(Protocol):
    """A stack's module: what it trains, in code."""

    REFUSES: Refusals
    """When it does not do what a job's field asks for."""

    def model(self, machine: Machine, config: Mapping[str, Any]) -> Any: ...

    def train(self, job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None: ...

    def evaluate(self, job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
        """Of stacks that evaluate with the Trainer; others have none."""

    def setup(self, job: Job, given: Setup) -> Setup:
        """What of the machine is the stack's own; a stack that changes nothing has none."""

    def making(self, job: Job) -> Callable[[Machine, Mapping[str, Any]], Any]:
        """What makes the job's own model of a config.json, where that is not the language model; others have none."""

    def save_beside_adapters(self, model: Any) -> None:
        """What PEFT trains whole beside adapters; of tasks with a head of their own."""

    def scheme(self, job: Job, machine: Machine) -> Scheme:
        """How a rank holds the model; a stack without has each card alone, or a way of its own."""


def module_of(stack: str) -> StackProgram:
    return cast(StackProgram, import_module(f"tunecast.tape.build.stacks.{STACKS[stack].program}"))


def task_program(job: Job) -> StackProgram:
    """The program of a job's task: its stack's own, or one of tape/build/tasks."""
    if job.task in LANGUAGE or stack_of(job).runs_own_tasks:
        return module_of(job.stack)
    from tunecast.tape.build.tasks import PROGRAMS

    return cast(StackProgram, import_module(f"tunecast.tape.build.tasks.{PROGRAMS[job.task]}"))


def program_of(job: Job) -> StackProgram:
    """Raises `Unsupported` for what the stack's program does not do, a line for each field."""
    program = task_program(job)
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
    "optimizer": (DEFAULT_OPTIMIZER,),
    "optimizer_in_backward": (False,),
    "optimizer_state_dtype": (None,),
    "master_weights": (None,),
    "recompute": (None, "all"),
    "lora.dora": (False,),
    "stack_version": (None,),
    "transformers_version": (None,),
}
"""Of a field that a stack refuses, what it may take instead."""
PLAIN: Mapping[str, tuple[Any, ...]] = {**VALUES, "checkpoint_reentrant": (None, False), "loss": (None, "full")}
"""Values that ask a program for nothing."""
Refusals = Mapping[str, Callable[[Job], bool]]


def leaves_out(*fields: str) -> Refusals:
    """The refusals of a program that does not have what these fields ask for."""
    return {field: lambda job, field=field: getattr(job, field) not in PLAIN[field] for field in fields}  # type: ignore[misc]


def not_done(job: Job, field: str, refused: Callable[[Job], bool]) -> str:
    """One line: what was given, what the stack's program takes instead, and what else can be done."""
    name = "quantization.format" if field == "quantization" else field
    got = job.flat()[name]
    packed = field == "quantization" and job.method == "qlora"  # which is no qlora without
    values = VALUES[name][1:] if packed else VALUES[name]
    allowed = [value for value in values if value != got and not refused(_with(job, name, value))]
    told = f"{name}: got {_in_words(got)}, which the closed form does not know of {job.stack}"
    one_card = job.hardware.gpus * job.hardware.nodes == 1
    traced = field in stack_of(job).traced_fields and one_card
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
    return Unsupported.at(field, f"got {_in_words(got)}, which the closed form does not know. {remedy}")


def no_such_model(stack: str, model_type: object) -> Unsupported:
    """Of a stack with models of its own. transformers' is named only where it is written down."""
    from tunecast.tape.build.families import FAMILIES

    told = f"model: of {stack}, {model_type!r} is not written down"
    known = isinstance(model_type, str) and model_type in FAMILIES
    instead = TRACE_INSTEAD.removeprefix("To fix: ")
    return Unsupported(f"{told}. To fix: {f'stack {DEFAULT_STACK}, or ' if known else ''}{instead}", field="model")
