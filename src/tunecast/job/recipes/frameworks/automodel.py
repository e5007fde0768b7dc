"""NVIDIA's NeMo Automodel: one YAML a training, whose `recipe` and `_target_` are names of classes, read as text.

Defaults  nemo_automodel 0.7.0: components/training/step_scheduler.py, `StepSchedulerConfig`;
          components/distributed/config.py, `FSDP2Config`; components/_peft/lora.py, `PeftConfig`;
          components/quantization/qlora.py, `create_bnb_config`; components/checkpoint/config.py,
          `CheckpointingConfig`; recipes/_typed_config.py, `RecipeConfig`; recipes/_dist_utils.py,
          `parse_distributed_section`; recipes/llm/train_ft.py, `TrainFinetuneRecipeForNextTokenPrediction`.
Command   components/config/_arg_parser.py, `parse_cli_argv`: `automodel x.yaml --a.b v`, and before 0.4
          `automodel finetune llm -c x.yaml`; or torchrun with a recipe's script and `--config x.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunecast.job.recipes.cards import is_count
from tunecast.job.recipes.document import Document, leaves
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.frameworks import automodel_images
from tunecast.job.recipes.frameworks.automodel_images import (
    take_images,
    take_rows_with_images,
    trains_on_images,
)
from tunecast.job.recipes.frameworks.automodel_inline import GPT2_POSITIONS, inline_model, is_as_bundled
from tunecast.job.recipes.frameworks.automodel_parallel import (
    class_name,
    dtype,
    take_cards,
    take_kernels,
    take_loss,
    take_mesh,
    take_sharding,
)
from tunecast.job.recipes.frameworks.automodel_tasks import (
    ENCODERS,
    OWN_RECIPES,
    factory,
    take_rows_of_encoders,
    take_task,
    take_task_keys,
)
from tunecast.job.recipes.references import resolved
from tunecast.job.recipes.request import Invocation, ReadRequest
from tunecast.job.recipes.words import Word, flags_of

NAME = "automodel"
RELEASE = "0.7.0"
ENDINGS = (".yaml", ".yml")

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
    "flashoptim.FlashAdamW": "flash_adamw",
    "transformer_engine.pytorch.optimizers.FusedAdam": "te_fused_adam",
    "transformer_engine.pytorch.optimizers.fused_adam.FusedAdam": "te_fused_adam",
    "bitsandbytes.optim.AdamW8bit": "adamw_8bit",
    "bitsandbytes.optim.PagedAdamW": "paged_adamw_32bit",
    "bitsandbytes.optim.PagedAdamW32bit": "paged_adamw_32bit",
    "bitsandbytes.optim.PagedAdamW8bit": "paged_adamw_8bit",
}
SHAPE_UNCHANGED = frozenset(
    {"_target_", "pretrained_model_name_or_path", "name_or_path", "torch_dtype", "dtype", "num_nextn_predict_layers",
     "attn_implementation", "_attn_implementation", "max_position_embeddings", "norm_topk_prob", "hidden_act"}
)  # fmt: skip
"""Of `model.config`: what moves no size, or is read by itself."""


def recognises(document: Document) -> bool:
    if class_name(document.get("recipe"), document.get("recipe._target_")) in OWN_RECIPES:
        return True
    targets = (document.get(f"{name}._target_") for name in OWN_SECTIONS)
    own = any(isinstance(target, str) and target.startswith("nemo_automodel.") for target in targets)
    trains = any(map(document.has, ("step_scheduler", "recipe_args", "optimizer", "flow_matching")))
    return own and trains


def use_without_training(document: Document) -> str | None:
    """Of files for its other programs: examples/diffusion/generate/generate.py, examples/retrieval/data_utils/
    mine_hard_negatives.py, recipes/llm/precompute_dspark_dist.py, components/speculative/bench_sweep.py."""
    if document.has("inference.num_inference_steps") and document.has("model.pretrained_model_name_or_path"):
        return "Automodel's generate.py makes images or videos with a diffusion model"
    if document.has("mining.hard_negatives_to_mine"):
        return "Automodel's mine_hard_negatives.py looks for hard negatives, which embedding models are trained with"
    if document.has("recipe_args.cache_output_dir") and document.has("recipe_args.target_model_name_or_path"):
        return "Automodel's precompute_dspark_dist.py writes what a draft model is trained on later"
    if document.has("datasets.0.input_data") and document.has("datasets.0.prompt_column"):
        return "prompts that Automodel times speculative decoding with"
    return None


def invocation(words: Sequence[str]) -> Invocation | None:
    if not words or not calls_automodel(words[0]):
        return None
    flags = flags_of(Word(word, getattr(word, "line", 0)) for word in words[1:])
    named = flags.values.pop("config", None) or next((word for word in flags.rest if word.endswith(ENDINGS)), None)
    return Invocation(named if isinstance(named, str) else None, flags.values, flags.lines)


def calls_automodel(program: str) -> bool:
    """The command, its module, or a script of its examples: examples/llm_finetune/finetune.py."""
    return program.rpartition("/")[2] == "automodel" or any(
        part in program for part in ("nemo_automodel", "/llm_", "/vlm_finetune")
    )


def read(draft: Draft, request: ReadRequest) -> None:
    document = resolved(request.document)
    sees = trains_on_images(document, factory(document.get("model._target_")))
    keys = draft.keys(document, (*WITHOUT_EFFECT, *automodel_images.WITHOUT_EFFECT) if sees else WITHOUT_EFFECT)
    draft.put("stack", "automodel", keys, "recipe", "model._target_")
    take_task(draft, keys, sees)
    if sees:
        take_images(draft, keys)
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
    take_task_keys(draft, keys)


# ------------------------------------------------------------------------------------------------ what is trained


def take_model(draft: Draft, keys: Keys) -> None:
    config = keys.document.get("model.config")
    names = ("model.pretrained_model_name_or_path", "model.config.pretrained_model_name_or_path")
    if isinstance(config, str):
        draft.take("model", keys, names[0], "model.config")
    else:
        draft.take("model", keys, *names, "model.config.name_or_path")
    inline = None if "model" in draft.fields else inline_model(keys.document)
    base, section = inline or (None, "model.config")
    if base is not None:
        draft.put("model", base, keys, f"{section}._target_")
        if section == "model" and not keys.has("model.n_positions") and not keys.has("model.n_ctx"):
            told = f"its table of positions has {GPT2_POSITIONS} rows, that of {base} half as many"
            draft.not_modelled(keys, "model._target_", told)
    take_shape(draft, keys, base, section)
    take_weights_dtype(draft, keys)
    for name in ("model.num_nextn_predict_layers", "model.config.num_nextn_predict_layers"):
        if is_count(keys.get(name)):
            draft.not_modelled(keys, name, "layers that predict further tokens are left out")
    sees = "vision.images" in draft.fields
    if not sees and any(value is True for _, value in leaves(keys.get("freeze_config"))):
        draft.not_modelled(keys, "freeze_config", "all parts are taken to be trained")


def take_shape(draft: Draft, keys: Keys, base: str | None, section: str) -> None:
    """What a file says of sizes; `base`: the model it was taken for by them."""
    given = keys.document.get(section)
    for name, value in given.items() if isinstance(given, Mapping) and (base or section == "model.config") else ():
        key = f"{section}.{name}"
        moved = (
            name not in SHAPE_UNCHANGED and not keys.moves_nothing(key) and not isinstance(value, (bool, type(None)))
        )
        if moved and (base is None or not is_as_bundled(base, name, value)):
            draft.not_modelled(keys, key, f"the model has another shape than {base or 'its config.json'}")
        else:
            keys.ignore(key)


def take_weights_dtype(draft: Draft, keys: Keys) -> None:
    names = ("model.torch_dtype", "model.dtype", "model.config.torch_dtype", "model.config.dtype")
    draft.take("weights_dtype", keys, *names, read=dtype)
    is_made_anew = str(keys.get("model._target_")).endswith(".from_config")
    if draft.fields.get("weights_dtype", "auto") == "auto" and is_made_anew:
        draft.drop("weights_dtype")  # `from_config` makes "auto" bfloat16
        draft.assume("weights_dtype", "bfloat16")
    draft.assume("weights_dtype", "auto")
    draft.assume("autocast", None)


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
    if keys.get("peft.use_triton") is True:
        draft.put("kernels", ["lora_triton"], keys, "peft.use_triton")
    for name, why in (
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
    """components/_peft/module_matcher.py, `ModuleMatcher`: patterns of whole names, or all linear layers, the head too,
    but those excluded. Where nothing is said, `*_proj`."""
    given, left_out = keys.get("peft.target_modules"), keys.get("peft.exclude_modules")
    patterns, excluded = [by_hub_name(each) for each in texts(given)], texts(left_out)
    if keys.get("peft.match_all_linear") is True or (excluded and not patterns):
        listed = ["all-linear", "lm_head", *(f"!{each}" for each in excluded)]
        draft.put("lora.targets", listed, keys, "peft.match_all_linear", "peft.exclude_modules")
    elif any(part.isdecimal() for each in patterns for part in each.split(".")):
        draft.put("lora.targets", "all-linear", keys, "peft.target_modules")
        draft.not_modelled(keys, "peft.target_modules", "all layers are told to be adapted alike")
    elif patterns:
        draft.put("lora.targets", patterns, keys, "peft.target_modules")
    else:
        draft.assume("lora.targets", ["*_proj"])


OWN_NAMES = {"wq_a": "q_a_proj", "wq_b": "q_b_proj", "wkv": "kv_proj", "wo_a": "o_a_proj", "wo_b": "o_b_proj"}
"""Of DeepSeek V4's layers (components/models/deepseek_v4/layers.py), as transformers has them."""


