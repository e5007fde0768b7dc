"""Other hardware for a job that does not fit: more of its cards, or a larger one. With the closed form."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tunecast.advise.changes import with_fields
from tunecast.job.job import Job
from tunecast.job.mapping import job_from_dict
from tunecast.planning.fit.fit import fit_job
from tunecast.planning.fit.hardware import other_hardware
from tunecast.planning.fit.solution import Fit, OtherHardware
from tunecast.planning.price import rent_of
from tunecast.prediction import engines
from tunecast.prediction.prediction import Prediction
from tunecast.records import replace
from tunecast.report.lists.fit import fit_text
from tunecast.tape.build.sharding.scheme import ranks_of
from tunecast.units import GIB

pytestmark = pytest.mark.whole

DAY = date(2026, 11, 15)


@pytest.fixture(autouse=True)
def no_offers_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def full(job: Job) -> Prediction:
    return engines.predict(job, timed=True)


def found(**fields: Any) -> tuple[Fit, tuple[OtherHardware, ...]]:
    job = job_from_dict({"model": "qwen2.5-1.5b", "seq_len": 1024, **fields})
    fit = fit_job(job, engines.predict, full)
    return fit, other_hardware(fit, engines.predict, full, DAY)


def test_each_fits_for_sure_keeps_the_batch_and_has_its_price() -> None:
    fit, elsewhere = found(method="lora", micro_batch=16, hardware={"gpu": "4090"})
    assert not fit.before.room.fits
    assert [each.job.hardware.gpus for each in elsewhere] == [2, 4, 8, 1]
    for each in elsewhere:
        job = each.job
        assert each.room.surely
        assert job.micro_batch * job.grad_accum * ranks_of(job) == 16
        assert each.cost is not None
        assert each.cost == rent_of(full(with_fields(fit.before.job, each.set)), DAY)
        assert (each.cost.offer.gpus, job.parallel.data) == (job.hardware.gpus, "ddp")
    larger = elsewhere[-1]
    assert set(larger.set) == {"hardware.gpu"}
    assert larger.room.capacity_bytes > fit.before.room.needs_bytes


def test_weights_are_cut_only_where_copies_do_not_fit() -> None:
    """14 GB of weights, gradients and moments in bfloat16, 25 in float32: no copy fits a card of 24."""
    fit, elsewhere = found(weights_dtype="float32", micro_batch=8, hardware={"gpu": "rtx-4090"})
    assert not fit.before.room.fits
    several = [each for each in elsewhere if each.job.hardware.gpus > 1]
    assert several and {each.set["parallel.data"] for each in several} == {"fsdp"}


def test_who_runs_deepspeed_stays_with_it() -> None:
    hardware = {"gpu": "rtx-4090", "gpus": 2}
    _, elsewhere = found(weights_dtype="float32", micro_batch=8, hardware=hardware, parallel={"data": "zero2"})
    several = [each for each in elsewhere if each.job.hardware.gpus > 2]
    assert several and all(each.job.parallel.data.startswith("zero") for each in several)


def test_a_pretended_capacity_is_no_card() -> None:
    _, elsewhere = found(method="lora", micro_batch=8, hardware={"gpu": "4090", "capacity_bytes": 8 * GIB})
    assert all(each.job.hardware.gpus > 1 for each in elsewhere)


def test_in_words() -> None:
    fit, elsewhere = found(method="lora", micro_batch=16, hardware={"gpu": "4090"})
    out = fit_text(replace(fit, elsewhere=elsewhere), "a job", "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    place = lines.index("Other hardware that fits for sure")
    assert lines[place + 1].startswith("2 x RTX 4090 (ddp): ")
    assert " less time, $" in lines[place + 1] and " per hour at " in lines[place + 1]
    assert lines[place + 2].startswith("--gpus 2 ")
    assert len(lines) <= 35


def test_host_memory_of_an_offload_is_said_in_gib() -> None:
    job = {"model": "llama-3.1-8b", "weights_dtype": "bfloat16", "micro_batch": 1}
    fit = fit_job(job_from_dict({**job, "hardware": {"gpu": "rtx-4090", "gpus": 2}}), engines.predict, full)
    assert fit.chosen is not None and "parallel.offload" in fit.chosen.overrides
    ram = fit.chosen.machine_ram_bytes
    assert ram is not None and ram > 50 * GIB
    assert f"needs {ram / GIB:.0f} GiB of host RAM" in fit_text(fit, "a job", "")
