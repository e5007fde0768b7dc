"""What was measured on a machine of the user's, and what prices become with it.

The closed form prices a card by its data sheet and by what such cards were measured to reach. A calibration replaces
the second with this card's own figures: its best product a dtype, its copies, its host. Predictions stay pure: whoever
asks brings the calibration along (`learn/store.py` keeps it).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from tunecast import hardware
from tunecast.errors import NotResolved
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.hardware.spec import Gpu
from tunecast.predict.host import Host
from tunecast.records import dataclass, field, replace
from tunecast.tables import text_beside

SCHEMA = "tunecast.calibration/1"
RATES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
REFERENCE = "h200-sxm-141gb"
"""The card whose training steps the prices rest on. What `tunecast calibrate` measured on it is shipped beside the
catalogue (hardware/calibrations), so that another machine is told by how much it is faster or slower: a loop of a few
products, or of small modules, is not a training step, and its bare figures would be taken for one. On the H200 the best
of its five products runs at 778 TFLOP/s where the best of many shapes has 794.5; an operation takes the host 16 us
where the modules of transformers take 33."""
COPY = 0.87
"""Of the data sheet's bandwidth, what a large copy reaches on cards that were measured: 0.85 to 0.92 on A100, H100 and
H200 (0.885 by the shipped calibration). A card whose copies reach less or more moves everything else by as much."""
FASTEST_FLOP_PER_S, FASTEST_BYTES_PER_S, LONGEST_LAUNCH_S = 1e18, 1e15, 1.0


@dataclass(frozen=True)
class Calibration:
    device: str
    """As torch names it."""
    measured: str
    """The date."""
    torch: str = ""
    flop_per_s: Mapping[str, float] = field(default_factory=dict)
    """By bf16, fp16, fp32: the best product."""
    copy_bytes_per_s: float | None = None
    """Read and written together."""
    forward_launch_s: float | None = None
    backward_launch_s: float | None = None
    bus_bytes_per_s: float | None = None
    """Of an all-reduce over all cards of the machine: bytes x 2 (n - 1) / n over seconds."""


def calibration_from(found: Mapping[str, Any], measured: str) -> Calibration:
    """From what `learn/measure.py` printed, or a file holds: anything may be in it."""
    try:
        if found["schema"] != SCHEMA:
            raise ValueError(f"its schema is {found['schema']!r}, not {SCHEMA}")
        rates: dict[str, float] = {}
        for row in found.get("products", ()):
            rate = 2 * row["m"] * row["n"] * row["k"] / row["seconds"]
            name = RATES[row["dtype"]]
            rates[name] = max(rates.get(name, 0.0), _sane(rate, FASTEST_FLOP_PER_S))
        copies = [_sane(2 * row["bytes"] / row["seconds"], FASTEST_BYTES_PER_S) for row in found.get("copies", ())]
        launches = found.get("launches") or [{}]
        forward, backward = (launches[0].get(name) for name in ("forward_s", "backward_s"))
        buses = [
            _sane(2 * (row["ranks"] - 1) / row["ranks"] * row["bytes"] / row["seconds"], FASTEST_BYTES_PER_S)
            for row in found.get("all_reduces", ())
        ]
        return Calibration(
            device=str(found["device"])[:200],
            measured=measured,
            torch=str(found.get("torch", ""))[:40],
            flop_per_s=rates,
            copy_bytes_per_s=max(copies, default=None),
            forward_launch_s=None if forward is None else _sane(forward, LONGEST_LAUNCH_S),
            backward_launch_s=None if backward is None else _sane(backward, LONGEST_LAUNCH_S),
            bus_bytes_per_s=max(buses, default=None),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise NotResolved(
            f"this is no calibration: {type(error).__name__}: {error}. To fix: tunecast calibrate"
        ) from error


def _sane(value: float, most: float) -> float:
    if not 0 < value < most:
        raise ValueError(f"{value!r} was measured")
    return float(value)


@cache
def reference() -> Calibration:
    """As it was measured on the card the prices rest on."""
    found = json.loads(text_beside(hardware.__file__, "calibrations", f"{REFERENCE}.json"))
    return calibration_from(found, found["measured"])


def calibrated_gpu(gpu: Gpu, calibration: Calibration) -> Gpu:
    """With rates as the catalogue has them, the best of many shapes: measured ones, by as much as the reference's are
    less than its own."""
    best, known = gpu_named(REFERENCE).achieved_flop_per_s["bf16"], reference().flop_per_s["bf16"]
    achieved = {dtype: rate * best / known for dtype, rate in calibration.flop_per_s.items() if dtype != "fp32"}
    plain = {dtype: rate for dtype, rate in calibration.flop_per_s.items() if dtype == "fp32"}
    copies = calibration.copy_bytes_per_s
    bandwidth = gpu.memory_bytes_per_s if copies is None else copies / COPY
    return replace(
        gpu, achieved_flop_per_s={**gpu.achieved_flop_per_s, **achieved, **plain}, memory_bytes_per_s=bandwidth
    )


def calibrated_host(host: Host, calibration: Calibration) -> Host:
    """Faster or slower than the reference's host by as much as its small operations are."""
    forward, backward, known = calibration.forward_launch_s, calibration.backward_launch_s, reference()
    if forward is None or known.forward_launch_s is None or known.backward_launch_s is None:
        return host
    launch_s = host.launch_s * forward / known.forward_launch_s
    if backward is None:
        return replace(host, launch_s=launch_s)
    share = (backward / forward) / (known.backward_launch_s / known.forward_launch_s)
    return replace(host, launch_s=launch_s, backward=host.backward * share)
