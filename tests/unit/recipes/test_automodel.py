"""NeMo Automodel's YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunecast.errors import TunecastError
from tunecast.job.readers import read_job
from tunecast.job.recipes import Recipe, find_recipe
from tunecast.job.recipes.frameworks import automodel, automodel_tasks

FULL = """\
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler:
  global_batch_size: 64
  local_batch_size: 4
  num_epochs: 2
  ckpt_every_steps: 50
  val_every_steps: 25
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: meta-llama/Llama-3.2-1B
  torch_dtype: torch.bfloat16
distributed:
  strategy: fsdp2
  activation_checkpointing: true
loss_fn:
  _target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy
dataset:
  _target_: nemo_automodel.components.datasets.llm.squad.make_squad_dataset
  seq_length: 2048
  split: train[:1000]
validation_dataset:
  num_samples_limit: 64
optimizer:
  _target_: torch.optim.AdamW
  lr: 1e-5
ci:
  recipe_owner: somebody
"""


def recipe(folder: Path, text: str = FULL, values: dict[str, Any] | None = None) -> Recipe:
    path = folder / "train.yaml"
    path.write_text(text)
    found = find_recipe(path, values)
    assert found is not None
    return found


def unread(found: Recipe) -> set[str]:
    return {each.key for each in found.not_understood}


def test_a_plain_fine_tune_is_read_without_a_remark(tmp_path: Path) -> None:
    found = recipe(tmp_path)
    assert (found.framework, found.refused, unread(found)) == ("automodel", None, set())
    job = found.job
    assert (job["model"], job["stack"], job["task"], job["method"]) == (
        "meta-llama/Llama-3.2-1B",
        "automodel",
        "sft",
        "full",
    )
    assert (job["seq_len"], job["micro_batch"], job["weights_dtype"]) == (2048, 4, "bfloat16")
    assert job["gradient_checkpointing"] is True
    assert job["parallel"]["data"] == "fsdp"
    assert (job["data"]["samples"], job["data"]["eval_samples"], job["data"]["epochs"]) == (1000, 64, 2)
    assert (job["run"]["save_steps"], job["run"]["eval_steps"], job["run"]["eval_batch"]) == (50, 25, 4)
    assert found.places["micro_batch"].line == 4
    assert "ci.recipe_owner" in found.ignored


def test_defaults_are_those_of_the_release(tmp_path: Path) -> None:
    found = recipe(tmp_path, "recipe: TrainFinetuneRecipeForNextTokenPrediction\nmodel: {config: gpt2}\npeft: {}\n")
    assumed = {name: each.value for name, each in found.assumed.items()}
    assert assumed["data.epochs"] == 10
    assert assumed["grad_accum"] == 32
    assert (assumed["lora.dropout"], assumed["max_grad_norm"], assumed["autocast"]) == (0.0, 1.0, None)
    assert assumed["parallel.data"] == "fsdp"
    assert found.assumed["lora.rank"] == (8, "automodel 0.7.0")


class TestCards:
    """Which the file leaves to its launcher."""

    def test_the_global_batch_is_shared_among_them(self, tmp_path: Path) -> None:
        recipe(tmp_path)
        path = str(tmp_path / "train.yaml")
        job = read_job(path, {"hardware.gpu": "h100-sxm-80gb", "hardware.gpus": 8})
        assert (job.grad_accum, job.unsaid) == (2, ())
        assert read_job(path, {"hardware.gpus": 8, "hardware.nodes": 2}).grad_accum == 1
        assert read_job(path, {"hardware.gpus": 8, "grad_accum": 5}).grad_accum == 5
        assert read_job(path, {"hardware.gpus": 4, "micro_batch": 2}).grad_accum == 8

    def test_they_are_asked_for(self, tmp_path: Path) -> None:
        recipe(tmp_path)
        assert read_job(str(tmp_path / "train.yaml")).unsaid == ("hardware.gpu", "hardware.gpus")

    def test_alone_on_one_nothing_is_sharded(self, tmp_path: Path) -> None:
        recipe(tmp_path)
        job = read_job(str(tmp_path / "train.yaml"), {"hardware.gpu": "h100-sxm-80gb", "hardware.gpus": 1})
        assert (job.parallel.data, job.grad_accum) == ("ddp", 16)

    def test_a_data_parallel_size_says_how_many(self, tmp_path: Path) -> None:
        sizes = "  dp_size: 2\n  tp_size: 2\n"
        found = recipe(tmp_path, FULL.replace("  strategy: fsdp2\n", f"  strategy: fsdp2\n{sizes}"))
        assert found.job["hardware"] == {"gpus": 4}

    def test_skypilot_says_which(self, tmp_path: Path) -> None:
        found = recipe(tmp_path, f"{FULL}skypilot:\n  accelerators: H100:8\n  num_nodes: 2\n")
        assert found.job["hardware"] == {"gpu": "H100", "gpus": 8, "nodes": 2}

    def test_replicas_are_hsdp(self, tmp_path: Path) -> None:
        found = recipe(tmp_path, values={"distributed.dp_replicate_size": 2})
        assert found.job["parallel"]["data"] == "hsdp"


class TestAdapters:
    @pytest.mark.parametrize(
        ("targets", "expected", "remarks"),
        [
            ("'*_proj'", ["*_proj"], set()),
            ("['*.q_proj', '*v_proj', k_proj]", ["*.q_proj", "*v_proj", "k_proj"], set()),
            ("['*']", ["*"], set()),
            ("['*.layers.0.*']", "all-linear", {"peft.target_modules"}),
            ("[]", ["*_proj"], set()),
        ],
    )
    def test_patterns(self, tmp_path: Path, targets: str, expected: object, remarks: set[str]) -> None:
        found = recipe(tmp_path, f"{FULL}peft:\n  dim: 16\n  alpha: 8\n  target_modules: {targets}\n")
        assert (found.job["method"], found.job["lora"]["rank"]) == ("lora", 16)
        assert (found.job["lora"]["targets"], unread(found)) == (expected, remarks)

    @pytest.mark.parametrize(
        ("said", "expected"),
        [
            ("match_all_linear: true", ["all-linear", "lm_head"]),
            ("exclude_modules: ['*.out_proj']", ["all-linear", "lm_head", "!*.out_proj"]),
        ],
    )
    def test_all_layers_are_the_head_too(self, tmp_path: Path, said: str, expected: list[str]) -> None:
        found = recipe(tmp_path, f"{FULL}peft:\n  {said}\n")
        assert (found.job["lora"]["targets"], unread(found)) == (expected, set())

    def test_fused_adapters_are_kernels(self, tmp_path: Path) -> None:
        found = recipe(tmp_path, f"{FULL}peft: {{use_triton: true}}\n")
        assert (found.job["kernels"], unread(found)) == (["lora_triton"], set())

    def test_four_bits(self, tmp_path: Path) -> None:
        found = recipe(
            tmp_path, f"{FULL}peft: {{dim: 8, target_modules: '*_proj'}}\nquantization: {{load_in_4bit: true}}\n"
        )
        assert found.job["method"] == "qlora"
        assert found.job["quantization"] == {"format": "nf4", "prepare_kbit": False, "double_quant": True}


class TestRows:
    def test_packed(self, tmp_path: Path) -> None:
        found = recipe(tmp_path, values={"packed_sequence.packed_sequence_size": 4096})
        assert (found.job["seq_len"], found.job["data"]["packing"]) == (4096, True)

    def test_zero_is_not_packed(self, tmp_path: Path) -> None:
        found = recipe(tmp_path, values={"packed_sequence.packed_sequence_size": 0})
        assert (found.job["seq_len"], found.job["data"]["packing"]) == (2048, False)

    def test_mock_data_are_pretraining(self, tmp_path: Path) -> None:
        mock = "nemo_automodel.components.datasets.llm.mock_iterable_dataset.MockIterableDataset"
        found = recipe(tmp_path, values={"dataset._target_": mock, "recipe": automodel_tasks.BENCHMARK})
        assert (found.job["task"], found.refused) == ("pretrain", None)


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("optimizer._target_", "torch.optim.Adam", "optimizer", "adamw_torch"),
        ("optimizer.fused", True, "optimizer", "adamw_torch_fused"),
        ("optimizer.foreach", False, "optimizer", "adamw_torch_single"),
        ("loss_fn.fp32_upcast", False, "loss", "low_precision"),
        ("model.backend.attn", "te", "attention", "sdpa"),
        ("model.backend.attn", "eager", "attention", "eager"),
        ("distributed.defer_fsdp_grad_sync", False, "parallel.sync_each_batch", True),
        ("distributed.dp_replicate_size", 4, "parallel.replicate", 4),
        ("optimizer._target_", "bitsandbytes.optim.PagedAdamW8bit", "optimizer", "paged_adamw_8bit"),
        ("clip_grad_norm.max_norm", 0.5, "max_grad_norm", 0.5),
        ("model.attn_implementation", "flash_attention_2", "attention", "flash_attention_2"),
        ("distributed.activation_checkpointing", "selective", "recompute", "selective"),
        ("seed", 7, "data.seed", 7),
        ("checkpoint.enabled", False, "run.save_strategy", "no"),
        ("step_scheduler.ckpt_every_steps", None, "run.save_strategy", "epoch"),
        ("distributed.offload_policy", {"pin_memory": True}, "parallel.offload", "parameters"),
        ("distributed.mp_policy.reduce_dtype", "bfloat16", "parallel.reduce_dtype", "bfloat16"),
        ("dataloader.num_workers", 3, "data.workers", 3),
        ("model.pretrained_model_name_or_path", "${base}", "model", "${base}"),
    ],
)
def test_keys(tmp_path: Path, key: str, value: object, field: str, expected: object) -> None:
    found = recipe(tmp_path, values={key: value})
    section, _, leaf = field.rpartition(".")
    assert (found.job[section] if section else found.job)[leaf] == expected
    assert unread(found) == set()


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("optimizer._target_", "dion.Muon", "optimizer._target_"),
        ("model.backend.linear", "quack", "model.backend.linear"),
        ("model.backend.attn", "tilelang", "model.backend.attn"),
        ("model.attn_implementation", [1], "model.attn_implementation"),
        ("model.backend.dispatcher", "mok", "model.backend.dispatcher"),
        ("model.backend.te_fp8.recipe", "block", "model.backend.te_fp8"),
        ("compile.enabled", True, "compile.enabled"),
        ("fp8.enabled", True, "fp8.enabled"),
        ("distributed.strategy", "megatron_fsdp", "distributed.strategy"),
        ("loss_fn._target_", "nemo_automodel.components.loss.chunked_ce.ChunkedCrossEntropy", "loss_fn._target_"),
        ("model.num_nextn_predict_layers", 1, "model.num_nextn_predict_layers"),
        ("freeze_config.freeze_embeddings", True, "freeze_config"),
        ("surprise", 1, "surprise"),
    ],
)
def test_what_is_not_modelled_is_named(tmp_path: Path, key: str, value: object, told: str) -> None:
    assert unread(recipe(tmp_path, values={key: value})) == {told}


class TestOptimizers:
    def test_adam_with_a_decay_copies_gradients(self, tmp_path: Path) -> None:
        values = {"optimizer._target_": "torch.optim.Adam", "optimizer.weight_decay": 0.1}
        found = recipe(tmp_path, values=values)
        assert (found.job["optimizer"], unread(found)) == ("adam_torch", set())

    @pytest.mark.parametrize(
        ("said", "masters", "state"),
        [
            ({}, "none", None),
            ({"master_weights": True}, "float32", None),
            ({"master_weights": True, "store_param_remainders": True}, "remainders", None),
            ({"exp_avg_dtype": "torch.bfloat16"}, "none", "bfloat16"),
        ],
    )
    def test_transformer_engines(self, tmp_path: Path, said: dict[str, Any], masters: str, state: str | None) -> None:
        name = "transformer_engine.pytorch.optimizers.fused_adam.FusedAdam"
        found = recipe(tmp_path, values={"optimizer": {"_target_": name, **said}})
        assert (found.job["optimizer"], unread(found)) == ("te_fused_adam", set())
        assert (found.job["master_weights"], found.job.get("optimizer_state_dtype")) == (masters, state)

    @pytest.mark.parametrize(("bits", "masters"), [(32, "remainders"), (24, None), (16, "none")])
    def test_flash_optims(self, tmp_path: Path, bits: int, masters: str | None) -> None:
        said = {"_target_": "flashoptim.FlashAdamW", "master_weight_bits": bits}
        found = recipe(tmp_path, values={"optimizer": said})
        assert (found.job["optimizer"], found.job.get("master_weights"), unread(found)) == (
            "flash_adamw",
            masters,
            set(),
        )


class TestLoss:
    FUSED = "nemo_automodel.components.loss.linear_ce.FusedLinearCrossEntropy"

    def test_without_logits(self, tmp_path: Path) -> None:
        found = recipe(tmp_path, f"{FULL}peft: {{use_triton: true}}\n", {"loss_fn._target_": self.FUSED})
        assert (found.job["kernels"], unread(found)) == (["lora_triton", "cut_cross_entropy"], set())

    def test_a_pipeline_has_logits_all_the_same(self, tmp_path: Path) -> None:
        found = recipe(tmp_path, values={"loss_fn._target_": self.FUSED, "distributed.pp_size": 2})
        assert ("kernels" in found.job, unread(found)) == (False, set())


class TestSplits:
    def test_experts_over_cards(self, tmp_path: Path) -> None:
        found = recipe(tmp_path, FULL.replace("  strategy: fsdp2\n", "  strategy: fsdp2\n  ep_size: 16\n"))
        assert (found.job["stack"], found.job["parallel"]["expert"], unread(found)) == ("automodel", 16, set())
        assert found.job["parallel"]["reshard_after_forward"] is False
        fewest = read_job(str(tmp_path / "train.yaml"))
        assert (fewest.hardware.gpus, fewest.hardware.nodes) == (8, 2)
        assert "hardware.gpus" in fewest.unsaid

    def test_models_with_split_experts_have_a_key_for_resharding(self, tmp_path: Path) -> None:
        values = {"distributed.ep_size": 8, "distributed.moe": {"reshard_after_forward": True}}
        assert recipe(tmp_path, values=values).job["parallel"]["reshard_after_forward"] is True
        assert "reshard_after_forward" not in recipe(tmp_path, values={"distributed.tp_size": 2}).job["parallel"]

    def test_tokens_are_whole_between_layers_unless_said(self, tmp_path: Path) -> None:
        found = recipe(tmp_path, values={"distributed.tp_size": 2})
        assert (found.job["parallel"]["sequence_parallel"], unread(found)) == (False, set())

    @pytest.mark.parametrize(
        ("more", "stages"),
        [
            ({}, 2),
            ({"layers_per_stage": 2}, 4),
            ({"layers_per_stage": 3, "round_virtual_stages_to_pp_multiple": "up"}, 3),
        ],
    )
    def test_interleaved_stages_follow_from_the_layers(self, tmp_path: Path, more: dict[str, Any], stages: int) -> None:
        """Llama 3.2 1B has 16: 8 pieces of 2 on 2 ranks, or 6 of 3."""
        values = {"distributed.pp_size": 2, "distributed.pipeline": {"pp_schedule": "interleaved1f1b", **more}}
        found = recipe(tmp_path, values=values)
        assert (found.job["parallel"]["virtual_stages"], unread(found)) == (stages, set())

    def test_layers_that_nobody_knows_are_told(self, tmp_path: Path) -> None:
        pipeline = {"pp_schedule": "interleaved1f1b", "layers_per_stage": 2}
        values = {"distributed.pp_size": 2, "distributed.pipeline": pipeline}
        found = recipe(tmp_path, FULL.replace("meta-llama/Llama-3.2-1B", "somebody/something"), values)
        assert unread(found) == {"distributed.pipeline.layers_per_stage"}

    def test_a_pipeline_has_micro_batches_of_its_own(self, tmp_path: Path) -> None:
        values = {"distributed.pp_size": 2, "distributed.pipeline": {"pp_schedule": "1f1b", "pp_microbatch_size": 1}}
        found = recipe(tmp_path, values=values)
        assert (found.job["micro_batch"], found.job["grad_accum"]) == (1, 64)

    def test_a_pipeline_of_one_stage_is_none(self, tmp_path: Path) -> None:
        values = {"distributed.pipeline": {"pp_schedule": "interleaved1f1b", "layers_per_stage": 2}}
        assert unread(recipe(tmp_path, values=values)) == set()


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("FinetuneRecipeForMultimodal", "vision"),
        ("EmbeddingDistillRecipe", "distillation"),
        ("TrainEagle3Recipe", "speculative decoding"),
        ("TrainFinetuneRecipeForSequenceClassification", "classification"),
        ("DiffusionLMSFTRecipe", "diffusion language model"),
    ],
)
def test_other_recipes_are_refused_by_their_task(tmp_path: Path, name: str, task: str) -> None:
    found = recipe(tmp_path, FULL.replace("TrainFinetuneRecipeForNextTokenPrediction", name))
    assert found.refused is not None
    assert found.refused.startswith(f"{task}: ")
    with pytest.raises(TunecastError, match=task):
        read_job(str(tmp_path / "train.yaml"))


TEACHES = """\
teacher_model: {pretrained_model_name_or_path: meta-llama/Llama-3.2-3B}
kd_ratio: 0.5
kd_loss_fn: {_target_: nemo_automodel.components.loss.kd_loss.KDLoss, fp32_upcast: true}
"""
PROXY = """\
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_config
  config:
    _target_: transformers.models.qwen3_moe.configuration_qwen3_moe.Qwen3MoeConfig
    hidden_size: 2048
    num_hidden_layers: LAYERS
    num_experts: 4
    num_attention_heads: 8
