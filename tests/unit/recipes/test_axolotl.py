"""Axolotl's YAML: what its keys say about a job, and what its validators and builders make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunecast.errors import TunecastError
from tunecast.job.readers import read_job
from tunecast.job.recipes import Recipe, find_recipe
from tunecast.job.recipes.document import yaml_document
from tunecast.job.recipes.frameworks.axolotl import DEFAULTS, WITHOUT_EFFECT, invocation, recognises
from tunecast.job.recipes.frameworks.axolotl_method import module_names
from tunecast.job.recipes.words import Word

SMALLEST = "base_model: meta-llama/Llama-3.1-8B\ndatasets: [{path: a/b, type: alpaca}]\n"
LORA = "adapter: lora\nlora_r: 16\nlora_alpha: 32\n"


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def of(text: str = "", start: str = SMALLEST, values: dict[str, Any] | None = None) -> Recipe:
        file = tmp_path / "config.yaml"
        file.write_text(start + text)
        recipe = find_recipe(file, values)
        assert recipe is not None and recipe.framework == "axolotl"
        return recipe

    return of


def field(recipe: Recipe, name: str) -> Any:
    section, _, leaf = name.rpartition(".")
    return (recipe.job.get(section, {}) if section else recipe.job).get(leaf)


def unread(recipe: Recipe) -> dict[str, str]:
    return {each.key: each.why for each in recipe.not_understood}


class TestRecognised:
    def test_by_its_own_keys(self) -> None:
        for text, expected in (
            (SMALLEST, True),
            ("base_model: x\nsequence_len: 1", True),
            ("base_model: x", False),
            ("model: x\ndatasets: []", False),
            ("provider: modal\ngpu: h100\ngpu_count: 8", False),
        ):
            assert recognises(yaml_document(text, "x.yaml")) is expected

    def test_a_list_that_nothing_reads_is_told_once(self, read: Any) -> None:
        """An editor marked each of its values, thousands of lines of them."""
        assert unread(read("my_own: [1, 2, [3, 4]]\nothers:\n  - {rows: 1}\n")).keys() == {
            "base_model",
            "my_own",
            "others.0.rows",
        }

    def test_what_rents_cards_trains_nothing(self, tmp_path: Path) -> None:
        file = tmp_path / "cloud.yaml"
        file.write_text("provider: modal\ngpu: h100\ngpu_count: 8\nsecrets: [HF_TOKEN]\n")
        with pytest.raises(TunecastError, match="no training: `axolotl train --cloud`"):
            find_recipe(file)

    def test_defaults(self, read: Any) -> None:
        recipe = read()
        for name, (value, _) in DEFAULTS.items():
            if name not in ("val_set_size", "bf16", "lora.dropout") and not name.startswith("grpo "):
                assert field(recipe, name) == value and name in recipe.assumed, name
        expected = {
            "method": "full", "task": "sft", "autocast": "bfloat16", "weights_dtype": "bfloat16", "attention": "sdpa",
            "max_grad_norm": 1.0, "data.packing": False, "data.pad_to_multiple_of": 64, "data.seed": 42, "kernels": [],
            "run.save_strategy": "epoch", "run.save_total_limit": 4, "run.eval_strategy": "no", "run.eval_batch": 1,
            "allocator": "expandable_segments",
        }  # fmt: skip
        for name, value in expected.items():
            assert field(recipe, name) == value and name in recipe.assumed, name
        assert "hardware" not in recipe.job and "auto" in recipe.assumed["autocast"].whose

    def test_its_lines_and_what_moves_nothing(self, read: Any) -> None:
        recipe = read("sequence_len: 4096\nwandb_project: x\nlearning_rate: 2e-4\nunheard_of: 3\n")
        assert recipe.places["seq_len"].line == 3 and {"wandb_project", "learning_rate"} <= set(recipe.ignored)
        assert unread(recipe)["unheard_of"] and "datasets.0.type" in recipe.ignored and recipe.data_sets == ("a/b",)

    def test_a_folder_starts_at_the_file(self, read: Any, tmp_path: Path) -> None:
        recipe = read(start="base_model: ./out\nsequence_len: 512\n")
        assert recipe.job["model"] == str(tmp_path / "out")

    def test_a_key_is_read_or_moves_nothing_not_both(self) -> None:
        read_keys = {
            "bf16",
            "sequence_len",
            "micro_batch_size",
            "adapter",
            "optimizer",
            "num_epochs",
            "saves_per_epoch",
        }
        assert not read_keys & set(WITHOUT_EFFECT)


class TestMethod:
    def test_lora_and_its_kernels(self, read: Any) -> None:
        recipe = read(LORA + "lora_target_linear: true\nlora_dropout: 0.1\npeft_use_rslora: true\n")
        assert recipe.job["method"] == "lora"
        assert recipe.job["lora"] == {
            "rank": 16, "alpha": 32, "dropout": 0.1, "rslora": True, "targets": "all-linear",
            "adapter_dtype": "float32",
        }  # fmt: skip
        assert recipe.assumed["kernels"].value == ["lora_triton"]

    def test_dropout_is_none_by_default(self, read: Any) -> None:
        assert read(LORA).assumed["lora.dropout"].value == 0.0

    @pytest.mark.parametrize("against", ["rl: dpo", "trust_remote_code: true", "lora_mlp_kernel: false"])
    def test_its_kernels_are_off(self, read: Any, against: str) -> None:
        assert recipe_kernels(read(LORA + against)) == []

    def test_qlora_is_nf4_with_double_quantisation(self, read: Any) -> None:
        recipe = read("adapter: qlora\nload_in_4bit: true\nlora_r: 8\n")
        assert recipe.job["method"] == "qlora"
        assert recipe.job["quantization"] == {"format": "nf4", "double_quant": True, "prepare_kbit": False}
        kwargs = "bnb_config_kwargs: {bnb_4bit_quant_type: fp4, bnb_4bit_use_double_quant: false}"
        found = read(f"adapter: qlora\nload_in_4bit: true\n{kwargs}\n").job["quantization"]
        assert (found["format"], found["double_quant"]) == ("fp4", False)

    def test_eight_bits_are_with_lora(self, read: Any) -> None:
        recipe = read(LORA + "load_in_8bit: true\n")
        assert (recipe.job["method"], recipe.job["quantization"]["format"]) == ("qlora", "int8")
        assert recipe_kernels(recipe) == []

    def test_four_bits_without_qlora_are_not_loaded(self, read: Any) -> None:
        recipe = read(LORA + "load_in_4bit: true\n")
        assert recipe.job["method"] == "lora" and "load_in_4bit" in unread(recipe)

    def test_linear_layers_are_a_union(self, read: Any) -> None:
        recipe = read(LORA + "lora_target_linear: true\nlora_target_modules: [lm_head]\n")
        assert recipe.job["lora"]["targets"] == "all-linear" and "lora_target_modules" in unread(recipe)

    def test_modules_of_an_expression(self, read: Any) -> None:
        text = r"lora_target_modules: 'model.language_model.layers.[\d]+.(mlp|self_attn).(up|down|q)_proj'"
        assert read(LORA + text).job["lora"]["targets"] == ["up_proj", "down_proj", "q_proj"]
        assert module_names(["q_proj", "v_proj"]) == ["q_proj", "v_proj"]
        assert module_names(r".*\.(q_proj|v_proj)$") == ["q_proj", "v_proj"]
        nested = r"model.layers.[\d]+.(self_attn.(q|kv_b)_proj|mlp.(shared_experts.)?(up_proj|down_proj))"
        assert module_names(nested) == ["q_proj", "kv_b_proj", "up_proj", "down_proj"]
        assert module_names("a|b.c") == ["a", "c"]
        for other in (r"layers\.(?!0).*", ["(a+)+$"], [1], 7, "(a|b", "a)", "(a|b)" * 9, "(" * 5000, "x.(a|b)*"):
            assert module_names(other) is None

    def test_other_adapters_are_refused(self, read: Any) -> None:
        assert "mora" in read("adapter: mora\n").refused

    def test_what_else_is_trained(self, read: Any) -> None:
        text = "lora_modules_to_save: [embed_tokens]\nrelora: true\n"
        assert {"lora_modules_to_save", "relora"} <= set(unread(read(LORA + text)))
        assert "all are" in unread(read("unfrozen_parameters: ['^lm_head']\n"))["unfrozen_parameters"]

    def test_a_checkpoint_in_nvidias_4_bits(self, read: Any) -> None:
        recipe = read(LORA, start="base_model: nvidia/Qwen3-30B-A3B-NVFP4\nsequence_len: 512\n")
        expected = {"format": "fp4", "double_quant": False, "experts": True, "prepare_kbit": False}
        assert recipe.job["method"] == "qlora" and recipe.job["quantization"] == expected
        assert "as large" in unread(recipe)["base_model"]
        full = read(start="base_model: nvidia/Qwen3-30B-A3B-NVFP4\nsequence_len: 512\nflash_attention: true\n")
        assert "quantization" not in full.job

    def test_experts_by_their_parameters(self, read: Any) -> None:
        text = LORA + "lora_target_parameters: [experts.gate_up_proj, experts.down_proj]\n"
        alone, beside = read(text), read(text + "lora_target_modules: [q_proj]\n")
        assert field(alone, "lora.targets") == ["experts.gate_up_proj", "experts.down_proj"]
        assert field(beside, "lora.targets") == ["q_proj", "experts.gate_up_proj", "experts.down_proj"]
        assert not {"lora_target_parameters"} & (set(unread(alone)) | set(unread(beside)))
        assert "lora_target_parameters" in unread(read(text + "lora_target_linear: true\n"))

    def test_what_is_not_frozen(self, read: Any) -> None:
        """All of the text is all there is here; a pattern starts where a weight's name does, which adapters change."""
        text = "unfrozen_parameters: [model.language_model.*, '^lm_head.weight$']\n"
        assert "unfrozen_parameters" not in unread(read(text))
        assert "none is trained" in unread(read(LORA + text))["unfrozen_parameters"]
        assert "unfrozen_parameters" not in unread(read("unfrozen_parameters:\n"))
        some = read("unfrozen_parameters: ['^lm_head.weight$', 'model.layers.2[0-9]+.mlp']\n")
        assert "taken is that all are" in unread(some)["unfrozen_parameters"]

    def test_layers_in_turns(self, read: Any) -> None:
        recipe = read("lisa_n_layers: 4\nlisa_step_interval: 20\n")
        assert recipe.job["method"] == "full" and "at a time" in unread(recipe)["lisa_n_layers"]
        assert "lisa_n_layers" not in unread(read("lisa_n_layers: 4\n"))


