"""What of a bill can be avoided is never a job that its trainer refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tunecast.job.mapping import job_from_dict
from tunecast.planning.savings import _other_settings

CHECKPOINTS = {"training": 50.0, "checkpoints": 50.0}


def test_parts_of_a_model_are_not_saved_without_the_optimizer() -> None:
    """The Trainer refuses it, which ended the whole plan: `run.save_only_model: got true with ... sharded`."""
    fields = {"model": "gpt2", "hardware": {"gpus": 8}, "data": {"samples": 1000}}
    parallel = {"data": "fsdp", "state_dict_type": "sharded"}
    choice: Any = SimpleNamespace(job=job_from_dict({**fields, "parallel": parallel}), runs=1)
    assert not list(_other_settings(choice, CHECKPOINTS, is_spot=False))
    whole: Any = SimpleNamespace(job=job_from_dict({**fields, "parallel": {"data": "fsdp"}}), runs=1)
    ((advice, _),) = _other_settings(whole, CHECKPOINTS, is_spot=False)
    assert "run.save_only_model" in advice
