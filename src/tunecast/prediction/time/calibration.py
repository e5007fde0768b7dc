"""What was measured on a machine of the user's, and what prices become with it.

The closed form prices a card by its data sheet and by what such cards were measured to reach. A calibration replaces
the second with this card's own figures: its best product a dtype, its copies, its host's operations, plans and starts.
Predictions stay pure: whoever asks brings the calibration along (`learn/store.py` keeps it).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tunecast import hardware
from tunecast.errors import NotResolved
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.hardware.spec import Gpu
from tunecast.prediction.price.host import Host
from tunecast.prediction.time.whole import Likely, Planning
from tunecast.records import dataclass, field, replace
from tunecast.tables import text_beside

SCHEMA = "tunecast.calibration/1"
RATES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
REFERENCE = "h200-sxm-141gb"
"""The card whose training steps the prices rest on. What `tunecast calibrate` measured on it is shipped beside the
catalogue (hardware/calibrations), so that another machine is told by how much it is faster or slower: a loop of a few
products is not a training step, and its bare figures would be taken for one. On the H200 the best of its five products
runs at 784 TFLOP/s where the best of many shapes has 794.5."""
MODULES = 0.63
"""Of what an operation of small modules takes forward and backward together, what one of transformers' takes forward
(`Host.launch_s`): two models whose steps wait for the host, timed between such loops. One launches every 44 us where
the loop takes 65, and every 33 on another host, where it takes 48; the second every 38 where the loop takes 65
(benchmarks/host_speed.py). A loop alone says little: on a third host it took 38 to 52 us within two minutes."""
COPY = 0.87
"""Of the data sheet's bandwidth, what a large copy reaches on cards that were measured: 0.85 to 0.92 on A100, H100 and
H200 (0.885 by the shipped calibration). A card whose copies reach less or more moves everything else by as much."""
FASTEST_FLOP_PER_S, FASTEST_BYTES_PER_S, LONGEST_LAUNCH_S, LONGEST_S = 1e18, 1e15, 1.0, 600.0


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
    planning: Planning | None = None
    """Of attention that plans for every length. Its kernels are there: measuring compiled those of heads 64 and 128
    wide, and the driver keeps them on disk."""
    start_s: Likely | None = None
    """Of a program of the Trainer, its end included."""


def calibration_from(found: Mapping[str, Any], measured: str) -> Calibration:
    """From what `learn/measure.py` printed, or a file holds: anything may be in it."""
    try:
        if found["schema"] != SCHEMA:
            raise ValueError(f"its schema is {found['schema']!r}, not {SCHEMA}")
        rates: dict[str, float] = {}
        for row in found.get("products", ()):
            m, n, k, seconds = (_figure(row[name]) for name in ("m", "n", "k", "seconds"))
            rate = 2 * m * n * k / seconds
            name = RATES[row["dtype"]]
            rates[name] = max(rates.get(name, 0.0), _sane(rate, FASTEST_FLOP_PER_S))
        copies = [
            _sane(2 * _figure(row["bytes"]) / _figure(row["seconds"]), FASTEST_BYTES_PER_S)
            for row in found.get("copies", ())
        ]
        forward, backward = (
            _middle([_sane(row[name], LONGEST_LAUNCH_S) for row in found.get("launches", ()) if name in row])
            for name in ("forward_s", "backward_s")
        )
        buses = [
            _sane(2 * (ranks - 1) / ranks * nbytes / seconds, FASTEST_BYTES_PER_S)
            for row in found.get("all_reduces", ())
            for ranks, nbytes, seconds in [[_figure(row[name]) for name in ("ranks", "bytes", "seconds")]]
        ]
        return Calibration(
            device=str(found["device"])[:200],
            measured=measured,
            torch=str(found.get("torch", ""))[:40],
            flop_per_s=rates,
            copy_bytes_per_s=max(copies, default=None),
            forward_launch_s=forward,
            backward_launch_s=backward,
            bus_bytes_per_s=max(buses, default=None),
            planning=_planning(found.get("plans", ())),
            start_s=_start(found.get("starts", ())),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise NotResolved(f"this is no calibration: {type(error).__name__}: {error}") from error


def _figure(value: object) -> float:
    """A list times a number is a longer list, and one times a million does not fit in memory."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{type(value).__name__}, where a number is needed")
    return float(value)


def _sane(value: float, most: float, least: float | None = None) -> float:
    """Above nothing, or `least` and more."""
    if not (value > 0 if least is None else value >= least) or value >= most:
        raise ValueError(f"{value!r} was measured")
    return float(value)


def _middle(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def _planning(rows: Sequence[Mapping[str, Any]]) -> Planning | None:
    """Of lengths whose kernel was there: what the calibration compiled is there for every later program on the machine.
    What one took that was not bounds what heads of another width may take."""

    def seconds(compiled: bool, *names: str) -> list[float]:
        return [sum(_sane(row[n], LONGEST_S, least=0.0) for n in names) for row in rows if row["compiled"] is compiled]

    planned, evaluated = seconds(False, "forward_s", "backward_s"), seconds(False, "evaluation_s")
    if not planned:
        return None
    most, evaluation_most = (
        max(each, default=0.0) for each in (seconds(True, "forward_s", "backward_s"), seconds(True, "evaluation_s"))
    )
    return Planning(_likely(planned), (0.0, 0.0, most), _likely(evaluated), (0.0, 0.0, evaluation_most))


def _likely(seconds: Sequence[float]) -> Likely:
    values = sorted(seconds)
    return values[len(values) // 2], values[0], values[-1]


def _start(rows: Sequence[Mapping[str, Any]]) -> Likely | None:
    """The mean: ten programs took 13 to 20 s on two machines, each by up to 4 s more or less than its neighbours."""
    seconds = [_sane(row["seconds"], LONGEST_S) for row in rows]
    return (sum(seconds) / len(seconds), min(seconds), max(seconds)) if seconds else None


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
    """As fast as its small operations say. How they share in a step is alike on all hosts, and stays."""
    forward, backward = calibration.forward_launch_s, calibration.backward_launch_s
    if forward is None or backward is None:
        return host
    return replace(host, launch_s=MODULES * (forward + backward))
