"""Loading a model: what from_pretrained takes of the host's memory and of the card's.

    safetensors file ─mmap─► page of the host ─(cast)─► card ─(quantise)─► card

What it does to the card is read off its tape (tape/build/loads.py). No tape holds the host's memory: that is a formula
of the tensors that are cast (`host_bytes`).
Source   transformers 5.17.0: PreTrainedModel._load_pretrained_model (modeling_utils.py),
         convert_and_load_state_dict_in_model (core_model_loading.py); bitsandbytes 0.50.2; safetensors 0.8.0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tunecast.job.job import Job
from tunecast.job.model import ModelConfig
from tunecast.prediction.memory.allocator import AllocatorSettings
from tunecast.prediction.memory.replay import replay
from tunecast.prediction.outside.checkpoint import QUANTIZED, WIDTHS, Parameter
from tunecast.prediction.outside.paper import decisive_fields, roomy_config
from tunecast.records import NamedTuple, dataclass, replace_unchecked
from tunecast.tape.build.loads import load_program
from tunecast.tape.card import Card

LOAD_THREADS = 4
"""core_model_loading.GLOBAL_WORKERS, on a machine of at least four cores."""
KERNELS_BYTES = {"nf4": 45_000_000, "nf4 twice": 75_000_000, "int8": 52_000_000}
"""Host memory of the kernels that quantising runs, which CUDA loads when they are first launched: part of the process
from then on. Measured on an H200, torch 2.11.0+cu130, a case each (benchmarks/data/outside_runs.jsonl: qlora-3b-paged;
load-3b-nf4-plain and load-3b-int8 less the import of bitsandbytes). A plain load only copies and needs none."""


@dataclass(frozen=True)
class Loading:
    host_bytes: int
    """Of the process's own memory, at most, while loading."""
    host_mapped_bytes: int
    """Pages of the checkpoint mapped into the process by the end."""
    card_allocated_bytes: int
    """torch.cuda.max_memory_allocated over from_pretrained."""
    card_reserved_bytes: int
    model_bytes: int
    """Allocated when the model is loaded."""


class Stored(NamedTuple):
    """How a model lies on disk, and is loaded from there."""

    dtype: str = "bfloat16"
    device_map: bool = True
    """Onto the card; else into host memory, and then `.to("cuda")`."""


def loading(
    job: Job, model: ModelConfig, base: Sequence[Parameter], stored: Stored, settings: AllocatorSettings
) -> Loading:
    """from_pretrained; `base` is the model as it is loaded.

    Ignored  checkpoints in .bin files, offload to disk; 3 to 5 MB of Python's objects; what the threads' heaps keep of
             casts under 32 MiB that are done (glibc: up to 64 MiB a thread; 10 and 19 MiB of the peaks measured).
    """
    config = roomy_config(job, model)
    card = _card_loading(decisive_fields(job), config, stored.device_map or _is_quantized(base), settings)
    mapped = sum(p.elements * WIDTHS[stored.dtype] for p in base)
    return Loading(host_bytes(base, job.weights_dtype, stored, job.quantization.double_quant), mapped, *card)


def host_bytes(base: Sequence[Parameter], dtype: str, stored: Stored, double_quant: bool = False) -> int:
    """Tensors are views of the mapped file, so bytes read in the dtype wanted cost no memory of the process.

    A cast is done on the host (Copy.cu converts before a host-to-card copy): of the tensors that the four threads hold
    at once, or of the whole model when it is loaded there. On-the-fly quantisation loads one by one; int8 also brings
    each weight back to the host and makes a float16 of it (Bnb8bitQuantize). The kernels themselves come on top
    (`KERNELS_BYTES`).
    """
    width, quantized = WIDTHS[dtype], _is_quantized(base)
    sizes = sorted((p.elements * width for p in base), reverse=True) if stored.dtype != dtype else []
    if not stored.device_map and not quantized:
        return sum(sizes)
    cast = sum(sizes[: 1 if quantized else LOAD_THREADS])
    if not quantized:
        return cast
    eight_bit = [p.elements for p in base if p.dtype == "int8"]
    kernels = KERNELS_BYTES["int8" if eight_bit else "nf4 twice" if double_quant else "nf4"]
    return max([cast, *((width + 2) * elements for elements in eight_bit)]) + kernels


def _is_quantized(base: Sequence[Parameter]) -> bool:
    return any(p.dtype in QUANTIZED for p in base)


@lru_cache(maxsize=32)
def _card_loading(
    decisive: tuple[tuple[str, Any], ...], config: str, device_map: bool, settings: AllocatorSettings
) -> tuple[int, int, int]:
    """Most allocated, most reserved, and what is allocated in the end."""
    job, card = (
        replace_unchecked(Job("any"), **dict(decisive), seq_len=1),
        Card(total_bytes=settings.device_total_bytes),
    )
    run = replay(load_program(job, json.loads(config), card, onto_card=device_map), settings)
    return run.load_peak_bytes, run.reserved_bytes, run.model_bytes
