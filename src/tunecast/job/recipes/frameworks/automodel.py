"""NVIDIA's NeMo Automodel: one YAML a training, whose `recipe` and `_target_` are names of classes, read as text.

Defaults  nemo_automodel 0.7.0: components/training/step_scheduler.py, `StepSchedulerConfig`; components/distributed/config.py,
          `FSDP2Config`; components/_peft/lora.py, `PeftConfig`; components/quantization/qlora.py, `create_bnb_config`;
          components/checkpoint/config.py, `CheckpointingConfig`; recipes/_typed_config.py, `RecipeConfig`;
          recipes/_dist_utils.py, `parse_distributed_section`; recipes/llm/train_ft.py,
          `TrainFinetuneRecipeForNextTokenPrediction`.
Command   components/config/_arg_parser.py, `parse_cli_argv`: `automodel x.yaml --a.b v`, and before 0.4
          `automodel finetune llm -c x.yaml`; or torchrun with a recipe's script and `--config x.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.job.recipes.cards import is_count
from tunecast.job.recipes.document import Document, scalar
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.request import Invocation, Request

NAME = "automodel"
RELEASE = "0.7.0"

_STEPS = "nemo_automodel/components/training/step_scheduler.py: StepSchedulerConfig"
_FSDP = "nemo_automodel/components/distributed/config.py: FSDP2Config"
_PEFT = "nemo_automodel/components/_peft/lora.py: PeftConfig"
DEFAULTS: Mapping[str, tuple[object, str]] = {
    "global_batch": (32, f"{_STEPS}.global_batch_size"),
    "data.epochs": (10, f"{_STEPS}.num_epochs"),
    "run.save_steps": (100, f"{_STEPS}.ckpt_every_steps"),
    "gradient_checkpointing": (False, f"{_FSDP}.activation_checkpointing"),
    "compile": (False, "nemo_automodel/components/utils/compile_utils.py: CompileConfig.enabled"),
    "lora.rank": (8, f"{_PEFT}.dim"),
    "lora.alpha": (32, f"{_PEFT}.alpha"),
    "lora.dropout": (0.0, f"{_PEFT}.dropout"),
    "lora.dora": (False, f"{_PEFT}.use_dora"),
}

NEXT_TOKEN = "TrainFinetuneRecipeForNextTokenPrediction"
BENCHMARK = "BenchmarkingRecipeForNextTokenPrediction"
_SPECULATIVE = ("speculative decoding", "a head that drafts tokens is trained beside a frozen model")
_RETRIEVAL = ("embedding", "an encoder is trained by pairs of texts")
_VISION = ("vision", "the model takes images or sound beside text")
_DISTILLATION = ("distillation", "a teacher's logits stand beside the model's own")
_DIFFUSION = ("diffusion", "images or videos are made of noise")
_DIFFUSION_TEXT = ("diffusion language model", "masked tokens are told at once, not the next one")
OTHER_RECIPES: Mapping[str, tuple[str, str]] = {
    "FinetuneRecipeForVLM": _VISION,
    "FinetuneRecipeForMultimodal": _VISION,
    "PretrainRecipeForMultimodal": _VISION,
    "KnowledgeDistillationRecipeForVLM": _DISTILLATION,
    "KnowledgeDistillationRecipeForNextTokenPrediction": _DISTILLATION,
    "EmbeddingDistillRecipe": _DISTILLATION,
    "TrainFinetuneRecipeForSequenceClassification": ("classification", "a head of labels takes the vocabulary's place"),
    "TrainBiEncoderRecipe": _RETRIEVAL,
    "TrainCrossEncoderRecipe": ("reranker", "a head scores pairs of texts"),
    "MineHardNegativesRecipe": ("inference", "hard negatives are looked for; nothing is trained"),
    "TrainDiffusionRecipe": _DIFFUSION,
    "DiffusionLMSFTRecipe": _DIFFUSION_TEXT,
    "DiffusionGemmaSFTRecipe": _DIFFUSION_TEXT,
    **dict.fromkeys(
        ("TrainEagle1Recipe", "TrainEagle2Recipe", "TrainEagle3Recipe", "TrainDFlashRecipe", "TrainDFlash2Recipe",
         "TrainDSparkRecipe", "TrainDominoRecipe", "TrainJetSpecRecipe", "TrainVispecRecipe", "TrainVispecStage1Recipe"),
        _SPECULATIVE,
    ),
}  # fmt: skip
"""Classes of nemo_automodel/recipes that train for something else."""
OTHER_MODELS: Mapping[str, tuple[str, str]] = {
    "NeMoAutoModelForImageTextToText": _VISION,
    "NeMoAutoModelForMultimodalLM": _VISION,
    "NeMoAutoModelForTextToWaveform": _VISION,
    "NeMoAutoModelForSeq2SeqLM": ("sequence to sequence", "the model has an encoder"),
    "NeMoAutoModelForSequenceClassification": ("classification", "a head of labels takes the vocabulary's place"),
    "NeMoAutoModelBiEncoder": _RETRIEVAL,
    "NeMoAutoModelCrossEncoder": ("reranker", "a head scores pairs of texts"),
    "NeMoAutoDiffusionPipeline": _DIFFUSION,
}
"""What `model._target_` may name; the recipe's class need not say it."""
OTHER_SECTIONS: Mapping[str, tuple[str, str]] = {
    "flow_matching": _DIFFUSION,
    "dllm": _DIFFUSION_TEXT,
    "teacher_model": _DISTILLATION,
    "kd_loss_fn": _DISTILLATION,
    "recipe_args.draft_num_hidden_layers": _SPECULATIVE,
    "recipe_args.target_model_name_or_path": _SPECULATIVE,
    "processor": _VISION,
    "inference": ("inference", "nothing is trained"),
}
PRETRAINING = ("MegatronPretraining", "NanogptDataset", "MockIterableDataset")
"""Data sets of text without prompts, in full rows."""

