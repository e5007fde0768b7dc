"""What a job makes of a checkpoint that is stored quantised: by its config.json, or by its name."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import NotResolved, TunecastError, UsageError
from tunecast.job import job_from_dict
from tunecast.job.model import resolve_model
from tunecast.job.stored import USUAL, Packing, packing_of
from tunecast.tape.build.fill_in import fill_in

LLAMA: dict[str, Any] = {"model_type": "llama", "torch_dtype": "bfloat16"}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
MXFP4 = {"quant_method": "mxfp4"}
GPTQ = {"quant_method": "gptq", "bits": 8, "group_size": 32}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
INT8 = {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}}


def filled(stored: dict[str, Any], **values: Any) -> Any:
    job = job_from_dict({"model": "small", "seq_len": 64, "method": "lora", **values})
    return fill_in(job, {**LLAMA, "quantization_config": stored})


@pytest.mark.parametrize(
    ("stored", "values", "method", "format"),
    [
        (NF4, {}, "qlora", "nf4"),
        (GPTQ, {}, "qlora", "gptq"),
        (GPTQ, {"method": "qlora"}, "qlora", "gptq"),
        (AWQ, {}, "qlora", "awq"),
        (INT8, {}, "qlora", "torchao_int8"),
        (MXFP4, {}, "lora", None),
        (MXFP4, {"method": "full"}, "full", None),
        (FP8, {"transformers_version": "5.17.0"}, "lora", None),  # transformers 5.17 trains nothing over FP8
        (FP8, {"transformers_version": "5.22.2"}, "qlora", "finegrained_fp8"),
        (FP8, {"transformers_version": "5.22.2", "quantization": {"format": None}}, "lora", None),
        (FP8, {"transformers_version": "5.22.2", "method": "full"}, "full", None),
        (AWQ, {"stack": "torchtune"}, "lora", None),  # which reads checkpoints of its own
    ],
)
def test_the_format_is_the_checkpoints(
    stored: dict[str, Any], values: dict[str, Any], method: str, format: str | None
) -> None:
    job = filled(stored, **values)
    assert (job.method, job.quantization.format) == (method, format)
    assert fill_in(job, {**LLAMA, "quantization_config": stored}) == job


def test_awq_is_loaded_in_float16() -> None:
    """transformers 5.17.0, quantizer_awq.py, `update_dtype`."""
    assert filled(AWQ).weights_dtype == "float16"
    assert not filled(AWQ).quantization.prepare_kbit


@pytest.mark.parametrize(
    ("stored", "values", "field"),
    [
        (GPTQ, {"method": "full"}, "method"),
        (GPTQ, {"method": "qlora", "quantization": {"format": "nf4"}}, "quantization.format"),
        (MXFP4, {"method": "qlora"}, "quantization.format"),
        (FP8, {"method": "qlora"}, "quantization.format"),
        ({"quant_method": "hqq"}, {}, "model"),
        ({"quant_method": "fbgemm_fp8"}, {}, "model"),
        ({"quant_method": "torchao", "quant_type": "Int4WeightOnlyConfig"}, {}, "model"),
    ],
)
def test_what_transformers_refuses_is_refused(stored: dict[str, Any], values: dict[str, Any], field: str) -> None:
    with pytest.raises(TunecastError, match="To fix: ") as refused:
        filled(stored, **values)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "stored",
    [
        {"quant_method": "gptq", "bits": 5},
        {"quant_method": "gptq", "bits": True},
        {"quant_method": "awq", "group_size": "128"},
        {"quant_method": "awq", "group_size": 10**9},
        {"quant_method": "fp8", "weight_block_size": [128]},
        {"quant_method": "fp8", "weight_block_size": [0, 128]},
        {"quant_method": "hqq", "quant_config": {"weight_quant_params": 4}},
        {"load_in_4bit": True, "bnb_4bit_quant_type": "int2"},
        {"quant_method": 3},
        {},
    ],
)
def test_what_no_checkpoint_says_is_refused(stored: dict[str, Any]) -> None:
    with pytest.raises(NotResolved, match="quantization_config"):
        packing_of({"quantization_config": stored})


def test_bytes_of_a_weight() -> None:
    """640 outputs of 256 inputs. GPTQ in 4 bits: two groups of scales in 2 bytes and zeros in half a byte, and 4 bytes
    an input; AWQ: without those; FP8: 5 x 2 blocks with 4 bytes each; torchao's int8: 4 bytes and a zero an output."""
    elements = 640 * 256
    assert USUAL["gptq"].weight_bytes(640, 256) == elements // 2 + 2 * 640 * 5 // 2 + 4 * 256
    assert USUAL["awq"].weight_bytes(640, 256) == elements // 2 + 2 * 640 * 5 // 2
    assert USUAL["finegrained_fp8"].weight_bytes(640, 256) == elements + 5 * 2 * 4
    assert USUAL["torchao_int8"].weight_bytes(640, 256) == elements + 5 * 640
    assert Packing("gptq", "gptq", 8, 0).weight_bytes(640, 256) == elements + 640 * 3 + 4 * 256


def test_modules_that_stay_plain() -> None:
    packing = Packing("fp8", "finegrained_fp8", skipped=("lm_head", "model.layers.*.self_attn", "model.layers.1.mlp"))
    assert packing.skips("lm_head")
    assert packing.skips("model.layers.7.self_attn.q_proj")
    assert packing.skips("model.layers.1.mlp.up_proj")
    assert not packing.skips("model.layers.7.mlp.up_proj")
    assert not Packing("fp8", "finegrained_fp8").skips("lm_head")


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("Qwen/Qwen3-8B-AWQ", "awq"),
        ("Qwen/Qwen3-8B-FP8", "fp8"),
        ("RedHatAI/Qwen3-8B-FP8-dynamic", "compressed-tensors"),
        ("unsloth/Qwen3-8B-bnb-4bit", "bitsandbytes"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "gptq"),
        ("unsloth/gpt-oss-20b-BF16", None),
    ],
)
def test_the_packing_of_a_name(name: str, method: str | None) -> None:
    packing = packing_of(resolve_model(name, offline=True).raw)
    assert (None if packing is None else packing.method) == method
    if packing is not None:
        assert not packing.stated
        assert packing.bits == (4 if method in ("awq", "bitsandbytes") else packing.bits)


def test_weights_in_mxfp4_become_bfloat16() -> None:
    from tunecast.tape.build.loads import load_tape
    from tunecast.tape.card import Card

    config = {
        "model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 2, "num_experts_per_tok": 1,
        "vocab_size": 128, "quantization_config": MXFP4,
    }  # fmt: skip
    job = job_from_dict({"model": "small", "seq_len": 64, "method": "full", "weights_dtype": "float32"})
    with pytest.raises(UsageError, match="weights_dtype bfloat16"):
        load_tape(job, config, Card(), {"cached_bytes": 0})
