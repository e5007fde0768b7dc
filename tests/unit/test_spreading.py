"""What a job may ask of several cards, and what it is told otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import UsageError
from tunecast.job import job_from_dict
from tunecast.prediction.modelled import require_modelled, require_traceable

EIGHT = {"gpus": 8}


def asked(**job: Any) -> Any:
    return job_from_dict({"model": "llama-3.1-8b", "hardware": EIGHT, **job})


@pytest.mark.parametrize(
    "job",
    [
        {},
        {"parallel": {"data": "fsdp"}},
        {"parallel": {"data": "fsdp", "offload": "parameters"}},
        {"parallel": {"data": "fsdp"}, "method": "qlora", "stack": "trl"},
        {"parallel": {"data": "hsdp"}, "hardware": {"gpus": 8, "nodes": 2}},
        {"parallel": {"data": "zero3", "offload": "optimizer"}, "stack": "llama-factory"},
        {"parallel": {"data": "zero2", "offload": "optimizer"}, "hardware": {"gpus": 1}},
        {"parallel": {"data": "zero3", "reduce_bucket_size": 1000}, "method": "lora", "kernels": ["liger"]},
        {"optimizer": "adamw_8bit"},
        {"parallel": {"data": "fsdp", "expert": 4}, "stack": "torchtitan"},
        {"parallel": {"data": "fsdp", "sync_each_batch": True}, "grad_accum": 2},
        {"parallel": {"data": "fsdp", "cpu_ram_efficient_loading": True, "load_on_rank_0": True}},
        {"parallel": {"data": "fsdp", "sync_each_batch": True}, "grad_accum": 2, "transformers_version": "4.45.2"},
        {"hardware": {"gpus": 1}},
    ],
)
def test_known(job: dict[str, Any]) -> None:
    require_modelled(asked(**job))


@pytest.mark.parametrize(
    ("job", "field", "remedy"),
    [
        ({"stack": "unsloth", "hardware": {"gpus": 2}}, "hardware.gpus", "tunecast trace --nproc-per-node 2"),
        ({"parallel": {"data": "fsdp"}, "hardware": {"gpus": 1}}, "parallel.data", "hardware.gpus 2 or more"),
        ({"parallel": {"data": "hsdp"}}, "parallel.data", "To fix: fsdp"),
        ({"parallel": {"data": "fsdp"}, "method": "lora", "kernels": ["liger"]}, "kernels", "nobody gathers"),
        (
            {"stack": "megatron", "parallel": {"data": "zero1", "overlap_comm": True}},
            "parallel.overlap_comm",
            "DeepSpeed's ZeRO, which megatron does not use; allowed: null",
        ),
        (
            {"parallel": {"data": "fsdp", "sync_each_batch": True}, "transformers_version": "4.48"},
            "parallel.sync_each_batch",
            "another transformers_version",
        ),
        (
            {"parallel": {"data": "fsdp", "load_on_rank_0": True}},
            "parallel.load_on_rank_0",
            "cpu_ram_efficient_loading: true",
        ),
        (
            {"parallel": {"data": "ddp", "load_on_rank_0": True, "cpu_ram_efficient_loading": True}},
            "parallel.load_on_rank_0",
            "with fsdp or hsdp",
        ),
        (
            {
                "parallel": {"data": "fsdp", "load_on_rank_0": True, "cpu_ram_efficient_loading": True},
                "method": "qlora",
            },
            "parallel.load_on_rank_0",
            "allowed: false",
        ),
        (
            {"parallel": {"data": "fsdp", "sync_each_batch": True}, "stack": "torchtune"},
            "parallel.sync_each_batch",
            "allowed with torchtune: false",
        ),
        ({"parallel": {"data": "zero1"}, "stack": "torchtitan"}, "parallel.data", "allowed: fsdp, hsdp"),
        ({"parallel": {"offload": "optimizer"}}, "parallel.offload", "zero2"),
        ({"parallel": {"data": "fsdp", "offload": "optimizer"}}, "parallel.offload", "nearest: parameters"),
        ({"parallel": {"data": "zero2", "offload": "parameters"}}, "parallel.offload", "zero3"),
        ({"parallel": {"data": "fsdp"}, "optimizer": "adamw_8bit"}, "optimizer", "adamw_torch"),
        (
            {"parallel": {"data": "zero3"}, "method": "qlora", "quantization": {"format": "int8"}},
            "quantization.format",
            "allowed: nf4, fp4, null",
        ),
        ({"parallel": {"data": "fsdp"}, "compile": True}, "compile", "allowed: false"),
        ({"parallel": {"data": "fsdp", "fsdp_version": 1}, "matmul_dtype": "float8"}, "matmul_dtype", "fsdp_version 2"),
        ({"parallel": {"data": "zero2"}, "matmul_dtype": "float8"}, "matmul_dtype", "allowed: null, or float8"),
        ({"parallel": {"data": "fsdp"}, "matmul_dtype": "float4"}, "matmul_dtype", "allowed: null"),
        ({"parallel": {"reduce_dtype": "float32"}}, "parallel.reduce_dtype", "allowed: null"),
        ({"parallel": {"expert": 4}}, "parallel", "automodel, axolotl, megatron, nemo, torchtitan; transformers' own"),
        ({"optimizer": "lomo"}, "optimizer", "on one card"),
        ({"optimizer_in_backward": True}, "optimizer_in_backward", "on one card"),
    ],
)
def test_refused_by_name_with_a_remedy(job: dict[str, Any], field: str, remedy: str) -> None:
    with pytest.raises(UsageError) as refusal:
        require_modelled(asked(**job))
    assert refusal.value.field == field
    assert remedy in str(refusal.value)


def test_float8_is_known_under_fsdp_2() -> None:
    require_modelled(asked(parallel={"data": "fsdp"}, matmul_dtype="float8"))


def test_the_traced_engine_is_one_cards() -> None:
    with pytest.raises(UsageError, match=r"--engine analytic") as refusal:
        require_traceable(asked(parallel={"data": "fsdp"}))
    assert refusal.value.field == "hardware.gpus"