OWN_SECTIONS = ("model", "dataset", "loss_fn", "distributed", "peft", "rng", "data.dataloader", "optimizer")
WITHOUT_EFFECT = (
    *("_*", "ci.*", "wandb.*", "mlflow.*", "comet.*", "dist_env.*", "rng.*", "lr_scheduler.*", "benchmark.*"),
    *("dataset.*", "validation_dataset*", "tokenizer.*", "dataloader.*", "validation_dataloader.*", "mfu.*"),
    *("checkpoint.*", "optimizer.*", "loss_fn.ignore_index", "loss_fn.reduction", "nvtx", "moe_metrics.*"),
    *("neftune*", "nemo_run.*", "slurm.*", "skypilot.*", "recipe*", "autonvtx*", "distributed_config.*"),
    *("model._target_", "model.config._target_", "model.cache_dir", "model.load_base_model", "model.*_token_id"),
    *("model.*use_cache", "model.*architectures", "model.*trust_remote_code", "model.*initializer_range"),
    *("model.*rms_norm_eps", "model.*rope_*", "model.*dropout", "model.*router_aux_loss_coef", "model.revision"),
    *("model.use_sdpa_patching", "model.mtp_loss_scaling_factor", "model.sdpa_method", "sdpa_method"),
    *("peft._target_", "peft.lora_A_init", "peft.dropout_position", "packed_sequence.num_proc", "prewarm.*"),
    *("step_scheduler.gc_every_steps", "step_scheduler.log_remote_every_steps", "step_scheduler.start_*"),
    *("step_scheduler.loss_average_window_steps", "step_scheduler.preemption_signal", "clip_grad_norm.*"),
    *("distributed._target_", "distributed.patch_is_packed_sequence", "distributed.timeout*", "distributed.backend"),
    *("parallelizer._target_", "compile.mode", "compile.fullgraph", "compile.dynamic", "compile.backend"),
    *("compile.dynamo_cache_size_limit", "fp8.filter_fqns", "fp8.recipe_name", "quantization.bnb_4bit_compute_dtype"),
    *("distributed.moe.ignore_router_for_ac", "distributed.moe.wrap_outer_model", "model.mtp_use_repeated_layer"),
    *("embedding_row_repair.*", "model.text_config.*_token_id", "checkpoint_*", "packed_sequence.max_packs"),
)
"""A data set's name says nothing by itself; `ci` is for its maintainers' machines."""
OPTIMIZERS: Mapping[str, str] = {
    "torch.optim.AdamW": "adamw_torch",
    "torch.optim.Adam": "adamw_torch",
    "torch.optim.SGD": "sgd",
    "torch.optim.Adagrad": "adagrad",
    "torch.optim.RMSprop": "rmsprop",
    "bitsandbytes.optim.AdamW8bit": "adamw_8bit",
    "bitsandbytes.optim.PagedAdamW": "paged_adamw_32bit",
    "bitsandbytes.optim.PagedAdamW32bit": "paged_adamw_32bit",
    "bitsandbytes.optim.PagedAdamW8bit": "paged_adamw_8bit",
}
ATTENTION = {"flash_attention_2", "flash_attention_3", "sdpa", "eager"}
TRANSFORMER_ENGINE = "kernels of Transformer Engine and others are told as torch's"
SHAPE_UNCHANGED = frozenset(
    {"_target_", "pretrained_model_name_or_path", "name_or_path", "torch_dtype", "dtype", "num_nextn_predict_layers",
     "attn_implementation", "_attn_implementation", "max_position_embeddings", "norm_topk_prob", "hidden_act"}
)  # fmt: skip
"""Of `model.config`: what moves no size, or is read by itself."""


