"""A tape of six blocks, small enough to follow on paper, on cards of known size."""

from __future__ import annotations

import dataclasses
import json
from datetime import date
from pathlib import Path

import pytest

from tunecast.errors import NotResolved, UsageError
from tunecast.hardware import Gpu, gpu
from tunecast.job import Job, job_from_dict
from tunecast.job.readers import read_job
from tunecast.prediction.modelled import job_assumptions, require_engine, require_modelled, require_traceable
from tunecast.prediction.on_card import H200_CONTEXT, allocator_settings, context_of, job_on_card
from tunecast.prediction.prediction import Prediction, prediction_from_tape
from tunecast.tape.op import Alloc, Begin, Free, Op, Phase, Role, Tape
from tunecast.tape.shorten import with_few_micro_batches
from tunecast.units import GIB, MIB

H200 = gpu("h200-sxm-141gb")
UNMEASURED = gpu("rtx-4090")

TAPE = Tape(
    (
        Alloc(0, 100 * MIB, Role.WEIGHTS, "model"),
        Begin(Phase.FORWARD, 0),
        Op("mm", source="train.py:7"),
        Alloc(1, 30 * MIB, Role.ACTIVATIONS, "model.0"),
        Alloc(2, 20 * MIB, Role.LOGITS_AND_LOSS, "model"),
        Begin(Phase.BACKWARD, 0),
        Alloc(3, 40 * MIB, Role.GRADIENTS, "model"),
        Free(1),
        Free(2),
        Begin(Phase.OPTIMIZER, 0),
        Alloc(4, 200 * MIB, Role.OPTIMIZER, "model"),
        Free(3),
        Begin(Phase.FORWARD, 1),
        Alloc(5, 30 * MIB, Role.ACTIVATIONS, "model.0"),
    ),
    assumptions=("the data fits in host memory",),
    versions={"torch": "2.13.0+cpu", "peft": "0.21.0"},
)
"""All sizes are multiples of 2 MiB above 10 MiB, so each block has a segment of its own.

    load      100                        reserved 100
    forward   100 + 30 + 20              reserved 150
    backward  150 + 40, then 140         reserved 190
    optimizer 140 + 200 = 340            reserved 390    the peak
    forward   300 + 30 = 330             reserved 390    block 5 takes the 30 MiB that block 1 left
"""


def job(**fields: object) -> Job:
    return job_from_dict({"model": "llama-3.2-1b", **fields})


def test_figures_are_those_of_the_paper() -> None:
    memory = prediction_from_tape(job(id="a"), H200, TAPE).memory
    assert memory.model_bytes == 100 * MIB
    assert memory.allocated_bytes == 340 * MIB
    assert memory.reserved_bytes == 390 * MIB
    assert memory.device_bytes == 390 * MIB + 804_061_184
    assert memory.peak_phase == "optimizer"


def test_breakdown_sums_to_the_device() -> None:
    memory = prediction_from_tape(job(), H200, TAPE).memory
    assert dict(memory.breakdown_bytes) == {
        "weights": 100 * MIB,
        "adapters": 0,
        "gradients": 40 * MIB,
        "optimizer": 200 * MIB,
        "activations": 0,
        "logits_and_loss": 0,
        "temporaries": 0,
        "allocator": 50 * MIB,
        "context": 804_061_184,
    }
    assert sum(memory.breakdown_bytes.values()) == memory.device_bytes


def test_the_card_leaves_its_memory_less_the_context() -> None:
    said = prediction_from_tape(job(), H200, TAPE)
    assert said.capacity_bytes == H200.memory_bytes - 804_061_184
    assert said.fits
    # 340 MiB are alive at the optimizer's peak; the 50 MiB cached by then are given back where there is no room.
    assert said.smallest_capacity_bytes == 340 * MIB


def test_a_capacity_may_be_pretended() -> None:
    said = prediction_from_tape(job(hardware={"capacity_bytes": 339 * MIB}), H200, TAPE)
    assert (said.fits, said.capacity_bytes) == (False, 339 * MIB)
    assert said.memory.reserved_bytes == 390 * MIB, "what does not fit is shown as on a card without limit"


