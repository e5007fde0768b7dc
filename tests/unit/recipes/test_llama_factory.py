"""LLaMA-Factory's YAML as jobs: the usual schema and v1's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunecast.errors import UsageError
from tunecast.job.readers import read_job
from tunecast.job.recipes import find_recipe
from tunecast.job.recipes.recipe import Recipe

V1 = """\
model: Qwen/Qwen3-0.6B
model_class: llm
train_dataset: data/some.yaml
micro_batch_size: 2
cutoff_len: 1024
max_steps: 10
"""
FSDP = "dist_config:\n  name: fsdp2\n"


def read(folder: Path, text: str) -> Recipe:
    file = folder / "train.yaml"
    file.write_text(text)
    found = find_recipe(file)
    assert found is not None and found.framework == "llama-factory"
    return found


def v1(folder: Path, more: str = "") -> Recipe:
    return read(folder, V1 + more)


def unread(recipe: Recipe) -> dict[str, str]:
    return {each.key: each.why for each in recipe.not_understood}


class TestUsual:
    def test_its_kernels_of_v1_are_of_other_cards(self, tmp_path: Path) -> None:
        text = "model_name_or_path: a/b\nstage: sft\ndataset: x\ncutoff_len: 512\nuse_v1_kernels: true\n"
        recipe = read(tmp_path, text)
        assert not unread(recipe) and "use_v1_kernels" in recipe.ignored and recipe.job["seq_len"] == 512

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("model_name_or_path: a/b\nadapter_name_or_path: c\ntemplate: t\nexport_dir: out\n", "export"),
            ("model_name_or_path: a/b\ntemplate: t\ninfer_backend: vllm\n", "chat"),
            ("model: a/b\npeft_config:\n  name: lora\n  export_dir: out\n", "merge"),
        ],
    )
    def test_files_that_train_nothing(self, tmp_path: Path, text: str, told: str) -> None:
        file = tmp_path / "use.yaml"
        file.write_text(text)
        with pytest.raises(UsageError, match=f"no training: `llamafactory-cli {told}`") as raised:
            find_recipe(file)
        assert raised.value.field == "task"
        with pytest.raises(UsageError, match="no training"):
            read_job(str(file))


USUAL = "model_name_or_path: llama-3.1-8b\nstage: sft\ndataset: x\ncutoff_len: 512\nbf16: true\n"


class TestRotations:
    def test_oft_is_an_estimate_of_as_many_weights(self, tmp_path: Path) -> None:
        recipe = read(tmp_path, f"{USUAL}finetuning_type: oft\noft_block_size: 64\noft_target: all\n")
        assert (recipe.job["method"], recipe.job["lora"]["rank"]) == ("lora", 16)
        assert recipe.job["lora"]["targets"] == "all-linear" and set(unread(recipe)) == {"finetuning_type"}

    def test_by_their_number_they_are_refused(self, tmp_path: Path) -> None:
        assert str(read(tmp_path, f"{USUAL}finetuning_type: oft\noft_rank: 8\n").refused).startswith("oft")


class TestSomeLayers:
    @pytest.mark.parametrize(
        ("more", "trained"),
        [
            ("", ["layers.30", "layers.31"]),  # freeze_trainable_layers: 2
            ("freeze_trainable_layers: -1\n", ["layers.0"]),
            ("freeze_trainable_layers: 1\nfreeze_trainable_modules: mlp, self_attn\n",
             ["layers.31.mlp", "layers.31.self_attn"]),
            ("freeze_trainable_layers: 1\nfreeze_extra_modules: lm_head\n", ["layers.31", "lm_head"]),
            ("freeze_trainable_layers: 4\nuse_llama_pro: true\n", [f"layers.{n}" for n in (7, 15, 23, 31)]),
        ],
    )  # fmt: skip
    def test_frozen_but_for_some(self, tmp_path: Path, more: str, trained: list[str]) -> None:
        recipe = read(tmp_path, f"{USUAL}finetuning_type: freeze\n{more}")
        assert (recipe.job["method"], recipe.job["trained"], recipe.refused) == ("full", trained, None)
        assert not unread(recipe)
        assert read_job(str(tmp_path / "train.yaml")).trained == tuple(trained)

    def test_badam_is_an_estimate_of_its_first_block(self, tmp_path: Path) -> None:
        recipe = read(tmp_path, f"{USUAL}finetuning_type: full\nuse_badam: true\nbadam_mode: layer\n")
        assert recipe.job["trained"] == ["layers.0"] and set(unread(recipe)) == {"use_badam"}
        ratio = read(tmp_path, f"{USUAL}finetuning_type: full\nuse_badam: true\nbadam_mode: ratio\n")
        assert str(ratio.refused).startswith("use_badam")

    def test_of_a_model_that_is_not_known_nothing_is_said(self, tmp_path: Path) -> None:
        text = USUAL.replace("llama-3.1-8b", "nobody/has-it")
        assert "trained" not in read(tmp_path, f"{text}finetuning_type: freeze\n").job

    def test_v1(self, tmp_path: Path) -> None:
        recipe = v1(tmp_path, "peft_config:\n  name: freeze\n  freeze_trainable_layers: 1\n")
        assert (recipe.job["method"], recipe.job["trained"]) == ("full", ["layers.27"])
        assert "float32" in unread(recipe)["peft_config.name"]


class TestV1:
    def test_whole_models_are_trained_in_float32(self, tmp_path: Path) -> None:
        job = v1(tmp_path, FSDP).job
        assert (job["method"], job["weights_dtype"], job["autocast"]) == ("full", "float32", "bfloat16")
        assert (job["micro_batch"], job["seq_len"], job["run"]["max_steps"]) == (2, 1024, 10)
        assert job["parallel"] == {"data": "fsdp", "fsdp_version": 2, "reduce_dtype": "float32"}
        assert (job["optimizer"], job["checkpoint_reentrant"], job["grad_accum"]) == ("adamw_torch", False, 1)

    def test_without_a_plugin_nothing_is_mixed(self, tmp_path: Path) -> None:
        job = v1(tmp_path).job
        assert job["autocast"] is None and "parallel" not in job
        assert v1(tmp_path, FSDP + "bf16: false\n").job["autocast"] is None

    def test_what_its_loop_does_otherwise_is_told(self, tmp_path: Path) -> None:
        assert "onto each card" in unread(v1(tmp_path, FSDP))["dist_config.name"]
        placed = unread(v1(tmp_path, FSDP + "init_config:\n  name: init_on_meta\n"))
        assert list(placed) == ["init_config.name"] and "onto each card" not in placed["init_config.name"]
        assert "logits" in unread(v1(tmp_path))["model"]

    def test_adapters_and_quantised_weights(self, tmp_path: Path) -> None:
        adapters = "peft_config:\n  name: lora\n  r: 16\n  target_modules: all\n"
        recipe = v1(tmp_path, adapters)
        assert recipe.job["method"] == "lora" and recipe.job["weights_dtype"] == "auto"
        assert recipe.job["lora"] == {
            "rank": 16, "alpha": 16, "dropout": 0.05, "rslora": False, "dora": False, "targets": "all-linear",
        }  # fmt: skip
        recipe = v1(tmp_path, adapters + "quant_config:\n  name: bnb\n  quantization_bit: 4\n")
        assert recipe.job["method"] == "qlora"
        assert recipe.job["quantization"] == {"format": "nf4", "double_quant": True, "prepare_kbit": False}
        recipe = v1(tmp_path, adapters + "quant_config:\n  name: bnb\n  quantization_bit: 8\n")
        assert recipe.job["quantization"]["format"] == "int8"

    @pytest.mark.parametrize(
        ("strategy", "expected"),
        [
            ("normal", {"micro_batch": 2, "seq_len": 1024}),
            ("dynamic_batching", {"data": {"max_tokens_per_batch": 2048}}),
            ("dynamic_padding_free", {"micro_batch": 1, "seq_len": 2048, "data": {"packing": True}}),
        ],
    )
    def test_batches(self, tmp_path: Path, strategy: str, expected: dict[str, Any]) -> None:
        recipe = v1(tmp_path, f"batching_strategy: {strategy}\n")
        for name, value in expected.items():
            found = recipe.job[name]
            assert value.items() <= found.items() if isinstance(value, dict) else found == value
        assert ("batching_strategy" in unread(recipe)) == (strategy == "dynamic_padding_free")

    def test_the_rows_of_a_step(self, tmp_path: Path) -> None:
        recipe = v1(tmp_path, "global_batch_size: 16\n")
        assert recipe.global_batch == 16 and recipe.job["grad_accum"] == 8

    def test_deepspeeds_file(self, tmp_path: Path) -> None:
        (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2, "reduce_bucket_size": 7000}}')
        recipe = v1(tmp_path, "dist_config:\n  name: deepspeed\n  config_file: ds.json\n")
        assert recipe.job["parallel"] == {"data": "zero2", "reduce_bucket_size": 7000}

    def test_kernels(self, tmp_path: Path) -> None:
        liger = v1(tmp_path, "kernel_config:\n  name: auto, liger_kernel\n").job["kernels"]
        assert "liger_cross_entropy" in liger and "liger_fused_linear_cross_entropy" not in liger
        assert v1(tmp_path, "kernel_config:\n  name: flash-linear-attention\n").job["kernels"] == ["fla"]
        assert "kernels" not in v1(tmp_path, "kernel_config:\n  name: auto\n").job
        assert "kernel_config.name" in unread(v1(tmp_path, "kernel_config:\n  name: cuda_fused_moe\n"))

    def test_muon_is_taken_as_adamw_where_weights_are_cut(self, tmp_path: Path) -> None:
        muon = "optim_config:\n  name: muon\n  momentum: 0.9\n"
        assert v1(tmp_path, muon).job["optimizer"] == "muon"
        recipe = v1(tmp_path, FSDP + muon)
        assert recipe.job["optimizer"] == "adamw_torch" and "optim_config.name" in unread(recipe)

    @pytest.mark.parametrize(
        ("listed", "task"), [("a:\n  path: x\n  converter: pair\n", "dpo"), ("a:\n  path: x\n", "sft")]
    )
    def test_pairs_in_the_data_are_preferences(self, tmp_path: Path, listed: str, task: str) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "some.yaml").write_text(listed)
        assert v1(tmp_path).job["task"] == task

    def test_the_command_says_the_task(self, tmp_path: Path) -> None:
        (tmp_path / "x.yaml").write_text(V1)
        (tmp_path / "x.sh").write_text("USE_V1=1 llamafactory-cli dpo x.yaml\n")
        recipe = find_recipe(tmp_path / "x.sh")
        assert recipe is not None and recipe.job["task"] == "dpo"

    @pytest.mark.parametrize(
        ("more", "expected"),
        [
            ("train_dataset: data/some_multimodal.yaml\n", {"task": "sft", "vision": {"images": 1}}),
            ("model_class: cls\n", {"task": "classify"}),
        ],
    )
    def test_images_and_classes(self, tmp_path: Path, more: str, expected: dict[str, object]) -> None:
        kept = [line for line in V1.splitlines() if line.split(":")[0] != more.split(":")[0]]
        recipe = read(tmp_path, "\n".join([*kept, more]))
        assert recipe.refused is None and {name: recipe.job[name] for name in expected} == expected

    @pytest.mark.parametrize("junk", ["[]", "{}", "7", "x", "[[1]]", "{a: {b: []}}", "-1", "1.0e+300"])
    def test_any_type_anywhere(self, tmp_path: Path, junk: str) -> None:
        for name in (
            "dist_config", "peft_config", "quant_config", "kernel_config", "optim_config", "micro_batch_size",
            "cutoff_len", "bf16", "cp_size", "global_batch_size", "batching_strategy", "save_epochs", "max_steps",
            "mp_replicate_size", "train_dataset",
        ):  # fmt: skip
            kept = [line for line in V1.splitlines() if not line.startswith(f"{name}:")]
            read(tmp_path, "\n".join([*kept, f"{name}: {junk}"]))
            read(tmp_path, "\n".join([*kept, f"{name}:\n  name: {junk}\n"]))