def recognises(document: Document) -> bool:
    if class_name(document.get("recipe"), document.get("recipe._target_")) in {NEXT_TOKEN, BENCHMARK, *OTHER_RECIPES}:
        return True
    targets = (document.get(f"{name}._target_") for name in OWN_SECTIONS)
    own = any(isinstance(target, str) and target.startswith("nemo_automodel.") for target in targets)
    trains = any(map(document.has, ("step_scheduler", "recipe_args", "optimizer", "flow_matching")))
    return own and trains


def invocation(words: Sequence[str]) -> Invocation | None:
    if not words or not calls_automodel(words[0]):
        return None
    config, values, place = None, dict[str, Any](), 1
    while place < len(words):
        word = words[place]
        place += 1
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-") and not equals:
            has_value = place < len(words) and not words[place].startswith("--")
            value = words[place] if has_value else "true"
            place += has_value
        if word in ("-c", "--config"):
            config = value
        elif word.startswith("--") and name.replace("-", "_") != "nproc_per_node":
            values[name] = scalar(value)
        elif not word.startswith("-") and word.endswith((".yaml", ".yml")):
            config = config or word
    return Invocation(config, values)


def calls_automodel(program: str) -> bool:
    return program.rpartition("/")[2] == "automodel" or "nemo_automodel" in program


def read(draft: Draft, request: Request) -> None:
    keys = draft.keys(request.document, WITHOUT_EFFECT)
    draft.put("stack", "automodel", keys, "recipe", "model._target_")
    take_task(draft, keys)
    take_model(draft, keys)
    take_adapter(draft, keys)
    take_rows(draft, keys)
    take_schedule(draft, keys)
    take_optimizer(draft, keys)
    take_mesh(draft, keys)
    take_sharding(draft, keys)
    take_loss(draft, keys)
    take_kernels(draft, keys)
    take_cards(draft, keys)
    take_another_stack(draft, keys)


def class_name(*values: object) -> str:
    """The last part of the first that is a dotted path."""
    text = next((value for value in values if isinstance(value, str)), "")
    return text.strip().rpartition(".")[2]


def factory(path: object) -> str:
    """Of `package.Class.from_pretrained` the class, else what is called."""
    parts = path.split(".") if isinstance(path, str) else [""]
    return parts[-2] if len(parts) > 1 and parts[-1].startswith("from_") else parts[-1]


def count(keys: Keys, name: str, default: int = 1) -> int:
    """To compute with; what is no number is refused by the field it is put into."""
    value = keys.get(name)
    return value if is_count(value) else default


# ------------------------------------------------------------------------------------------------ what is trained


def take_task(draft: Draft, keys: Keys) -> None:
    recipe = class_name(keys.get("recipe"), keys.get("recipe._target_"))
    other = OTHER_RECIPES.get(recipe) or OTHER_MODELS.get(factory(keys.document.get("model._target_")))
    if other is None and recipe != NEXT_TOKEN:
        other = next((what for name, what in OTHER_SECTIONS.items() if keys.document.get(name) is not None), None)
    if other is None and keys.get("qat.enabled") is True:
        other = ("QAT", "weights are rounded while they are trained")
    if other is not None:
        draft.refuse(*other)
    elif recipe not in ("", NEXT_TOKEN, BENCHMARK):
        draft.refuse(recipe[:60], "a recipe that is not known here")
    if class_name(keys.document.get("dataset._target_")) in PRETRAINING:
        draft.put("task", "pretrain", keys, "dataset._target_")
        draft.put("data.packing", True, keys, "dataset._target_")
        draft.put("data.packing_strategy", "wrapped", keys, "dataset._target_")
    elif other is None:
        draft.put("task", "sft", keys, "recipe", "model._target_")


