"""Releases of torch differ in which of two equal free blocks a request takes, and in the workspaces of products."""

from __future__ import annotations

import pytest

from tunecast.door.predict import predict
from tunecast.errors import UsageError
from tunecast.job import job_from_dict

JOB = {
    "model": "qwen2.5-7b", "method": "lora", "micro_batch": 1, "seq_len": 2048, "gradient_checkpointing": True,
    "hardware": {"gpu": "rtx-4090"}, "transformers_version": "5.17.0",
}  # fmt: skip
TRACED_BY_2_13 = {1: (19532608512, 20627587072, 19765657600), 4: (19552793600, 20638072832, 19782434816)}
"""By micro-batches a step: allocated, reserved, least capacity; `predict --engine traced` with torch 2.13.0. With 2.11
four micro-batches need 0.75 GiB more than one: the tape is the same but for a workspace, ties go the other way."""


@pytest.mark.parametrize("grad_accum", TRACED_BY_2_13)
def test_the_closed_form_gives_what_a_release_does(grad_accum: int) -> None:
    found = {}
    for release in ("2.11", "2.13"):
        told = predict(job_from_dict({**JOB, "grad_accum": grad_accum, "torch_version": release}))
        assert any(f"torch {release}," in line for line in told.assumptions)
        found[release] = (told.memory.allocated_bytes, told.memory.reserved_bytes, told.smallest_capacity_bytes)
    assert found["2.13"] == TRACED_BY_2_13[grad_accum]
    assert found["2.11"] != found["2.13"]


def test_a_release_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="torch_version: got 'newest'"):
        predict({**JOB, "torch_version": "newest"})


def test_the_tracer_runs_the_torch_it_has() -> None:
    with pytest.raises(UsageError, match="torch_version"):
        predict({**JOB, "torch_version": "2.13"}, engine="traced")