def by_hub_name(pattern: str) -> str:
    start, _, name = pattern.rpartition("*")
    return f"{start}*{OWN_NAMES[name]}" if name in OWN_NAMES else pattern


def texts(given: object) -> list[str]:
    found = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    return [each for each in found if isinstance(each, str) and each]


# --------------------------------------------------------------------------------------------------- rows and steps


def take_rows(draft: Draft, keys: Keys) -> None:
    if "vision.images" in draft.fields:
        take_rows_with_images(draft, keys)
    elif draft.fields.get("task") in ENCODERS:
        take_rows_of_encoders(draft, keys)
    else:
        take_rows_of_text(draft, keys)
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


def take_rows_of_text(draft: Draft, keys: Keys) -> None:
    packed = keys.get("packed_sequence.packed_sequence_size", "packed_sequence.pack_size")
    if packed is not None and packed != 0:
        draft.put("seq_len", packed, keys, "packed_sequence.packed_sequence_size", "packed_sequence.pack_size")
        draft.put("data.packing", True, keys, "packed_sequence.packed_sequence_size")
        keys.get("packed_sequence.packing_strategy", "packed_sequence.split_across_pack")
    else:
        keys.ignore("packed_sequence")
    if "seq_len" not in draft.fields:
        draft.take(
            "seq_len", keys, "dataset.seq_len", "dataset.seq_length", "dataset.max_length", "dataset.max_seq_length"
        )
    draft.assume("seq_len", 1024, "tunecast: nothing is cut, so that rows are as long as the data's")
    draft.assume("data.packing", False)


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
    if path is None:
        draft.assume("optimizer", "adamw_torch")
        return
    known = OPTIMIZERS.get(name)
    if known == "adamw_torch" and keys.get("optimizer.fused") is True:
        known = "adamw_torch_fused"
    elif name == "torch.optim.Adam" and keys.get("optimizer.weight_decay", default=0) != 0:
        known = "adam_torch"
    if known in ("adamw_torch", "adam_torch") and keys.get("optimizer.foreach") is False:
        if known == "adam_torch":
            draft.not_modelled(keys, "optimizer.foreach", "the decay is told as AdamW's, a weight at a time")
        known = "adamw_torch_single"
    draft.put("optimizer", known or "adamw_torch_fused", keys, "optimizer._target_")
    if known is None:
        draft.not_modelled(keys, "optimizer._target_", "it is told as torch's AdamW")
    elif known == "te_fused_adam":
        take_fused_adam(draft, keys)
    elif known == "flash_adamw":
        take_flash_adam(draft, keys)


def take_fused_adam(draft: Draft, keys: Keys) -> None:
    """transformer_engine/pytorch/optimizers/fused_adam.py, `FusedAdam.__init__`."""
    draft.take("optimizer_state_dtype", keys, "optimizer.exp_avg_dtype", "optimizer.exp_avg_sq_dtype", read=dtype)
    if keys.get("optimizer.master_weights") is not True:
        draft.assume("master_weights", "none", "transformer-engine: FusedAdam.master_weights")
        return
    remainders = keys.get("optimizer.store_param_remainders") is True
    draft.put("master_weights", "remainders" if remainders else "float32", keys, "optimizer.master_weights")


def take_flash_adam(draft: Draft, keys: Keys) -> None:
    """flashoptim/optimizers.py, `FlashAdamW`: 16 bits in the weight itself, the rest in its state."""
    bits = keys.get("optimizer.master_weight_bits")
    if bits == 32:
        draft.put("master_weights", "remainders", keys, "optimizer.master_weight_bits")
    elif bits not in (None, 24):
        draft.put("master_weights", "none", keys, "optimizer.master_weight_bits")
    keys.ignore("optimizer.compress_state_dict")