def take_model(draft: Draft, keys: Keys) -> None:
    config = keys.document.get("model.config")
    names = ("model.pretrained_model_name_or_path", "model.config.pretrained_model_name_or_path")
    if isinstance(config, str):
        draft.take("model", keys, names[0], "model.config")
    else:
        draft.take("model", keys, *names, "model.config.name_or_path")
    if "model" not in draft.fields and keys.has("model"):
        draft.refuse("a model of its own", "its shape stands in the file: write it into a config.json, and name that")
    for name in config if isinstance(config, Mapping) else ():
        moved = name not in SHAPE_UNCHANGED and not keys._moves_nothing(f"model.config.{name}")
        if moved and not isinstance(config[name], (bool, type(None))):
            draft.not_modelled(keys, f"model.config.{name}", "the model is made with another shape than its config.json")
        else:
            keys.ignore(f"model.config.{name}")
    take_weights_dtype(draft, keys)
    for name in ("model.num_nextn_predict_layers", "model.config.num_nextn_predict_layers"):
        if is_count(keys.get(name)):
            draft.not_modelled(keys, name, "layers that predict further tokens are left out")
    if any(value is True for value in (keys.get("freeze_config") or {}).values()):
        draft.not_modelled(keys, "freeze_config", "all parts are taken to be trained")


def take_weights_dtype(draft: Draft, keys: Keys) -> None:
    names = ("model.torch_dtype", "model.dtype", "model.config.torch_dtype", "model.config.dtype")
    draft.take("weights_dtype", keys, *names, read=dtype)
    is_made_anew = str(keys.get("model._target_")).endswith(".from_config")
    if draft.fields.get("weights_dtype", "auto") == "auto" and is_made_anew:
        draft.drop("weights_dtype")  # `from_config` makes "auto" bfloat16
        draft.assume("weights_dtype", "bfloat16")
    draft.assume("weights_dtype", "auto")
    draft.assume("autocast", None)


def dtype(value: object) -> object:
    return value.removeprefix("torch.") if isinstance(value, str) else value


def take_adapter(draft: Draft, keys: Keys) -> None:
    bits = {"int8": keys.get("quantization.load_in_8bit"), "nf4": keys.get("quantization.load_in_4bit")}
    packed = next((name for name, said in bits.items() if said), None)
    if keys.document.get("peft") is None:
        draft.assume("method", "full")
        if packed is not None:
            draft.not_modelled(keys, "quantization", "weights are quantised and trained without adapters")
        return
    draft.put("method", "lora" if packed is None else "qlora", keys, "quantization", "peft")
    if packed is not None:
        draft.put("quantization.format", packed, keys, "quantization.load_in_8bit", "quantization.load_in_4bit")
        take_quantization(draft, keys, packed)
    for field, key in (("rank", "dim"), ("alpha", "alpha"), ("dropout", "dropout"), ("dora", "use_dora")):
        draft.take(f"lora.{field}", keys, f"peft.{key}")
        draft.assume(f"lora.{field}", DEFAULTS[f"lora.{field}"][0])
    draft.take("lora.adapter_dtype", keys, "peft.lora_dtype", read=dtype)
    take_targets(draft, keys)
    for name, why in (
        ("peft.use_triton", "its fused kernels are told as torch's"),
        ("peft.moe_rank_scaling", "adapters of experts have a lower rank"),
        ("peft.expert_weight_format", "experts in 4 bits"),
    ):
        if keys.get(name) not in (None, False, "unquantized"):
            draft.not_modelled(keys, name, why)
    if keys.get("peft.use_memory_efficient_lora") is False:
        draft.not_modelled(keys, "peft.use_memory_efficient_lora", "what lies between the two matrices is kept")


def take_quantization(draft: Draft, keys: Keys, packed: str) -> None:
    draft.assume("quantization.prepare_kbit", False)
    four = keys.get("quantization.bnb_4bit_quant_type"), keys.get("quantization.bnb_4bit_use_double_quant")
    keys.get("quantization.bnb_4bit_quant_storage")
    if packed != "nf4":
        return
    if four[0] is not None:
        draft.put("quantization.format", four[0], keys, "quantization.bnb_4bit_quant_type")
    draft.take("quantization.double_quant", keys, "quantization.bnb_4bit_use_double_quant")
    draft.assume("quantization.double_quant", True)


