"""`tunecast calibrate`: measure this machine's GPU, so that predictions for it use its own figures."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tunecast.cli.arguments import Parser
from tunecast.errors import NotResolved, TunecastError, printable
from tunecast.hardware.catalog import gpu as gpu_named
from tunecast.learn.calibrate import measure_card
from tunecast.learn.store import keep
from tunecast.prediction.time.calibration import Calibration, calibration_from
from tunecast.units import GB, TERA

USAGE = "tunecast calibrate [options]"
DESCRIPTION = """\
Measures this machine's GPU in under two minutes: matrix products by dtype, copies, attention, an all-reduce if there
are several cards, and the host time to launch an operation, to plan attention for a new length and to start a Trainer
program. The result is kept in your data folder, and predictions for this kind of card on this machine use it from then
on, except with --no-calibration (predict, plan, fit, compare)."""
EPILOG = """\
examples:
  tunecast calibrate                                        with the active environment's torch
  tunecast calibrate --python ~/train/.venv/bin/python      with another environment's
  tunecast calibrate --json > h100.json                     print it, keep nothing
"""


def parser() -> Parser:
    made = Parser("calibrate", USAGE, DESCRIPTION, EPILOG)
    made.add_argument(
        "--python", metavar="PATH", help="Python with your torch (default: tunecast's, or the active environment's)"
    )
    made.add_argument(
        "--seconds",
        metavar="N",
        type=float,
        default=100.0,
        help="stop measuring after this many seconds (default: 100)",
    )
    made.add_argument(
        "--gpu", metavar="NAME", help="name of the card in `tunecast gpus`, if torch's name for it is unknown"
    )
    made.add_argument("--json", action="store_true", help="print what was measured instead of keeping it")
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    found = measure_card(arguments.python, arguments.seconds)
    if arguments.json:
        print(json.dumps(found))
        return 0
    calibration = calibration_from(found, found["measured"])
    name = catalogue_name(arguments.gpu or calibration.device)
    path = keep(name, found)
    print(summary(name, calibration))
    print(f"kept in {printable(str(path))}")
    return 0


def catalogue_name(device: str) -> str:
    try:
        return gpu_named(device).name
    except TunecastError as error:
        given = f"torch calls this card {device!r}, which is no card tunecast knows"
        raise NotResolved(f"{given}. To fix: --gpu NAME, with a name of `tunecast gpus`", field="--gpu") from error


def summary(name: str, calibration: Calibration) -> str:
    planning, start_s = calibration.planning, calibration.start_s
    rows = [
        *((f"{dtype:<5} products", rate / TERA, "8.1f", "TFLOP/s") for dtype, rate in calibration.flop_per_s.items()),
        ("copies", _in(calibration.copy_bytes_per_s, GB), "8.0f", "GB/s read and written"),
        ("an operation", _in(calibration.forward_launch_s, 1e-6), "8.1f", "us of the host, forward"),
        ("", _in(calibration.backward_launch_s, 1e-6), "8.1f", "us, backward"),
        ("a new length", planning and planning.length_s[0] * 1e3, "8.0f", "ms of the host, trained on"),
        ("", planning and planning.evaluation_length_s[0] * 1e3, "8.0f", "ms, evaluated"),
        ("starting", start_s and start_s[0], "8.1f", "s, until the Trainer is there"),
        ("all-reduce", _in(calibration.bus_bytes_per_s, GB), "8.0f", "GB/s bus bandwidth"),
    ]
    lines = [f"  {what:<16} {value:{digits}} {unit}" for what, value, digits, unit in rows if value is not None]
    return "\n".join([f"{name}, measured {calibration.measured} with torch {calibration.torch}", *lines])


def _in(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit
