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
from tunecast.predict.calibration import (
    COPY,
    REFERENCE,
    SCHEMA,
    calibrated_gpu,
    calibrated_host,
    calibration_from,
    reference,
)
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
    # the reference, an H200, runs its best product at 2 * 8192 * 4096 * 4096 FLOPs in 0.35329 ms: 778.06 TFLOP/s,
    # where the best of many shapes is 794.5 (gpus.toml); 500 of such a loop are 510.6 of that kind
    assert own.achieved_flop_per_s["bf16"] == pytest.approx(500e12 * 794.5 / 778.06, rel=1e-4)
    assert own.memory_bytes_per_s == pytest.approx(4e12 / COPY)
    assert own.memory_bytes == card.memory_bytes
    host = calibrated_host(DEFAULT_HOST, calibration_from(FOUND, ""))
    # its small operations take the host 16.154 us forward and 26.185 backward; these 20 and 10
    assert host.launch_s == pytest.approx(DEFAULT_HOST.launch_s * 20 / 16.154, rel=1e-3)
    assert host.backward == pytest.approx(DEFAULT_HOST.backward * (10 / 20) / (26.185 / 16.154), rel=1e-3)


def test_the_reference_calibrated_by_itself_stays_as_the_catalogue_has_it() -> None:
    card = gpu(REFERENCE)
    own, host = calibrated_gpu(card, reference()), calibrated_host(DEFAULT_HOST, reference())
    assert own.achieved_flop_per_s["bf16"] == pytest.approx(card.achieved_flop_per_s["bf16"])
    assert own.memory_bytes_per_s == pytest.approx(card.memory_bytes_per_s, rel=0.03)
    assert (host.launch_s, host.backward) == pytest.approx((DEFAULT_HOST.launch_s, DEFAULT_HOST.backward))


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