def recipe_kernels(recipe: Recipe) -> Any:
    return recipe.job["kernels"]


class TestPrecision:
    @pytest.mark.parametrize(
        ("text", "autocast", "weights"),
        [
            ("bf16: true", "bfloat16", "bfloat16"),
            ("bf16: auto\nfp16:", "bfloat16", "bfloat16"),
            ("bf16: auto\nfp16: true", "float16", "float16"),
            ("bf16: false\nfp16: true", "float16", "float16"),
            ("bf16: false", None, "float32"),
            ("bf16: false\nbfloat16: true", None, "bfloat16"),
            ("bf16:\nfloat16: true", None, "float16"),
        ],
    )
    def test_weights_are_in_what_is_computed_in(self, read: Any, text: str, autocast: str | None, weights: str) -> None:
        recipe = read(text)
        assert (recipe.job["autocast"], recipe.job["weights_dtype"]) == (autocast, weights)

    def test_tf32_and_fp8(self, read: Any) -> None:
        assert "tf32" not in unread(read("tf32: true\nbf16: true"))
        assert "tf32" in unread(read("tf32: true\nbf16: false"))
        assert read("fp8: true").job["matmul_dtype"] == "float8"

    def test_norms_and_ends_in_float32_without_flash(self, read: Any) -> None:
        assert "base_model" in unread(read())
        assert "base_model" not in unread(read("attn_implementation: flash_attention_2"))
        assert "base_model" not in unread(read(LORA))