def test_what_fits_shows_what_that_card_would_reserve() -> None:
    said = prediction_from_tape(job(hardware={"capacity_bytes": 350 * MIB}), H200, TAPE)
    assert said.fits
    assert said.memory.allocated_bytes == 340 * MIB
    assert said.memory.reserved_bytes == 340 * MIB, "the cached 50 MiB were given back to make room for the 200"
    assert said.memory.breakdown_bytes["allocator"] == 0
    assert sum(said.memory.breakdown_bytes.values()) == said.memory.device_bytes


def test_an_exact_tape_on_a_measured_card_is_off_by_a_block_or_a_segment() -> None:
    tape = dataclasses.replace(TAPE, versions={"torch": "2.11.0", "peft": "0.21.0"})
    memory = prediction_from_tape(job(), H200, tape).memory
    assert memory.range_bytes.allocated == (340 * MIB - 512, 340 * MIB + 512)
    assert memory.range_bytes.reserved == (388 * MIB, 392 * MIB)
    low, high = memory.range_bytes.device
    assert low <= memory.device_bytes - 2 * MIB and high >= memory.device_bytes + 2 * MIB
    assert high - low < memory.device_bytes / 100


def test_a_guess_widens_the_range_and_is_told() -> None:
    said = prediction_from_tape(job(), H200, dataclasses.replace(TAPE, guesses=("a kernel's workspace",)))
    low, high = said.memory.range_bytes.allocated
    assert low < 340 * MIB * 0.96 and high > 340 * MIB * 1.04, "some percent, where an exact tape has half a KiB"
    assert said.warnings == ("guessed: a kernel's workspace",)


def test_a_card_nobody_measured_is_said_to_be_one() -> None:
    said = prediction_from_tape(job(hardware={"gpu": "rtx-4090"}), UNMEASURED, TAPE)
    (warning,) = said.warnings
    assert "the CUDA context of the RTX 4090 was not measured" in warning
    low, high = said.memory.range_bytes.device
    assert low < said.memory.device_bytes < high
    assert high - low > 600 * MIB


def test_the_context_of_a_measured_card() -> None:
    assert context_of(H200) == H200_CONTEXT
    other = Gpu("other", "NVIDIA", (9, 0), 80 * GIB, "a run", date(2026, 11, 15), 100, None, 500 * MIB)
    context = context_of(other)
    assert context.measured
    assert context.low_bytes < context.nbytes == 500 * MIB < context.high_bytes


def test_allocator_follows_the_job_the_card_and_torch() -> None:
    settings = allocator_settings("expandable_segments", H200, TAPE)
    assert settings.expandable_segments
    assert settings.oldest_segment_first, "torch 2.13 takes the oldest segment"
    assert settings.device_total_bytes == H200.memory_bytes
    assert settings.capacity_is_physical
    older = dataclasses.replace(TAPE, versions={"torch": "2.11.0"})
    settings = job_on_card(job(hardware={"capacity_bytes": GIB}), H200, older).settings
    assert (settings.expandable_segments, settings.oldest_segment_first, settings.capacity_is_physical) == (False,) * 3


def test_json_has_the_contracts_keys_and_nulls() -> None:
    said = json.loads(json.dumps(prediction_from_tape(job(id=7), H200, TAPE).to_dict()))
    assert list(said) == [
        *(
            "schema",
            "id",
            "engine",
            "memory",
            "fits",
            "fits_surely",
            "fragmented",
            "capacity_bytes",
            "smallest_capacity_bytes",
        ),
        *("exactness", "reasons", "time", "utilization", "cost", "energy", "assumptions", "warnings", "outside"),
    ]
    assert (said["schema"], said["id"], said["engine"]) == ("tunecast.prediction/1", 7, "traced")
    assert said["time"] is said["utilization"] is said["cost"] is said["energy"] is None
    assert list(said["memory"]) == [
        *("model_bytes", "allocated_bytes", "reserved_bytes", "device_bytes", "range_bytes", "peak_phase"),
        "breakdown_bytes",
    ]
    assert said["assumptions"] == ["the data fits in host memory", "traced with peft 0.21.0, torch 2.13.0+cpu"]


def test_callers_add_what_they_know() -> None:
    said = Prediction(job(), None, job_on_card(job(), H200, TAPE), assumptions=["a"], warnings=["b"])
    assert "a" in said.assumptions
    assert said.warnings == ("b",)