def take_targets(draft: Draft, keys: Keys) -> None:
    """components/_peft/module_matcher.py, `ModuleMatcher`: patterns of names, or all layers but those excluded."""
    given, left_out = keys.get("peft.target_modules"), keys.get("peft.exclude_modules")
    patterns = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    names = [each.rpartition(".")[2].lstrip("*") for each in patterns if isinstance(each, str)]
    every = bool(keys.get("peft.match_all_linear")) or not names or "" in names
    if every:
        draft.put("lora.targets", "all-linear", keys, "peft.target_modules", "peft.match_all_linear", "peft")
        where = next((n for n in ("match_all_linear", "exclude_modules") if keys.get(f"peft.{n}")), "target_modules")
        if not leaves_head_out(left_out):
            draft.not_modelled(keys, f"peft.{where}", "the output layer gets an adapter too, which is left out")
    elif names in (["_proj"], ["proj"]):
        draft.put("lora.targets", "all-linear", keys, "peft.target_modules")
    elif all(name.isidentifier() for name in names):
        draft.put("lora.targets", list(dict.fromkeys(names)), keys, "peft.target_modules")
    else:
        draft.put("lora.targets", "all-linear", keys, "peft.target_modules")
        draft.not_modelled(keys, "peft.target_modules", "of these patterns all linear layers are taken")


def leaves_head_out(patterns: object) -> bool:
    return isinstance(patterns, list) and any(isinstance(each, str) and "lm_head" in each for each in patterns)


# --------------------------------------------------------------------------------------------------- rows and steps


def take_rows(draft: Draft, keys: Keys) -> None:
    packed = keys.get("packed_sequence.packed_sequence_size", "packed_sequence.pack_size")
    if packed is not None and packed != 0:
        draft.put("seq_len", packed, keys, "packed_sequence.packed_sequence_size", "packed_sequence.pack_size")
        draft.put("data.packing", True, keys, "packed_sequence.packed_sequence_size")
        keys.get("packed_sequence.packing_strategy", "packed_sequence.split_across_pack")
    else:
        keys.ignore("packed_sequence")
    if "seq_len" not in draft.fields:
        draft.take("seq_len", keys, "dataset.seq_len", "dataset.seq_length", "dataset.max_length", "dataset.max_seq_length")
    draft.assume("seq_len", 1024, "tunecast: nothing is cut, so that rows are as long as the data's")
    draft.assume("data.packing", False)
    limit = ("dataset.limit_dataset_samples", "dataset.num_samples_limit", "dataset.num_samples")
    take_samples(draft, keys, "data.samples", "dataset.split", limit)
    if any(name.startswith("validation_dataset") for name in keys.document.tree):
        limits = ("validation_dataset.limit_dataset_samples", "validation_dataset.num_samples_limit")
        take_samples(draft, keys, "data.eval_samples", "validation_dataset.split", limits)
    draft.take("data.workers", keys, "dataloader.num_workers")
    draft.assume("data.workers", 0)
    draft.take("data.group_by_length", keys, "dataloader.group_by_length")
    draft.take("data.drop_last", keys, "dataloader.drop_last")
    draft.take("data.seed", keys, "seed", "rng.seed")
    draft.assume("data.seed", 42)


def take_samples(draft: Draft, keys: Keys, field: str, split: str, limits: tuple[str, ...]) -> None:
    """A limit, or that of `train[:1000]`."""
    end = str(keys.get(split)).partition("[:")[2].removesuffix("]")
    if not draft.take(field, keys, *limits) and end.isascii() and end.isdecimal() and 0 < len(end) < 10:
        draft.put(field, int(end), keys, split)


def take_schedule(draft: Draft, keys: Keys) -> None:
    draft.put_global_batch(keys, "step_scheduler.global_batch_size", default=32)
    draft.take("data.epochs", keys, "step_scheduler.num_epochs")
    draft.assume("data.epochs", DEFAULTS["data.epochs"][0])
    draft.take("run.max_steps", keys, "step_scheduler.max_steps")
    draft.take("max_grad_norm", keys, "clip_grad_norm.max_norm", "max_grad_norm")
    draft.assume("max_grad_norm", 1.0)
    take_checkpoints(draft, keys)
    take_evaluations(draft, keys)


