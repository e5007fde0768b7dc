"""Other hardware for a job that does not fit: more of its cards, or a larger one. With the closed form."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tunecast.job.job import Job
from tunecast.job.mapping import job_from_dict
from tunecast.plan.fit import Elsewhere, Fit, fitted
from tunecast.plan.fit_hardware import other_hardware
from tunecast.plan.price import rent_of
from tunecast.predict import engines
from tunecast.predict.changes import with_fields
from tunecast.predict.prediction import Predicted
from tunecast.report.fit import fit_text
from tunecast.tape.build.sharding.scheme import ranks_of
from tunecast.units import GIB

DAY = date(2026, 11, 15)


@pytest.fixture(autouse=True)
def no_offers_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def full(job: Job) -> Predicted:
    return engines.predicted(job, timed=True)


def found(**fields: Any) -> tuple[Fit, tuple[Elsewhere, ...]]:
    job = job_from_dict({"model": "qwen2.5-1.5b", "seq_len": 1024, **fields})
    fit = fitted(job, engines.predicted, full)
    return fit, other_hardware(fit, engines.predicted, full, DAY)


def test_each_fits_for_sure_keeps_the_batch_and_has_its_price() -> None:
    fit, elsewhere = found(method="lora", micro_batch=16, hardware={"gpu": "4090"})
    assert not fit.before.room.fits
    assert [each.state.job.hardware.gpus for each in elsewhere] == [2, 4, 8, 1]
    for each in elsewhere:
        job = each.state.job
        assert each.state.room.surely
        assert job.micro_batch * job.grad_accum * ranks_of(job) == 16
        assert each.rent is not None
        assert each.rent == rent_of(full(with_fields(fit.before.job, each.overrides)), DAY)
        assert (each.rent.offer.gpus, job.parallel.data) == (job.hardware.gpus, "ddp")
    larger = elsewhere[-1]
    assert set(larger.overrides) == {"hardware.gpu"}
    assert larger.state.room.capacity_bytes > fit.before.room.needs_bytes


def test_weights_are_cut_only_where_copies_do_not_fit() -> None:
    """14 GB of weights, gradients and moments in bfloat16, 25 in float32: no copy fits a card of 24."""
    fit, elsewhere = found(weights_dtype="float32", micro_batch=8, hardware={"gpu": "rtx-4090"})
    assert not fit.before.room.fits
    several = [each for each in elsewhere if each.state.job.hardware.gpus > 1]
    assert several and {each.overrides["parallel.data"] for each in several} == {"fsdp"}


def test_who_runs_deepspeed_stays_with_it() -> None:
    hardware = {"gpu": "rtx-4090", "gpus": 2}
    _, elsewhere = found(weights_dtype="float32", micro_batch=8, hardware=hardware, parallel={"data": "zero2"})
    several = [each for each in elsewhere if each.state.job.hardware.gpus > 2]
    assert several and all(each.state.job.parallel.data.startswith("zero") for each in several)


def test_a_pretended_capacity_is_no_card() -> None:
    _, elsewhere = found(method="lora", micro_batch=8, hardware={"gpu": "4090", "capacity_bytes": 8 * GIB})
    assert all(each.state.job.hardware.gpus > 1 for each in elsewhere)


def test_in_words() -> None:
    fit, elsewhere = found(method="lora", micro_batch=16, hardware={"gpu": "4090"})
    out = fit_text(fit._replace(elsewhere=elsewhere), "a job", "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    place = lines.index("Other hardware that fits for sure")
    assert lines[place + 1].startswith("2 x RTX 4090 (ddp): ")
    assert " less time, $" in lines[place + 1] and " per hour at " in lines[place + 1]
    assert lines[place + 2].startswith("--gpus 2 ")
    assert len(lines) <= 35


def test_host_memory_of_an_offload_is_said_in_gib() -> None:
    job = {"model": "llama-3.1-8b", "weights_dtype": "bfloat16", "micro_batch": 1}
    fit = fitted(job_from_dict({**job, "hardware": {"gpu": "rtx-4090", "gpus": 2}}), engines.predicted, full)
    assert fit.chosen is not None and "parallel.offload" in fit.chosen.overrides
    ram = fit.chosen.state.ram_bytes
    assert ram is not None and ram > 50 * GIB
    assert f"needs {ram / GIB:.0f} GiB of host RAM" in fit_text(fit, "a job", "")