@pytest.mark.parametrize(
    ("fields", "field", "remedy"),
    [
        ({"stack": "megatron"}, "stack", "tunecast trace -- train.py"),
        ({"hardware": {"gpus": 4}}, "hardware.gpus", "tunecast trace --nproc-per-node 4 -- train.py"),
        ({"hardware": {"gpus": 8, "nodes": 2}}, "hardware.gpus", "--nproc-per-node 8 --nnodes 2"),
        ({"parallel": {"data": "fsdp"}}, "hardware.gpus", "--engine analytic"),
        ({"stack": "unsloth", "matmul_dtype": "float8"}, "matmul_dtype", "allowed: null"),
        ({"method": "lora", "lora": {"adapter_dtype": "float16"}}, "lora.adapter_dtype", "allowed: float32"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(fields: dict[str, object], field: str, remedy: str) -> None:
    with pytest.raises(UsageError) as refused:
        require_traceable(job(**fields))
    assert refused.value.field == field
    assert refused.value.message.startswith(f"{field}: ")
    assert remedy in refused.value.message


def test_everything_not_modelled_is_told_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        require_traceable(job(stack="nemo", matmul_dtype="float8"))
    assert [line.partition(":")[0] for line in refused.value.message.splitlines()] == ["stack", "matmul_dtype"]


def test_a_plain_job_is_modelled() -> None:
    require_modelled(job(method="lora", lora={"adapter_dtype": "bfloat16"}, weights_dtype="bfloat16"))


@pytest.mark.parametrize(("name", "told"), [("analytical", "nearest: analytic"), ("trace", "nearest: traced")])
def test_engines_that_are_not_there(name: str, told: str) -> None:
    require_engine("analytic")
    require_engine("traced")
    with pytest.raises(UsageError, match="allowed: analytic, traced") as refused:
        require_engine(name)
    assert told in refused.value.message


@pytest.mark.parametrize(("given", "traced"), [(1, 1), (4, 4), (5, 5), (6, 4), (7, 5), (16, 4)])
def test_few_micro_batches_stand_for_many(given: int, traced: int) -> None:
    assert with_few_micro_batches(job(grad_accum=given)).grad_accum == traced


def test_micro_batches_that_were_not_followed_are_told_by_both_engines() -> None:
    many = job(grad_accum=16)
    assert "the last 12 micro-batches of a step are like those before" in job_assumptions(
        many, with_few_micro_batches(many)
    )
    assert not [told for told in job_assumptions(many, many) if "micro-batches" in told], "--exact follows them all"


def test_the_one_job_of_a_file_or_a_name(tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_text('{"model": "gpt2", "id": 1}')
    assert read_job(str(path)).id == 1
    assert read_job("gpt2").model == "gpt2"
    path.write_text('{"model": "gpt2"}\n{"model": "gpt2"}')
    with pytest.raises(UsageError, match="got 2 jobs"):
        read_job(str(path))
    path.write_text('{"model": "gpt2", "seqlen": 1}')
    with pytest.raises(UsageError, match="nearest: seq_len") as refused:
        read_job(str(path))
    assert refused.value.field == "seqlen"
    with pytest.raises(NotResolved):
        read_job(str(tmp_path / "none.yaml"))


def test_what_others_hold_is_not_there_for_the_allocator() -> None:
    alone = job_on_card(Job("gpt2"), H200, TAPE)
    shared = job_on_card(job_from_dict({"model": "gpt2", "hardware": {"reserve_bytes": "2GiB"}}), H200, TAPE)
    assert alone.capacity_bytes - shared.capacity_bytes == 2 * GIB
    assert shared.shown.reserved_bytes == alone.shown.reserved_bytes == 390 * MIB
    tight = H200.memory_bytes - H200_CONTEXT.nbytes - 389 * MIB
    assert job_on_card(job_from_dict({"model": "gpt2", "hardware": {"reserve_bytes": tight}}), H200, TAPE).fits
    tighter = job_from_dict({"model": "gpt2", "hardware": {"reserve_bytes": tight + 60 * MIB}})
    assert not job_on_card(tighter, H200, TAPE).fits  # 329 MiB; 340 are alive at the peak


def test_others_cannot_hold_all_of_it() -> None:
    job = job_from_dict({"model": "gpt2", "hardware": {"reserve_bytes": "200GiB"}})
    with pytest.raises(UsageError, match=r"hardware.reserve_bytes: got 200.00 GiB, which leaves PyTorch nothing"):
        job_on_card(job, H200, TAPE)
