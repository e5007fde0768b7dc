"""What a prediction assumes of a machine, as preflight.json says it, and the smallest change where it does not hold."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from tunecast.advise.changes import least_capacity, with_fields
from tunecast.errors import TunecastError
from tunecast.hardware.catalog import gpu
from tunecast.hardware.cluster import cluster_of
from tunecast.hardware.spec import card_name
from tunecast.job.job import Job
from tunecast.job.knob import shown
from tunecast.job.model import resolve_model
from tunecast.launching.preflight.machine import LINKS_S
from tunecast.launching.programs.settings import hub_id
from tunecast.launching.rendering import (
    FIRST_STEPS,
    PREFLIGHT,
    PREFLIGHT_DATA,
    PREFLIGHT_EXPECTED,
    PREFLIGHT_LINKS,
    TrainingProgram,
)
from tunecast.planning.fit.fit import harmless_rungs
from tunecast.prediction import engines
from tunecast.prediction.prediction import Prediction
from tunecast.prediction.price.collectives import collective_seconds
from tunecast.records import replace
from tunecast.tape.op import Op
from tunecast.units import GB, MB, MIB

SHAPE = (
    *("model_type", "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "vocab_size", "num_experts", "num_local_experts", "tie_word_embeddings"),
)
"""Keys of config.json that memory and time follow."""
FORM = ("sxm", "pcie", "nvl", "gb", "laptop", "max", "q")
"""Words of a card's name that nvidia-smi may not print."""
MESSAGE_BYTES = 256 * MIB
"""Of the all-reduce: from 128 MiB on the prediction of it holds best (prediction/price/collectives.py)."""
BEGIN = ("download", "start", "load", "preparation", "first_step")
LEAST_LIMIT_S, TIMES = 900.0, 5.0
"""Of the first steps: nothing that is slow is stopped, only what hangs."""
OTHER_CHECKS_S = 60.0
"""Packages, data, model, cards and driver: seconds, of which importing torch takes most."""
LEAST_SAVING = 0.01


def with_preflight(
    program: TrainingProgram, job: Job, found: Prediction, ram_bytes: int | None, *, cpu: bool
) -> TrainingProgram:
    """The training with the two files that check its machine first."""
    values = expected_of(program, job, found, ram_bytes, cpu=cpu)
    text = json.dumps(values, indent=1, sort_keys=True) + "\n"
    return replace(program, files={**program.files, **scripts(), PREFLIGHT_EXPECTED: text})


def scripts() -> dict[str, str]:
    """The same for every job."""
    sources = {PREFLIGHT: "machine.py", PREFLIGHT_DATA: "data.py", PREFLIGHT_LINKS: "links.py"}
    return {name: (files(__package__) / source).read_text(encoding="utf-8") for name, source in sources.items()}


def expected_of(
    program: TrainingProgram, job: Job, found: Prediction, ram_bytes: int | None, *, cpu: bool
) -> dict[str, Any]:
    low, high = found.memory.range_bytes.device
    return {
        "schema": "tunecast.preflight/1",
        "cpu": cpu,
        "command": list(program.command),
        "folder": program.folder,
        "packages": dict(sorted(program.releases.items())),
        "data": data_of(program, job),
        "model": {"name": there(program, job.model) or hub_id(job.model), "shape": shape_of(job)},
        "disk": disk_of(job, found),
        "ram_bytes": ram_bytes,
        "cards": cards_of(job),
        "memory": {
            "device_bytes": found.memory.device_bytes,
            "range_bytes": [low, high],
            "remedy": memory_remedy(job, found),
        },
        "links": links_of(job),
        "first_steps": first_steps_of(program, found),
    }


def there(program: TrainingProgram, path: str) -> str | None:
    """Where the machine has what is a path here; None: it is none."""
    if not os.path.exists(path):
        return None
    whole = os.path.abspath(path)
    return next((place for place, here in program.carried.items() if here == whole), whole)


def data_of(program: TrainingProgram, job: Job) -> dict[str, Any] | None:
    path = job.data.path
    if path is None:
        return {"path": program.placeholders[0].text, "columns": []} if program.placeholders else None
    return {"path": there(program, path) or path, "columns": [list(names) for names in program.columns]}