class TestAttention:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("flash_attention: true", "flash_attention_2"),
            ("sdp_attention: true", "sdpa"),
            ("flash_attention: true\nflex_attention: true", "flex_attention"),
            ("attn_implementation: eager", "eager"),
            ("attn_implementation: xformers", "xformers"),
        ],
    )
    def test_by_name_and_by_flags(self, read: Any, text: str, expected: str) -> None:
        assert read(text).job["attention"] == expected

    def test_kernels_that_are_not_known(self, read: Any) -> None:
        recipe = read("attn_implementation: sage")
        assert recipe.job["attention"] == "flash_attention_2" and "attn_implementation" in unread(recipe)


class TestCheckpointing:
    def test_reentrant_unless_it_says_otherwise(self, read: Any) -> None:
        assert read("gradient_checkpointing: true").job["checkpoint_reentrant"] is True
        kwargs = "gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: false}"
        assert read(kwargs).job["checkpoint_reentrant"] is False
        assert read("gradient_checkpointing: true\nrl: dpo").job["checkpoint_reentrant"] is False
        assert "checkpoint_reentrant" not in read().job

    @pytest.mark.parametrize(
        "text",
        ["gradient_checkpointing: offload", "gradient_checkpointing: true\nactivation_offloading: legacy"],
    )
    def test_offload_is_a_value(self, read: Any, text: str) -> None:
        recipe = read(text)
        assert recipe.job["gradient_checkpointing"] is True and recipe.job["offload_activations"] is True
        assert "host memory" not in str(unread(recipe))

    def test_a_drive_is_taken_for_the_host(self, read: Any) -> None:
        recipe = read("gradient_checkpointing: true\nactivation_offloading: disk")
        assert recipe.job["offload_activations"] is True and "drive" in unread(recipe)["activation_offloading"]


