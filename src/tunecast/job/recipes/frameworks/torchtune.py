"""torchtune's YAML, of its recipes/configs or one's own. `_component_` is only ever read as a name.

Keys and defaults are what its recipes ask for (recipes/full_finetune_distributed.py, `FullFinetuneRecipeDistributed`;
recipes/lora_finetune_single_device.py, `LoRAFinetuneRecipeSingleDevice`) and its model builders take
(torchtune/models/llama3_1/_model_builders.py, `lora_llama3_1_8b`). Which recipe runs is no key: the command says it,
and every file of torchtune's own holds that command in its comments. A file that names what only the repository has,
and no release yet, is one of the repository (0.7).

Of what torchtune loads and saves nothing is predicted, and answers say so: keys about it move nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tunecast.job.recipes.document import Document, scalar
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.frameworks import torchtune_tasks
from tunecast.job.recipes.recipe import Place
from tunecast.job.recipes.references import resolved
from tunecast.job.recipes.request import Invocation, ReadRequest
from tunecast.records import NamedTuple

NAME = "torchtune"
RELEASE = "0.6.1"
DATA = ("dataset.source", "dataset.data_files")

RECIPE = "recipe"
"""Not a key of torchtune's: the recipe's name, as `tune run` is given it."""
WITHOUT_EFFECT = (
    *("tokenizer.*", "checkpointer.*", "dataset.*", "dataset_val.*", "optimizer.*", "lr_scheduler.*", "loss.*"),
    *("metric_logger.*", "profiler.*", "log_*", "device", "shuffle", "resume_from_checkpoint", "name", "*_path"),
    *("cudnn_deterministic_mode", "keep_last_n_checkpoints", "collate_fn", "save_adapter_weights_only"),
)
ONE, SEVERAL = (f"recipes/{name}.py" for name in ("full_finetune_single_device", "full_finetune_distributed"))
BUILDER = "torchtune/models/llama3_1/_model_builders.py: lora_llama3_1_8b"
DEFAULTS: Mapping[str, tuple[object, str]] = {
    "compile": (False, f'{SEVERAL}: get("compile")'),
    "gradient_checkpointing": (False, f'{ONE}: get("enable_activation_checkpointing")'),
    "offload_activations": (False, f'{ONE}: get("enable_activation_offloading")'),
    "max_grad_norm": (None, f'{ONE}: get("clip_grad_norm")'),
    "optimizer_in_backward": (False, f'{SEVERAL}: get("optimizer_in_bwd")'),
    "parallel.reshard_after_forward": (True, f'{SEVERAL}: get("fsdp_reshard_after_forward")'),
    "parallel.offload": (False, f'{SEVERAL}: get("fsdp_cpu_offload")'),
    "parallel.tensor": (1, f'{SEVERAL}: get("tensor_parallel_dim")'),
    "lora.rank": (8, f"{BUILDER}.lora_rank"),
    "lora.alpha": (16, f"{BUILDER}.lora_alpha"),
    "lora.dropout": (0.0, f"{BUILDER}.lora_dropout"),
    "lora.dora": (False, f"{BUILDER}.use_dora"),
    "quantization.format": (False, f"{BUILDER}.quantize_base"),
    "lora.targets: mlp": (False, f"{BUILDER}.apply_lora_to_mlp"),
    "lora.targets: lm_head": (False, f"{BUILDER}.apply_lora_to_output"),
}

MODELS: Mapping[str, str] = {
    **{f"llama2_{size}": f"llama-2-{size}" for size in ("7b", "13b", "70b")},
    **{f"code_llama2_{size}": f"codellama-{size}" for size in ("7b", "13b")},
    "code_llama2_70b": "codellama/CodeLlama-70b-hf",
    **{f"llama3_{size}": f"llama-3-{size}" for size in ("8b", "70b")},
    **{f"llama3_1_{size}": f"llama-3.1-{size}" for size in ("8b", "70b", "405b")},
    **{f"llama3_2_{size}": f"llama-3.2-{size}" for size in ("1b", "3b")},
    "llama3_3_70b": "llama-3.3-70b",
    "llama3_2_vision_11b": "llama-3.2-11b-vision",
    "llama3_2_vision_90b": "meta-llama/Llama-3.2-90B-Vision",
    "llama4_scout_17b_16e": "llama-4-scout",
    "llama4_maverick_17b_128e": "llama-4-maverick",
    "mistral_7b": "mistral-7b-v0.1",
    **{f"gemma_{size}": f"gemma-{size}" for size in ("2b", "7b")},
    **{f"gemma2_{size}": f"gemma-2-{size}" for size in ("2b", "9b", "27b")},
    "phi3_mini": "phi-3-mini",
    "phi4_14b": "phi-4",
    **{f"qwen2_{size.replace('.', '_')}": f"qwen2-{size}" for size in ("0.5b", "1.5b", "7b")},
    **{
        f"qwen2_5_{size.replace('.', '_')}": f"qwen2.5-{size}"
        for size in ("0.5b", "1.5b", "3b", "7b", "14b", "32b", "72b")
    },
    **{
        f"qwen3_{size.replace('.', '_')}": f"qwen3-{size}" for size in ("0.6b", "1.7b", "4b", "8b", "14b", "32b")
    },
}  # fmt: skip
"""Builders of torchtune/models/*/_model_builders.py by name, without `lora_`, `qlora_`, `_base` and `_instruct`."""

FAMILIES = ("llama2", "llama3", "llama3_1", "llama3_2", "mistral", "gemma", "gemma2", "phi3", "qwen2")
"""Builders that are told every size: torchtune/models/*/_component_builders.py."""
SIZES = {
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "embed_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "max_seq_len": "max_position_embeddings",
    "head_dim": "head_dim",
    "tie_word_embeddings": "tie_word_embeddings",
}
"""What they are told, by config.json's name for it."""
OF_FAMILIES = (
    *("norm_eps", "rope_base", "scale_factor", "attn_dropout", "hidden_capping_value", "final_capping_value"),
    *("sliding_window_size", "query_pre_attn_scalar"),
)
"""What else they are told, which moves no memory."""
MOST_POSITIONS = 32768
"""Of Qwen 2's tables, as torchtune's own builders make them."""
UNRELEASED = "0.7.0"
"""What the repository calls itself after its last release, and what a file names that only it has."""
OF_UNRELEASED = ("LinearCrossEntropyLoss", "qwen3_", "llama4_")
BASE_POSITIONS = 32768
"""Of Qwen 3's base models, whose tables torchtune makes shorter than those of the others."""
ATTENTION = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "output_proj": "o_proj"}
MLP = ("gate_proj", "up_proj", "down_proj")
"""torchtune's w1, w3 and w2."""
DTYPES = {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16"}
"""torchtune/training/precision.py, `PRECISION_STR_TO_DTYPE`."""
OPTIMIZERS = {
    "torch.optim.AdamW": "adamw_torch",
    "torch.optim.Adam": "adamw_torch",
    "torch.optim.SGD": "sgd",
    "bitsandbytes.optim.AdamW8bit": "adamw_bnb_8bit",
    "bitsandbytes.optim.PagedAdamW": "paged_adamw_32bit",
    "bitsandbytes.optim.PagedAdamW32bit": "paged_adamw_32bit",
    "bitsandbytes.optim.PagedAdamW8bit": "paged_adamw_8bit",
}
"""Adam and AdamW hold the same, and differ in one multiplication."""
LOSSES = {"LinearCrossEntropyLoss": "chunked", "CEWithChunkedOutputLoss": "chunked", "CrossEntropyLoss": "full"}
CHUNKS = 8
"""`num_output_chunks` of both chunked losses."""
OTHER_TASKS: Mapping[str, tuple[str, str]] = {
    "ppo": ("ppo", "a policy, its reference, a reward and a value model"),
    "qat": ("QAT", "weights are quantised and restored in every forward pass"),
    "early_exit": ("early exit", "layers are left out, and their losses added"),
    "generate": ("generation", "nothing is trained"),
    "eleuther_eval": ("evaluation", "nothing is trained"),
    "quantize": ("quantisation", "nothing is trained"),
}
"""By what a recipe's name holds."""
ONLY_DISTRIBUTED = (
    *("fsdp_cpu_offload", "custom_sharded_layers", "fsdp_reshard_after_forward", "tensor_parallel_dim"),
    *("tensor_parallel_plan", "context_parallel_dim", "data_parallel_shard_dim", "data_parallel_replicate_dim"),
    "memory_efficient_fsdp_wrap",
)


def recognises(document: Document) -> bool:
    return any(component.startswith("torchtune.") for component in components(document))


def components(document: Document) -> Iterator[str]:
    for value in document.tree.values():
        found = value[0] if isinstance(value, list) and value else value
        if isinstance(found, Mapping) and isinstance(found.get("_component_"), str):
            yield found["_component_"]


def invocation(words: Sequence[str]) -> Invocation | None:
    """Of `tune run [--nproc_per_node N] RECIPE --config FILE [key=value] [~key]`; torchrun's flags say the cards."""
    if list(words[:2]) != ["tune", "run"]:
        return None
    config, recipe, rest = None, None, list(words[2:])
    values: dict[str, Any] = {}
    while rest:
        word = rest.pop(0)
        if word == "--config":
            config = rest.pop(0) if rest else None
        elif word.startswith("-"):
            if "=" not in word and rest and "=" not in rest[0] and word != "--standalone":
                rest.pop(0)
        elif word.startswith("~"):
            values[word[1:]] = None
        elif "=" in word:
            name, _, value = word.partition("=")
            values[name] = scalar(value)
        elif recipe is None:
            recipe = word
    if recipe is not None:
        values[RECIPE] = recipe
    if config is not None and not config.endswith((".yaml", ".yml")):
        config += ".yaml"
    return Invocation(config, values)


class TuneCommand(NamedTuple):
    """A `tune run` in the comments of a file."""

    recipe: str
    line: int
    gpus: int | None
    nodes: int | None


_COMMAND = re.compile(r"^#.*?\btune run\s+(.*?)\s*--config\b", re.MULTILINE)


def command_in(text: str) -> TuneCommand | None:
    """The first: a recipe's file may show others for other cards."""
    found = _COMMAND.search(text)
    if found is None:
        return None
    names = [word for word in found[1].split() if re.fullmatch(r"[a-z][\w/]*", word)]
    counts = {
        name: int(number) for name, number in re.findall(r"--(nproc_per_node|nnodes)[ =](\d{1,6})\b", found[1])
    }  # fmt: skip
    if not names:
        return None
    line = text.count("\n", 0, found.start()) + 1
    return TuneCommand(names[-1], line, counts.get("nproc_per_node"), counts.get("nnodes"))


def read(draft: Draft, request: ReadRequest) -> None:
    document = resolved(request.document)
    keys = draft.keys(document, WITHOUT_EFFECT)
    draft.put("stack", "torchtune", keys, "model._component_", "tokenizer._component_")
    recipe = take_recipe(draft, keys, request)
    take_task(draft, keys, recipe)
    take_release(draft, keys)
    take_model(draft, keys, request)
    take_precision(draft, keys)
    take_optimizer(draft, keys)
    take_batches(draft, keys)
    take_activations(draft, keys)
    take_run(draft, keys)
    if is_distributed(recipe, keys, request):
        take_cards(draft, keys)
    torchtune_tasks.take_task_keys(draft, keys, model_name)
    take_stand_in(draft, keys)


def take_recipe(draft: Draft, keys: Keys, request: ReadRequest) -> str:
    """Its name; '' where nobody says it."""
    given = keys.get(RECIPE)
    command = command_in(keys.document.text)
    if command is not None and given is None and request.launch.gpus is None and "distributed" in command.recipe:
        for field, count in (("hardware.gpus", command.gpus), ("hardware.nodes", command.nodes)):
            if count is not None:
                draft.put(field, count, keys, RECIPE)
                draft.places[field] = Place(keys.document.file, command.line, "tune run")
    return str(given) if given is not None else command.recipe if command is not None else ""


def is_distributed(recipe: str, keys: Keys, request: ReadRequest) -> bool:
    """A file that does not say its recipe is asked for its cards, as one of several."""
    if "single_device" in recipe:
        return False
    return "distributed" in recipe or not recipe or any(map(keys.has, ONLY_DISTRIBUTED)) or bool(request.launch.gpus)


def take_task(draft: Draft, keys: Keys, recipe: str) -> None:
    loss = last_name(keys.document.get("loss._component_"))
    builder = str(keys.document.get("model._component_") or keys.document.get("policy_model._component_"))
    for part, (task, why) in OTHER_TASKS.items():
        if part in recipe:
            draft.refuse(task, why)
    if keys.document.get("quantizer") and keys.has("optimizer"):
        draft.refuse(*OTHER_TASKS["qat"])
    if keys.has("policy_model") or loss == "PPOLoss":
        draft.refuse(*OTHER_TASKS["ppo"])
    if not keys.has("optimizer") and not keys.has("training"):
        draft.refuse(*OTHER_TASKS["eleuther_eval" if keys.has("tasks") else "generate"])
    torchtune_tasks.take_images(draft, keys, builder, components(keys.document))
    if keys.has("early_exit_loss") or keys.has("layer_dropout"):
        draft.refuse(*OTHER_TASKS["early_exit"])
    if loss == "SimPOLoss":
        draft.refuse("simpo", "preference tuning without a reference model")
    if keys.has("teacher_model") or "knowledge_distillation" in recipe:
        draft.put("task", "distill", keys, "teacher_model._component_")
    elif "grpo" in recipe or loss.startswith("GRPO") or keys.has("grpo_samples"):
        draft.put("task", "grpo", keys, "loss._component_")
    elif "dpo" in recipe or loss in ("DPOLoss", "RSOLoss"):
        draft.put("task", "dpo", keys, "loss._component_")
    else:
        draft.assume("task", "sft")


def take_release(draft: Draft, keys: Keys) -> None:
    for key in ("loss._component_", "model._component_"):
        if re.sub("^q?lora_", "", last_name(keys.document.get(key))).startswith(OF_UNRELEASED):
            draft.put("stack_version", UNRELEASED, keys, key)
            return


def last_name(component: object) -> str:
    return component.rpartition(".")[2] if isinstance(component, str) else ""


def plain_builder(keys: Keys) -> tuple[str, str]:
    """The method that a builder's name says, and the name without it."""
    builder = last_name(keys.get("model._component_"))
    for method in ("lora", "qlora"):
        if builder.startswith(f"{method}_"):
            return method, builder.removeprefix(f"{method}_")
    return "full", builder


def model_name(plain: str) -> str | None:
    return MODELS.get(re.sub("_(base|instruct)$", "", plain))


def take_model(draft: Draft, keys: Keys, request: ReadRequest) -> None:
    method, plain = plain_builder(keys)
    name = model_name(plain)
    if name is not None:
        draft.put("model", name, keys, "model._component_")
        keys.ignore("checkpointer.checkpoint_dir")
    elif plain in FAMILIES:
        draft.take("model", keys, "checkpointer.checkpoint_dir")
        take_sizes(draft, keys, request.open(f"{keys.get('checkpointer.checkpoint_dir')}/config.json"))
    else:
        draft.take("model", keys, "checkpointer.checkpoint_dir")
        draft.not_modelled(keys, "model._component_", "a builder that is not known here: its shape is the checkpoint's")
    if plain.startswith("qwen3_") and plain.endswith("_base"):
        draft.not_modelled(
            keys, "model._component_", f"its tables have {BASE_POSITIONS} positions; config.json's are taken"
        )
    if method == "lora" and keys.get("model.quantize_base") is True:
        method = "qlora"
    draft.put("method", method, keys, "model._component_")
    if method != "full":
        take_adapters(draft, keys, method)


def take_sizes(draft: Draft, keys: Keys, config: Document | None) -> None:
    """Of a family's builder: the job's model is the checkpoint's, so its config.json has to say the same."""
    if config is None:
        draft.not_modelled(keys, "model._component_", "its sizes are the checkpoint's, whose config.json is not here")
    for name, theirs in SIZES.items():
        given, said = keys.get(f"model.{name}"), None if config is None else config.get(theirs)
        most = MOST_POSITIONS if name == "max_seq_len" and plain_builder(keys)[1] == "qwen2" else None
        said = min(said, most) if most and type(said) is int else said
        if None not in (given, said) and given != said:
            draft.not_modelled(keys, f"model.{name}", f"config.json's {theirs} is taken, {said}")
    keys.ignore(*(f"model.{name}" for name in OF_FAMILIES))


def take_adapters(draft: Draft, keys: Keys, method: str) -> None:
    attention = keys.get("model.lora_attn_modules")
    if isinstance(attention, list):
        targets = [ATTENTION.get(str(name), str(name)) for name in attention]
        targets += MLP if keys.get("model.apply_lora_to_mlp") is True else ()
        targets += ("lm_head",) if keys.get("model.apply_lora_to_output") is True else ()
        draft.put("lora.targets", targets, keys, "model.lora_attn_modules")
    draft.take("lora.rank", keys, "model.lora_rank")
    draft.take("lora.alpha", keys, "model.lora_alpha")
    draft.take("lora.dropout", keys, "model.lora_dropout")
    draft.take("lora.dora", keys, "model.use_dora")
    for field in ("lora.rank", "lora.alpha", "lora.dropout", "lora.dora"):
        draft.assume(field, DEFAULTS[field][0])
    if method == "qlora":
        draft.put("quantization.format", "nf4", keys, "model._component_")


def take_precision(draft: Draft, keys: Keys) -> None:
    """Weights, gradients and adapters in one dtype, and nothing cast on the way."""
    dtype = keys.get("dtype")
    if dtype is not None:
        draft.put("weights_dtype", DTYPES.get(str(dtype), dtype), keys, "dtype")
    draft.assume("weights_dtype", "bfloat16")
    draft.assume("autocast", None)
    if "lora.rank" in draft.fields:
        draft.assume("lora.adapter_dtype", draft.fields["weights_dtype"])
    if keys.get("enable_fp8_training") is True:
        draft.not_modelled(keys, "enable_fp8_training", "linear layers in float8 are not written down for torchtune")
    keys.ignore("fp8_recipe_name")


def take_optimizer(draft: Draft, keys: Keys) -> None:
    component = keys.get("optimizer._component_")
    fused = keys.get("optimizer.fused") is True
    if component is not None:
        name = OPTIMIZERS.get(str(component), str(component))
        name = "adamw_torch_fused" if name == "adamw_torch" and fused else name
        draft.put("optimizer", name, keys, "optimizer._component_")
    for key in ("optimizer.foreach", "optimizer.amsgrad"):
        if keys.document.get(key):
            draft.not_modelled(keys, key, "the optimizer holds or borrows more than it does by itself")
    if keys.get("optimizer_in_bwd") is True:
        draft.put("optimizer_in_backward", True, keys, "optimizer_in_bwd")
    draft.assume("optimizer_in_backward", False)
    norm = keys.get("clip_grad_norm")
    if norm is not None:
        draft.put("max_grad_norm", 1e9 if norm in ("inf", float("inf")) else norm, keys, "clip_grad_norm")
    draft.assume("max_grad_norm", 0.0)


def take_batches(draft: Draft, keys: Keys) -> None:
    """`max_seq_len` null: no row is cut, and each batch is as wide as its longest sample."""
    shorter = 1 if is_plain_text(keys) else 0
    draft.take("seq_len", keys, "tokenizer.max_seq_len", read=lambda cut: cut - shorter if type(cut) is int else cut)
    draft.assume("seq_len", 1024, "tunecast, where no row is cut (tokenizer.max_seq_len null)")
    draft.take("micro_batch", keys, "batch_size")
    draft.take("grad_accum", keys, "gradient_accumulation_steps")
    draft.assume("grad_accum", 1)
    draft.take("data.packing", keys, "dataset.packed", "dataset.0.packed", "packed")
    draft.assume("data.packing", False)
    draft.take("data.seed", keys, "seed")
    draft.assume("data.drop_last", True)
    draft.assume("data.workers", 0)
    loss = keys.get("loss._component_")
    if loss is not None and draft.fields.get("task") == "sft":
        draft.put("loss", LOSSES.get(last_name(loss), str(loss)), keys, "loss._component_")
    if keys.get("loss.num_output_chunks", default=CHUNKS) != CHUNKS:
        draft.not_modelled(keys, "loss.num_output_chunks", f"logits are made in {CHUNKS} chunks here")


def is_plain_text(keys: Keys) -> bool:
    """Rows of text are cut one token shorter (torchtune/datasets/_text_completion.py, `_prepare_sample`); packs of them
    are not."""
    name = last_name(keys.document.get("dataset._component_"))
    return name == "text_completion_dataset" and not keys.document.get("dataset.packed")


def take_activations(draft: Draft, keys: Keys) -> None:
    draft.take("gradient_checkpointing", keys, "enable_activation_checkpointing")
    draft.take("offload_activations", keys, "enable_activation_offloading")
    draft.take("compile", keys, "compile", read=is_compiled)
    for field in ("gradient_checkpointing", "offload_activations", "compile"):
        draft.assume(field, DEFAULTS[field][0])
    if keys.get("ac_mode") is not None:
        draft.not_modelled(keys, "ac_mode", "some operations or layers are recomputed, which is not written down")
        keys.ignore("ac_option")


def is_compiled(value: Any) -> Any:
    """`compile` may name parts: model, loss, optimizer_step, scale_grads."""
    return value.get("model") is True if isinstance(value, Mapping) else value


def take_run(draft: Draft, keys: Keys) -> None:
    epochs, steps = keys.get("epochs"), keys.get("max_steps_per_epoch")
    draft.take("data.epochs", keys, "epochs")
    if type(steps) is int and type(epochs) is int:
        draft.put("run.max_steps", steps * epochs, keys, "max_steps_per_epoch")
    draft.take("run.max_steps", keys, "num_steps")
    if keys.get("run_val_every_n_steps") is not None:
        draft.put("run.eval_strategy", "steps", keys, "run_val_every_n_steps")
        draft.take("run.eval_steps", keys, "run_val_every_n_steps")
    draft.take("run.eval_batch", keys, "batch_size_val")
    if keys.get("save_every_n_steps") is not None:
        draft.put("run.save_strategy", "steps", keys, "save_every_n_steps")
        draft.take("run.save_steps", keys, "save_every_n_steps")
    draft.assume("run.save_strategy", "epoch")
    if keys.document.get("enable_async_checkpointing"):
        draft.not_modelled(keys, "enable_async_checkpointing", "checkpoints are copied to the host and written aside")


def take_cards(draft: Draft, keys: Keys) -> None:
    draft.assume("parallel.data", "fsdp")
    draft.assume("parallel.fsdp_version", 2)
    draft.take("parallel.reshard_after_forward", keys, "fsdp_reshard_after_forward")
    draft.assume("parallel.reshard_after_forward", True)
    draft.take("parallel.tensor", keys, "tensor_parallel_dim")
    draft.take("parallel.context", keys, "context_parallel_dim")
    keys.ignore("tensor_parallel_plan")
    if keys.get("fsdp_cpu_offload") is True:
        draft.put("parallel.offload", "parameters", keys, "fsdp_cpu_offload")
    if keys.get("data_parallel_replicate_dim", default=1) != 1:
        draft.not_modelled(keys, "data_parallel_replicate_dim", "shards are held several times (HSDP)")
    keys.get("data_parallel_shard_dim")
    take_units(draft, keys)


def take_stand_in(draft: Draft, keys: Keys) -> None:
    """What the closed form of torchtune does not have is taken as transformers does it, in torchtune's dtypes."""
    fields = draft.fields
    shared = "parallel.data" in fields and fields.get("hardware.gpus") != 1
    quantised = fields.get("method") == "qlora"
    is_llama4 = plain_builder(keys)[1].startswith("llama4_")
    missing = {
        "model._component_": (is_llama4, "Llama 4's text layers, without the frozen vision tower,"),
        "model.use_dora": (quantised and fields.get("lora.dora") is True, "DoRA over NF4 weights"),
        "model.quantize_base": (quantised and shared, "NF4 weights cut over cards"),
    }
    for name, (is_missing, what) in missing.items():
        if is_missing and fields["stack"] == NAME:
            fields["stack"] = "transformers"
            draft.not_modelled(keys, name, f"{what}: not written down for torchtune, transformers' own code is taken")
    if fields["stack"] != NAME:
        for field in ("loss", "stack_version", "parallel.shard_ends"):
            draft.drop(field)
        if "parallel.tensor" in fields:
            draft.drop("parallel.tensor")
            draft.not_modelled(keys, "tensor_parallel_dim", "every card is taken as one of FSDP's")
    if is_llama4:
        keys.ignore("model.decoder_trainable", "model.encoder_trainable", "model.fusion_trainable")


def take_units(draft: Draft, keys: Keys) -> None:
    """Embedding and head as units of their own. Where they are one weight the embedding is all there is to name."""
    named = keys.get("custom_sharded_layers")
    ends = {str(name).rpartition(".")[2] for name in named} if isinstance(named, list) else set()
    if ends - {"tok_embeddings", "output"}:
        draft.not_modelled(
            keys, "custom_sharded_layers", "layers that are gathered apart, other than embedding and head"
        )
    draft.put("parallel.shard_ends", "tok_embeddings" in ends, keys, "custom_sharded_layers", "model._component_")