def shape_of(job: Job) -> dict[str, Any]:
    raw = resolve_model(job.model).raw
    raw = {**raw, **(raw.get("text_config") or {})}
    return {name: raw[name] for name in SHAPE if raw.get(name) is not None}


def disk_of(job: Job, found: Prediction) -> dict[str, Any]:
    outside, files_ = found.outside, found.files
    saved = None if outside is None else outside.disk.peak_bytes
    return {
        "saved_bytes": saved,
        "download_bytes": None if files_ is None else files_.downloaded_bytes,
        "remedy": "" if saved is None else disk_remedy(job, saved),
    }


def disk_remedy(job: Job, saved: int) -> str:
    """The mildest setting of the Trainer's that keeps less."""
    for overrides in ({"run.save_total_limit": 1}, {"run.save_only_model": True}):
        try:
            outside = engines.predict(with_fields(job, overrides), timed=False).outside
        except TunecastError:
            continue
        kept = None if outside is None else outside.disk.peak_bytes
        if kept is not None and kept < saved:
            return f"{flags(overrides)} needs {size_text(saved - kept)} less; or more disk"
    return "more disk"


def memory_remedy(job: Job, found: Prediction) -> str:
    """The first rung of the ladder that `tunecast fit` climbs which takes less."""
    need = least_capacity(found)
    for rung in harmless_rungs():
        overrides = rung.mildest(job)
        if overrides is None:
            continue
        try:
            less = need - least_capacity(engines.predict(with_fields(job, overrides), timed=False))
        except TunecastError:
            continue
        if less > LEAST_SAVING * need:
            return f"{flags(overrides)} needs {size_text(less)} less"
    return "a larger card (tunecast plan)"


def flags(overrides: Mapping[str, object]) -> str:
    """As they can be typed: `--set kernels=liger`."""
    return " ".join(f"--set {shlex.quote(f'{name}={_typed(value)}')}" for name, value in overrides.items())


def _typed(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return value if isinstance(value, str) else shown(value)


def size_text(nbytes: float) -> str:
    """Never 0.0 GB."""
    return f"{nbytes / GB:.1f} GB" if nbytes >= 0.05 * GB else f"{nbytes / MB:.1f} MB"


def cards_of(job: Job) -> dict[str, Any]:
    name = job.hardware.gpu or ""
    words = [word for word in name.split("-") if not word.rstrip("0123456789").endswith(FORM) and not is_size(word)]
    return {"count": job.hardware.gpus, "name": card_name(name), "words": words}


def is_size(word: str) -> bool:
    return word.endswith("gb") and word[:-2].isdecimal()


def links_of(job: Job) -> dict[str, Any] | None:
    """The bus bandwidth of a large all-reduce over all cards, as the prediction prices it."""
    hardware = job.hardware
    if hardware.cards == 1:
        return None
    cluster = cluster_of(job, gpu(hardware.gpu or ""))
    seconds = collective_seconds(Op("all_reduce", read_bytes=MESSAGE_BYTES, written_bytes=MESSAGE_BYTES), cluster)
    between = cluster.nodes > 1
    return {
        "gpus": hardware.gpus,
        "nodes": hardware.nodes,
        "message_bytes": MESSAGE_BYTES,
        "bus_bytes_per_s": round(2 * (hardware.cards - 1) / hardware.cards * MESSAGE_BYTES / seconds),
        "name": cluster.between.name if between else cluster.inside.name,
        "field": "hardware.inter_node_gbps" if between else "hardware.interconnect",
    }


def first_steps_of(program: TrainingProgram, found: Prediction) -> dict[str, Any] | None:
    if not program.first_steps:
        return None
    limit_s = max(LEAST_LIMIT_S, TIMES * first_steps_s(found))
    return {"words": list(program.first_steps), "output": FIRST_STEPS, "limit_s": round(limit_s)}


def first_steps_s(found: Prediction) -> float:
    """Until the end of the second step."""
    spans = {} if found.time is None or found.time.phases_s is None else found.time.phases_s
    step_s = 0.0 if found.time is None or found.time.step_s is None else found.time.step_s
    return sum(spans.get(name, 0.0) for name in BEGIN) + 2 * step_s


def preflight_s(job: Job, found: Prediction) -> float:
    """What it adds to a time limit at most, where nothing hangs."""
    return OTHER_CHECKS_S + TIMES * first_steps_s(found) + (LINKS_S if job.hardware.cards > 1 else 0.0)
