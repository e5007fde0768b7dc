"""What a measured machine changes: redone by hand from a few rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunecast.cli.main import main
from tunecast.errors import NotResolved
from tunecast.hardware.catalog import gpu
from tunecast.learn.store import keep, kept, path_of
from tunecast.predict.calibration import COPY, SCHEMA, calibrated_gpu, calibrated_host, calibration_from
from tunecast.predict.host import DEFAULT_HOST

FOUND: dict[str, Any] = {
    "schema": SCHEMA, "device": "NVIDIA H200", "torch": "2.11.0", "measured": "2026-11-15",
    # 2 * 1000**3 FLOPs in 10 us and in 4 us: 200 and 500 TFLOP/s
    "products": [{"dtype": "bfloat16", "m": 1000, "n": 1000, "k": 1000, "seconds": s} for s in (1e-5, 4e-6)],
    "copies": [{"bytes": 10**9, "seconds": 5e-4}],  # read and written: 4 TB/s
    "launches": [{"forward_s": 2e-5, "backward_s": 1e-5}],
    "all_reduces": [{"ranks": 8, "bytes": 8 * 10**8, "seconds": 3.5e-3}],  # 2 * 7/8 * 0.8 GB in 3.5 ms: 400 GB/s
}  # fmt: skip


def test_the_best_of_each_kind_counts() -> None:
    calibration = calibration_from(FOUND, "2026-11-15")
    assert calibration.flop_per_s == {"bf16": pytest.approx(500e12)}
    assert calibration.copy_bytes_per_s == pytest.approx(4e12)
    assert calibration.bus_bytes_per_s == pytest.approx(400e9)


def test_a_calibrated_card_has_its_own_rates_and_the_rest_as_before() -> None:
    card = gpu("h200-sxm-141gb")
    own = calibrated_gpu(card, calibration_from(FOUND, ""))
    assert own.achieved_flop_per_s["bf16"] == pytest.approx(500e12)
    assert own.memory_bytes_per_s == pytest.approx(4e12 / COPY)
    assert own.memory_bytes == card.memory_bytes
    host = calibrated_host(DEFAULT_HOST, calibration_from(FOUND, ""))
    assert (host.launch_s, host.backward) == (2e-5, 0.5)


def test_what_is_kept_is_found_again_and_nothing_else_is_left(tmp_path: Path) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path)}
    assert kept("h200-sxm-141gb", environ) is None
    path = keep("h200-sxm-141gb", FOUND, environ)
    assert kept("h200-sxm-141gb", environ) == calibration_from(FOUND, "2026-11-15")
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "held",
    [
        "not json", "[]", "{}", json.dumps({**FOUND, "schema": "other"}),
        json.dumps({**FOUND, "copies": [{"bytes": 1, "seconds": 0}]}),
        json.dumps({**FOUND, "copies": [{"bytes": -5, "seconds": 1}]}),
        json.dumps({**FOUND, "products": [{"dtype": "bfloat16", "m": 1, "n": 1, "k": "x", "seconds": 1}]}),
        json.dumps({**FOUND, "launches": [{"forward_s": 1e9}]}),
    ],
)  # fmt: skip
def test_a_file_that_holds_anything_else_is_refused_by_name(held: str, tmp_path: Path) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path)}
    path = path_of("h200-sxm-141gb", environ)
    path.parent.mkdir(parents=True)
    path.write_text(held)
    with pytest.raises(NotResolved, match="tunecast calibrate"):
        kept("h200-sxm-141gb", environ)


def test_without_torch_the_command_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--python", "/nowhere/python"]) == 5
    assert "--python" in capsys.readouterr().err
