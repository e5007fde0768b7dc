"""ms-swift's commands and files as jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunecast.door.predict import predict
from tunecast.errors import UsageError
from tunecast.job.recipes import find_recipe
from tunecast.job.recipes.frameworks.ms_swift import FSDP2, PRESETS
from tunecast.job.recipes.recipe import Recipe
from tunecast.report.run.on_card import run_figures


def script(folder: Path, text: str) -> Recipe:
    file = folder / "train.sh"
    file.write_text(text)
    found = find_recipe(file)
    assert found is not None
    return found


def sft(folder: Path, flags: str, before: str = "") -> Recipe:
    return script(folder, f"{before} swift sft --model Qwen/Qwen2.5-7B-Instruct {flags}\n")


def unread(recipe: Recipe) -> dict[str, str]:
    return {each.key: each.why for each in recipe.not_understood}


def test_a_command_is_a_training(tmp_path: Path) -> None:
    flags = "--tuner_type lora --lora_rank 16 --max_length 2048 --per_device_train_batch_size 2 --dataset 'a/b#500'"
    recipe = sft(tmp_path, flags, "CUDA_VISIBLE_DEVICES=0")
    job = recipe.job
    assert (recipe.framework, job["method"], job["lora"]["rank"], job["lora"]["alpha"]) == ("ms-swift", "lora", 16, 32)
    assert (job["seq_len"], job["micro_batch"], job["data"]["samples"]) == (2048, 2, 500)
    assert not unread(recipe) and recipe.refused is None
    assert recipe.places["lora.rank"].line == 1


def test_one_process_that_sees_several_cards_spreads_the_layers(tmp_path: Path) -> None:
    assert sft(tmp_path, "", "CUDA_VISIBLE_DEVICES=0,1").job["parallel"]["layers"] == 2
    assert "parallel" not in sft(tmp_path, "", "NPROC_PER_NODE=2 CUDA_VISIBLE_DEVICES=0,1").job


@pytest.mark.parametrize("name", PRESETS)
def test_files_that_come_with_it(tmp_path: Path, name: str) -> None:
    """By name: with all that their `zero_optimization` says."""
    recipe = sft(tmp_path, f"--deepspeed {name}", "NPROC_PER_NODE=4")
    parallel = recipe.job["parallel"]
    if name == "zero0":
        assert parallel["data"] == "ddp"
        return
    stage = int(name[4])
    assert parallel["data"] == f"zero{stage}" and parallel["overlap_comm"] is False and not unread(recipe)
    assert parallel["reduce_bucket_size"] == ("auto" if stage == 3 else 200_000_000)
    assert parallel.get("offload", "none") == {
        "zero2_offload": "optimizer", "zero3_offload": "parameters",
    }.get(name, "none")  # fmt: skip
    assert (parallel.get("prefetch_bucket_size") == "auto") == (stage == 3)


def test_fsdp2_checkpoints_itself(tmp_path: Path) -> None:
    recipe = sft(tmp_path, "--fsdp fsdp2 --gradient_checkpointing false", "NPROC_PER_NODE=8")
    assert recipe.job["parallel"]["data"] == "fsdp" and recipe.job["gradient_checkpointing"] is True
    assert FSDP2["fsdp"] == "full_shard auto_wrap"


@pytest.mark.parametrize(
    ("kind", "flags", "rank", "targets"),
    [
        ("adalora", "--lora_rank 64", 12, "all-linear"),
        ("adalora", "--adalora_init_r 20 --adalora_target_r 4", 20, "all-linear"),
        ("longlora", "--lora_rank 16", 16, "all-linear"),
        ("bone", "", 4, "all-linear"),
        ("adapter", "--adapter_length 32", 32, ["o_proj"]),
    ],
)
def test_adapters_that_are_as_good_as_lora(tmp_path: Path, kind: str, flags: str, rank: int, targets: Any) -> None:
    recipe = sft(tmp_path, f"--tuner_type {kind} {flags}")
    assert (recipe.job["method"], recipe.job["lora"]["rank"], recipe.job["lora"]["targets"]) == ("lora", rank, targets)
    assert list(unread(recipe)) == ["tuner_type"] and recipe.refused is None


def test_llama_pro_trains_the_last_layer_of_each_group(tmp_path: Path) -> None:
    recipe = sft(tmp_path, "--tuner_type llamapro --llamapro_num_new_blocks 4")  # of 28 layers
    assert recipe.job["method"] == "full" and set(unread(recipe)) == {"tuner_type"}
    assert recipe.job["trained"] == ["layers.6", "layers.13", "layers.20", "layers.27"]
    assert sft(tmp_path, "--tuner_type llamapro").job["trained"] == recipe.job["trained"]
    assert str(sft(tmp_path, "--tuner_type llamapro --llamapro_num_new_blocks 5").refused).startswith("llamapro")


@pytest.mark.parametrize("kind", ["boft", "vera"])
def test_adapters_that_are_not(tmp_path: Path, kind: str) -> None:
    refused = sft(tmp_path, f"--tuner_type {kind}").refused
    assert refused is not None and refused.startswith(f"{kind}: ")


def test_weights_quantised_while_they_load(tmp_path: Path) -> None:
    recipe = sft(tmp_path, "--quant_method bnb --quant_bits 4")
    assert recipe.job["method"] == "qlora"
    assert recipe.job["quantization"] == {"format": "nf4", "double_quant": True, "prepare_kbit": False}
    recipe = sft(tmp_path, "--quant_method hqq --quant_bits 4")
    assert recipe.job["quantization"]["double_quant"] is False and "HQQ" in unread(recipe)["quant_method"]
    for other in ("--quant_method hqq --quant_bits 2", "--quant_method quanto --quant_bits 8"):
        assert sft(tmp_path, other).refused is not None


def test_of_experts_transformers_own_kernels_are_taken(tmp_path: Path) -> None:
    assert not unread(sft(tmp_path, "--experts_impl grouped_mm"))
    assert list(unread(sft(tmp_path, "--experts_impl eager"))) == ["experts_impl"]


def test_a_script_for_ascend_is_answered_as_on_the_card_that_is_named(tmp_path: Path) -> None:
    recipe = sft(tmp_path, "", "ASCEND_RT_VISIBLE_DEVICES=0,1,2,3 \\\nNPROC_PER_NODE=4")
    assert recipe.refused is None and recipe.job["hardware"]["gpus"] == 4
    assert "Ascend NPUs" in unread(recipe)["ASCEND_RT_VISIBLE_DEVICES"]
    assert sft(tmp_path, "", "ASCEND_RT_VISIBLE_DEVICES=0,1").job["parallel"]["layers"] == 2


def test_unsloth_has_its_own_checkpointing(tmp_path: Path) -> None:
    recipe = sft(tmp_path, "--tuner_backend unsloth", "CUDA_VISIBLE_DEVICES=0")
    assert recipe.job["stack"] == "unsloth" and "checkpoint_reentrant" not in recipe.job
    assert sft(tmp_path, "", "CUDA_VISIBLE_DEVICES=0").job["checkpoint_reentrant"] is True


@pytest.mark.parametrize(
    "flags", ["--dataset 'a/b' 'AI-ModelScope/LaTeX_OCR:human#5'", "--dataset x/Y-VL-Z", "--freeze_vit true"]
)
def test_images_are_told(tmp_path: Path, flags: str) -> None:
    recipe = sft(tmp_path, flags)
    assert recipe.refused is None and recipe.job["vision"]["images"] == 1 and recipe.job["stack"] == "transformers"
    assert "the data's" in recipe.assumed["vision.images"].whose and recipe.job["vision"]["trained"] == ["language"]
    assert "vision" not in sft(tmp_path, "--dataset some/text").job


@pytest.mark.parametrize(
    ("command", "task"), [("rlhf --rlhf_type kto", "kto"), ("rlhf", "dpo"), ("pt", "pretrain"), ("sft", "sft")]
)
def test_tasks(tmp_path: Path, command: str, task: str) -> None:
    assert script(tmp_path, f"swift {command} --model a/b\n").job["task"] == task


def test_a_file_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "grpo.yaml").write_text("rlhf_type: grpo\nmodel: Qwen/Qwen3-8B\nmicro_batch_size: 2\n")
    folder = '"$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"'
    recipe = script(tmp_path, f'HERE={folder}\nmegatron rlhf --use_ray true --config "$HERE/grpo.yaml"\n')
    assert recipe.job["task"] == "grpo" and recipe.places["model"].file == str(tmp_path / "grpo.yaml")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("swift export --adapters x --merge_lora true\n", "no training: `swift export` (line 1)"),
        (
            "# a\nX=1 swift infer --adapters x\nswift deploy --model y",
            "`swift infer` (line 2), `swift deploy` (line 3)",
        ),
        ("NPROC_PER_NODE=4 megatron export --model x", "no training: `megatron export` (line 1)"),
        ("python -m vllm serve x", "no training: `vllm serve`"),
        ("# swift sft\n", "no training: it holds no command"),
    ],
)
def test_a_script_that_trains_nothing_is_told_as_such(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "use.sh"
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        find_recipe(file)
    assert told in raised.value.message and raised.value.field == "task"


def test_a_script_of_something_else_is_none(tmp_path: Path) -> None:
    file = tmp_path / "use.sh"
    file.write_text("ls\ncp a b\n")
    assert find_recipe(file) is None


def test_what_is_not_understood_is_told_once(tmp_path: Path) -> None:
    """In the warnings of an answer."""
    file = tmp_path / "train.sh"
    file.write_text("CUDA_VISIBLE_DEVICES=0 swift sft --model llama-3.2-1b --tuner_type adalora --max_length 64\n")
    figures = run_figures(predict(str(file), {"hardware.gpu": "rtx-4090"}, engine="analytic"), "")
    assert sum("AdaLoRA is taken as LoRA" in told for told in (*figures.guesses, *figures.warnings)) == 1


def megatron(folder: Path, flags: str) -> Recipe:
    return script(folder, f"NPROC_PER_NODE=4 megatron sft --model Qwen/Qwen3-30B-A3B {flags}\n")


def test_megatrons_experts_are_whole_on_their_cards_unless_told(tmp_path: Path) -> None:
    """`expert_tensor_parallel_size: int = 1`, where Megatron Core takes as many as tensor."""
    split = "--tensor_model_parallel_size 4 --expert_model_parallel_size 4"
    assert megatron(tmp_path, split).job["parallel"]["expert_tensor"] == 1
    told = megatron(tmp_path, split.replace("4 --", "2 --") + " --expert_tensor_parallel_size 2")
    assert told.job["parallel"]["expert_tensor"] == 2 and told.places["parallel.expert_tensor"].line == 1
    assert "expert_tensor" not in megatron(tmp_path, "--expert_model_parallel_size 4").job["parallel"]


@pytest.mark.parametrize(
    ("flags", "loss"), [("", "fused"), ("true", "fused"), ("false", "full")], ids=["silent", "on", "off"]
)
def test_megatrons_loss_is_fused_unless_told(tmp_path: Path, flags: str, loss: str) -> None:
    given = f"--cross_entropy_loss_fusion {flags}" if flags else ""
    assert megatron(tmp_path, given).job["loss"] == loss


@pytest.mark.parametrize(
    ("flags", "key"),
    [("--mtp_num_layers 1", "mtp_num_layers"), ("--cross_entropy_fusion_impl te", "cross_entropy_fusion_impl")],
)
def test_what_of_megatron_is_told_as_not_modelled(tmp_path: Path, flags: str, key: str) -> None:
    assert set(unread(megatron(tmp_path, flags))) == {key}
    assert not unread(megatron(tmp_path, "--cross_entropy_fusion_impl native"))


def test_packs_that_no_job_has_are_told_as_rows(tmp_path: Path) -> None:
    """Of 8,192 tokens each: with images, and of GKD."""
    sees = "swift sft --model Qwen/Qwen2.5-VL-7B-Instruct --dataset AI-ModelScope/LaTeX_OCR"
    learns = "swift rlhf --rlhf_type gkd --model Qwen/Qwen3-8B --teacher_model Qwen/Qwen3-32B"
    for command in (sees, learns):
        recipe = script(tmp_path, f"{command} --packing true --max_length 8192 --attn_impl flash_attn\n")
        assert (recipe.job["data"]["packing"], recipe.job["seq_len"]) == (False, 8192)
        assert unread(recipe)["packing"].startswith("a pack is told as one")
    plain = sft(tmp_path, "--packing true --max_length 8192")
    assert plain.job["data"]["packing"] is True and not unread(plain)
