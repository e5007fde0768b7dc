"""What stands before the script on a command line: `python`, `torchrun`, `accelerate launch`, or nothing.

A launcher starts processes; the tracer is one process that stands for any of them. So launchers are read, not run: how
many processes they would start is taken over, and what is left is the script with its arguments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from tunecast.door.accelerate import Accelerate, accelerate_from
from tunecast.errors import UsageError
from tunecast.job.knob import shown
from tunecast.records import dataclass, field, replace
from tunecast.tape.trace.launch import rank_zero
from tunecast.units import positive

UNDERSTOOD = "train.py ARGS, -m package.module ARGS, or either after python, torchrun ... or accelerate launch ..."

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_PYTHON_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_TORCHRUN_ALONE = {"standalone", "no-python", "run-path", "virtual-local-rank", "m", "module"}
_ACCELERATE_ALONE = {
    "cpu", "debug", "downcast-bf16", "dynamo-use-dynamic", "dynamo-use-fullgraph", "dynamo-use-regional-compilation",
    "enable-cpu-affinity", "m", "module", "multi-gpu", "no-python", "no-tpu-cluster", "q", "quiet", "same-network",
    "tpu", "tpu-use-cluster", "tpu-use-sudo", "use-deepspeed", "use-fsdp", "use-megatron-lm", "use-parallelism-config",
    "use-xpu",
}  # fmt: skip
"""Flags that take no value; every other one takes the next word (torch/distributed/run.py, accelerate's launch.py)."""
_OTHERS = {"deepspeed", "mpirun", "srun", "sbatch", "uv", "poetry", "bash", "sh", "env", "horovodrun", "ray"}

_SECRET = re.compile(r"(?i)--?([a-z0-9_.-]*[-_.])?(token|secret|password|((api|access|secret|private|wandb)[-_]?)key)")
"""A flag whose value is not for others: pages are sent around."""
HIDDEN = "***"


@dataclass(frozen=True)
class ScriptLaunch:
    """A script and what its launcher was told."""

    script: str
    args: tuple[str, ...] = ()
    as_module: bool = False
    python: str | None = None
    nproc_per_node: int | None = None
    nnodes: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """`train.py --epochs 3`; secrets are hidden."""
        return " ".join(filter(None, ("-m" if self.as_module else "", self.script, *without_secrets(self.args))))


def launch_from(command: Sequence[str]) -> ScriptLaunch:
    """What a command line runs. Raises `UsageError` where that cannot be told."""
    if not command:
        raise UsageError(f"there is no script to trace; allowed after --: {UNDERSTOOD}", field="script")
    first, rest = command[0], list(command[1:])
    name = os.path.basename(first)
    if _PYTHON.fullmatch(name):
        return replace(_after_python(rest), python=first)
    if name == "torchrun":
        return _after_torchrun(rest)
    if name == "accelerate":
        return _after_accelerate(rest)
    if name in _OTHERS:
        raise UsageError(f"the launcher {name} is not understood; allowed after --: {UNDERSTOOD}", field="script")
    return _script([first, *rest])


def _script(words: Sequence[str], as_module: bool = False) -> ScriptLaunch:
    if words and words[0] == "-m":
        words, as_module = words[1:], True
    if not words or words[0].startswith("-"):
        got = f"got {words[0]!r}" if words else "nothing is left"
        raise UsageError(f"{got} where the script should be; allowed after --: {UNDERSTOOD}", field="script")
    return ScriptLaunch(words[0], tuple(words[1:]), as_module)


def _after_python(words: list[str]) -> ScriptLaunch:
    while words and words[0].startswith("-") and words[0] != "-m":
        if words[0] in ("-c", "-"):
            raise UsageError(f"python {words[0]} gives no script; allowed after --: {UNDERSTOOD}", field="script")
        words = words[2 if words[0] in _PYTHON_WITH_VALUE else 1 :]
    if words[:1] == ["-m"] and len(words) > 1:
        if words[1] in ("torch.distributed.run", "torch.distributed.launch"):
            return _after_torchrun(words[2:])
        if words[1] in ("accelerate.commands.launch", "accelerate.commands.accelerate_cli"):
            return _after_accelerate(["launch", *words[2:]] if words[1].endswith("launch") else words[2:])
    return _script(words)


def _after_torchrun(words: list[str]) -> ScriptLaunch:
    options, rest = _options(words, _TORCHRUN_ALONE)
    if "no-python" in options:
        raise UsageError("torchrun --no-python runs no script that could be traced", field="script")
    launch = _script(rest, as_module="m" in options or "module" in options)
    nproc_per_node, nnodes = _processes(options.get("nproc-per-node", "1")), _nodes(options.get("nnodes", "1"))
    return replace(
        launch,
        nproc_per_node=nproc_per_node,
        nnodes=nnodes,
        environment=rank_zero(1) if nproc_per_node * nnodes == 1 else {},
    )


def _after_accelerate(words: list[str]) -> ScriptLaunch:
    if words[:1] != ["launch"]:
        raise UsageError("of accelerate's commands only `accelerate launch` runs a script", field="script")
    options, rest = _options(words[1:], _ACCELERATE_ALONE)
    launch = _script(rest, as_module="m" in options or "module" in options)
    return with_accelerate(launch, accelerate_from({key.replace("-", "_"): value for key, value in options.items()}))


def with_accelerate(launch: ScriptLaunch, told: Accelerate) -> ScriptLaunch:
    return replace(
        launch,
        nproc_per_node=told.nproc_per_node,
        nnodes=told.nnodes,
        environment={**launch.environment, **told.environment},
    )


def _options(words: list[str], alone: set[str]) -> tuple[dict[str, str], list[str]]:
    """A launcher's own options, spelled with dashes, up to the first word that is none."""
    options: dict[str, str] = {}
    while words and words[0].startswith("-"):
        name, equals, value = words[0].lstrip("-").replace("_", "-").partition("=")
        value = words[0].partition("=")[2] if equals else value
        words = words[1:]
        if not equals and name not in alone:
            if not words:
                raise UsageError(f"the launcher's --{name} has no value", field="script")
            value, words = words[0], words[1:]
        options[name] = value
        if name in ("m", "module") and not equals:
            break  # the next word is the module
    return options, words


def _processes(text: str) -> int:
    if (number := positive(text)) is not None:
        return number
    raise UsageError(
        f"the launcher's --nproc-per-node is {shown(text)}, and there is no GPU here to count. "
        "To fix: tunecast trace --nproc-per-node N",
        field="--nproc-per-node",
    )


def _nodes(text: str) -> int:
    """`4`, or `1:4` of an elastic run, which is taken at its largest."""
    most = text.rpartition(":")[2]
    if (number := positive(most)) is not None:
        return number
    raise UsageError(f"the launcher's --nnodes is {shown(text)}; allowed: a whole number, or MIN:MAX", field="--nnodes")


def without_secrets(words: Sequence[str]) -> list[str]:
    """`--hf-token ***` and `--hf-token=***`."""
    kept: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        if kept and _SECRET.fullmatch(kept[-1]) and not word.startswith("-"):
            kept.append(HIDDEN)
        elif equals and value and _SECRET.fullmatch(flag):
            kept.append(f"{flag}={HIDDEN}")
        else:
            kept.append(word)
    return kept
