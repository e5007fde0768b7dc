"""What plans of rollouts ask: steps without what only memory needs, and floors that hold for steps that take turns."""

import pytest

import tunecast
from tunecast.hardware.catalog import gpus
from tunecast.job.further import models_of
from tunecast.planning.bounds import work_of
from tunecast.prediction.modelled import card_of
from tunecast.prediction.price.host import host_of
from tunecast.prediction.time.runtime import step_time
from tunecast.tape.build.fill_in import fill_in_of
from tunecast.tape.build.job_runs import Builder, fold_job
from tunecast.tape.op import Phase
from tunecast.tape.timed import steps_alone, steps_of_fold

JOB = {"model": "smollm2-135m", "task": "grpo", "method": "lora", "micro_batch": 4, "seq_len": 128}


def steps(iterations=1, gpu="a40"):
    job = tunecast.read({**JOB, "rl": {"completion_length": 64, "generations": 4, "iterations": iterations}})
    model = models_of(job)
    return fill_in_of(job, model), model, card_of(gpus()[gpu])


def test_steps_without_memory_are_those_of_the_whole_run():
    job, model, card = steps()
    whole = steps_of_fold(fold_job(job, model.raw, card, keeps_ops=True, builder=Builder()), job.grad_accum)[128]
    alone = steps_alone(job, model.raw, card)[128]
    times = [step_time(step, gpus()["a40"], host_of(job)) for step in (whole, alone)]
    assert times[0] == times[1]


@pytest.mark.parametrize("iterations", [1, 2])
def test_floors_are_below_the_step(iterations):
    job, model, card = steps(iterations)
    step, host = steps_alone(job, model.raw, card)[128], host_of(job)
    timed = step_time(step, gpus()["a40"], host)
    trained, generated = work_of(step, host), work_of(step, host, (Phase.GENERATE,))
    assert 0.5 * timed.step_s < trained.host_s + generated.host_s < timed.step_s
    assert trained.host_s < timed.task_s["train"]
