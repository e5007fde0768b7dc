"""What follows from how many cards there are: the launcher may say it, or the user, long after the file was read."""

from __future__ import annotations

from collections.abc import Container, Mapping
from math import prod
from typing import Any, TypeGuard

from tunecast.job.recipes.recipe import Assumed
from tunecast.job.shardings import REPLICATED, SHARDINGS

SPLITS = ("tensor", "pipeline", "context", "expert", "layers")
OF_FSDP = (
    *("fsdp_version", "reduce_dtype", "reshard_after_forward", "sync_each_batch", "cpu_ram_efficient_loading"),
    *("load_on_rank_0", "state_dict_type", "shard_ends"),
)
"""Fields of `parallel` that say how FSDP works."""
CARD_FLAGS = {"hardware.gpu": "--gpu NAME", "hardware.gpus": "--gpus N"}
"""With which flags the user says them."""
MOST_ROWS = 10**9
USUAL_CARDS = 8
"""Of a machine."""
SINCE_AMPERE = "on a card since Ampere"
"""How `Assumed.whose` ends where a trainer asks its card whether it computes in bfloat16."""
WITHOUT_BFLOAT16 = ("t4", "v100", "p100", "titan", "quadro-rtx", "rtx-206", "rtx-207", "rtx-208")
"""How names of cards before Ampere begin: those for which hardware/gpus.toml has no rate of bf16."""
DTYPES = ("autocast", "weights_dtype")


def is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_ROWS


def unsaid(job: Mapping[str, Any], global_batch: int | None = None) -> tuple[str, ...]:
    """Fields about cards that nobody said; how many there are matters where it is spread over them, or where they
    share a batch."""
    hardware, parallel = section(job, "hardware"), section(job, "parallel")
    spread = parallel.get("data") not in (None, "none", REPLICATED) or split_of(parallel, SPLITS) > 1
    asked = {"hardware.gpu": True, "hardware.gpus": spread or global_batch is not None}
    return tuple(field for field, needed in asked.items() if needed and not hardware.get(field.partition(".")[2]))


def on_its_cards(
    job: Mapping[str, Any], global_batch: int | None, accumulation_is_said: bool = False
) -> dict[str, Any]:
    """As it runs on the cards that are said by now. Where none are, as on the fewest that it is split over, so that a
    plan can take it; `unsaid` names them."""
    found = _with_fewest_cards(job) if "hardware.gpus" in unsaid(job) else _unless_alone(job)
    if accumulation_is_said or global_batch is None:
        return found
    return with_accumulation({name: value for name, value in found.items() if name != "grad_accum"}, global_batch)


def in_its_dtype(job: Mapping[str, Any], assumed: Mapping[str, Assumed], given: Container[str]) -> dict[str, Any]:
    """With float16 in the place of bfloat16 where a trainer takes what its card computes in. `given`: what the user
    overrides."""
    card = section(job, "hardware").get("gpu")
    if not isinstance(card, str) or not card.lower().startswith(WITHOUT_BFLOAT16):
        return dict(job)
    follow = [name for name in DTYPES if name in assumed and assumed[name].whose.endswith(SINCE_AMPERE)]
    return {**job, **{name: "float16" for name in follow if name not in given and job.get(name) == "bfloat16"}}


def with_accumulation(job: Mapping[str, Any], global_batch: int | None) -> dict[str, Any]:
    """With the micro-batches that make the global batch on the job's cards, unless it says how many itself. Of cards
    that are not said one is taken, so that the product is right."""
    if global_batch is None or "grad_accum" in job:
        return dict(job)
    hardware, parallel = section(job, "hardware"), section(job, "parallel")
    cards = count(hardware.get("gpus")) * count(hardware.get("nodes"))
    rows = count(job.get("micro_batch")) * max(1, cards // split_of(parallel, ("tensor", "pipeline", "context")))
    return {**job, "grad_accum": max(1, global_batch // rows)}


def _with_fewest_cards(job: Mapping[str, Any]) -> dict[str, Any]:
    hardware, parallel = section(job, "hardware"), section(job, "parallel")
    fewest = max(split_of(parallel, SPLITS), 1 if parallel.get("data") in (None, REPLICATED) else 2)
    nodes = count(hardware.get("nodes")) if "nodes" in hardware else max(1, fewest // USUAL_CARDS)
    return {**job, "hardware": {**hardware, "nodes": nodes, "gpus": -(-fewest // nodes)}}


def _unless_alone(job: Mapping[str, Any]) -> dict[str, Any]:
    """Alone on a card FSDP has nothing to share, and trainers go without."""
    hardware, parallel = section(job, "hardware"), section(job, "parallel")
    alone = count(hardware.get("gpus")) * count(hardware.get("nodes")) == 1
    data = parallel.get("data")
    if not alone or not isinstance(data, str) or data not in SHARDINGS or not SHARDINGS[data].is_fsdp:
        return dict(job)
    if parallel.get("offload", "none") != "none":
        return dict(job)
    left = {name: value for name, value in parallel.items() if name not in OF_FSDP}
    return {**job, "parallel": {**left, "data": REPLICATED}}


def section(job: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = job.get(name)
    return found if isinstance(found, Mapping) else {}


def split_of(parallel: Mapping[str, Any], names: tuple[str, ...]) -> int:
    return prod(count(parallel.get(name)) for name in names)


def count(value: object) -> int:
    """What is no number is refused where the field is read."""
    if is_count(value):
        return value
    return max(1, int(value)) if isinstance(value, str) and len(value) < 10 and value.isdecimal() else 1
