"""Fields that are right by themselves and wrong together."""

from __future__ import annotations

import pytest

from tunecast.errors import UsageError
from tunecast.job import Job, Lora, Quantization, job_from_dict


def problems(**fields: object) -> list[str]:
    try:
        job_from_dict({"model": "gpt2", **fields})
    except UsageError as error:
        return error.message.splitlines()
    return []


@pytest.mark.parametrize("task", ["dpo", "kto", "reward", "grpo", "distill"])
def test_a_task_that_a_stack_does_not_do_says_who_does(task):
    [line] = problems(task=task, stack="torchtune")
    assert line.startswith(
        f"task: got {task}, which is not modelled of torchtune; allowed there: sft, pretrain. To fix:"
    )
    assert "stack trl, " in line and line.endswith("trace your own script, `tunecast trace -- train.py`")


def test_what_transformers_own_trainer_does_not_do_is_trl_s():
    assert job_from_dict({"model": "m", "task": "dpo"}).stack == "trl"
    assert Job("m", task="dpo").stack == "trl"
    assert job_from_dict({"model": "m", "task": "classify"}).stack == "transformers"


def test_a_head_has_as_many_outputs_as_its_task_asks_for():
    outputs = {"reward": 1, "rerank": 1, "classify": 2, "prm": 2, "embed": None, "sft": None}
    assert {task: job_from_dict({"model": "m", "task": task}).head.labels for task in outputs} == outputs
    assert {task: Job("m", task=task).head.labels for task in outputs} == outputs
    assert job_from_dict({"model": "m", "task": "classify", "head": {"labels": 9}}).head.labels == 9
    assert problems(task="reward", head={"labels": 2}) == [
        "head.labels: got 2 with task reward, whose trainer takes a model of one output; allowed: 1; nearest: 1"
    ]
    [line] = problems(task="embed", head={"labels": 2})
    assert line.startswith("head.labels: got 2 with task embed, which compares hidden states and has no head")
    [line] = problems(task="sft", head={"labels": 2})
    assert line.startswith("head.labels: got 2 with task sft, whose head is the vocabulary's; allowed: with rew")


def test_what_fuses_the_vocabulary_s_head_needs_one():
    [line] = problems(task="reward", kernels=["liger"])
    assert line.startswith("kernels: got liger with task reward, whose model has no vocabulary to fuse; allowed: lig")
    assert problems(task="reward", kernels=["liger_rms_norm", "liger_rope"]) == []
    [line] = problems(task="classify", loss="chunked")
    assert line.startswith("loss: got chunked with task classify, whose model makes no logits of a vocabulary")
    [line] = problems(task="reward", data={"packing": True})
    assert line.startswith("data.packing: got true with task reward, whose trainer pads rows and packs none")


def test_a_student_has_a_teacher():
    [line] = problems(task="distill")
    assert line.startswith("distill.teacher: got null with task distill, which learns from another model; allowed: a")
    assert problems(task="distill", distill={"teacher": "llama-3.1-8b"}) == []
    [line] = problems(distill={"teacher": "llama-3.1-8b"})
    assert line.startswith("distill.teacher: got 'llama-3.1-8b' with task sft, which has no teacher; allowed: ")


def test_qlora_means_nf4_unless_told_otherwise():
    assert job_from_dict({"model": "m", "method": "qlora"}).quantization.format == "nf4"
    assert Job("m", method="qlora").quantization.format == "nf4"
    assert problems(method="qlora", quantization={"format": "int8"}) == []
    [line] = problems(method="qlora", quantization={"format": None})
    assert (
        line
        == "quantization.format: got null with method qlora; allowed: nf4, fp4, int8, or method: lora; nearest: nf4"
    )


