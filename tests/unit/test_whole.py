"""A whole job from made-up steps, phase by phase on paper."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunecast.job import Job, job_from_dict
from tunecast.job.lengths import sample_lengths
from tunecast.prediction.data.batches import steps_between_evaluations, steps_between_saves
from tunecast.prediction.data.lengths import Epoch, epoch_of, eval_batches, evaluated_rows
from tunecast.prediction.outside.further import NO_FURTHER_FILES
from tunecast.prediction.price.host import DEFAULT_HOST, Host, loop_s
from tunecast.prediction.time import whole
from tunecast.prediction.time.by_length import WAITING, ByLength, mean_step, mean_step_s, priced_lengths
from tunecast.prediction.time.runtime import StepTime
from tunecast.prediction.time.whole import (
    CUDNN_PLANNING,
    EVALUATION_KERNEL_S,
    EVALUATION_NEW_LENGTH_S,
    NEW_KERNEL_S,
    NEW_LENGTH_S,
    Planning,
    WholeTime,
    fixed_phases,
    kinds_of_lengths,
    planning_of,
    whole_job,
)
from tunecast.units import GB

RUNS = Path(__file__).parents[2] / "benchmarks" / "data" / "outside_runs.jsonl"


def step(seconds: float, spread: float = 0.1) -> StepTime:
    parts = {"products": 0.8 * seconds, "launch": 0.2 * seconds}
    low, high = (1 - spread) * seconds, (1 + spread) * seconds
    return StepTime(seconds, low, high, parts, "compute", 0.8 * seconds, 0.5 * seconds, 10**12, 10**9, 0.0)


def job(**fields: Any) -> Job:
    return job_from_dict({"model": "gpt2", "seq_len": 100, "micro_batch": 2, **fields})


def files(model: int, checkpoint: int, weights: int, cast: int = 0) -> Any:
    return SimpleNamespace(
        downloaded_bytes=model,
        further=NO_FURTHER_FILES,
        loading=SimpleNamespace(host_mapped_bytes=model, host_bytes=cast, model_bytes=2 * model),
        disk=SimpleNamespace(checkpoint_bytes=checkpoint, weights_bytes=weights, writers=1),
    )


def whole_time(
    made: Job, epoch: Epoch | None, steps: dict[int, StepTime], evaluation_s: float | None = None, loop_s: float = 0.0,
    **known: Any,
) -> WholeTime | None:  # fmt: skip
    fixed = fixed_phases(made, epoch, **known)
    return None if fixed is None else whole_job(made, fixed, steps, evaluation_s=evaluation_s, loop_s=loop_s)


def an_epoch(lengths: dict[float, float], **more: Any) -> Epoch:
    return Epoch(**{"samples": 8, "rows": 8, "micro_batches": 4, "steps": 4, "real_tokens": 1.0, "padded_tokens": 1.0,
                    "lengths": lengths} | more)  # fmt: skip


def test_between_two_lengths_time_is_straight():
    at = ByLength({10: 1.0, 30: 3.0, 50: 5.0})
    assert [at(length) for length in (10, 20, 30, 40, 50)] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert (at(60), at(0)) == (6.0, 0.0)
    assert ByLength({10: 2.0})(5) == 1.0


def test_where_time_bends_it_lies_between_the_chord_and_its_neighbours_lines():
    at = ByLength({10: 1.0, 30: 2.0, 50: 6.0})
    # at 20 the chord says 1.5, and it is no less than at 10
    assert (at(20), at(40)) == (1.25, 4.0)
    assert [at(length) for length in (10, 30, 50)] == [1.0, 2.0, 6.0]
    assert (at(60), at(0)) == (8.0, 0.5)


def test_a_few_lengths_are_priced():
    assert priced_lengths({7.0: 0.5, 3.5: 0.5}) == (4, 7)
    many = {float(n): 1 / 100 for n in range(1, 101)}
    assert priced_lengths(many, 4) == (1, 34, 67, 100)


def test_interpolation_costs_little_where_steps_are_maxima_of_lines():
    # a step that the host bounds up to 600 tokens, then arithmetic with a small square for attention
    def true(n: float) -> float:
        return max(0.2, 3e-4 * n + 2e-8 * n * n)

    shares = {float(n): 1 / 2000 for n in range(48, 2048)}
    at = ByLength({n: true(n) for n in priced_lengths(shares)})
    mean = sum(share * true(n) for n, share in shares.items())
    assert sum(share * at(n) for n, share in shares.items()) == pytest.approx(mean, rel=0.01)


def test_the_slowest_rank_decides():
    at = ByLength({1: 1.0, 2: 2.0})
    coin = an_epoch({1.0: 0.5, 2.0: 0.5})
    assert mean_step_s(coin, at, 1, 1, each_waits=False) == pytest.approx(1.5)
    # of two coins at least one shows 2 in three cases of four
    assert mean_step_s(coin, at, 1, 2, each_waits=False) == pytest.approx(1.75)
    assert mean_step_s(coin, at, 4, 2, each_waits=True) == pytest.approx(1.75)


@pytest.mark.parametrize(("accum", "ranks"), [(2, 2), (4, 2), (3, 3), (4, 4)])
def test_sums_of_micro_batches_even_ranks_out(accum, ranks):
    """Against every outcome of a coin for each micro-batch of each rank."""
    sums = [sum(draws) / accum for draws in itertools.product((1.0, 2.0), repeat=accum)]
    exact = sum(max(turn) for turn in itertools.product(sums, repeat=ranks)) / len(sums) ** ranks
    found = mean_step_s(an_epoch({1.0: 0.5, 2.0: 0.5}), ByLength({1: 1.0, 2: 2.0}), accum, ranks, each_waits=False)
    assert found == pytest.approx(exact, rel=0.02)


def test_turns_are_taken_as_they_are():
    at = ByLength({1: 1.0, 9: 9.0})
    turns = (((1.0, 3.0), (2.0, 4.0)), ((9.0, 1.0), (1.0, 9.0)))
    # step one: 2 against 3; step two: 5 against 5; waiting each time: 3 and 9
    epoch = an_epoch({1.0: 1.0}, turns=turns)
    assert mean_step_s(epoch, at, 2, 2, each_waits=False) == pytest.approx((3 + 5) / 2)
    assert mean_step_s(epoch, at, 2, 2, each_waits=True) == pytest.approx((3 + 9) / 2)


def test_the_mean_step_has_all_its_parts():
    steps = {1: step(1.0), 2: step(2.0)}
    coin = an_epoch({1.0: 0.5, 2.0: 0.5})
    mean = mean_step(coin, steps, 1, 2, each_waits=False)
    assert mean.step_s == pytest.approx(1.75)
    assert mean.breakdown_s == pytest.approx({"products": 1.2, "launch": 0.3, WAITING: 0.25})
    assert sum(mean.breakdown_s.values()) == pytest.approx(mean.step_s)
    assert (mean.low_s, mean.high_s) == pytest.approx((0.9 * 1.75, 1.1 * 1.75))
    assert mean.gpu_busy_s == pytest.approx(1.2)
    assert mean_step(an_epoch({2.0: 1.0}), {2: steps[2]}, 1, 8, each_waits=False) is steps[2]


def test_every_phase_on_paper():
    made = job(
        data={"samples": 1000, "epochs": 2, "eval_samples": 100},
        run={"eval_strategy": "epoch", "save_steps": 300},
        hardware={"provisioning_s": 60, "image_bytes": "6GB", "download_bytes_per_s": "0.3GB"},
    )
    told = whole_time(made, epoch_of(made), {100: step(0.5)}, outside=files(3 * GB, 4 * GB, GB), evaluation_s=5.0)
    assert told is not None
    assert (told.steps, told.evaluations, told.checkpoints) == (1000, 2, 4)
    assert told.phases_s == pytest.approx(
        {
            "provisioning": 60,
            "image": 20,
            "download": 10,
            "start": 16.7,
            "load": 0.2 + 3 / 7.2,
            "preparation": 110_000 / 330_000 + 110_000 * 4.6 / 0.3e9,
            "first_step": 0.65 + 0.34,
            "new_lengths": 0,
            "training": 500,
            "evaluation": 2 * 5,
            "checkpoints": 4 * 4.2,
            "final_save": 1.2,
        }
    )
    assert told.total_s == pytest.approx(sum(told.phases_s.values()))
    assert told.low_s < told.total_s < told.high_s
    assert told.tokens_per_s == pytest.approx(1000 * 100 * 2 / 500)
    assert told.missing == ()


def test_lengths_cost_when_they_are_new():
    # 32 samples alone in their batches, half of 10 and half of 20 tokens: one length besides the first
    made = job(data={"lengths": [10, 20] * 16}, micro_batch=1)
    known = {10: step(0.1), 20: step(0.2)}
    epoch = epoch_of(made, sample_lengths(made.data))
    told = whole_time(made, epoch, known, planning=Planning((0.15, 0.1, 0.2)))
    assert told is not None
    assert told.phases_s["new_lengths"] == pytest.approx(0.15)


def test_a_kernel_is_compiled_for_lengths_aligned_otherwise():
    """10 and 20 tokens are multiples of 2 and of 4: a kernel each; in evaluation every kind is new."""
    made = job(data={"lengths": [10, 20] * 16, "eval_samples": 32}, micro_batch=1, run={"eval_strategy": "epoch"},
               gradient_checkpointing=False)  # fmt: skip
    epoch = epoch_of(made, sample_lengths(made.data))
    known = {10: step(0.1), 20: step(0.2)}
    told = whole_time(made, epoch, known, evaluation_s=1.0, planning=CUDNN_PLANNING)
    assert told is not None
    assert told.phases_s["new_lengths"] == pytest.approx(NEW_LENGTH_S[0] + 2 * NEW_KERNEL_S[0])
    assert kinds_of_lengths({64.0: 0.5, 24.0: 0.25, 7.0: 0.25}, 4) == 3
    assert kinds_of_lengths({64.0: 0.99, 7.0: 0.01}, 4) == 1  # so few that none is likely
    # eight samples to a batch: nearly all are padded to 20
    once = EVALUATION_NEW_LENGTH_S[0] + EVALUATION_KERNEL_S[0]
    assert told.phases_s["evaluation"] == pytest.approx(told.evaluations * 1.0 + once, rel=0.01)


def test_checkpointing_plans_the_forward_pass_in_both_threads():
    made = job(data={"lengths": [10, 20] * 16}, micro_batch=1, gradient_checkpointing=True)
    known = {10: step(0.1), 20: step(0.2)}
    planning = Planning((0.15, 0.1, 0.2), evaluation_length_s=(0.05, 0.0, 0.1))
    told = whole_time(made, epoch_of(made, sample_lengths(made.data)), known, planning=planning)
    assert told is not None
    assert told.phases_s["new_lengths"] == pytest.approx(0.15 + 0.05)


def test_planning_goes_with_the_hosts_speed():
    twice = planning_of(64, Host(launch_s=2 * DEFAULT_HOST.launch_s))
    assert twice.length_s == pytest.approx([2 * seconds for seconds in NEW_LENGTH_S])
    assert planning_of(64) is CUDNN_PLANNING and planning_of(128).kernel_s > planning_of(96).kernel_s
    assert planning_of(0, Host(launch_s=1.0)) == planning_of(0)


def test_the_trainer_walks_over_modules_around_every_step():
    # 16 layers of 13 modules: 7.6 + 208 * 0.0056 ms a step, 1.0 + 208 * 0.0051 ms each of its two micro-batches
    full = job(method="full", grad_accum=2)
    assert loop_s(full, 16, DEFAULT_HOST) == pytest.approx(7.6e-3 + 208 * 5.6e-6 + 2 * (1e-3 + 208 * 5.1e-6))
    # an adapter beside each of two projections has ten modules, so a layer has 33
    adapted = job(method="lora", lora={"targets": ["q_proj", "v_proj"]})
    slow = Host(launch_s=2 * DEFAULT_HOST.launch_s)
    assert loop_s(adapted, 10, slow) == pytest.approx(2 * (8.6e-3 + 330 * 10.7e-6))
    assert loop_s(job(stack="torchtune"), 16, DEFAULT_HOST) == 0
    told = whole_time(job(run={"max_steps": 20}), None, {100: step(0.5)}, loop_s=0.01)
    assert told is not None
    assert told.phases_s["training"] == pytest.approx(20 * 0.51)


def test_what_is_not_known_is_named():
    made = job(data={"samples": 10}, run={"eval_strategy": "steps"})
    told = whole_time(made, epoch_of(made), {100: step(0.5)})
    assert told is not None
    assert [reason.partition(" (")[0] for reason in told.missing] == ["download, loading and saving", "evaluation"]
    assert told.phases_s["checkpoints"] == 0
    assert whole_time(job(), None, {100: step(0.5)}) is None


def test_evaluations_and_checkpoints_by_the_epoch():
    """1,000 steps of 2 epochs: 5 evaluations an epoch are one every 100 steps, 3 checkpoints one every 167."""
    run = {"eval_strategy": "steps", "evals_per_epoch": 5, "saves_per_epoch": 3}
    made = job(data={"samples": 1000, "epochs": 2, "eval_samples": 100}, run=run)
    told = whole_time(made, epoch_of(made), {100: step(0.5)}, evaluation_s=5.0)
    assert told is not None
    assert (steps_between_evaluations(made, 1000), steps_between_saves(made, 1000)) == (100, 167)
    assert (told.steps, told.evaluations, told.checkpoints) == (1000, 10, 6)
    # half of one an epoch: one in two epochs; and never less than a step apart
    seldom = job(data={"epochs": 2}, run={"eval_strategy": "steps", "evals_per_epoch": 0.5, "saves_per_epoch": 900})
    assert (steps_between_evaluations(seldom, 1000), steps_between_saves(seldom, 1000)) == (1000, 1)


def test_an_evaluation_of_so_many_batches_at_most():
    evaluated = {"eval_strategy": "epoch", "eval_batch": 8}
    assert eval_batches(job(data={"eval_samples": 100}, run=evaluated))[0] == 13
    assert eval_batches(job(data={"eval_samples": 100}, run=evaluated | {"eval_max_batches": 5}))[0] == 5
    assert eval_batches(job(data={"eval_samples": 100}, run=evaluated | {"eval_max_batches": 50}))[0] == 13
    on_two = job(data={"eval_samples": 100}, run=evaluated | {"eval_max_batches": 5}, hardware={"gpus": 2})
    assert eval_batches(on_two)[0] == 5 and evaluated_rows(on_two) == 80
    # a job that does not say how many samples there are has as many batches as that
    made = job(data={"samples": 10}, run=evaluated | {"eval_max_batches": 7})
    told = whole_time(made, epoch_of(made), {100: step(0.5)}, evaluation_s=2.0)
    assert told is not None and told.phases_s["evaluation"] == pytest.approx(3 * 2.0)
    assert eval_batches(made)[0] == 7 and "each evaluation is of 7 batches" in " ".join(told.assumptions)
    assert not any("evaluation" in reason for reason in told.missing)


def test_max_steps_alone_makes_a_whole_job():
    told = whole_time(job(run={"max_steps": 20}, grad_accum=3), None, {100: step(0.5)})
    assert told is not None
    assert (told.steps, told.phases_s["training"]) == (20, 10.0)
    assert told.real_tokens == 20 * 3 * 2 * 100


def test_a_short_last_step_takes_its_share():
    # 5 micro-batches in steps of 4: one whole and a quarter
    made = job(data={"samples": 10, "epochs": 1}, grad_accum=4)
    told = whole_time(made, epoch_of(made), {100: step(0.4)})
    assert told is not None
    assert told.steps == 2
    assert told.phases_s["training"] == pytest.approx(0.5)


def test_shorter_samples_train_faster_than_full_rows():
    steps = {n: step(0.001 * n) for n in (10, 55, 100)}
    full, short = (
        whole_time(made, epoch_of(made, sample_lengths(made.data)), steps)
        for made in (job(data={"samples": 500}), job(data={"samples": 500, "lengths": "uniform(10, 100)"}))
    )
    assert full is not None
    assert short is not None
    # the longer of two between 10 and 100 is 70 on average
    assert short.phases_s["training"] / full.phases_s["training"] == pytest.approx(0.7, rel=0.01)


def test_a_slow_disk_is_waited_for():
    made = job(data={"samples": 10}, hardware={"disk_bytes_per_s": "0.1GB", "download_bytes_per_s": None})
    told = whole_time(made, epoch_of(made), {100: step(0.5)}, outside=files(GB, GB, GB))
    assert told is not None
    assert told.phases_s["download"] == 0
    assert told.phases_s["load"] == pytest.approx(10.2)
    assert told.phases_s["final_save"] == pytest.approx(10.2)


def measured(phase: str) -> list[tuple[str, dict[str, Any], float, float]]:
    """(case, job, seconds, gigabytes written) of every run on the H200 that had the phase."""
    rows = [json.loads(line) for line in RUNS.read_text("utf-8").splitlines()]
    return [
        (row["case"], row["job"], seen["s"] / seen["times"], sum((row["measured"].get("files") or {}).values()))
        for row in rows
        if (seen := row["measured"].get("phases", {}).get(phase))
    ]


@pytest.mark.parametrize(("case", "fields", "seconds", "nbytes"), [*measured("save"), *measured("write")])
def test_saving_takes_as_long_as_it_did(case, fields, seconds, nbytes):
    span = whole._saved(nbytes, job_from_dict(fields), 1)
    assert span.likely_s == pytest.approx(seconds, rel=0.35)


@pytest.mark.parametrize(("case", "fields", "seconds", "nbytes"), measured("load"))
def test_loading_takes_as_long_as_it_did(case, fields, seconds, nbytes):
    if "over-host" in case:
        pytest.skip("moved to the card afterwards")
    made = job_from_dict(fields)
    size = {"llama-3.2-1b": 2_471_645_608, "llama-3.2-3b": 6_425_529_112}[made.model]
    cast = 1 if made.weights_dtype == "float32" else 0
    span = whole._load(made, files(size, 0, 0, cast=cast))
    if case.startswith("qlora-3b-paged"):  # bitsandbytes was imported before, its kernels were there
        assert span.likely_s - whole.BITSANDBYTES_S == pytest.approx(seconds, rel=0.35)
    else:
        assert span.likely_s == pytest.approx(seconds, rel=0.35)