def take_checkpoints(draft: Draft, keys: Keys) -> None:
    """Each rank writes its part, and an epoch's end is saved too."""
    every = "step_scheduler.ckpt_every_steps"
    if keys.get("checkpoint.enabled") is False:
        draft.put("run.save_strategy", "no", keys, "checkpoint.enabled")
        keys.ignore("checkpoint", every, "step_scheduler.save_checkpoint_every_epoch")
        return
    if keys.has(every) and keys.get(every) is None:
        draft.put("run.save_strategy", "epoch", keys, every)
    else:
        draft.assume("run.save_strategy", "steps")
        draft.take("run.save_steps", keys, every)
        draft.assume("run.save_steps", DEFAULTS["run.save_steps"][0])
    keys.get("step_scheduler.save_checkpoint_every_epoch")
    draft.take("run.save_total_limit", keys, "checkpoint.max_recent_checkpoints")
    draft.assume("parallel.state_dict_type", "sharded")
    if keys.get("checkpoint.is_async") is True:
        draft.not_modelled(keys, "checkpoint.is_async", "checkpoints are written while training goes on")


def take_evaluations(draft: Draft, keys: Keys) -> None:
    every = "step_scheduler.val_every_steps"
    keys.get("step_scheduler.validate_on_checkpoint")
    has_data = any(name.startswith("validation_dataset") for name in keys.document.tree)
    if not has_data or keys.get(every) is None or keys.document.get("benchmark") is not None:
        keys.ignore(every)
        draft.assume("run.eval_strategy", "no")
        return
    draft.put("run.eval_strategy", "steps", keys, every)
    draft.take("run.eval_steps", keys, every)
    draft.take("run.eval_batch", keys, "validation_dataloader.batch_size", "step_scheduler.local_batch_size")


def take_optimizer(draft: Draft, keys: Keys) -> None:
    path = keys.get("optimizer._target_")
    name = path if isinstance(path, str) else ""
    known = OPTIMIZERS.get(name)
    if path is None:
        draft.assume("optimizer", "adamw_torch")
        return
    if known == "adamw_torch" and keys.get("optimizer.fused") is True:
        known = "adamw_torch_fused"
    draft.put("optimizer", known or "adamw_torch_fused", keys, "optimizer._target_")
    if known is None:
        draft.not_modelled(keys, "optimizer._target_", unknown_optimizer(name))
    if name == "torch.optim.Adam" and keys.get("optimizer.weight_decay", default=0) != 0:
        draft.not_modelled(keys, "optimizer.weight_decay", "Adam adds the decay to a copy of all gradients")


def unknown_optimizer(name: str) -> str:
    if name.startswith("transformer_engine."):
        return "Transformer Engine's FusedAdam is told as torch's, with states of 32 bits and no master weights"
    return "it is told as torch's AdamW"


# ------------------------------------------------------------------------------------------------------------ cards


MESH = {"tensor": "tp_size", "pipeline": "pp_size", "context": "cp_size", "expert": "ep_size"}


def take_mesh(draft: Draft, keys: Keys) -> None:
    for field, key in MESH.items():
        draft.take(f"parallel.{field}", keys, f"distributed.{key}", f"parallelizer.{key}")
        draft.assume(f"parallel.{field}", 1)
    if draft.fields["parallel.tensor"] != 1:
        draft.take("parallel.sequence_parallel", keys, "distributed.sequence_parallel")
        draft.assume("parallel.sequence_parallel", False)
    else:
        keys.ignore("distributed.sequence_parallel", "distributed.enable_async_tensor_parallel", "distributed.tp_plan")
    if draft.fields["parallel.expert"] == 1:
        keys.ignore("distributed.moe")
    take_pipeline(draft, keys)


def take_pipeline(draft: Draft, keys: Keys) -> None:
    """A pipeline's micro-batches are parts of a rank's batch."""
    local, part = "step_scheduler.local_batch_size", "distributed.pipeline.pp_microbatch_size"
    if draft.fields["parallel.pipeline"] == 1:
        keys.ignore("distributed.pipeline", "autopipeline")
        draft.take("micro_batch", keys, local)
        draft.assume("micro_batch", 1)
        return
    keys.get(local)
    draft.take("micro_batch", keys, part, "autopipeline.pp_microbatch_size")
    draft.assume("micro_batch", 1)
    interleaved = str(keys.get("distributed.pipeline.pp_schedule")).lower() == "interleaved1f1b"
    if interleaved or keys.get("distributed.pipeline.layers_per_stage") is not None:
        why = "how many pieces a stage has depends on the layers; one is taken"
        draft.not_modelled(keys, "distributed.pipeline.pp_schedule", why)
    keys.ignore("distributed.pipeline", "autopipeline")


