"""The settings claims leave open, written once, and what tunecast says of a job: each job is asked once.

    LEAN    one row of 512 tokens       the least that still trains
    USUAL   four rows of 2,048 tokens

Both with gradient checkpointing and bfloat16 weights, adapters on all linear layers, as PEFT and TRL recommend them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

from claims_rule import NotComputed

from tunecast.errors import TunecastError
from tunecast.job.job import all_knobs
from tunecast.job.mapping import job_from_dict
from tunecast.prediction.engines import predict
from tunecast.prediction.prediction import Prediction
from tunecast.prediction.values import Memory, Time

Row = dict[str, Any]
GB = 1e9
LEAN: Row = {"micro_batch": 1, "seq_len": 512}
USUAL: Row = {"micro_batch": 4, "seq_len": 2048}
ONE_ROW: Row = {"micro_batch": 1, "seq_len": 2048}
SETTINGS: Mapping[str, Row] = {"1 x 512 tokens": LEAN, "4 x 2,048 tokens": USUAL}
MODELS: Mapping[str, str] = {
    "7B": "llama-2-7b", "13B": "llama-2-13b", "34B": "codellama-34b", "70B": "llama-3.1-70b", "8B": "llama-3.1-8b",
    "1B": "llama-3.2-1b",
}  # fmt: skip
"""What stands for a size where a claim names none."""
BASE: Row = {"weights_dtype": "bfloat16", "gradient_checkpointing": True}
BF16: Row = {"method": "full", "autocast": None}
"""Weights, gradients and moments in bfloat16: 8 bytes a parameter."""
MASTER: Row = {"method": "full", "weights_dtype": "float32", "autocast": "bfloat16"}
"""Float32 weights, gradients and moments under autocast, the Trainer's way: 16 bytes a parameter."""
PRECISIONS: Mapping[str, Row] = {"bf16 throughout": BF16, "fp32 master weights": MASTER}
BIG = "h200-sxm-141gb"
"""Where memory is asked for and no card is named: the one card whose CUDA context was measured. What does not fit it is
told as of a card without limit."""


def lora(rank: int = 16, **more: Any) -> Row:
    return {"method": "lora", "lora": {"rank": rank, "dropout": 0.0, "targets": "all-linear"}, **more}


def qlora(rank: int = 16, **quantization: Any) -> Row:
    fields = {"format": "nf4", "double_quant": True, **quantization}
    return {**lora(rank), "method": "qlora", "quantization": fields}


def job(model: str, *parts: Row, gpu: str = BIG, gpus: int = 1, nodes: int = 1, link: str | None = None) -> Row:
    """A job of the base settings, with what the parts say instead."""
    hardware: Row = {"gpu": gpu}
    hardware |= {"gpus": gpus} if gpus > 1 else {}
    hardware |= {"nodes": nodes} if nodes > 1 else {}
    hardware |= {"interconnect": link} if link else {}
    made: Row = {"model": MODELS.get(model, model), **BASE}
    for part in parts:
        made |= part
    return {**made, "hardware": hardware}


def ask(asked: Row) -> Prediction:
    """What is behind a prediction of memory. Raises NotComputed with tunecast's reason where it refuses."""
    return _asked(_text(asked))


def _text(asked: Row) -> str:
    return json.dumps(asked, sort_keys=True)


@lru_cache(maxsize=4)
def _asked(text: str) -> Prediction:
    """Few are kept: each holds its tape."""
    with _told():
        return predict(job_from_dict(json.loads(text)))


@contextmanager
def _told() -> Iterator[None]:
    """A refusal is the reason why nothing is computed."""
    try:
        yield
    except TunecastError as error:
        raise NotComputed(error.message.splitlines()[0]) from None


def memory(asked: Row) -> Memory:
    """As `tunecast predict` says it."""
    return _memory(_text(asked))


@cache
def _memory(text: str) -> Memory:
    return _asked(text).memory


def device_gb(asked: Row) -> float:
    """What nvidia-smi would show, of the fullest card."""
    return memory(asked).device_bytes / GB


def model_gb(asked: Row) -> float:
    """On the card once the model is loaded, before the first step."""
    return memory(asked).model_bytes / GB


def fits(asked: Row) -> bool:
    return ask(asked).on_card.fits


def timed(asked: Row) -> Prediction:
    return _timed(_text(asked))


@cache
def _timed(text: str) -> Prediction:
    with _told():
        return predict(job_from_dict(json.loads(text)), timed=True)


def time_of(asked: Row) -> Time:
    found = timed(asked)
    if found.time is None or found.utilization is None:
        raise NotComputed(next((told for told in found.warnings if "time" in told), "no time is predicted"))
    return found.time


def step_s(asked: Row) -> float:
    """One optimizer step."""
    return time_of(asked).step_s


def tokens_per_s(asked: Row) -> float:
    return time_of(asked).tokens_per_s


def waiting(asked: Row) -> float:
    """Share of a step in which the card waits for other cards."""
    time = time_of(asked)
    return time.breakdown_s["communication"] / time.step_s


def busy(asked: Row) -> float:
    """Share of a step in which the card computes."""
    step_s(asked)
    used = timed(asked).utilization
    assert used is not None
    return used.gpu_busy_fraction


def least_count(make: Callable[[int], Row], low: int, high: int) -> int:
    """The least number of cards a job fits on, by bisection: more cards never hold more each."""
    if not fits(make(high)):
        raise NotComputed(f"not even {high} cards hold it")
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(make(middle)) else (middle + 1, high)
    return low


FLAGS: Mapping[str, str] = {
    "method": "--method", "stack": "--stack", "weights_dtype": "--weights-dtype", "autocast": "--autocast",
    "micro_batch": "--micro-batch", "seq_len": "--seq-len", "attention": "--attention", "optimizer": "--optimizer",
    "matmul_dtype": "--matmul-dtype", "hardware.gpu": "--gpu", "hardware.gpus": "--gpus", "hardware.nodes": "--nodes",
    "hardware.interconnect": "--interconnect", "lora.rank": "--rank", "lora.dropout": "--dropout",
    "lora.targets": "--targets", "quantization.format": "--quantization", "parallel.data": "--parallel-data",
    "parallel.layers": "--layers", "parallel.tensor": "--tensor", "parallel.offload": "--offload",
    "allocator": "--allocator", "kernels": "--kernels",
}  # fmt: skip
SWITCHES: Mapping[str, str] = {
    "gradient_checkpointing": "gradient-checkpointing", "compile": "compile", "quantization.double_quant":
    "double-quant", "quantization.prepare_kbit": "prepare-kbit",
}  # fmt: skip


def command(asked: Row) -> str:
    """The command that asks the same."""
    flat: Row = {}
    for name, value in asked.items():
        flat |= {f"{name}.{leaf}": v for leaf, v in value.items()} if isinstance(value, dict) else {name: value}
    words = ["tunecast", "predict", flat.pop("model")]
    for name, value in flat.items():
        if name != "hardware.gpu" and value == all_knobs()[name].default:
            continue
        if name in SWITCHES:
            words.append(f"--{'' if value else 'no-'}{SWITCHES[name]}")
            continue
        shown = "null" if value is None else ",".join(value) if isinstance(value, list) else str(value)
        words += [FLAGS[name], shown] if name in FLAGS else ["--set", f"{name}={shown}"]
    return shlex.join(words)
