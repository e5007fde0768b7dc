"""ZeRO on paper against DeepSpeed's own engine, traced on a process group that is not there: the same allocations and
frees, in the same order, on the same streams, and the same collectives. Two layers, two steps.

Below a kilobyte are numbers DeepSpeed keeps books with: scales of the loss, norms, flags of an overflow. Collectives
of a single number are compared all the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("deepspeed")

from installed import as_installed
from sharding_modules import loaded

from tunecast.tape.build.job_runs import build
from tunecast.tape.build.sharding.zero_sizes import SETTINGS, DeepSpeedSettings
from tunecast.tape.card import Card
from tunecast.tape.trace.run import trace_script

HERE = Path(__file__).parent / "sharding_cases"
WORTH_COMPARING_BYTES = 1024
DEFAULTS = {name: getattr(DeepSpeedSettings(), name) for name in SETTINGS}
TRACKER_BYTES = 1
"""Of stage 3, while loading: whether anything was infinite (`inf_or_nan_tracker`)."""


CASES = loaded("zero_cases")
TRACING = loaded("trace_zero")


@pytest.fixture(scope="module")
def traced(
    selected: list[str], tmp_path_factory: pytest.TempPathFactory, trace_cases: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    cases = [[name, *CASES.case(name)] for name in selected]
    return trace_cases(HERE / "trace_zero.py", cases, tmp_path_factory.mktemp("zero"))


def parted(events: list[Any]) -> tuple[int, list[Any]]:
    """Bytes that loading leaves, and what the steps ask for and let go: size and stream. Frees between two requests are
    in no order."""
    first = next(place for place, event in enumerate(events) if event[1] != "load" and event[2] > 0)
    held = sum(event[2] for event in events[:first])
    steps: list[Any] = []
    frees: list[Any] = []
    for _, _, size, stream, _ in events[first:]:
        if abs(size) < WORTH_COMPARING_BYTES:
            continue
        if size < 0:
            frees.append([size, stream])
        else:
            steps += [*sorted(frees), [size, stream]]
            frees = []
    return held, steps


@pytest.mark.parametrize("name", CASES.CASES)
def test_same_allocations_and_collectives_as_deepspeed(traced: dict[str, Any], name: str) -> None:
    assert not isinstance(traced[name], str), traced[name]
    values, config, lengths, file = CASES.case(name)
    asked = {field.removeprefix("stage3_"): value for field, value in file.items()}
    values = {**values, "parallel": {**values["parallel"], **asked}}
    tape = build(as_installed(values), config, lengths, Card())
    (our_load, ours), (their_load, theirs) = parted(TRACING.told(tape.events)), parted(traced[name][0])
    assert len(theirs) > 500
    for place, (mine, their) in enumerate(zip(ours, theirs, strict=False)):
        around = slice(max(0, place - 3), place + 3)
        assert mine == their, f"event {place} of {len(theirs)}: built {ours[around]}, traced {theirs[around]}"
    assert len(ours) == len(theirs)
    assert 0 <= their_load - our_load <= TRACKER_BYTES
    assert sent(TRACING.sent(TRACING.trained(tape.events))) == sent(traced[name][1])


ACCUMULATED = {"gradient_checkpointing": True, "grad_accum": 2}
SAID = {"reduce_bucket_size": "auto", "overlap_comm": False}
TRAINERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "zero2": ("zero2", {}, {}),
    "zero2-said": ("zero2", ACCUMULATED, SAID | {"round_robin_gradients": True}),
    "zero3": ("zero3", ACCUMULATED, {}),
    "zero3-said": (
        "zero3",
        ACCUMULATED,
        SAID | {"stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"},
    ),
}


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_trainer_with_deepspeed_is_on_paper(trainer: str) -> None:
    """A whole program, unmodified, as a user starts it on eight cards. Norms, which do not decay, are a group; what
    "auto" stands for is transformers' own choice."""
    stage, more, file = TRAINERS[trainer]
    said = {field.removeprefix("stage3_"): value for field, value in file.items()}
    job = CASES.JOB | {"hardware": {"gpus": 8}, "stack": "llama-factory", "grad_accum": 1} | more
    parallel = {"data": stage, **DEFAULTS, "overlap_comm": stage == "zero3", **said}
    job |= {"checkpoint_reentrant": False, "parallel": parallel}
    script = HERE.parent / "scripts_distributed" / "deepspeed_trainer.py"
    case = json.dumps({"job": job, "config": CASES.LLAMA, "file": file})
    tape, answer = trace_script(str(script), (case,), Card(), nproc_per_node=8, steps=2)
    assert (answer.error, answer.steps) == (None, 2)
    built = build(as_installed(job), CASES.LLAMA, [256, 256], Card())
    ours, theirs = (forwards(TRACING.told(events)) for events in (built.events, tape.events))
    assert len(theirs) > 1000
    for place, (mine, their) in enumerate(zip(ours, theirs, strict=False)):
        assert mine == their, f"event {place} of {len(theirs)}: built {mine}, traced {their}"
    assert 0 <= len(ours) - len(theirs) <= SMALL_WEIGHTS


NAMED = """
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

file = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": "auto"}
settings = TrainingArguments(
    "out", per_device_train_batch_size=1, bf16=True, report_to="none", save_strategy="no", deepspeed=file
)
model = AutoModelForCausalLM.from_pretrained("some/model")
rows = [{"input_ids": torch.ones(16, dtype=torch.long), "labels": torch.ones(16, dtype=torch.long)}] * 2
Trainer(model, settings, train_dataset=rows).train()
"""


def test_stage_3_loads_a_model_of_which_only_the_configuration_is_here(tmp_path: Path) -> None:
    """Its file is the whole model's, in the bfloat16 of the configuration, though every rank keeps a part alone."""
    (tmp_path / "train.py").write_text(NAMED)
    config = CASES.LLAMA | {"dtype": "bfloat16"}
    _, answer = trace_script(
        str(tmp_path / "train.py"), (), Card(), nproc_per_node=2, steps=1, models={"some/model": config}
    )
    assert (answer.error, answer.steps) == (None, 1)
    (file,) = answer.facts.read_files
    width, wide, heads = config["hidden_size"], config["intermediate_size"], config["num_key_value_heads"]
    keys = width // config["num_attention_heads"] * heads
    layer = 2 * width * width + 2 * width * keys + 3 * width * wide + 2 * width
    weights = 2 * config["vocab_size"] * width + config["num_hidden_layers"] * layer + width
    assert file.from_hub and 0 < file.nbytes - 2 * weights < 10_000, "and its header"


SMALL_WEIGHTS = 6
"""With which the last step ends, or what it lets go: the program is over before that is seen."""


def forwards(events: list[Any]) -> list[Any]:
    """From the first forward pass to the last request of the last step's optimizer."""
    first = next(place for place, event in enumerate(events) if event[1] == "forward" and event[2] > 0)
    last = max(place for place, event in enumerate(events) if event[1] == "optimizer" and event[2] > 0)
    return parted(events[first : last + 1])[1]


def sent(collectives: list[Any]) -> list[Any]:
    """Name, bytes and ranks. Broadcasts are of numbers that ranks compare."""
    return [collective[:4] for collective in collectives if collective[0] != "broadcast"]