def take_sharding(draft: Draft, keys: Keys) -> None:
    strategy = keys.get("distributed.strategy", "distributed._target_", default="fsdp2")
    name = str(strategy).lower().replace("-", "_")
    if "ddp" in name:
        draft.put("parallel.data", "ddp", keys, "distributed.strategy", "distributed._target_")
    elif is_count(keys.get("distributed.dp_replicate_size")) and keys.get("distributed.dp_replicate_size") != 1:
        draft.put("parallel.data", "hsdp", keys, "distributed.dp_replicate_size")
    elif keys.has("distributed.strategy"):
        draft.put("parallel.data", "fsdp", keys, "distributed.strategy")
    else:
        draft.assume("parallel.data", "fsdp")
    if "megatron" in name or "mfsdp" in name:
        draft.not_modelled(keys, "distributed.strategy", "Megatron-FSDP is told as torch's FSDP 2")
    activations = keys.get("distributed.activation_checkpointing", "parallelizer.activation_checkpointing")
    checkpointing = ("distributed.activation_checkpointing", "parallelizer.activation_checkpointing")
    if activations is not None:
        words = {"selective": True, "full": True, "on": True, "off": False, "none": False}
        said = words.get(activations.lower(), activations) if isinstance(activations, str) else activations
        draft.put("gradient_checkpointing", said, keys, *checkpointing)
    if activations == "selective":
        draft.put("recompute", "selective", keys, *checkpointing)
    draft.assume("gradient_checkpointing", False)
    if keys.get("distributed.offload_policy") is not None:
        draft.put("parallel.offload", "parameters", keys, "distributed.offload_policy")
    draft.take("parallel.reshard_after_forward", keys, "distributed.reshard_after_forward")
    if keys.get("distributed.defer_fsdp_grad_sync") is False:
        draft.not_modelled(keys, "distributed.defer_fsdp_grad_sync", "gradients are told to wait for the last micro-batch")
    take_policy(draft, keys)


def take_policy(draft: Draft, keys: Keys) -> None:
    """`FSDP2Config.mp_policy`: computed in bfloat16, summed in float32."""
    policy = "distributed.mp_policy"
    draft.take("parallel.reduce_dtype", keys, f"{policy}.reduce_dtype", read=dtype)
    draft.assume("parallel.reduce_dtype", "float32")
    if dtype(keys.get(f"{policy}.param_dtype")) not in (None, "bfloat16", "bf16"):
        draft.not_modelled(keys, f"{policy}.param_dtype", "layers are taken to compute in bfloat16")
    if dtype(keys.get(f"{policy}.output_dtype")) not in (None, "bfloat16", "bf16"):
        draft.not_modelled(keys, f"{policy}.output_dtype", "what layers hand on is taken to be bfloat16")
    keys.ignore(f"{policy}._target_", f"{policy}.cast_forward_inputs")
    for name, why in (
        ("distributed.autocast_dtype", "nothing is taken to run under autocast"),
        ("distributed.enable_fsdp2_prefetch", "layers are gathered further ahead"),
        ("distributed.enable_compile", "layers are told as if they were not compiled"),
        ("distributed.enable_async_tensor_parallel", "tensor parallel layers do not overlap"),
    ):
        if keys.get(name):
            draft.not_modelled(keys, name, why)


