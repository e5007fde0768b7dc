"""What other trainers call a job's fields and values, in flags, --set, --to and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunecast.cli import compare, gpus, main, plan, predict
from tunecast.cli.hints import COMMAND_FLAGS, COMMANDS
from tunecast.errors import UsageError
from tunecast.job.flags import assignments, job_flags, overrides_from
from tunecast.job.foreign import MEANINGS, POINTERS, WITHOUT_EFFECT, called, fields_of_meaning
from tunecast.job.job import all_knobs, sections
from tunecast.job.mapping import job_from_dict
from tunecast.job.optimizers import OPTIMIZERS


def fields(*flags: str) -> dict[str, object]:
    return overrides_from(predict.parser().read(["m", *flags]))


def refusal(*flags: str) -> str:
    with pytest.raises(UsageError) as caught:
        predict.parser().read(["m", *flags])
    return caught.value.message


@pytest.mark.parametrize(
    ("flags", "meant"),
    [
        ("--batch-size 4", {"micro_batch": "4"}),
        ("--per_device_train_batch_size 4", {"micro_batch": "4"}),
        ("--gradient-accumulation-steps=8", {"grad_accum": "8"}),
        ("--max-seq-length 4k", {"seq_len": "4k"}),
        ("--max-length 512", {"seq_len": "512"}),
        ("--seq_len 512", {"seq_len": "512"}),
        ("--num-train-epochs 2", {"data.epochs": "2"}),
        ("--lora-r 8 --lora-alpha 16", {"lora.rank": "8", "lora.alpha": "16"}),
        ("--target-modules q_proj,v_proj", {"lora.targets": "q_proj,v_proj"}),
        ("--lora_target_modules q_proj k_proj v_proj", {"lora.targets": "q_proj,k_proj,v_proj"}),
        ("--optim adamw", {"optimizer": "adamw_torch_fused"}),
        ("--torch-dtype bf16", {"weights_dtype": "bfloat16"}),
        ("--dtype torch.float16", {"weights_dtype": "float16"}),
        ("--attn-implementation fa2", {"attention": "flash_attention_2"}),
        ("--flash-attn", {"attention": "flash_attention_2"}),
        ("--attention flex", {"attention": "flex_attention"}),
        ("--flex-attention true", {"attention": "flex_attention"}),
        ("--xformers-attention", {"attention": "xformers"}),
        ("--attention kernels-community/vllm-flash-attn3", {"attention": "flash_attention_3"}),
        ("--bf16", {"autocast": "bfloat16"}),
        ("--bf16 True", {"autocast": "bfloat16"}),
        ("--no-bf16", {"autocast": None}),
        ("--bf16 false --fp16 true", {"autocast": "float16"}),
        ("--fp16 true --bf16 false", {"autocast": "float16"}),
        ("--mixed_precision no", {"autocast": None}),
        ("--load-in-4bit", {"method": "qlora", "quantization.format": "nf4"}),
        ("--load-in-8bit --use-peft", {"method": "qlora", "quantization.format": "int8"}),
        ("--method LoRA --load_in_4bit true", {"method": "qlora", "quantization.format": "nf4"}),
        ("--method full --load-in-4bit", {"method": "full", "quantization.format": "nf4"}),
        ("--load-in-4bit false", {}),
        ("--use-peft", {"method": "lora"}),
        ("--use-peft --method qlora", {"method": "qlora"}),
        ("--use-liger-kernel", {"kernels": "liger"}),
        ("--liger-rope --liger-glu-activation true", {"kernels": "liger_rope,liger_glu"}),
        ("--cut-cross-entropy --lora-mlp-kernel", {"kernels": "cut_cross_entropy,lora_triton"}),
        ("--gradient-checkpointing", {"gradient_checkpointing": True}),
        ("--gradient_checkpointing False", {"gradient_checkpointing": False}),
        ("--gradient_checkpointing=no", {"gradient_checkpointing": False}),
        ("--use-dora", {"lora.dora": True}),
        ("--no-use-dora", {"lora.dora": False}),
        ("--num-gpus 2", {"hardware.gpus": "2"}),
        ("--lora.rank 4", {"lora.rank": "4"}),
    ],
)  # fmt: skip
def test_flags_of_other_trainers(flags: str, meant: dict[str, object]) -> None:
    assert fields(*flags.split()) == meant


def test_a_switch_takes_no_job_for_its_value() -> None:
    read = predict.parser().read(["--packing", "llama-3.1-8b", "--bf16", "gpt2"])
    assert read.jobs == ["llama-3.1-8b", "gpt2"]
    assert "allowed: nothing, true or false" in refusal("--packing=maybe")


def test_set_and_to_take_the_same_names(tmp_path: Path) -> None:
    assert (
        assignments(["rank=64"]) == assignments(["lora_r=64"]) == assignments(["lora.rank=64"]) == {"lora.rank": "64"}
    )
    assert assignments(["gpu=l4", "load_in_4bit=1"]) == {
        "hardware.gpu": "l4",
        "method": "qlora",
        "quantization.format": "nf4",
    }
    assert compare.parser().read(["a", "--to", "batch_size=2"]).to == ["batch_size=2"]
    with pytest.raises(UsageError, match=r"^bf16: got 'maybe'; allowed: true, false"):
        assignments(["bf16=maybe"])
    with pytest.raises(UsageError, match=r"^--to: got 'rank'; allowed: FIELD=VALUE"):
        assignments(["rank"], "--to")


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--lr", "--lr: the learning rate changes neither memory nor time: leave it out"),
        ("--warmup_ratio", "neither memory nor time"),
        ("--fsdp", "nearest: --parallel-data fsdp"),
        ("--deepspeed", "nearest: --parallel-data zero1, zero2 or zero3"),
        ("--zero3", "nearest: --parallel-data zero3"),
        ("--budget", "nearest: --max-usd of tunecast plan"),
        ("--deadline", "nearest: --within of tunecast plan"),
        ("--data", "nearest: --samples (how many there are)"),
        ("--vram", "nearest: --gpu 24gb"),
        ("--layrs", "nearest: --layers"),
        ("--gradient-acumulation-steps", "nearest: --grad-accum"),
        ("--load-in-4bits", "nearest: --load-in-4bit"),
        ("--frobnicate", "--frobnicate: unknown flag. See"),
        ("--xy", "--xy: unknown flag. See"),
    ],
)
def test_an_unknown_flag_points_by_meaning_first(flag: str, told: str) -> None:
    assert told in refusal(flag, "5")


def test_a_command_s_own_flags_come_before_another_s() -> None:
    with pytest.raises(UsageError, match=r"nearest: --max-usd\. See"):
        plan.parser().read(["m", "--budget", "5"])
    with pytest.raises(UsageError, match=r"--seq-len: unknown flag\. See"):  # gpus has no jobs
        gpus.parser().read(["--seq-len", "5"])


@pytest.mark.parametrize(
    ("name", "meant"),
    [("estimate", "predict"), ("oom", "explain-oom"), ("max", "largest"), ("prices", "offers"), ("prdict", "predict")],
)
def test_an_unknown_command_points_by_meaning_first(name: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([name]) == 2
    assert f"; nearest: {meant}. See" in capsys.readouterr().err
    assert main.main(["xyzzy"]) == 2
    assert "nearest" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ({"load_in_4bit": True}, "; nearest: method: qlora, quantization.format: nf4"),
        ({"per_device_train_batch_size": 2}, "; nearest: micro_batch"),
        ({"deepspeed": "ds.json"}, "; nearest: parallel.data: zero1, zero2 or zero3"),
        ({"bf16": True}, "; nearest: autocast: bfloat16"),
        ({"dataset": "x"}, "; nearest: data.samples (how many there are)"),
        ({"learning_rate": 1}, "learning_rate: unknown field: the learning rate changes neither memory nor time: "
                               "leave it out"),
        ({"zzz": 1}, "hardware, parallel"),
    ],
)  # fmt: skip
def test_a_file_is_refused_and_pointed_by_meaning(given: dict[str, Any], near: str) -> None:
    with pytest.raises(UsageError) as caught:
        job_from_dict({"model": "m", **given})
    assert caught.value.message.endswith(near)


def test_values_as_people_write_them() -> None:
    job = job_from_dict(
        {
            "model": "m", "method": "QLORA", "weights_dtype": "half", "autocast": "BF16", "seq_len": "4k",
            "lengths": ["1k", "512"], "optimizer": "AdamW", "attention": "flash", "gradient_checkpointing": "off",
            "compile": 1, "stack": "llama_factory", "kernels": "Liger",
            "data": {"samples": "20,000", "group_by_length": "yes"}, "hardware": {"capacity_bytes": "24GiB"},
        }
    )  # fmt: skip
    assert (job.method, job.weights_dtype, job.autocast) == ("qlora", "float16", "bfloat16")
    assert (job.seq_len, job.lengths, job.data.samples) == (4096, (1024, 512), 20_000)
    assert (job.optimizer, job.attention, job.stack) == ("adamw_torch_fused", "flash_attention_2", "llama-factory")
    assert (job.gradient_checkpointing, job.compile, job.data.group_by_length) == (False, True, True)
    assert (job.kernels, job.hardware.capacity_bytes) == (("liger",), 24 * 2**30)


@pytest.mark.parametrize(
    ("field", "given", "meant"),
    [
        ("seq_len", "4k", 4096),
        ("seq_len", "32K", 32768),
        ("seq_len", "1.5k", 1536),
        ("data.samples", "50k", 50_000),
        ("data.tokens", "20M", 20_000_000),
        ("data.tokens", "1.5B", 1_500_000_000),
        ("data.tokens", "2T", 2 * 10**12),
        ("data.max_tokens_per_batch", "16k", 16384),
    ],
)
def test_k_is_1024_of_lengths_and_1000_of_amounts(field: str, given: str, meant: int) -> None:
    assert all_knobs()[field].read(given) == meant


@pytest.mark.parametrize("given", ["4kk", "k", "1.0001k", "-4k", "4 kB", "1,00", "4q"])
def test_what_is_no_number_stays_none(given: str) -> None:
    with pytest.raises(ValueError, match="got"):
        all_knobs()["seq_len"].read(given)


def test_adamw_is_not_the_one_spelled_most_like_it() -> None:
    knob = all_knobs()["optimizer"]
    assert knob.read("adamw") == knob.default
    assert {knob.read(name) for name in OPTIMIZERS} == set(OPTIMIZERS)


def test_every_name_means_one_thing() -> None:
    """No two fields have a name in common, and what is accepted is neither a value's name nor a remark's."""
    names = [name for knob in all_knobs().values() for name in knob.aka]
    assert len(names) == len(set(names))
    tables = (set(names), set(MEANINGS), set(POINTERS), set(WITHOUT_EFFECT))
    for i, table in enumerate(tables):
        assert not table & set().union(*tables[i + 1 :])
    assert not set(MEANINGS) & set(called())
    assert not set(names) & (set(all_knobs()) | set(sections()))
    assert {field for field, _ in POINTERS.values()} <= set(all_knobs())
    for name in MEANINGS:
        assert fields_of_meaning(name)
        for said in MEANINGS[name].values():
            for field, value in said.items():
                all_knobs()[field].read(value)
    assert set(COMMANDS.values()) <= set(main.COMMANDS)
    assert not set(COMMANDS) & set(main.COMMANDS)
    ours = {flag.flag for flag in job_flags()}
    for flag, command in COMMAND_FLAGS.values():
        assert command in main.COMMANDS
        assert flag not in ours or flag == "--country"


def test_a_prediction_by_other_names_is_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    ours = ["--method", "qlora", "--rank", "8", "--seq-len", "512", "--micro-batch", "2", "--attention", "sdpa"]
    theirs = ["--load-in-4bit", "--lora_r", "8", "--max_seq_length", "512", "--batch_size", "2", "--attn", "SDPA"]
    answers = []
    for flags in (ours, theirs):
        assert main.main(["predict", "gpt2", "--json", *flags]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1]
