"""Checkpoints of a teacher, a reward model and a reference: downloaded, read, and on disk."""

import pytest

import tunecast
from tunecast.job.further import models_of
from tunecast.prediction.outside.further import FurtherFiles, further_files
from tunecast.prediction.outside.needs import outside_of
from tunecast.tape.build.fill_in import fill_in_of

QWEN_HALF_B, QWEN_1_5B = 494_032_768, 1_543_714_304
"""Parameters, as the Hub counts them; both are stored in 16 bits, heads tied."""
ON_ONE = {"hardware": {"gpu": "h100-sxm-80gb", "download_bytes_per_s": 1e9}, "data": {"samples": 1000}}
VOCABULARY, WIDTH = 151_936, 1536


def files_of(**fields):
    job = tunecast.read({"model": "qwen2.5-0.5b", "stack": "trl", **ON_ONE, **fields})
    model = models_of(job)
    return further_files(fill_in_of(job, model), model)


def test_a_teacher_is_downloaded_and_takes_no_other_memory_of_the_host():
    teacher = {"task": "distill", "distill": {"teacher": "qwen2.5-1.5b"}}
    assert files_of(**teacher) == FurtherFiles(2 * QWEN_1_5B, 2 * QWEN_1_5B, 0)
    assert files_of(task="distill", distill={"teacher": "qwen2.5-1.5b", "place": "server"}) == FurtherFiles()
    job = tunecast.read({"model": "qwen2.5-0.5b", "stack": "trl", **ON_ONE, **teacher})
    alone = tunecast.read({"model": "qwen2.5-0.5b", "stack": "trl", **ON_ONE})
    with_teacher, without = outside_of(job, models_of(job)), outside_of(alone, models_of(alone))
    assert with_teacher.downloaded_bytes == 2 * (QWEN_HALF_B + QWEN_1_5B)
    assert with_teacher.host_bytes == without.host_bytes
    assert with_teacher.host_resident_bytes > without.host_resident_bytes


def test_a_reward_model_has_a_head_of_its_own_instead_of_the_vocabulary():
    """Its word embeddings are there; tied, the head was no weight of its own."""
    found = files_of(task="grpo", rl={"reward_model": "qwen2.5-1.5b"})
    assert found == FurtherFiles(2 * (QWEN_1_5B + WIDTH), 2 * (QWEN_1_5B + WIDTH), 0)


@pytest.mark.parametrize(
    ("fields", "times"),
    [
        ({"task": "dpo", "method": "full"}, 1),
        ({"task": "dpo", "method": "lora"}, 0),
        ({"task": "dpo", "method": "full", "preference": {"reference": "precomputed"}}, 0),
        ({"task": "orpo", "method": "full"}, 0),
        ({"task": "grpo", "method": "full"}, 0),
        ({"task": "grpo", "method": "full", "rl": {"beta": 0.04}}, 1),
        ({"task": "rloo", "method": "lora"}, 0),
    ],
)
def test_a_reference_is_the_own_checkpoint_once_more(fields, times):
    assert files_of(**fields) == FurtherFiles(0, 0, times)
    assert files_of(**fields).read_bytes(100) == 100 * times


def test_the_whole_job_downloads_a_teacher_and_loads_a_reference():
    def phases(**fields):
        return tunecast.predict({"model": "qwen2.5-0.5b", "stack": "trl", **ON_ONE, **fields}).time.phases_s

    alone = phases()
    taught = phases(task="distill", distill={"teacher": "qwen2.5-1.5b"})
    assert taught["download"] - alone["download"] == pytest.approx(2 * QWEN_1_5B / 1e9)
    assert taught["load"] > alone["load"]
    referred, adapted = phases(task="dpo", method="full"), phases(task="dpo", method="lora")
    assert referred["download"] == alone["download"]
    assert referred["load"] > adapted["load"]
