"""The rungs: what each sets, and that the ladder climbs."""

from __future__ import annotations

from typing import Any

from tunecast.advise.changes import with_fields
from tunecast.advise.ladder import (
    ALLOWED,
    LESS_MEMORY,
    LESS_TIME,
    Harm,
    fewer_ranks,
    larger_micro_batches,
    shorter_rows,
    smaller_micro_batches,
)
from tunecast.job.mapping import job_from_dict


def job(**fields: Any) -> Any:
    return job_from_dict({"model": "gpt2", **fields})


def test_harm_never_falls() -> None:
    harms = [rung.harm for rung in LESS_MEMORY]
    assert harms == sorted(harms)
    assert {rung.harm for rung in LESS_TIME} == {Harm.SAME}
    assert ALLOWED == ("method", "rank", "tower", "pixels", "generations", "completion_length", "seq_len")


def test_every_setting_makes_another_job() -> None:
    jobs = [
        job(micro_batch=12, gradient_checkpointing=False, attention="eager", optimizer="adamw_torch"),
        job(method="lora", micro_batch=4, grad_accum=4, weights_dtype="bfloat16", lora={"rank": 64}),
        job(method="qlora", hardware={"gpus": 8}),
        job(hardware={"gpus": 8}, parallel={"data": "zero1"}),
        job(hardware={"gpus": 8}, parallel={"data": "fsdp"}),
        job(task="grpo"),
    ]
    count = 0
    for each in jobs:
        for rung in (*LESS_MEMORY, *LESS_TIME):
            if rung.group == "parallel.offload" and each.parallel.data == "ddp":
                continue  # only together with sharding
            for overrides in rung.settings(each):
                count += 1
                assert with_fields(each, overrides) != each, overrides
    assert count > 60


def test_the_global_batch_stays() -> None:
    of = job(micro_batch=6, grad_accum=4)
    down = list(smaller_micro_batches(of))
    assert down == [
        {"micro_batch": 4, "grad_accum": 6},
        {"micro_batch": 2, "grad_accum": 12},
        {"micro_batch": 1, "grad_accum": 24},
    ]
    assert list(larger_micro_batches(of)) == [
        {"micro_batch": 12, "grad_accum": 2},
        {"micro_batch": 24, "grad_accum": 1},
    ]
    assert not list(smaller_micro_batches(job(micro_batch=1, grad_accum=4)))


def test_adapters_keep_their_scale() -> None:
    of = job(method="lora", lora={"rank": 32, "alpha": 48})
    assert list(fewer_ranks(of)) == [{"lora.rank": 16, "lora.alpha": 24}, {"lora.rank": 8, "lora.alpha": 12}]
    assert not list(fewer_ranks(job()))


def test_rows_are_halved_down_to_512() -> None:
    assert [each["seq_len"] for each in shorter_rows(job(seq_len=4096))] == [2048, 1024, 512]
    assert [each["seq_len"] for each in shorter_rows(job(seq_len=100))] == [50]
    assert not list(shorter_rows(job(lengths=[10, 20])))


def test_what_is_said_of_the_result_names_who_said_it() -> None:
    told = {said for rung in LESS_MEMORY for said in rung.quality(job())}
    assert len(told) == 4
    assert all("(" in said and said.endswith(")") for said in told)
    silent = [rung.group for rung in LESS_MEMORY if rung.harm is Harm.SAME and rung.quality(job())]
    assert not silent
    (weights,) = (rung for rung in LESS_MEMORY if rung.group == "weights_dtype")
    assert weights.quality(job()) and not weights.quality(job(method="lora")), "frozen weights are not updated"


def test_completions_are_written_by_vllm_where_its_trainer_knows_it() -> None:
    (rung,) = (rung for rung in LESS_TIME if rung.group == "engine")
    assert list(rung.settings(job(task="grpo"))) == [{"rl.engine": "vllm"}]
    assert not list(rung.settings(job(task="grpo", rl={"engine": "vllm"})))
    assert not list(rung.settings(job(task="ppo"))) and not list(rung.settings(job()))
