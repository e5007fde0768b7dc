"""What a measured machine changes: redone by hand from a few rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunecast.cli.main import main
from tunecast.errors import NotResolved
from tunecast.hardware.catalog import gpu
from tunecast.job import job_from_dict
from tunecast.learn import measure
from tunecast.learn.store import keep, own_calibration, path_of
from tunecast.prediction.engines import predict
from tunecast.prediction.price.host import DEFAULT_HOST
from tunecast.prediction.time.calibration import (
    COPY,
    MODULES,
    REFERENCE,
    SCHEMA,
    calibrated_gpu,
    calibrated_host,
    calibration_from,
    reference,
)
from tunecast.prediction.time.whole import START_S

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
    # the reference, an H200, runs its best product at 784.44 TFLOP/s, where the best of many shapes is 794.5
    # (gpus.toml); 500 of such a loop are 506.4 of that kind
    assert own.achieved_flop_per_s["bf16"] == pytest.approx(500e12 * 794.5 / 784.44, rel=1e-4)
    assert own.memory_bytes_per_s == pytest.approx(4e12 / COPY)
    assert own.memory_bytes == card.memory_bytes
    host = calibrated_host(DEFAULT_HOST, calibration_from(FOUND, ""))
    # its small operations take the host 20 us forward and 10 backward
    assert host.launch_s == pytest.approx(MODULES * 30e-6)
    assert host.more_kernels_s == DEFAULT_HOST.more_kernels_s


def test_a_hosts_speed_is_the_middle_of_several_loops() -> None:
    rows = [{"forward_s": s * 1e-6, "backward_s": 1e-5} for s in (90, 20, 30)]
    assert calibration_from({**FOUND, "launches": rows}, "").forward_launch_s == pytest.approx(30e-6)
    without = calibration_from({**FOUND, "launches": []}, "")
    assert calibrated_host(DEFAULT_HOST, without) == DEFAULT_HOST


def test_a_trainer_that_loads_too_slowly_costs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "START", "import time; time.sleep(60) # %r")
    monkeypatch.setattr(measure, "LONGEST_START_S", 0.2)
    assert list(measure.starts("cpu")) == []


PLANS = [
    {"compiled": True, "forward_s": 1.0, "backward_s": 2.0, "evaluation_s": 0.5},
    {"compiled": False, "forward_s": 0.1, "backward_s": 0.2, "evaluation_s": 0.1},
    {"compiled": False, "forward_s": 0.2, "backward_s": 0.2, "evaluation_s": 0.0},
    {"compiled": False, "forward_s": 0.2, "backward_s": 0.3, "evaluation_s": 0.2},
]


def test_what_new_lengths_and_starts_take() -> None:
    own = calibration_from({**FOUND, "plans": PLANS, "starts": [{"seconds": 18.0}, {"seconds": 14.0}]}, "")
    assert own.planning is not None
    assert own.planning.length_s == pytest.approx((0.4, 0.3, 0.5))
    assert own.planning.evaluation_length_s == (0.1, 0.0, 0.2)
    # compiled here, so there for every later program; at most what it took
    assert (own.planning.kernel_s, own.planning.evaluation_kernel_s) == ((0.0, 0.0, 3.0), (0.0, 0.0, 0.5))
    assert own.start_s == (16.0, 14.0, 18.0)
    before = calibration_from(FOUND, "")  # a file from before they were measured
    assert (before.planning, before.start_s) == (None, None)


def test_a_calibrated_machines_whole_job() -> None:
    """A hundred lengths, each once: the calibration's plans and start, and nothing to compile."""
    data = {"lengths": list(range(101, 201)), "prepared": True}
    made = job_from_dict({"model": "llama-3.2-1b", "seq_len": 1024, "micro_batch": 1, "hardware": {"gpu": REFERENCE},
                          "autocast": "bfloat16", "data": data})  # fmt: skip
    own = calibration_from({**FOUND, "plans": PLANS, "starts": [{"seconds": 14.0}]}, "")
    told, without = (predict(made, timed=True, calibration=known).time.phases_s for known in (own, None))
    assert told["start"] == 14.0
    assert without["start"] == START_S[0]
    # the first of them belongs to the first step; those of checkpointing are planned for twice forward
    twice = 0.1 if made.gradient_checkpointing else 0.0
    assert told["new_lengths"] == pytest.approx(99 * (0.4 + twice))


def test_the_reference_calibrated_by_itself_stays_as_the_catalogue_has_it() -> None:
    card = gpu(REFERENCE)
    own = calibrated_gpu(card, reference())
    assert own.achieved_flop_per_s["bf16"] == pytest.approx(card.achieved_flop_per_s["bf16"])
    assert own.memory_bytes_per_s == pytest.approx(card.memory_bytes_per_s, rel=0.03)
    assert reference().planning is not None
    assert reference().start_s is not None


def test_what_is_kept_is_found_again_and_nothing_else_is_left(tmp_path: Path) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path)}
    assert own_calibration("h200-sxm-141gb", environ) is None
    path = keep("h200-sxm-141gb", FOUND, environ)
    assert own_calibration("h200-sxm-141gb", environ) == calibration_from(FOUND, "2026-11-15")
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "held",
    [
        "not json", "[]", "{}", json.dumps({**FOUND, "schema": "other"}),
        json.dumps({**FOUND, "copies": [{"bytes": 1, "seconds": 0}]}),
        json.dumps({**FOUND, "copies": [{"bytes": -5, "seconds": 1}]}),
        json.dumps({**FOUND, "products": [{"dtype": "bfloat16", "m": 1, "n": 1, "k": "x", "seconds": 1}]}),
        json.dumps({**FOUND, "launches": [{"forward_s": 1e9}]}),
        json.dumps({**FOUND, "plans": [{"compiled": False, "forward_s": -1, "backward_s": 0, "evaluation_s": 0}]}),
        json.dumps({**FOUND, "starts": [{"seconds": 1e6}]}),
    ],
)  # fmt: skip
def test_a_file_that_holds_anything_else_is_refused_by_name(held: str, tmp_path: Path) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path)}
    path = path_of("h200-sxm-141gb", environ)
    path.parent.mkdir(parents=True)
    path.write_text(held)
    with pytest.raises(NotResolved, match="tunecast calibrate"):
        own_calibration("h200-sxm-141gb", environ)


def test_without_torch_the_command_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--python", "/nowhere/python"]) == 5
    assert "--python" in capsys.readouterr().err