@pytest.mark.parametrize(("method", "near"), [("full", "null"), ("lora", "method: qlora")])
def test_only_qlora_is_quantised(method, near):
    [line] = problems(method=method, quantization={"format": "nf4"})
    assert line.startswith(f"quantization.format: got nf4 with method {method}; ") and line.endswith(f"nearest: {near}")
    with pytest.raises(UsageError, match=r"quantization.format"):
        Job("m", method=method, quantization=Quantization("nf4"))


def test_lora_fields_need_a_method_with_adapters():
    lines = problems(lora={"rank": 16, "dropout": 0.1})
    assert [line.split(":")[0] for line in lines] == ["lora.rank", "lora.dropout"]
    assert lines[0].endswith("allowed: with lora or qlora; nearest: method: lora")
    assert problems(lora=None) == []
    with pytest.raises(UsageError, match=r"lora.rank: got 4 with method full"):
        Job("m", lora=Lora(rank=4))


def test_how_to_quantise_needs_something_to_quantise():
    [line] = problems(method="lora", quantization={"double_quant": True})
    assert line.startswith("quantization.double_quant: got true with method lora and nothing quantised")
    # a null that was written says so itself
    assert problems(method="lora", quantization={"format": None, "double_quant": True}) == []


@pytest.mark.parametrize(
    ("fields", "blamed"),
    [
        ({"method": "qlora", "quantization": {"format": "int8", "double_quant": True}}, "quantization.double_quant"),
        (
            {"method": "qlora", "weights_dtype": "float16", "quantization": {"format": "gptq", "double_quant": True}},
            "quantization.double_quant",
        ),
        (
            {
                "method": "qlora",
                "weights_dtype": "float16",
                "quantization": {"format": "gptq"},
                "lora": {"dora": True},
            },
            "lora.dora",
        ),
        ({"method": "qlora", "weights_dtype": "float32", "quantization": {"format": "awq"}}, "weights_dtype"),
        ({"method": "qlora", "matmul_dtype": "float8"}, "matmul_dtype"),
        ({"attention": "flash_attention_2", "weights_dtype": "float32", "autocast": None}, "attention"),
        ({"weights_dtype": "float16", "autocast": "float16"}, "weights_dtype"),
        ({"method": "lora", "lora": {"adapter_dtype": "float16"}, "autocast": "float16"}, "lora.adapter_dtype"),
        ({"seq_len": 512, "lengths": [512, 513]}, "lengths"),
        ({"data": {"packing": True}, "lengths": [5]}, "data.packing"),
        ({"data": {"tokens": 5, "samples": 5}}, "data.tokens"),
        ({"data": {"max_tokens_per_batch": 99, "packing": True}}, "data.max_tokens_per_batch"),
        ({"data": {"lengths": [5, 6]}, "lengths": [7]}, "data.lengths"),
        ({"run": {"eval_strategy": "steps", "eval_steps": 5, "evals_per_epoch": 2}}, "run.evals_per_epoch"),
        ({"run": {"save_steps": 5, "saves_per_epoch": 2}}, "run.saves_per_epoch"),
        ({"kernels": ["liger", "liger_cross_entropy"]}, "kernels"),
        ({"kernels": ["liger_fused_linear_cross_entropy", "liger_cross_entropy"]}, "kernels"),
        ({"kernels": ["liger", "cut_cross_entropy"]}, "kernels"),
        ({"kernels": ["foak", "liger_rope"]}, "kernels"),
        ({"kernels": ["lora_triton"]}, "kernels"),
        ({"hardware": {"gpus": 8}, "parallel": {"data": "fsdp", "replicate": 2}}, "parallel.replicate"),
        ({"hardware": {"gpus": 8}, "parallel": {"data": "hsdp", "replicate": 3}}, "parallel.replicate"),
        ({"hardware": {"gpus": 8}, "parallel": {"data": "hsdp", "replicate": 8}}, "parallel.replicate"),
        ({"optimizer_state_dtype": "bfloat16"}, "optimizer_state_dtype"),
        ({"stack": "automodel", "master_weights": "float32"}, "master_weights"),
        ({"stack": "automodel", "optimizer": "flash_adamw", "master_weights": "float32"}, "master_weights"),
        ({"stack": "trl", "optimizer": "te_fused_adam", "master_weights": "float32"}, "master_weights"),
        ({"stack": "megatron", "master_weights": "none"}, "master_weights"),
        ({"hardware": {"gpus": 8}, "parallel": {"tensor": 3}}, "parallel.tensor"),
        ({"hardware": {"gpus": 8}, "parallel": {"pipeline": 2, "context": 8}}, "parallel.pipeline"),
        ({"hardware": {"gpus": 8}, "parallel": {"expert": 5}}, "parallel.expert"),
        ({"hardware": {"gpus": 2, "nodes": 2}, "parallel": {"layers": 4}}, "parallel.layers"),
        ({"hardware": {"gpus": 2}, "parallel": {"layers": 2, "data": "fsdp"}}, "parallel.data"),
        ({"parallel": {"offload": "optimizer"}}, "parallel.offload"),
        ({"parallel": {"data": "zero2", "offload": "parameters"}}, "parallel.offload"),
        ({"parallel": {"data": "zero2", "offload": "optimizer", "offload_device": "nvme"}}, "parallel.offload_device"),
        ({"parallel": {"data": "zero3", "offload_device": "nvme"}}, "parallel.offload_device"),
        (
            {"parallel": {"data": "fsdp", "state_dict_type": "sharded"}, "run": {"save_only_model": True}},
            "run.save_only_model",
        ),
    ],
)
def test_what_cannot_be_together(fields, blamed):
    [line] = problems(**fields)
    assert line.startswith(f"{blamed}: got ")
    assert "; allowed: " in line and "; nearest: " in line


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "qlora", "quantization": {"format": "fp4", "double_quant": True}},
        {"attention": "flash_attention_2", "weights_dtype": "float32"},
        {"weights_dtype": "float16", "autocast": "float16", "method": "lora"},
        {"hardware": {"gpus": 8, "nodes": 2}, "parallel": {"tensor": 8, "pipeline": 2}},
        {"hardware": {"gpus": 4}, "parallel": {"layers": 4}},
        {"parallel": {"data": "zero3", "offload": "parameters"}},
        {"data": {"samples": 100, "lengths": "lengths.txt"}},
    ],
)
def test_what_can(fields):
    assert problems(**fields) == []