class TestRows:
    @pytest.mark.parametrize(
        ("more", "rows", "length"),
        [
            ("attn_implementation: flash_attention_2", 1, 8192),
            ("flash_attention: true\nmultipack_real_batches: true", 4, 2048),
            ("attn_implementation: sdpa", 4, 2048),
            ("attn_implementation: sdpa\nmultipack_real_batches: false", 1, 8192),
        ],
    )
    def test_packing_makes_one_row(self, read: Any, more: str, rows: int, length: int) -> None:
        recipe = read(f"sequence_len: 2048\nmicro_batch_size: 4\nsample_packing: true\n{more}")
        assert (recipe.job["micro_batch"], recipe.job["seq_len"]) == (rows, length)
        assert recipe.job["data"]["packing"] is True

    def test_padding(self, read: Any) -> None:
        assert read("sequence_len: 1000\npad_to_sequence_len: true").job["data"]["pad_to_multiple_of"] == 1024
        assert "pad_to_multiple_of" not in read("pad_to_sequence_len: false").job["data"]

    def test_a_batch_size_makes_accumulation(self, read: Any) -> None:
        assert read("batch_size: 8\nmicro_batch_size: 2").job["grad_accum"] == 4
        assert read("batch_size: 8\nmicro_batch_size: 2\ngradient_accumulation_steps: 3").job["grad_accum"] == 3


