"""A measured run, `tunecast.run/1`: what a training took, on which hardware and software, and what was predicted.

Written by whatever measured it, and read back from a store, a file or another person's data set: `run_from` is the one
way in, and nothing that passed it holds a path, a text of the training data, or the name of a machine or a user. What
is kept of a job and a model is in `recordable.py`; what `tunecast runs publish` leaves out besides, in `publishing.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from tunecast.errors import UsageError
from tunecast.job.knob import Problem, raise_if_any, shown
from tunecast.job.readers.bounds import check_shape
from tunecast.learn.checks import (
    MOST_BYTES,
    PRODUCT,
    SENTENCE,
    WORD,
    checked_field,
    choice,
    list_of,
    mapping_of,
    moment,
    number,
    part,
    read,
    text,
    whole_number,
)
from tunecast.learn.checks import unknown_keys as _unknown_keys
from tunecast.learn.recordable import job_from_record, shape_from
from tunecast.records import dataclass
from tunecast.result import Result

SCHEMA = "tunecast.run/1"
SOURCES = ("callback", "loop", "watch", "launch", "shipped")
STATES = ("running", "done", "failed", "oom", "killed", "stopped")
PHASES = (
    *("start", "load", "compile", "data", "first_step", "training", "forward", "backward", "optimizer", "generate"),
    *("score", "evaluation", "save", "end", "other"),
)
"""What a run's memory and time are told by; a phase of any other name is dropped, as whoever trains may name it."""
SOFTWARE = (
    *("python", "torch", "cuda", "rocm", "nccl", "cudnn", "triton", "transformers", "peft", "trl", "accelerate"),
    *("bitsandbytes", "liger_kernel", "unsloth", "unsloth_zoo", "deepspeed", "axolotl", "llamafactory", "torchtune"),
    *("torchtitan", "torchao", "flash_attn", "xformers", "vllm", "datasets", "tokenizers", "safetensors", "lightning"),
    *("litgpt", "megatron_core", "transformer_engine", "nemo", "nemo_automodel", "llm_foundry", "composer", "swift"),
    *("sentence_transformers", "cut_cross_entropy", "flash_linear_attention", "causal_conv1d", "mamba_ssm", "numpy"),
    *("pytorch_lightning", "optimum", "kernels", "apex", "galore_torch", "torchvision"),
)
"""Packages whose release is recorded: published ones, so that no private package is named."""
MOST_LOSSES = 200
MOST_VALUES = 20_000
"""Of one record: a job of every field has 150, its lists at most 2,000 each."""
MOST_RECORD_BYTES = 1 << 18
"""As a line of JSON; a run with all its lists takes some 40 kB."""

_HOST = re.compile(r"[0-9a-f]{12}")
_ID = re.compile(r"[0-9a-f]{32}")
_CARD = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
SIZE, SECONDS = whole_number(MOST_BYTES), number()
RELEASE = text(WORD, "a release such as 2.13.0+cu130")


@dataclass(frozen=True)
class MeasuredHardware(Result):
    """What it ran on. `gpus` are those of one node."""

    gpu: str | None = checked_field(text(_CARD, "a name of `tunecast gpus`"))
    device: str | None = checked_field(text(PRODUCT, "the card's name, up to 100 plain characters"))
    gpus: int | None = checked_field(whole_number(1024))
    nodes: int | None = checked_field(whole_number(100_000))
    memory_bytes: int | None = checked_field(SIZE)
    driver: str | None = checked_field(text(WORD, "a release such as 580.95.05"))
    cpu: str | None = checked_field(text(PRODUCT, "the processor's name, up to 100 plain characters"))
    cpu_cores: int | None = checked_field(whole_number(100_000))
    ram_bytes: int | None = checked_field(SIZE)
    host: str | None = checked_field(text(_HOST, "12 hex digits"))
    """A keyed hash, by which runs of one machine are known to be of one; its key never leaves the machine."""


@dataclass(frozen=True)
class MeasuredMemory(Result):
    """Of the fullest card. `fragmentation_bytes`: reserved less allocated, where reserved was at its peak."""

    allocated_bytes: int | None = checked_field(SIZE)
    reserved_bytes: int | None = checked_field(SIZE)
    device_bytes: int | None = checked_field(SIZE)
    fragmentation_bytes: int | None = checked_field(SIZE)
    retries: int | None = checked_field(whole_number(10**9))
    capacity_bytes: int | None = checked_field(SIZE)
    by_phase_bytes: Mapping[str, int] | None = checked_field(mapping_of(SIZE, PHASES))


@dataclass(frozen=True)
class MeasuredTime(Result):
    """`step_s`: the median of the optimizer steps after the first two."""

    steps: int | None = checked_field(whole_number(10**12))
    step_s: float | None = checked_field(SECONDS)
    step_quantiles_s: tuple[float, ...] | None = checked_field(list_of(SECONDS, 3, 3))
    """p10, p50 and p90."""
    first_step_s: float | None = checked_field(SECONDS)
    total_s: float | None = checked_field(SECONDS)
    phases_s: Mapping[str, float] | None = checked_field(mapping_of(SECONDS, PHASES))


@dataclass(frozen=True)
class MeasuredTokens(Result):
    trained: int | None = checked_field(whole_number())
    padding: int | None = checked_field(whole_number())


@dataclass(frozen=True)
class MeasuredUse(Result):
    """How busy the card was, and what kept it from being busier."""

    gpu_busy_fraction: float | None = checked_field(number(1.0))
    bound_by: str | None = checked_field(choice("card", "host", "data", "link"))
    throttled_fraction: float | None = checked_field(number(1.0))
    power_w: float | None = checked_field(number(1e6))


