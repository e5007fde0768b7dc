"""foak's kernels and GPTQ on paper against the real packages, traced once (tests/golden/stacks/fms/README.md)."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from recorded import as_recorded

from tunecast.errors import Unsupported
from tunecast.job import job_from_dict
from tunecast.job.stored import USUAL
from tunecast.tape.build.job_runs import build
from tunecast.tape.op import Alloc, Free

HERE = Path(__file__).parents[1] / "golden" / "stacks"


def loaded(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def events_of(stack: str) -> dict[str, list[int]]:
    return json.loads(gzip.decompress((HERE / stack / "events.json.gz").read_bytes()))  # type: ignore[no-any-return]


cases = loaded("fms_cases", HERE / "fms" / "fms_cases.py")
make = loaded("fms_make", HERE / "fms" / "make.py")
PACKED = {name: loaded(f"{name}_make", HERE / name / "make.py") for name in ("gptqmodel", "packed")}
EVENTS = events_of("fms")


def same(ours: list[int], theirs: list[int]) -> None:
    for place, (mine, their) in enumerate(zip(ours, theirs, strict=False)):
        assert mine == their, f"event {place} of {len(theirs)}: built {mine}, traced {their}"
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("name", cases.CASES)
def test_same_allocations_as_the_real_packages(name: str) -> None:
    case = cases.CASES[name]
    lengths = [case["length"]] * cases.STEPS
    tape = build(as_recorded("stacks/fms", cases.job_of(case)), case["config"], lengths, make.CARD)
    same(make.told(tape.events), EVENTS[name])


@pytest.mark.parametrize(("stack", "name"), [(each, name) for each, made in PACKED.items() for name in made.CASES])
def test_same_allocations_as_packed_layers(stack: str, name: str) -> None:
    """gptqmodel's GPTQ and AWQ, transformers' FP8 and torchao's formats, each under PEFT's newest adapters."""
    case = PACKED[stack].CASES[name]
    values = {
        "model": "small", "method": "lora", "weights_dtype": "float16" if stack == "gptqmodel" else "bfloat16",
        "autocast": case["autocast"], "seq_len": case["length"], "micro_batch": case["batch"],
        "optimizer": "adamw_torch", "max_grad_norm": 1.0, "gradient_checkpointing": case["recomputed"],
        "lora": {"rank": 8, "alpha": 16, "dropout": 0.1, "targets": cases.PROJECTIONS},
    }  # fmt: skip
    config = {**case["config"], "quantization_config": case["stored"]}
    tape = build(as_recorded(f"stacks/{stack}", values), config, [case["length"]] * 2, PACKED[stack].CARD)
    same(PACKED[stack].told(tape.events), events_of(stack)[name])
    assert tape.guesses, "what the kernels themselves need was read, not run"


def built(**changes: object) -> object:
    case = cases.case("4.48.1", "gptq", "foak") | changes.pop("case", {})  # type: ignore[operator]
    values = cases.job_of(case) | changes
    return build(job_from_dict(values), case["config"], [case["length"]], make.CARD)


def test_gptq_holds_packed_weights_scales_zeros_and_groups() -> None:
    """One layer of 256 -> 640: 256 * 640 / 2 bytes packed, 2 groups of 640 scales in 2 bytes and zeros in half a byte,
    and the group of each of 256 inputs in 4 bytes."""
    tape = built(kernels=[])
    gate = [e.nbytes for e in tape.events if isinstance(e, Alloc) and e.module == "model.layers.0.mlp.gate_proj"]
    assert gate[:4] == [256 * 640 // 2, 2 * 640 // 2, 2 * 640 * 2, 256 * 4]
    assert USUAL["gptq"].weight_bytes(640, 256) == sum(gate[:4])


def test_gptqmodel_keeps_dequantised_weights() -> None:
    """From transformers 4.50 on: without recomputation a second copy of each layer's weight in 16 bits."""
    case = cases.case("4.48.1", "gptq", reentrant=None)
    values = {**cases.job_of(case), "transformers_version": None}
    tape = build(job_from_dict(values), case["config"], [case["length"]], make.CARD)
    held, most = 0, 0
    weight = 256 * 640 * 2  # no other tensor of this model is as large as an MLP's weight
    blocks = {e.block for e in tape.events if isinstance(e, Alloc) and e.nbytes == weight}
    for event in tape.events:
        held += isinstance(event, Alloc) and event.block in blocks
        held -= isinstance(event, Free) and event.block in blocks
        most = max(most, held)
    assert most == 6  # gate, up and down of two layers
    assert "gptqmodel" in tape.guesses[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"case": {"config": {"model_type": "qwen2", **cases.WIDTHS}}}, "kernels"),
        ({"quantization": {"format": "nf4", "double_quant": False}}, "double_quant"),
        ({"lora": {"rank": 8, "targets": "all-linear"}}, "MLP"),
        ({"weights_dtype": "bfloat16"}, "float16"),
    ],
)
def test_what_the_packages_do_not_do_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        built(**changes)