class TestRun:
    @pytest.mark.parametrize(
        ("text", "strategy", "an_epoch", "steps"),
        [
            ("saves_per_epoch: 1\nnum_epochs: 1", "epoch", None, None),
            ("saves_per_epoch: 4\nnum_epochs: 2", "steps", 4.0, None),
            ("save_steps: 50", "steps", None, 50),
            ("save_steps: 0.25\nnum_epochs: 2", "steps", 2.0, None),
            ("save_strategy: 'no'", "no", None, None),
            ("save_strategy: no", "no", None, None),
        ],
    )
    def test_checkpoints(self, read: Any, text: str, strategy: str, an_epoch: float | None, steps: int | None) -> None:
        run = read(text).job["run"]
        assert (run["save_strategy"], run.get("saves_per_epoch"), run.get("save_steps")) == (strategy, an_epoch, steps)

    @pytest.mark.parametrize(
        ("text", "strategy", "an_epoch", "steps"),
        [
            ("evals_per_epoch: 4", "no", None, None),
            ("val_set_size: 0.1\nevals_per_epoch: 4", "steps", 4.0, None),
            ("val_set_size: 0.1\nevals_per_epoch: 1", "no", None, None),
            ("test_datasets: [{path: a}]\neval_steps: 20", "steps", None, 20),
            ("val_set_size: 100\neval_strategy: epoch", "epoch", None, None),
        ],
    )
    def test_evaluations(self, read: Any, text: str, strategy: str, an_epoch: float | None, steps: int | None) -> None:
        recipe = read(text)
        run = recipe.job["run"]
        assert (run["eval_strategy"], run.get("evals_per_epoch"), run.get("eval_steps")) == (strategy, an_epoch, steps)
        assert field(recipe, "data.held_back") == (100 if "100" in text else 0.1 if "0.1" in text else None)

    def test_an_evaluation_takes_as_many_rows(self, read: Any) -> None:
        text = "val_set_size: 0.1\nmicro_batch_size: 2\nsequence_len: 1024\nflash_attention: true\n"
        assert read(text).job["run"]["eval_batch"] == 2
        assert read(text + "eval_batch_size: 6").job["run"]["eval_batch"] == 6
        assert read(text + "sample_packing: true").job["run"]["eval_batch"] == 1
        packed = read(text + "sample_packing: true\neval_sample_packing: false\nevals_per_epoch: 2")
        assert "eval_sample_packing" in unread(packed) and packed.job["run"]["eval_batch"] == 1
        more = read(text + "sample_packing: true\neval_sample_packing: false\nevals_per_epoch: 2\neval_batch_size: 5")
        assert more.job["run"]["eval_batch"] == 3  # 5 rows of 1,024 tokens in rows of 2,048

    def test_optimizers(self, read: Any) -> None:
        assert read("optimizer: ao_adamw_8bit").job["optimizer"] == "adamw_torch_8bit"
        recipe = read("optimizer: adopt_adamw\nmax_grad_norm: 0.5\nmax_steps: 10")
        assert recipe.job["optimizer"] == "adamw_torch" and "optimizer" in unread(recipe)
        assert recipe.job["max_grad_norm"] == 0.5 and recipe.job["run"]["max_steps"] == 10
        assert "max_steps" not in read("max_steps: -1").job["run"]

    def test_an_unknown_optimizer_is_told_with_its_line(self, read: Any, tmp_path: Path) -> None:
        read("optimizer: sinkgd")
        with pytest.raises(TunecastError, match=r"config.yaml:3 optimizer: optimizer: got 'sinkgd'"):
            read_job(str(tmp_path / "config.yaml"))


class TestTasks:
    @pytest.mark.parametrize(
        ("text", "task"),
        [
            ("rl: dpo", "dpo"), ("rl: ipo", "dpo"), ("rl: kto", "kto"), ("reward_model: true", "reward"),
            ("rl:", "sft"), ("rl: orpo", "orpo"), ("rl: simpo", "simpo"), ("rl: grpo", "grpo"), ("rl: gdpo", "grpo"),
            ("process_reward_model: true", "prm"), ("num_labels: 2", "classify"),
            ("model_type: AutoModelForSequenceClassification", "classify"),
        ],
    )  # fmt: skip
    def test_known(self, read: Any, text: str, task: str) -> None:
        recipe = read(text)
        assert recipe.job["task"] == task and recipe.refused is None

    def test_pretraining(self, read: Any) -> None:
        recipe = read(start="base_model: x\npretraining_dataset: [{path: a}]\nmax_steps: 5\n")
        assert recipe.job["task"] == "pretrain"

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("rl: ebft", "ebft"),
            ("model_type: AutoModelForTokenClassification", "classification of tokens"),
            ("qat: {weight_dtype: int4}", "QAT"),
            ("plugins: [axolotl.integrations.diffusion.DiffusionPlugin]", "diffusion"),
            ("plugins: [axolotl.integrations.kd.KDPlugin]", "distillation"),
        ],
    )
    def test_refused_by_name(self, read: Any, tmp_path: Path, text: str, told: str) -> None:
        assert told in read(text).refused
        with pytest.raises(TunecastError, match=told):
            read_job(str(tmp_path / "config.yaml"))


class TestKernels:
    def test_ligers_one_by_one(self, read: Any) -> None:
        flags = "liger_rope: true\nliger_rms_norm: true\nliger_glu_activation: true\nliger_layer_norm: true\n"
        plugin = "plugins: [axolotl.integrations.liger.LigerPlugin]\n"
        assert recipe_kernels(read(plugin + flags)) == ["liger_rope", "liger_rms_norm", "liger_glu"]
        assert recipe_kernels(read(flags)) == []

    def test_cut_cross_entropy(self, read: Any) -> None:
        plugin = "plugins:\n  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\n"
        assert recipe_kernels(read(plugin)) == ["cut_cross_entropy"]
        assert recipe_kernels(read(plugin + "cut_cross_entropy: false")) == []

    def test_plugins_that_are_not_known(self, read: Any) -> None:
        assert "my_own" in unread(read("plugins: [my_own.Plugin]"))["plugins"]
        assert "signal" in unread(read("plugins: [axolotl.integrations.spectrum.SpectrumPlugin]"))["plugins"]