def test_the_nearest_number_of_cards_divides_them():
    # 12 cards, asked for 5: of 1, 2, 3, 4, 6, 12 the nearest below is 4
    [line] = problems(hardware={"gpus": 12}, parallel={"tensor": 5})
    assert line == (
        "parallel.tensor: got tensor 5; allowed: what divides the 12 cards of hardware (gpus x nodes); nearest: 4"
    )


def test_lengths_alone_set_the_row():
    assert job_from_dict({"model": "m", "lengths": [100, 4000, 200]}).seq_len == 4000
    [line] = problems(seq_len=1000, lengths=[100, 4000, 2000])
    assert line == (
        "lengths: got 4000 as lengths[1] (and 1 more), above seq_len 1000; "
        "allowed: padded lengths from 1 to seq_len; nearest: 1000, or seq_len: 4000"
    )


def test_one_mistake_is_told_once():
    # the method is wrong, so nothing is said about what it would allow
    assert len(problems(method="qlroa", lora={"rank": 8}, quantization={"format": "nf4"})) == 1
    # attention is wrong, so nothing is said about what it would need
    assert len(problems(attention="flash_attention_9", weights_dtype="float32", autocast=None)) == 1


def test_a_capacity_already_says_what_others_leave():
    [line] = problems(hardware={"reserve_bytes": "2GiB", "capacity_bytes": 2**34})
    assert line.startswith("hardware.reserve_bytes: got 2147483648 with capacity_bytes")
    assert problems(hardware={"reserve_bytes": 0, "capacity_bytes": 2**34}) == []