def take_cards(draft: Draft, keys: Keys) -> None:
    card, colon, gpus = str(keys.get("skypilot.accelerators", default="")).partition(":")
    if card:
        draft.put("hardware.gpu", card, keys, "skypilot.accelerators")
        if not colon or gpus.isdecimal():
            draft.put("hardware.gpus", int(gpus[:9]) if colon else 1, keys, "skypilot.accelerators")
    draft.take("hardware.nodes", keys, "skypilot.num_nodes", "slurm.nodes", "benchmark.num_nodes")
    draft.take("hardware.gpus", keys, "slurm.ntasks_per_node")
    dp_size, nodes = keys.get("distributed.dp_size"), draft.fields.get("hardware.nodes", 1)
    if not is_count(dp_size):
        return  # null, "none": what the cards leave
    cards = dp_size
    for name in ("tp_size", "pp_size", "cp_size"):
        cards *= count(keys, f"distributed.{name}")
    said = "hardware.nodes" in draft.fields and is_count(nodes) and cards % nodes == 0
    if "hardware.gpus" not in draft.fields and (said or cards <= MOST_IN_A_MACHINE):
        draft.put("hardware.gpus", cards // nodes if said else cards, keys, "distributed.dp_size")


MOST_IN_A_MACHINE = 8
"""Cards that need no second machine."""


def take_another_stack(draft: Draft, keys: Keys) -> None:
    """Of layers, rows or experts that several cards share, torchtitan's FSDP 2 is the nearest that is written down. It
    knows no adapters."""
    split = [key for field, key in MESH.items() if draft.fields[f"parallel.{field}"] != 1]
    if not split or draft.fields["method"] != "full":
        return
    why = "told as torchtitan's, whose kernels for experts are slower than Transformer Engine's with DeepEP"
    draft.not_modelled(keys, f"distributed.{split[-1]}", why)
    draft.put("stack", "torchtitan", keys, f"distributed.{split[-1]}")
    for field in ("autocast", "attention", "parallel.state_dict_type"):
        draft.drop(field)
    draft.assume("autocast", "bfloat16")
    if draft.fields.get("parallel.sequence_parallel") is False:
        draft.drop("parallel.sequence_parallel")
        draft.not_modelled(keys, "distributed.tp_size", "tokens are told to be split outside of attention and MLP too")
    if draft.fields["weights_dtype"] == "auto":
        draft.drop("weights_dtype")
        draft.assume("weights_dtype", "bfloat16")
    if draft.fields["gradient_checkpointing"] is True and "recompute" not in draft.fields:
        draft.assume("recompute", "all")

# ---------------------------------------------------------------------------------------------------------- kernels


def take_loss(draft: Draft, keys: Keys) -> None:
    name = class_name(keys.get("loss_fn._target_"), keys.get("loss_fn"))
    if name == "FusedLinearCrossEntropy":
        draft.not_modelled(keys, "loss_fn._target_", "logits are made a part at a time; all at once are told")
        keys.ignore("model.output_hidden_states")
    elif name == "ChunkedCrossEntropy":
        draft.not_modelled(keys, "loss_fn._target_", "the loss takes logits a part at a time; all at once are told")
    elif name not in ("", "MaskedCrossEntropy"):
        draft.not_modelled(keys, "loss_fn._target_", "the loss is told as masked cross-entropy")
    if keys.get("loss_fn.fp32_upcast") is False:
        draft.not_modelled(keys, "loss_fn.fp32_upcast", "logits are told in float32")
    keys.ignore("loss_fn")


def take_kernels(draft: Draft, keys: Keys) -> None:
    attention = keys.get("model.attn_implementation")
    if attention in ATTENTION:
        draft.put("attention", attention, keys, "model.attn_implementation")
    elif attention is not None:
        draft.not_modelled(keys, "model.attn_implementation", "attention is told as torch's")
    draft.assume("attention", "sdpa")
    take_backend(draft, keys)
    for name, why in (
        ("compile.enabled", "the model is told as if it were not compiled"),
        ("fp8.enabled", "linear layers are told in bfloat16"),
        ("model.use_liger_kernel", "Liger's kernels are left out"),
    ):
        if keys.get(name) is True:
            draft.not_modelled(keys, name, why)
    if not keys.get("compile.enabled"):
        keys.ignore("compile")
    keys.ignore("fp8", "model.force_hf")
    draft.assume("compile", DEFAULTS["compile"][0])


PLAIN_BACKEND: Mapping[str, tuple[object, ...]] = {
    "attn": ("sdpa", "torch", "eager"),
    "linear": ("torch",),
    "rms_norm": ("torch", "torch_fp32"),
    "rope": ("torch",),
    "experts": ("torch", "torch_mm", "gmm"),
}
"""Values of `model.backend` that are PyTorch's own (components/models/common/utils.py, `BackendConfig`)."""


def take_backend(draft: Draft, keys: Keys) -> None:
    """One remark for all that is another package's; which sends tokens to their experts is told with these."""
    for name, plain in PLAIN_BACKEND.items():
        if keys.get(f"model.backend.{name}") not in (None, *plain):
            draft.not_modelled(keys, f"model.backend.{name}", TRANSFORMER_ENGINE)
            break
    for name, why in (("te_fp8", "linear layers are told in bfloat16"), ("compile_attn", "attention is not compiled")):
        if keys.get(f"model.backend.{name}"):
            draft.not_modelled(keys, f"model.backend.{name}", why)
    keys.ignore("model.backend")