class TestSharing:
    def test_fsdp_with_and_without_the_prefix(self, read: Any) -> None:
        for before in ("", "fsdp_"):
            inner = f"{before}offload_params: true, {before}state_dict_type: SHARDED_STATE_DICT"
            recipe = read(f"fsdp_version: 2\nfsdp_config: {{{inner}}}")
            found = recipe.job["parallel"]
            assert (found["data"], found["fsdp_version"], found["offload"]) == ("fsdp", 2, "parameters")
            assert found["state_dict_type"] == "sharded"

    def test_fsdp_by_words_is_version_1(self, read: Any) -> None:
        found = read("fsdp: [shard_grad_op, auto_wrap, offload]").job["parallel"]
        assert (found["data"], found["fsdp_version"], found["offload"]) == ("fsdp", 1, "parameters")
        assert found["reshard_after_forward"] is False
        assert "parallel" not in read("fsdp:\nfsdp_config:\n").job

    def test_deepspeeds_files(self, read: Any, tmp_path: Path) -> None:
        (tmp_path / "mine.json").write_text(json.dumps({"zero_optimization": {"stage": 1}, "train_batch_size": "auto"}))
        assert read("deepspeed: mine.json").job["parallel"]["data"] == "zero1"
        recipe = read("deepspeed: deepspeed_configs/zero2.json")
        assert recipe.job["parallel"] == {"data": "zero2", "offload": "optimizer"} and "deepspeed" not in unread(recipe)
        assert read("deepspeed: other_z3.json").job["parallel"]["data"] == "zero3"

    def test_meshes(self, read: Any) -> None:
        text = "fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\n"
        found = read(text + "context_parallel_size: 2\ndp_replicate_size: 2").job["parallel"]
        assert (found["context"], found["data"]) == (2, "hsdp")
        assert "parallel" not in read("tensor_parallel_size: 1\ncontext_parallel_size: 1").job


class TestCommands:
    @pytest.mark.parametrize("words", ["axolotl train x.yaml", "axolotl.cli.train x.yaml"])
    def test_what_the_command_line_sets(self, words: str) -> None:
        told = f"{words} --micro-batch-size 4 --learning-rate=1e-4 --launcher torchrun -- --nproc_per_node 8"
        found = invocation([Word(each) for each in told.split()])
        assert found is not None and found.config == "x.yaml"
        assert found.values == {"micro_batch_size": 4, "learning_rate": 1e-4}

    @pytest.mark.parametrize("words", ["axolotl preprocess x.yaml", "python x.yaml", "train.py x.yaml", "axolotl"])
    def test_other_commands(self, words: str) -> None:
        assert invocation([Word(each) for each in words.split()]) is None

    def test_a_script(self, tmp_path: Path) -> None:
        (tmp_path / "x.yaml").write_text(SMALLEST + "micro_batch_size: 1\n")
        script = tmp_path / "run.sh"
        script.write_text("accelerate launch --num_processes 4 -m axolotl.cli.train x.yaml --micro-batch-size 2\n")
        recipe = find_recipe(script)
        assert recipe is not None and recipe.job["micro_batch"] == 2 and recipe.job["hardware"]["gpus"] == 4

    def test_values_win(self, read: Any) -> None:
        recipe = read("micro_batch_size: 1\n", values={"micro_batch_size": 8})
        assert recipe.job["micro_batch"] == 8 and recipe.places["micro_batch"].line == 0