@dataclass(frozen=True)
class PredictedRun(Result):
    """What was predicted before it ran, named as a prediction names it."""

    allocated_bytes: int | None = checked_field(SIZE)
    reserved_bytes: int | None = checked_field(SIZE)
    device_bytes: int | None = checked_field(SIZE)
    device_range_bytes: tuple[int, ...] | None = checked_field(list_of(SIZE, 2, 2))
    step_s: float | None = checked_field(SECONDS)
    low_s: float | None = checked_field(SECONDS)
    high_s: float | None = checked_field(SECONDS)
    total_s: float | None = checked_field(SECONDS)
    total_range_s: tuple[float, ...] | None = checked_field(list_of(SECONDS, 2, 2))
    exactness: str | None = checked_field(choice("exact", "estimate"))
    learned: float | None = checked_field(number(100.0))
    """By how much earlier runs had made `step_s` longer: what is learned from this one is learned of the rest."""


def _point(given: Any) -> tuple[int, float]:
    step, loss = list_of(number(1e12, -1e12), 2, 2)(given)
    return whole_number(10**12)(step), loss


@dataclass(frozen=True)
class MeasuredRun(Result):
    """One run. What was not measured is None."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("schema", "id", "source", "state", "began", "ended", "job", "model_shape", "hardware", "software", "memory"),
        *("time", "tokens", "utilization", "energy_j", "loss", "predicted", "note", "tunecast"),
    )
    schema: ClassVar[str] = SCHEMA

    id: str = checked_field(text(_ID, "32 hex digits"), required=True)
    source: str = checked_field(choice(*SOURCES), required=True)
    """How it was measured."""
    state: str = checked_field(choice(*STATES), required=True)
    """`stopped`: by a budget or a deadline, after a checkpoint."""
    began: str = checked_field(moment, required=True)
    ended: str | None = checked_field(moment)
    job: Mapping[str, Any] | None = checked_field(job_from_record)
    """A job's fields without its id, paths and data; `model` is None where it was a folder."""
    model_shape: Mapping[str, Any] | None = checked_field(shape_from)
    """What of a config.json decides sizes, of a model that does not come with the package."""
    hardware: MeasuredHardware | None = checked_field(part(MeasuredHardware))
    software: Mapping[str, str] | None = checked_field(mapping_of(RELEASE, SOFTWARE))
    memory: MeasuredMemory | None = checked_field(part(MeasuredMemory))
    time: MeasuredTime | None = checked_field(part(MeasuredTime))
    tokens: MeasuredTokens | None = checked_field(part(MeasuredTokens))
    utilization: MeasuredUse | None = checked_field(part(MeasuredUse))
    energy_j: float | None = checked_field(number(1e15))
    loss: tuple[tuple[int, float], ...] | None = checked_field(list_of(_point, 0, MOST_LOSSES))
    """(step, loss), thinned to some."""
    predicted: PredictedRun | None = checked_field(part(PredictedRun))
    note: str | None = checked_field(text(SENTENCE, "up to 400 plain characters without a path"))
    """Of the tool's own words: what would have made a run fit that ran out of memory."""
    tunecast: str | None = checked_field(RELEASE)


def run_from(given: object) -> MeasuredRun:
    """A run from a mapping that anybody may have written. Raises `UsageError` that names every field that is wrong;
    keys that are not known are dropped (`unknown_keys` names them)."""
    mapping = _mapping(given)
    schema = mapping.get("schema")
    if schema != SCHEMA:
        newer = isinstance(schema, str) and re.fullmatch(r"tunecast\.run/[0-9]{1,4}", schema)
        fix = ". To fix: a newer tunecast" if newer else ""
        raise UsageError(f"schema: got {shown(schema)}; allowed: {SCHEMA}{fix}", field="schema")
    made, problems = read(MeasuredRun, mapping)
    if made is not None and made.ended is not None and made.ended < made.began:
        problems = [Problem("ended", f"got {made.ended}, before it began; allowed: {made.began} or later")]
    raise_if_any(problems)
    assert made is not None
    return made


def salvaged(record: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Without what no record takes, which is named: of a run that was measured here, the rest is not lost with it."""
    found, left_out = dict(record), list[str]()
    for field in read(MeasuredRun, found)[1]:
        name, _, inner = field.field.partition(".")
        part = found.get(name)
        if inner in (inside := dict(part) if isinstance(part, Mapping) else {}):
            found[name] = {**inside, inner: None}
        elif name in found:
            found[name] = None
        left_out.append(field.field)
    began, ended = found.get("began"), found.get("ended")
    if isinstance(began, str) and isinstance(ended, str) and ended < began:  # the clock was set back
        found["ended"] = None
        left_out.append("ended")
    return found, tuple(left_out)


def unknown_keys(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys of a record, and of its parts, that `run_from` dropped: `hardware.rack`."""
    parts: Mapping[str, type] = {
        "hardware": MeasuredHardware, "memory": MeasuredMemory, "time": MeasuredTime, "tokens": MeasuredTokens,
        "utilization": MeasuredUse, "predicted": PredictedRun,
    }  # fmt: skip
    found = [str(key) for key in _unknown_keys(MeasuredRun, given) if key != "schema"]
    for name, kind in parts.items():
        inner = given.get(name)
        if isinstance(inner, Mapping):
            found += [f"{name}.{key}" for key in _unknown_keys(kind, inner)]
    return tuple(found)


def _mapping(given: object) -> Mapping[Any, Any]:
    if not isinstance(given, Mapping):
        raise UsageError(f"run: got {shown(given)}; allowed: a mapping, as {SCHEMA} has it", field="run")
    check_shape(given, "run", MOST_VALUES)
    return given