distributed: {strategy: fsdp2}
step_scheduler: {local_batch_size: 4, global_batch_size: 8}
recipe: TrainFinetuneRecipeForNextTokenPrediction
"""


def test_automodels_small_model_with_experts_is_known_by_its_sizes(tmp_path: Path) -> None:
    found = recipe(tmp_path, PROXY.replace("LAYERS", "2"))
    assert (found.job["model"], unread(found)) == ("automodel-qwen3-moe-proxy", set())
    assert "model" not in recipe(tmp_path, PROXY.replace("LAYERS", "3")).job


STUDENT = FULL.replace("TrainFinetuneRecipeForNextTokenPrediction", "KnowledgeDistillationRecipeForNextTokenPrediction")


def test_a_teacher_stands_beside_a_student(tmp_path: Path) -> None:
    found = recipe(tmp_path, STUDENT + TEACHES)
    assert (found.refused, unread(found)) == (None, set())
    assert (found.job["task"], found.job["distill"]["teacher"]) == ("distill", "meta-llama/Llama-3.2-3B")
    assert read_job(str(tmp_path / "train.yaml")).distill.place == "card"


def test_a_teacher_on_a_mesh_of_its_own_is_elsewhere(tmp_path: Path) -> None:
    apart = "separate_meshes: true\nteacher_distributed: {tp_size: 2}\n"
    found = recipe(tmp_path, STUDENT + TEACHES + apart)
    assert found.job["distill"]["place"] == "server"
    assert unread(found) == {"teacher_distributed"}, "its cards are not counted"


@pytest.mark.parametrize(
    ("name", "task", "length"),
    [("TrainBiEncoderRecipe", "embed", "p_max_len"), ("TrainCrossEncoderRecipe", "rerank", "rerank_max_length")],
)
def test_encoders_have_passages(tmp_path: Path, name: str, task: str, length: str) -> None:
    text = FULL.replace("TrainFinetuneRecipeForNextTokenPrediction", name).replace("seq_length: 2048", "n_passages: 4")
    found = recipe(tmp_path, f"{text}dataloader: {{collate_fn: {{{length}: 384}}}}\n")
    assert (found.refused, unread(found)) == (None, set())
    assert (found.job["task"], found.job["head"]["negatives"], found.job["seq_len"]) == (task, 3, 384)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("model: {pretrained_model_name_or_path: a/b}\ninference: {num_inference_steps: 28}\n", "generate.py"),
        ("mining: {hard_negatives_to_mine: 5}\n", "mine_hard_negatives.py"),
        ("recipe_args: {target_model_name_or_path: a/b, cache_output_dir: out}\n", "precompute_dspark_dist.py"),
        ("datasets:\n- {name: x, input_data: a/b, prompt_column: question}\n", "speculative decoding"),
    ],
)
def test_files_that_train_nothing(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "use.yaml"
    file.write_text(text)
    with pytest.raises(TunecastError, match=f"no training: .*{told}") as raised:
        find_recipe(file)
    assert raised.value.field == "task"


def test_a_model_that_sees_is_refused_whatever_the_recipe(tmp_path: Path) -> None:
    found = recipe(tmp_path, FULL.replace("NeMoAutoModelForCausalLM", "NeMoAutoModelForImageTextToText"))
    assert (found.refused or "").startswith("vision")


class TestImages:
    SEES = FULL.replace("TrainFinetuneRecipeForNextTokenPrediction", "FinetuneRecipeForVLM").replace(
        "NeMoAutoModelForCausalLM", "NeMoAutoModelForImageTextToText"
    )

    def test_one_of_a_sample_is_assumed_and_a_tower_frozen_where_something_is(self, tmp_path: Path) -> None:
        values = {"processor.max_pixels": 1280 * 28 * 28, "freeze_config.freeze_embeddings": True}
        found = recipe(tmp_path, self.SEES.replace("  seq_length: 2048\n", ""), values)
        assert (found.refused, unread(found)) == (None, set())
        trained = ["projector", "language"]
        assert found.job["vision"] == {"images": 1, "pixels": 1280 * 28 * 28, "trained": trained}
        assert found.job["seq_len"] == 1024 + 1280

    def test_without_anything_frozen_the_stack_decides(self, tmp_path: Path) -> None:
        found = recipe(tmp_path, self.SEES)
        assert found.job["vision"] == {"images": 1}
        assert found.job["seq_len"] == 2048

    def test_packs_are_told_as_one_sample(self, tmp_path: Path) -> None:
        found = recipe(tmp_path, self.SEES, {"packed_sequence.pack_size": 4096})
        assert (found.job["seq_len"], found.job["data"]["packing"]) == (4096, False)
        assert unread(found) == {"packed_sequence.pack_size"}

    @pytest.mark.parametrize(
        ("key", "value", "task"),
        [
            ("dataset._target_", "nemo_automodel.components.datasets.audio.datasets.make_cv17_dataset", "audio"),
            ("model._target_", "a.gemma4_drafter.Gemma4WithDrafter.from_pretrained", "speculative decoding"),
        ],
    )
    def test_sound_and_drafters_are_refused(self, tmp_path: Path, key: str, value: str, task: str) -> None:
        assert (recipe(tmp_path, self.SEES, {key: value}).refused or "").startswith(f"{task}: ")


def test_a_wrong_value_is_told_with_its_line(tmp_path: Path) -> None:
    recipe(tmp_path, FULL.replace("local_batch_size: 4", "local_batch_size: many"))
    with pytest.raises(TunecastError, match=r"train.yaml:4 step_scheduler.local_batch_size: micro_batch: got"):
        read_job(str(tmp_path / "train.yaml"))


@pytest.mark.parametrize("junk", [[], {}, [1], "x", 10**30, float("nan"), True, {"a": [None]}])
def test_junk_in_the_place_of_any_section_breaks_nothing(tmp_path: Path, junk: object) -> None:
    for section in (
        "step_scheduler",
        "model",
        "distributed",
        "peft",
        "dataset",
        "optimizer",
        "loss_fn",
        "freeze_config",
    ):
        recipe(tmp_path, values={section: junk}).to_dict()


@pytest.mark.parametrize(
    ("command", "config", "values"),
    [
        (
            "automodel finetune llm -c a.yaml --step_scheduler.max_steps 5 --compile.enabled=true",
            "a.yaml",
            {"step_scheduler.max_steps": 5, "compile.enabled": True},
        ),
        ("automodel a.yaml --nproc-per-node 8", "a.yaml", {"nproc_per_node": 8}),
        ("examples/llm_finetune/finetune.py --config a.yaml", "a.yaml", {}),
    ],
)
def test_commands(command: str, config: str, values: dict[str, Any]) -> None:
    found = automodel.invocation(command.split())
    assert found is not None
    assert (found.config, dict(found.values)) == (config, values)


def test_other_commands_are_not_its() -> None:
    assert automodel.invocation(["axolotl", "train", "a.yaml"]) is None
    assert automodel.invocation([]) is None


def described(config: str) -> str:
    named = "  pretrained_model_name_or_path: meta-llama/Llama-3.2-1B\n"
    return FULL.replace("from_pretrained\n" + named, f"from_config\n  config:\n{config}")


def test_a_class_whose_defaults_are_a_model_names_it(tmp_path: Path) -> None:
    glm = "    _target_: transformers.models.glm4_moe_lite.configuration_glm4_moe_lite.Glm4MoeLiteConfig\n"
    same = "    hidden_size: 2048\n    n_routed_experts: 64\n    partial_rotary_factor: 1.0\n"
    found = recipe(tmp_path, described(glm + same))
    assert found.job["model"] == "glm-4.7-flash"
    assert found.places["model"].key == "model.config._target_"
    assert unread(found) == set()


def test_what_makes_it_another_shape_is_told(tmp_path: Path) -> None:
    deepseek = "    _target_: nemo_automodel.components.models.deepseek_v4.config.DeepseekV4Config\n"
    found = recipe(tmp_path, described(f"{deepseek}    num_hidden_layers: 4\n    compress_ratios: [0, 0, 4, 128]\n"))
    assert found.job["model"] == "deepseek-v4-flash"
    assert unread(found) == {"model.config.num_hidden_layers"}
    assert "another shape than deepseek-v4-flash" in str(found.not_understood[0])


def test_gpt2_is_known_by_its_sizes(tmp_path: Path) -> None:
    made = "  _target_: nemo_automodel.components.models.gpt2.build_gpt2_model\n"
    named = FULL[FULL.index("  _target_: nemo_automodel.NeMoAuto") : FULL.index("  torch_dtype")]
    sizes = "  n_embd: 1024\n  n_layer: 24\n  n_head: 16\n"
    found = recipe(tmp_path, FULL.replace(named, f"{made}{sizes}  n_positions: 1024\n"))
    assert (found.job["model"], unread(found)) == ("gpt2-medium", set())
    longer = recipe(tmp_path, FULL.replace(named, made))
    assert (longer.job["model"], unread(longer)) == ("gpt2", {"model._target_"})
    assert "2048 rows" in str(longer.not_understood[0])
    other = recipe(tmp_path, FULL.replace(named, f"{made}  n_layer: 3\n"))
    assert "model" not in other.job


def test_a_configuration_of_no_known_model_names_none(tmp_path: Path) -> None:
    own = "    _target_: transformers.models.qwen3_moe.configuration_qwen3_moe.Qwen3MoeConfig\n"
    assert "model" not in recipe(tmp_path, described(f"{own}    num_hidden_layers: 2\n")).job