class TestJunk:
    KEYS = (
        "adapter", "bf16", "sequence_len", "micro_batch_size", "batch_size", "sample_packing", "lora_target_modules",
        "plugins", "fsdp", "fsdp_config", "fsdp_version", "deepspeed", "val_set_size", "saves_per_epoch", "save_steps",
        "evals_per_epoch", "eval_steps", "num_epochs", "attn_implementation", "flash_attention", "optimizer", "rl",
        "gradient_checkpointing", "gradient_checkpointing_kwargs", "bnb_config_kwargs", "test_datasets", "qat",
        "accelerator_config", "context_parallel_size", "dp_replicate_size", "save_strategy", "eval_strategy",
        "datasets", "lora_r", "liger_rope", "cut_cross_entropy", "pad_to_sequence_len", "pad_to_multiple_of",
        "model_type", "base_model", "model_quantization_config", "max_steps", "num_labels", "peft", "use_ray",
        "ray_num_workers",
    )  # fmt: skip

    @pytest.mark.parametrize(
        "junk", ["[]", "{}", "[[1]]", "-1", "x", "1.5", "{a: [b]}", ".nan", "1e999", "0", "[1, a]", "null"]
    )
    def test_any_type_anywhere(self, tmp_path: Path, junk: str) -> None:
        file = tmp_path / "x.yaml"
        start = {"base_model": "llama-3.1-8b", "sequence_len": "8", "adapter": "qlora", "sample_packing": "true"}
        for key in self.KEYS:
            keys = {**start, "val_set_size": "0.1", "gradient_checkpointing": "true", key: junk}
            file.write_text("\n".join(f"{name}: {value}" for name, value in keys.items()))
            recipe = find_recipe(file)
            assert recipe is not None, key
            try:
                read_job(str(file))
            except TunecastError as error:
                assert "x.yaml" in str(error), (key, error)


class TestExperts:
    def test_quantised_with_the_rest(self, read: Any) -> None:
        linear = read("adapter: qlora\nload_in_4bit: true\nllama4_linearized_experts: true\n")
        assert field(linear, "quantization.experts") is True and "llama4_linearized_experts" not in unread(linear)
        assert "stacked" in unread(read(LORA + "llama4_linearized_experts: true\n"))["llama4_linearized_experts"]
        four = read("adapter: qlora\nload_in_4bit: true\nquantize_moe_experts: true\n")
        assert field(four, "quantization.experts") is True and "quantize_moe_experts" not in unread(four)
        eight = read(LORA + "load_in_8bit: true\nquantize_moe_experts: true\n")
        assert field(eight, "quantization.experts") is True and field(eight, "quantization.format") == "int8"

    def test_not_where_nothing_is(self, read: Any) -> None:
        assert field(read(LORA + "quantize_moe_experts: true\n"), "quantization.experts") is None


def test_spread_experts(read: Any) -> None:
    """All cards are what is split together, and DeepEP's buffer is beside torch's memory."""
    plugin = "plugins: [axolotl.integrations.expert_parallel.ExpertParallelPlugin]\n"
    recipe = read(plugin + "expert_parallel_size: 4\n")
    assert field(recipe, "parallel.expert") == 4
    assert recipe.job["hardware"] == {"gpus": 4, "reserve_bytes": 256 * 2**20}
    more = read(plugin + "expert_parallel_size: 4\ndp_shard_size: 2\nexpert_parallel_num_nvl_bytes: 1024\n")
    assert more.job["hardware"] == {"gpus": 8, "reserve_bytes": 1024}
    assert "parallel" not in read("expert_parallel_size: 4\n").job  # without the plugin nobody reads it


def test_packed_rows_are_filled_up(read: Any) -> None:
    """`hint_sample_packing_padding`: unless pad_to_sequence_len says false."""
    packed = "sequence_len: 1000\nmicro_batch_size: 2\nsample_packing: true\nflash_attention: true\n"
    assert field(read(packed), "data.pad_to_multiple_of") == 1024 and field(read(packed), "seq_len") == 2000
    assert field(read(packed + "pad_to_sequence_len: true\n"), "data.pad_to_multiple_of") == 1024
    assert field(read(packed + "pad_to_sequence_len: false\n"), "data.pad_to_multiple_of") is None


def test_gemma_4_has_two_kernels_of_attention(read: Any) -> None:
    """Rows are still laid end to end, as FlashAttention has them."""
    packed = "attn_implementation: flash_attention_2\nsample_packing: true\nsequence_len: 512\nmicro_batch_size: 4\n"
    recipe = read(packed + "gemma4_hybrid_attn_impl: true\n")
    assert (recipe.job["attention"], recipe.job["seq_len"], recipe.job["micro_batch"]) == ("sdpa", 2048, 1)
    assert "taken is sdpa" in unread(recipe)["gemma4_hybrid_attn_impl"]
