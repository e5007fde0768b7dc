"""Time, utilisation and energy of a prediction by the closed form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tunecast.door.predict import predict
from tunecast.errors import NotResolved, UsageError
from tunecast.job import job_from_dict
from tunecast.prediction.price.host import DEFAULT_HOST, loop_s

pytestmark = pytest.mark.whole

TINY = {"model": "llama-3.2-1b", "weights_dtype": "bfloat16", "autocast": None, "seq_len": 512, "micro_batch": 2}


def said(**fields: Any) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(json.dumps(predict({**TINY, **fields}).to_dict()))
    return told


def around_a_step() -> float:
    return loop_s(job_from_dict(TINY), 16, DEFAULT_HOST)


def test_a_prediction_has_time_utilisation_and_energy():
    told = said(data={"tokens": 512_000, "epochs": 1}, hardware={"country": "FR"})
    time = told["time"]
    assert sum(time["breakdown_s"].values()) == pytest.approx(time["step_s"])
    assert sum(time["phases_s"].values()) == pytest.approx(time["total_s"])
    assert (time["steps"], time["real_tokens"], time["padding_fraction"]) == (500, 512_000, 0)
    assert time["tokens_per_s"] == pytest.approx(1024 / time["step_s"])
    assert time["phases_s"]["training"] == pytest.approx(500 * (time["step_s"] + around_a_step()))
    assert time["low_s"] <= time["step_s"] <= time["high_s"]
    assert 0 < told["utilization"]["mfu"] < told["utilization"]["hfu"] < 1
    assert told["energy"]["kwh"] > 0
    assert told["energy"]["co2_kg"] == pytest.approx(told["energy"]["kwh"] * 0.04418)


def test_without_data_there_is_a_step_but_no_total():
    told = said()
    assert told["time"]["step_s"] > 0
    assert told["time"]["total_s"] is None
    assert told["energy"] is None


def test_model_flops_are_six_a_parameter_and_token():
    """Full training of Llama 3.2 1B: 1.236e9 parameters, and attention on top; checkpointing adds to HFU alone."""
    plain, again = (said(gradient_checkpointing=flag) for flag in (False, True))
    flops = plain["utilization"]["achieved_flop_per_s"] * plain["time"]["step_s"]
    assert flops == pytest.approx(6 * 1.236e9 * 1024, rel=0.05)
    once_more = again["utilization"]["achieved_flop_per_s"] * again["time"]["step_s"]
    assert once_more == pytest.approx(flops, rel=0.01)
    assert plain["utilization"]["hfu"] == pytest.approx(plain["utilization"]["mfu"])
    assert again["utilization"]["hfu"] > 1.15 * again["utilization"]["mfu"]


def test_short_samples_make_shorter_steps_and_padding():
    full_data: dict[str, object] = {"samples": 1000}
    short_data = {**full_data, "lengths": "uniform(32, 512)"}
    short = said(data=short_data)
    many = {"micro_batch": 16}  # else both wait for the host
    assert said(**many, data=short_data)["time"]["step_s"] < said(**many, data=full_data)["time"]["step_s"]
    assert short["time"]["padding_fraction"] == pytest.approx(1 - 272 / 352, abs=0.01)
    grouped = said(data={"samples": 1000, "lengths": "uniform(32, 512)", "group_by_length": True})
    assert grouped["time"]["padding_fraction"] < 0.03
    assert grouped["time"]["phases_s"]["training"] <= short["time"]["phases_s"]["training"]


def test_a_number_of_steps_is_enough():
    told = said(data={"lengths": "uniform(32, 512)"}, run={"max_steps": 100})
    step_s = told["time"]["step_s"] + around_a_step()
    assert told["time"]["phases_s"]["training"] == pytest.approx(100 * step_s, rel=0.01)
    assert told["time"]["real_tokens"] == pytest.approx(100 * 2 * 272, rel=0.01)


def test_packing_makes_fewer_steps():
    lengths = {"samples": 1000, "lengths": "uniform(32, 512)"}
    plain, packed = said(data=lengths), said(data=lengths | {"packing": True})
    assert packed["time"]["steps"] < 0.7 * plain["time"]["steps"]
    assert packed["time"]["padding_fraction"] == pytest.approx(0)


def test_evaluation_is_forward_only():
    run = {"eval_strategy": "epoch", "eval_batch": 2}
    told = said(data={"samples": 1000, "epochs": 1, "eval_samples": 1000}, run=run, gradient_checkpointing=False)
    share = told["time"]["phases_s"]["evaluation"] / told["time"]["phases_s"]["training"]
    assert 0.15 < share < 0.45


@pytest.mark.parametrize("fields", [{}, {"grad_accum": 5}, {"method": "lora"}, {"optimizer": "adamw_8bit"}])
def test_one_building_serves_memory_and_time(fields):
    job = job_from_dict({**TINY, **fields})
    kept, anew = (predict(job, timed=timed) for timed in (True, False))
    assert kept.time == anew.time
    assert kept.memory == anew.memory


def test_a_wrong_country_or_file_is_told():
    with pytest.raises(UsageError, match=r"hardware\.country"):
        said(data={"samples": 10}, hardware={"country": "Atlantis"})
    with pytest.raises(NotResolved):
        said(data={"lengths": "./nowhere.txt"})
