"""NeMo Automodel on paper against its own modules, traced once (tests/golden/stacks/automodel/README.md)."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from recorded import as_recorded

import tunecast
from tunecast.errors import TunecastError
from tunecast.job import job_from_dict
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.job_runs import build, fold_job
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Op, Tape

pytestmark = pytest.mark.whole

GOLDEN = Path(__file__).parents[1] / "golden"
HERE = GOLDEN / "stacks" / "automodel"
LEAST_BYTES = 1024
EMBEDDED_BYTES = 2 * 256 * 320 * 2
"""The first request of a forward pass on one card; what a trace calls its beginning differs with the method."""


def loaded(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


cases = loaded("automodel_cases", HERE / "automodel_cases.py")
told = loaded("sizes", GOLDEN / "tools" / "sizes.py").told
EVENTS: dict[str, list[int]] = json.loads(gzip.decompress((HERE / "events.json.gz").read_bytes()))


def from_embedding(sizes: list[int]) -> list[int]:
    return sizes[sizes.index(EMBEDDED_BYTES) :]


def built(values: dict[str, Any], config: dict[str, Any], steps: int = cases.STEPS) -> Tape:
    job = fill_in(as_recorded("stacks/automodel", values), config)
    return build(job, config, [cases.LENGTH] * steps, Card())


@pytest.mark.parametrize("name", cases.CASES)
def test_same_allocations_as_its_modules(name: str) -> None:
    case = cases.CASES[name]
    tape = built(cases.job_of(case), case["config"])
    ours = from_embedding(told(tape.events, lambda nbytes: nbytes >= LEAST_BYTES))
    theirs = from_embedding(EVENTS[name])
    assert len(theirs) > 1000
    for place, (mine, their) in enumerate(zip(ours, theirs, strict=False)):
        assert mine == their, f"event {place} of {len(theirs)}: built {mine}, traced {their}"
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("name", ["llama lora, recomputed", "eight, llama", "eight, mistral lora, recomputed"])
def test_layers_are_folded(name: str) -> None:
    """A long model's program follows from a short one's: the same as every layer written out."""
    case = cases.CASES[name]
    config = {**case["config"], "num_hidden_layers": 9}
    job = fill_in(job_from_dict(cases.job_of(case)), config)
    requests = [size for size in fold_job(job, config, Card()).program.sizes if size >= 0]
    written = build(job, config, [cases.LENGTH] * 2, Card(), keeps_ops=False)
    assert requests == [event.nbytes for event in written.events if isinstance(event, Alloc)]


def test_gradients_are_summed_in_float32_unless_told_otherwise() -> None:
    case = cases.CASES["eight, llama"]

    def sent(**parallel: str) -> set[str]:
        tape = built({**cases.job_of(case), "parallel": {"data": "fsdp", **parallel}}, case["config"])
        return {event.dtype for event in tape.events if isinstance(event, Op) and "reduce_scatter" in event.name}

    assert sent() != sent(reduce_dtype="bfloat16")


def test_what_it_leaves_unsaid_is_its_own() -> None:
    job = {"model": "m", "stack": "automodel", "method": "lora", "hardware": {"gpus": 8}}
    filled = fill_in(job_from_dict(job), {"model_type": "llama", "torch_dtype": "bfloat16"})
    assert (filled.autocast, filled.gradient_checkpointing, filled.optimizer) == (None, False, "adamw_torch")
    assert (filled.lora.rank, filled.lora.dropout, filled.lora.targets) == (8, 0.0, "all-linear")
    assert (filled.lora.adapter_dtype, filled.parallel.data) == ("bfloat16", "fsdp")
    kept = fill_in(job_from_dict({**job, "gradient_checkpointing": True, "lora": {"rank": 32}}), {})
    assert (kept.gradient_checkpointing, kept.lora.rank) == (True, 32)


@pytest.mark.parametrize(
    "more",
    [
        {"autocast": "bfloat16"}, {"kernels": ["liger"]}, {"compile": True}, {"loss": "chunked"},
        {"checkpoint_reentrant": True, "gradient_checkpointing": True},
        {"hardware": {"gpus": 8}, "parallel": {"data": "fsdp", "expert": 2}},
        {"hardware": {"gpus": 8}, "parallel": {"data": "zero3"}}, {"method": "lora", "lora": {"dora": True}},
    ],
)  # fmt: skip
def test_what_is_not_written_down_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(TunecastError):
        tunecast.predict({"model": "llama-3.2-1b", "stack": "automodel", "seq_len": 64, **more})


@pytest.mark.parametrize(("model", "step_s"), [("llama-3.1-8b", 10.51), ("qwen2.5-7b", 9.29)])
def test_published_steps(model: str, step_s: float) -> None:
    """docs/performance-summary.mdx of Automodel, LoRA on one H100 (examples/llm_benchmark, *_peft_benchmark.yaml). Run
    with Liger's and its own Triton kernels, which are not written down: told to be slower, and within the range."""
    told = tunecast.predict(
        {
            "model": model, "stack": "automodel", "method": "lora", "lora": {"rank": 16, "dropout": 0.1},
            "seq_len": 4096, "micro_batch": 2, "grad_accum": 16, "max_grad_norm": 0,
            "hardware": {"gpu": "h100-sxm-80gb"},
        }
    )  # fmt: skip
    assert told.time is not None and told.time.low_s < step_s < told.time.high_s
    assert step_s < told.time.step_s < 1.2 * step_s
    assert any("nobody measured" in warning for warning in told.warnings)
