"""ms-swift: `swift sft`, `swift pt` and `swift rlhf` with transformers' Trainer, `megatron sft` with Megatron Core.

Keys      those of transformers' Trainer, and swift/arguments/sft_args.py, `SftArguments`;
          swift/arguments/tuner_args.py, `TunerArguments`; swift/trainers/arguments.py, `TrainArgumentsMixin`; of the
          other command swift/megatron/arguments/megatron_args.py, `MegatronArguments` (ms_swift_megatron.py);
          adapters and quantised weights: ms_swift_tuners.py
Command   swift/cli/main.py, `cli_main`: `swift sft x.yaml --key value`; NPROC_PER_NODE and NNODES start torchrun, and
          without them one process takes every card it sees (swift/model/utils.py, `get_default_device_map`)
Stack     its trainer is transformers' own, with PEFT; logits are made of labelled tokens alone, which are taken to be
          all (swift/trainers/seq2seq_trainer.py, `Seq2SeqTrainer`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from tunecast.job.names import LANGUAGE
from tunecast.job.recipes import huggingface, huggingface_keys
from tunecast.job.recipes.cards import is_count
from tunecast.job.recipes.document import Document, leaves
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.frameworks import ms_swift_tasks, ms_swift_tuners
from tunecast.job.recipes.frameworks.ms_swift_megatron import read_megatron
from tunecast.job.recipes.huggingface import is_on
from tunecast.job.recipes.images import frozen_words, image_tokens
from tunecast.job.recipes.launch.launchers import VISIBLE
from tunecast.job.recipes.parts.accelerate import read_accelerate
from tunecast.job.recipes.parts.deepspeed import read_deepspeed, take_deepspeed
from tunecast.job.recipes.recipe import Place
from tunecast.job.recipes.request import Invocation, ReadRequest
from tunecast.job.recipes.values import number, whole, word
from tunecast.job.recipes.words import Word, flags_of

NAME = "ms-swift"
RELEASE = "4.6.0"
DATA = ("dataset", "dataset.*")

_TRAIN = "swift/trainers/arguments.py: TrainArgumentsMixin"
_BASE = "swift/arguments/base_args/base_args.py: BaseArguments"
DEFAULTS: Mapping[str, tuple[object, str]] = {
    "micro_batch": (1, f"{_TRAIN}.per_device_train_batch_size"),
    "run.eval_batch": (1, f"{_TRAIN}.per_device_eval_batch_size"),
    "gradient_checkpointing": (True, f"{_TRAIN}.gradient_checkpointing"),
    "data.group_by_length": (False, f"{_TRAIN}.group_by_length"),
    "data.packing": (False, f"{_BASE}.packing"),
    **ms_swift_tuners.DEFAULTS,
    **ms_swift_tasks.DEFAULTS,
}
WORDS = {
    **{field: said for field, said in huggingface_keys.WORDS.items() if field != "attention"},
    "attention": "attn_impl",
    "lora.rank": "lora_rank",
    "offload_activations": lambda on: None,
    "preference.reference": lambda kind: None,
    "rl.vllm.sleep": lambda on: {"sleep_level": int(on)},
    "vision.pixels": "max_pixels",
    "vision.trained": lambda parts: frozen_words(ms_swift_tasks.FROZEN, parts),
}
WORKERS = 1
"""`TrainArgumentsMixin.__post_init__`, where nothing is said."""
GLOBAL_BATCH = 16
"""The same: so many rows a step, whatever the cards."""
FOLLOWS_OTHERS = ("grad_accum", "autocast")
ARGUMENTS: huggingface_keys.Defaults = {
    **{field: each for field, each in huggingface_keys.TRAINING_ARGUMENTS.items() if field not in FOLLOWS_OTHERS},
    **{field: DEFAULTS[field] for field in ("micro_batch", "run.eval_batch", "gradient_checkpointing")},
    "data.workers": (WORKERS, f"{_TRAIN}.dataloader_num_workers"),
}
WITHOUT_EFFECT = (
    *huggingface_keys.WITHOUT_EFFECT,
    *("dataset", "val_dataset", "cached_dataset", "cached_val_dataset", "custom_dataset_info", "columns", "strict"),
    *("dataset_shuffle", "val_dataset_shuffle", "load_from_cache_file", "streaming", "interleave_prob"),
    *("stopping_strategy", "shuffle_buffer_size", "download_mode", "disable_auto_column_mapping", "model_name"),
    *("model_author", "model_type", "model_revision", "new_special_tokens", "rope_scaling", "max_model_len"),
    *("local_repo_path", "template*", "system", "truncation_strategy", "agent_template", "norm_bbox", "stop_words"),
    *("use_chat_template", "padding_side", "loss_scale", "is_binary_loss_scale", "response_prefix", "*thinking*"),
    *("disable_ignore_empty_think", "external_plugins", "custom_register_path", "model_kwargs", "load_args"),
    *("load_data_args", "packing_num_proc", "packing_strategy", "lazy_tokenize", "use_hf", "ignore_args_error"),
    *("add_version", "create_checkpoint_symlink", "swanlab_*", "wandb_*", "max_new_tokens", "temperature", "top_*"),
    *("safe_serialization", "max_shard_size", "check_model", "acc_strategy", "train_dataloader_shuffle", "eval_metric"),
    *("use_logits_to_keep", "ds3_gather_for_generation", "resume_*", "callbacks", "early_stop_interval", "eval_limit"),
    *("eval_dataset*", "eval_generation_config", "extra_eval_args", "lorap_lr_ratio", "init_weights", "lora_ga_*"),
    *("galore_*", "logging_dir", "metric", "lora_bias", "merge_lora", "router_aux_loss_coef", "use_flash_ckpt"),
    *("stream", "result_path", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "use_ray", "optim_args", "ENV"),
    *("config", "metric_*", "remove_unused_columns", "repetition_penalty", "num_beams", "seed", "write_batch_size"),
)

TRAINING = ("sft", "pt", "rlhf")
REPORTED: Mapping[str, str] = {
    "freeze_parameters": "some weights are not trained",
    "freeze_parameters_regex": "some weights are not trained",
    "freeze_parameters_ratio": "some weights are not trained",
    "trainable_parameters": "further weights are trained",
    "trainable_parameters_regex": "further weights are trained",
    "target_regex": "which modules get adapters follows from a pattern",
    "target_parameters": "parameters of experts get adapters",
    "modules_to_save": "whole modules are trained beside the adapters",
    "lisa_activated_layers": "LISA: layers are trained in turns",
    "use_swift_lora": "adapters of ms-swift's own",
    "enable_dft_loss": "a loss of its own",
    "enable_channel_loss": "a loss of its own",
    "loss_type": "a loss of its own",
    "predict_with_generate": "evaluations generate text",
    "eval_use_evalscope": "evaluations generate text",
    "adapters": "adapters that exist are trained further: their rank is that of their file",
    "device_map": "layers are placed by hand",
    "max_memory": "layers are placed by hand",
    "zero_hpz_partition_size": "ZeRO++: weights are cut within a machine",
    "deepspeed_autotp_size": "DeepSpeed splits layers over cards",
    "optimizer": "an optimizer of ms-swift's own",
    "device_groups": "Ray gives cards to groups of workers",
}
ASCEND = ("ASCEND_RT_VISIBLE_DEVICES", "PYTORCH_NPU_ALLOC_CONF", "ASCEND_VISIBLE_DEVICES")

_AUTO = {"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}, "gradient_clipping": "auto"}
_SMALL = {"allgather_partitions": True, "overlap_comm": False, "reduce_scatter": True, "reduce_bucket_size": 2e8}
_LARGE = {
    **{"overlap_comm": False, "contiguous_gradients": True, "sub_group_size": 1e9, "reduce_bucket_size": "auto"},
    **{"stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"},
    **{"stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9},
}
_HOST = {"device": "cpu"}
PRESETS: Mapping[str, Mapping[str, object]] = {
    "zero0": {"stage": 0, **_SMALL},
    "zero1": {"stage": 1, **_SMALL},
    "zero2": {"stage": 2, **_SMALL},
    "zero2_offload": {"stage": 2, **_SMALL, "offload_optimizer": _HOST},
    "zero3": {"stage": 3, **_LARGE},
    "zero3_offload": {"stage": 3, **_LARGE, "offload_optimizer": _HOST, "offload_param": _HOST},
}
"""swift/config/*.json, as far as it says more than "auto"."""
FSDP2 = {
    "fsdp": "full_shard auto_wrap",
    "fsdp_config": {
        **{"fsdp_version": 2, "reshard_after_forward": True, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
        **{"cpu_ram_efficient_loading": True, "state_dict_type": "SHARDED_STATE_DICT"},
        "activation_checkpointing": True,
    },
}
"""swift/config/fsdp2.json."""


def recognises(document: Document) -> bool:
    named = isinstance(document.get("model"), str)
    own = any(map(document.has, ("tuner_type", "train_type", "rlhf_type", "train.tuner_type", "tuner_backend")))
    return own and (named or document.has("train.tuner_type")) and not document.has("infer_backend")


def invocation(words: Sequence[Word]) -> Invocation | None:
    program, path = PurePath(words[0]).name, words[0].replace(".", "/")
    if program in ("swift", "megatron") and len(words) > 1:
        command, rest = words[1].replace("_", "-"), words[2:]
        is_megatron = program == "megatron"
    elif "swift/cli/" in path:
        command, rest = PurePath(path.removesuffix("/py")).name, words[1:]
        is_megatron = "_megatron" in path
    else:
        return None
    if command not in TRAINING:
        return None
    config = None
    if rest and rest[0].endswith((".yaml", ".yml", ".json")):
        config, rest = str(rest[0]), rest[1:]
    flags = flags_of(rest)
    if config is None and isinstance(flags.values.get("config"), str):
        config = flags.values["config"]
    return Invocation(config, flags.values, flags.lines, f"megatron {command}" if is_megatron else command)


def read(draft: Draft, request: ReadRequest) -> None:
    keys = draft.keys(request.document, WITHOUT_EFFECT)
    take_task(draft, keys, request)
    draft.take("model", keys, "model")
    if draft.refused or draft.fields.get("task") not in LANGUAGE:
        keys.without(*ms_swift_tasks.WITHOUT_EFFECT)
    if request.command.startswith("megatron") or is_megatrons(keys):
        read_megatron(draft, keys)
    else:
        read_transformers(draft, keys, request)
    if "PYTORCH_CUDA_ALLOC_CONF" not in request.launch.environment:
        huggingface.take_allocator(draft, keys, "ENV")


def is_megatrons(keys: Keys) -> bool:
    return any(map(keys.has, ("micro_batch_size", "global_batch_size", "tensor_model_parallel_size")))


def take_task(draft: Draft, keys: Keys, request: ReadRequest) -> None:
    environment = {**(keys.document.get("ENV") if isinstance(keys.document.get("ENV"), dict) else {})}
    environment.update(request.launch.environment)
    take_ascend(draft, keys, environment)
    ms_swift_tasks.take_task(draft, keys, request.command.rpartition(" ")[2], environment)


def take_ascend(draft: Draft, keys: Keys, environment: Mapping[str, object]) -> None:
    """Written for Huawei's cards: what it asks for is the same on others."""
    name = next((name for name in ASCEND if name in environment), None)
    if name is not None:
        place = Place(keys.document.file, getattr(environment[name], "line", 0), name)
        draft.note(place, "the file is written for Ascend NPUs: it is answered as on the card that is named")


def read_transformers(draft: Draft, keys: Keys, request: ReadRequest) -> None:
    is_language = draft.fields.get("task") in LANGUAGE
    own = "transformers" if is_language else NAME
    draft.assume("stack", own, f"{NAME} {RELEASE}, whose trainer is transformers' own" if is_language else "")
    ms_swift_tuners.take_method(draft, keys)
    take_precision(draft, keys)
    huggingface.take_attention(draft, keys, "attn_impl")
    draft.assume("attention", "sdpa")
    take_rows(draft, keys)
    huggingface.take_training_arguments(draft, keys, None, ARGUMENTS)
    take_sharding(draft, keys, request)
    take_steps(draft, keys)
    take_cards(draft, keys, request)
    ms_swift_tasks.take_task_keys(draft, keys)
    take_checkpointing(draft, request)
    take_optimizer(draft, keys)
    for name, why in REPORTED.items():
        if is_on(keys.get(name)) and not (name == "loss_type" and not is_language):
            draft.not_modelled(keys, name, why)
    experts = word(keys.get("experts_impl"))
    if experts not in ("", "grouped_mm"):  # transformers' own choice
        draft.not_modelled(keys, "experts_impl", "kernels for experts: taken is grouped_mm")


def take_precision(draft: Draft, keys: Keys) -> None:
    """swift/arguments/base_args/model_args.py, `ModelArguments`: mixed precision follows the weights' dtype."""
    if not draft.take("weights_dtype", keys, "torch_dtype", read=huggingface.dtype_name):
        draft.assume("weights_dtype", "auto")
    if keys.get("bf16") is None and keys.get("fp16") is None:
        kind = "float16" if draft.fields["weights_dtype"] in ("float16", "float32") else "bfloat16"
        draft.assume("autocast", kind, f"{NAME} {RELEASE}: as the weights are")


def take_rows(draft: Draft, keys: Keys) -> None:
    packs = is_on(keys.get("packing"))
    told = told_of_packs(draft) if packs else None
    if told is not None:
        draft.not_modelled(keys, "packing", told)
    else:
        draft.take("data.packing", keys, "packing")
    huggingface.assume(draft, "data.packing", DEFAULTS)
    if packs and told is None:
        draft.assume("data.packing_strategy", "bfd")
    lengths = ("packing_length", "max_length") if packs else ("max_length", "packing_length")
    draft.take("seq_len", keys, *lengths)
    seen = image_tokens(draft)
    draft.assume("seq_len", 1024 + seen, "tunecast: nothing is cut, so that rows are as long as the data's")
    if is_on(keys.get("padding_free")) and not packs and keys.get("per_device_train_batch_size") not in (None, 1):
        draft.not_modelled(keys, "padding_free", "the rows of a batch are one, without padding")
    draft.take("data.num_proc", keys, "dataset_num_proc")
    take_samples(draft, keys)
    size = keys.get("sequence_parallel_size")
    if size is not None and whole(size) != 1:
        draft.put("parallel.context", size, keys, "sequence_parallel_size")
        draft.put("parallel.context_kind", "ulysses", keys, "sequence_parallel_size")


def told_of_packs(draft: Draft) -> str | None:
    """What is said of packs that no job has: ms-swift packs rows with images, and those of GKD
    (swift/template/base.py, `packing_row`; swift/arguments/rlhf_args.py, `_check_padding_free`)."""
    if draft.fields.get("vision.images") or draft.fields.get("vision.frames"):
        return "a pack is told as one sample with as many images as one has"
    return "a pack is told as one row" if draft.fields.get("task") == "distill" else None


def take_samples(draft: Draft, keys: Keys) -> None:
    """`org/name#1000` takes so many rows of a data set (swift/dataset/dataset_syntax.py, `DatasetSyntax`)."""
    given = keys.document.get("dataset")
    names = given if isinstance(given, list) else [given]
    counts = [whole(str(name).rpartition("#")[2]) if "#" in str(name) else None for name in names]
    samples = sum(count or 0 for count in counts)
    if samples > 0 and all(is_count(count) for count in counts):
        draft.put("data.samples", samples, keys, "dataset")
    share = number(keys.get("split_dataset_ratio")) or 0.0
    if 0 < share < 1:
        draft.put("data.held_back", share, keys, "split_dataset_ratio")


def take_steps(draft: Draft, keys: Keys) -> None:
    """`SftArguments._init_eval_strategy`: it evaluates as often as it saves, where there is something to evaluate
    on."""
    evaluates = (number(keys.get("split_dataset_ratio")) or 0) > 0 or any(
        map(keys.has, ("val_dataset", "eval_dataset"))
    )
    if not evaluates:
        draft.fields["run.eval_strategy"] = "no"
        draft.places.pop("run.eval_strategy", None)
        draft.drop("run.eval_steps")
        keys.ignore("eval_steps", "eval_strategy")
    elif keys.get("eval_strategy", "evaluation_strategy") is None:
        strategy = draft.fields.get("run.save_strategy", "steps")
        draft.fields.pop("run.eval_strategy", None)
        draft.assume("run.eval_strategy", strategy)
        if strategy == "steps":
            draft.take("run.eval_steps", keys, "eval_steps", "save_steps")
            draft.assume("run.eval_steps", draft.fields.get("run.save_steps", 500))
    if keys.get("gradient_accumulation_steps") is None:
        if draft.fields.get("task") == "grpo":  # `RLHFArguments._set_default`
            draft.assume("grad_accum", 1)
        else:
            draft.global_batch = GLOBAL_BATCH


def take_sharding(draft: Draft, keys: Keys, request: ReadRequest) -> None:
    """Names of files that come with it; else a file, or JSON on the command line."""
    name = keys.get("deepspeed")
    if isinstance(name, str) and name in PRESETS:
        read_deepspeed(draft, preset(keys, "deepspeed", {**_AUTO, "zero_optimization": PRESETS[name]}), request)
    elif (inline := huggingface.mapping_in(name)) is not None:
        read_deepspeed(draft, preset(keys, "deepspeed", inline), request)
    elif name:
        take_deepspeed(draft, keys, "deepspeed", request)
    if request.launch.accelerate is not None:
        read_accelerate(draft, request.launch.accelerate, request)
    chosen = keys.get("fsdp")
    if chosen:
        found = preset(keys, "fsdp", FSDP2) if chosen == "fsdp2" else request.open(chosen)
        if found is None:
            draft.not_modelled(keys, "fsdp", "this file is not here: how the model is shared is not known")
        else:
            huggingface.take_trainers_fsdp(draft, draft.keys(found, ("_*",)), request)


def preset(keys: Keys, name: str, tree: Mapping[str, object]) -> Document:
    """A file that comes with ms-swift; what it says is said where it is named."""
    place = keys.document.place(name)
    return Document(place[0], tree, {}, elsewhere={leaf: place for leaf, _ in leaves(tree)})


def take_cards(draft: Draft, keys: Keys, request: ReadRequest) -> None:
    """One process that sees several cards spreads the layers over them (device_map="auto")."""
    place = request.launch.places.get("hardware.gpus")
    cards = request.launch.gpus or 1
    if place is not None and place.key in VISIBLE and cards > 1:
        draft.fields["parallel.layers"], draft.places["parallel.layers"] = cards, place


def take_checkpointing(draft: Draft, request: ReadRequest) -> None:
    """swift/trainers/mixin.py, `_fix_gradient_checkpointing`: of the older kind on one card and with DeepSpeed or FSDP,
    of the newer one with DDP."""
    if not is_on(draft.fields.get("gradient_checkpointing")) or draft.fields.get("stack") == "unsloth":
        return
    sharded = str(draft.fields.get("parallel.data", "ddp")) != "ddp"
    cards = (request.launch.gpus or 1) * (request.launch.nodes or 1)
    several = "parallel.layers" not in draft.fields and cards > 1
    draft.assume("checkpoint_reentrant", sharded or not several)


def take_optimizer(draft: Draft, keys: Keys) -> None:
    if is_on(keys.get("use_galore")):
        draft.put("optimizer", "galore_adamw", keys, "use_galore")
        draft.not_modelled(keys, "use_galore", "which weights are projected, and to which rank")
