"""Unsloth's scripts and notebooks, read without running them; a notebook's outputs are no part of it.

Defaults: unsloth/models/loader.py, `FastLanguageModel.from_pretrained`; unsloth/models/llama.py,
`FastLlamaModel.get_peft_model`; unsloth/models/rl.py, `patch_trl_rl_trainers`, which gives SFTConfig others than TRL's.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunecast.job.lengths import longest_of
from tunecast.job.model import known_model
from tunecast.job.names import LANGUAGE, ROLLOUTS
from tunecast.job.recipes import huggingface, huggingface_keys, huggingface_tasks
from tunecast.job.recipes.cards import SINCE_AMPERE
from tunecast.job.recipes.document import Document
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.frameworks.script import (
    ARGUMENTS_WITHOUT_EFFECT,
    OF_ADAPTER,
    OF_LOADING,
    OF_TRAINER,
    is_given,
    take_cut_of_trainer,
    take_data,
    take_environment,
    take_lora,
    take_models_of_task,
)
from tunecast.job.recipes.request import ReadRequest
from tunecast.job.recipes.scripts import Made, ScriptDocument, ScriptSource
from tunecast.job.recipes.scripts.training import ScriptTraining, put_task, training_of
from tunecast.job.recipes.values import number, whole
from tunecast.job.releases import RELEASES
from tunecast.job.stacks import STACKS

NAME = "unsloth"
RELEASE = RELEASES["unsloth"].newest
_LOADER = "unsloth/models/loader.py: FastLanguageModel.from_pretrained"
_ADAPTERS = "unsloth/models/llama.py: FastLlamaModel.get_peft_model"
_SENTENCES = "unsloth/models/sentence_transformer.py: FastSentenceTransformer.from_pretrained"
_CONFIG = "unsloth/models/rl.py: replacements"
LORA: huggingface_keys.Defaults = {
    "lora.rank": (16, f"{_ADAPTERS}.r"),
    "lora.alpha": (16, f"{_ADAPTERS}.lora_alpha"),
    "lora.dropout": (0.0, f"{_ADAPTERS}.lora_dropout"),
}
LOADER: huggingface_keys.Defaults = {
    "seq_len": (2048, f"{_LOADER}.max_seq_length"),
    "quantization.format": ("nf4", f"{_LOADER}.load_in_4bit"),
    "gradient_checkpointing": (True, f"{_LOADER}.use_gradient_checkpointing"),
}
SENTENCES: huggingface_keys.Defaults = {
    "seq_len": (512, "tunecast: nothing is cut but by the model's own limit"),
    "gradient_checkpointing": (False, f"{_SENTENCES}.use_gradient_checkpointing"),
}
"""Of FastSentenceTransformer."""
VLLM: huggingface_keys.Defaults = {"rl.vllm.memory_fraction": (0.5, f"{_LOADER}.gpu_memory_utilization")}
OF_CONFIG: huggingface_keys.Defaults = {
    **huggingface_keys.TRL_ARGUMENTS,
    "micro_batch": (4, f"{_CONFIG}.per_device_train_batch_size"),
    "grad_accum": (2, f"{_CONFIG}.gradient_accumulation_steps"),
    "optimizer": ("adamw_8bit", f"{_CONFIG}.optim"),
    "data.seed": (3407, f"{_CONFIG}.seed"),
    "run.eval_batch": (4, f"{_CONFIG}.per_device_eval_batch_size"),
    "run.eval_steps": (1, f"{_CONFIG}.logging_steps"),
}
DEFAULTS = {**LORA, **VLLM}
FOLLOWS_CARD = f"dtype=None, {SINCE_AMPERE}"
MODELS = ("FastLanguageModel", "FastModel", "FastVisionModel", "FastTextModel", "FastSentenceTransformer")
ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
TARGETS = frozenset((*ATTENTION, *MLP))
WITHOUT_EFFECT = (
    *OF_LOADING,
    *("fix_tokenizer", "rope_scaling", "use_exact_model_name", "random_state", "disable_log_stats", "max_lora_rank"),
    *(
        "gpu_memory_utilization",
        "float8_kv_cache",
        "text_only",
        "pooling_mode",
        "for_inference",
        "return_logits",
        "fullgraph",
        "device_map_*",
    ),
    *("whisper_*", "unsloth_force_compile", "on_model_resolved", "load_in_16bit", "auto_model", "attn_implementation"),
)
OF_PEFT = (
    *OF_ADAPTER,
    *("random_state", "max_seq_length", "temporary_location", "ensure_weight_tying", "model", "layers_pattern"),
    *("finetune_language_layers", "finetune_attention_modules", "finetune_mlp_modules", "loftq_config"),
    "finetune_vision_layers",
    "finetune_audio_layers",
)
OWN_WAYS: Mapping[str, str] = {
    "load_in_fp8": "weights in 8-bit floating point",
    "unsloth_tiled_mlp": "MLPs are computed in tiles",
    "float32_mixed_precision": "weights stay in float32",
    "target_parameters": "parameters of experts get adapters",
    "resize_model_vocab": "the vocabulary grows",
}


FLEX = ("gpt_oss",)
"""Trained with flex attention by a patch of Unsloth's (unsloth/models/_utils.py, `_FLEX_EXCLUDED_MODELS`)."""


def recognises(document: Document) -> bool:
    if not isinstance(document, ScriptDocument) or document.script is None:
        return False
    script = document.script
    return loader_of(script) is not None and training_of(script) is not None


def loader_of(script: ScriptSource) -> Made | None:
    return script.last(*(f"{name}.from_pretrained" for name in MODELS))


def read(draft: Draft, request: ReadRequest) -> None:
    assert isinstance(request.document, ScriptDocument) and request.document.script is not None
    script = request.document.script
    training, loader = training_of(script), loader_of(script)
    assert training is not None and loader is not None, "recognises comes first"
    training = training._replace(model=loader)
    put_task(draft, script, training)
    take_loading(draft, script, loader)
    take_adapters(draft, script, training)
    take_arguments(draft, script, training, request)
    take_data(draft, script, training, request)
    take_longest(draft, script)
    take_environment(draft, script)


def take_longest(draft: Draft, script: ScriptSource) -> None:
    """Rows are no longer than the data set has them: of this stack every row is taken to be as long as one may be."""
    name, limit = draft.fields.get("data.lengths"), number(draft.fields.get("seq_len"))
    packs = huggingface.is_on(draft.fields.get("data.packing"))
    is_language = draft.fields.get("task", "sft") in LANGUAGE
    if is_language and draft.fields["stack"] == "unsloth" and name is not None and limit is not None and not packs:
        longest = longest_of(name)
        if longest < limit:
            draft.put("seq_len", longest, script.called(draft), draft.places["data.lengths"].key)


def take_loading(draft: Draft, script: ScriptSource, loader: Made) -> None:
    keys = script.keys(draft, loader, WITHOUT_EFFECT, ("model_name", "max_seq_length", "dtype", "load_in_4bit"))
    draft.take("model", keys, "model_name")
    draft.take("seq_len", keys, "max_seq_length")
    if loader.is_a("FastSentenceTransformer.from_pretrained"):
        keys.get("use_gradient_checkpointing")
        draft.assume("seq_len", *SENTENCES["seq_len"])
        huggingface.assume(draft, "gradient_checkpointing", SENTENCES)
    huggingface.assume(draft, "seq_len", LOADER)
    if keys.get("dtype") is not None:
        huggingface.take_dtype(draft, keys, "dtype")
    draft.put("stack", "unsloth", script.called(draft), loader.title)
    take_method(draft, keys, loader)
    take_engine(draft, script, keys)
    for name, why in OWN_WAYS.items():
        if huggingface.is_on(keys.get(name)):
            draft.not_modelled(keys, name, why)
    if keys.get("qat_scheme"):
        draft.refuse("quantisation-aware training", "weights are trained as they are")
    if huggingface.is_on(keys.get("offload_embedding")) and keys.get("offload_embedding") != "auto":
        draft.not_modelled(keys, "offload_embedding", "the embedding waits in host memory")
    family = family_of(draft.fields.get("model"))
    if "vision.images" in draft.fields:
        take_trls(draft, keys, "model_name", "Unsloth's code for images")
    elif family is not None and family not in STACKS["unsloth"].families:
        take_trls(draft, keys, "model_name", f"Unsloth's code for {family}")
    if family in FLEX:
        draft.assume("attention", "flex_attention")
    take_checkpointing(draft, keys)


def take_engine(draft: Draft, script: ScriptSource, keys: Keys) -> None:
    """vLLM on the same card, with the same weights; it sleeps where `UNSLOTH_VLLM_STANDBY` is set
    (unsloth_zoo/vllm_utils.py, `load_vllm`)."""
    fast = huggingface.is_on(keys.get("fast_inference"))
    if draft.fields.get("task") not in ROLLOUTS:
        return
    if keys.get("fast_inference") is not None:
        draft.put("rl.engine", "vllm" if fast else "transformers", keys, "fast_inference")
    draft.assume("rl.engine", "transformers")
    if fast:
        draft.take("rl.vllm.memory_fraction", keys, "gpu_memory_utilization")
        huggingface.assume(draft, "rl.vllm.memory_fraction", VLLM)
        standby, _ = script.environment.get("UNSLOTH_VLLM_STANDBY", ("0", 0))
        draft.assume("rl.vllm.sleep", huggingface.is_on(standby))


def take_method(draft: Draft, keys: Keys, loader: Made) -> None:
    four, eight = keys.get("load_in_4bit"), keys.get("load_in_8bit")
    if loader.is_a("FastSentenceTransformer.from_pretrained") and four is None:
        four = False
    if huggingface.is_on(keys.get("full_finetuning")):
        draft.put("method", "full", keys, "full_finetuning")
        take_trls(draft, keys, "full_finetuning", "Unsloth's code for it")
    elif huggingface.is_on(eight):
        draft.put("method", "qlora", keys, "load_in_8bit")
        draft.put("quantization.format", "int8", keys, "load_in_8bit")
        take_trls(draft, keys, "load_in_8bit", "Unsloth's code for it")
    elif huggingface.is_on(keys.get("load_in_16bit")) or (four is not None and not huggingface.is_on(four)):
        draft.put("method", "lora", keys, "load_in_4bit", "load_in_16bit")
    else:
        draft.put("method", "qlora", keys, "load_in_4bit")
        draft.put("quantization.format", "nf4", keys, "load_in_4bit")


def take_trls(draft: Draft, keys: Keys, name: str, what: str) -> None:
    """TRL's trainer in the place of code of Unsloth's that nobody wrote down here: it does the same with more
    memory."""
    if draft.fields.get("stack") != "trl":
        draft.put("stack", "trl", keys, name)
        draft.assume("weights_dtype", "bfloat16", FOLLOWS_CARD)
        if draft.fields.get("quantization.format") == "nf4":
            draft.assume("quantization.double_quant", True)
    draft.not_modelled(keys, name, f"{what} is not known: TRL's is taken")


def family_of(model: object) -> str | None:
    """The `model_type` of a model that is known without a network."""
    known = known_model(model)
    found = None if known is None else known.raw.get("model_type")
    return found if isinstance(found, str) else None


def take_checkpointing(draft: Draft, keys: Keys) -> None:
    """ "unsloth" offloads what is saved for a layer to host memory, which its stack does; "true" is taken for the same
    there (unsloth/models/_utils.py, `unsloth_gradient_checkpointing`). TRL's stack keeps it on the card."""
    said = keys.get("use_gradient_checkpointing")
    if said is not None:
        draft.put("gradient_checkpointing", huggingface.is_on(said), keys, "use_gradient_checkpointing")
        if draft.fields["stack"] == "unsloth" and (said is True or said in ("true", "True")):
            draft.not_modelled(keys, "use_gradient_checkpointing", "activations stay on the card; taken as offloaded")


def take_adapters(draft: Draft, script: ScriptSource, training: ScriptTraining) -> None:
    put = training.puts_adapters
    if draft.fields.get("method") == "full":
        return
    if put is None:
        draft.note(script.called(draft).place(training.trainer.title), "no call of get_peft_model: Unsloth's defaults")
        huggingface.assume_all(draft, LORA)
        return
    keys = script.keys(draft, put, OF_PEFT)
    if huggingface.is_on(keys.get("finetune_audio_layers")):
        draft.refuse("audio", "an encoder of sound is trained too, and is not modelled")
    take_lora(draft, keys, LORA)
    names = draft.fields.get("lora.targets")
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        whole = {"embed_tokens", "lm_head"} & set(names)
        usual = set(names) - whole == TARGETS and draft.fields["stack"] == "unsloth"
        rest = [name for name in names if name not in whole]
        draft.put("lora.targets", "all-linear" if usual else rest, keys, "target_modules")
        if not usual and draft.fields["stack"] == "unsloth":
            take_trls(draft, keys, "target_modules", "Unsloth's code for other modules than all seven")
        if whole:
            draft.not_modelled(keys, "target_modules", f"{' and '.join(sorted(whole))} are trained whole")
    draft.assume("lora.targets", "all-linear")
    take_trained_parts(draft, keys)
    for name, why in OWN_WAYS.items():
        if huggingface.is_on(keys.get(name)):
            draft.not_modelled(keys, name, why)
    take_checkpointing(draft, keys)


def take_trained_parts(draft: Draft, keys: Keys) -> None:
    """unsloth/models/vision.py, `FastBaseModel.get_peft_model`: adapters in both, unless it is told otherwise; the
    projector's layers bear names of neither (unsloth_zoo/peft_utils.py, `get_peft_regex`)."""
    switches = {"tower": "finetune_vision_layers", "language": "finetune_language_layers"}
    parts = [part for part, name in switches.items() if huggingface.is_on(keys.get(name, default=True))]
    if "vision.images" not in draft.fields:
        return
    if any(keys.get(name) is not None for name in switches.values()):
        draft.put("vision.trained", parts, keys, *switches.values())
    draft.assume("vision.trained", parts)
    groups = {"finetune_attention_modules": ATTENTION, "finetune_mlp_modules": MLP}
    off = [name for name in groups if keys.get(name) is False]
    if len(off) == 1:
        kept = next(modules for name, modules in groups.items() if name not in off)
        draft.put("lora.targets", list(kept), keys, *off)


FOLLOW_MODEL = ("bf16", "fp16", "tf32", "gradient_checkpointing", "gradient_checkpointing_kwargs", "torch_compile")
"""Arguments of a trainer that Unsloth sets by what its model is (unsloth/models/rl.py, `patch_trl_rl_trainers`)."""


def take_arguments(draft: Draft, script: ScriptSource, training: ScriptTraining, request: ReadRequest) -> None:
    arguments = training.arguments or Made("SFTConfig", training.trainer.line)
    of_trl = not arguments.is_a("TrainingArguments", "UnslothTrainingArguments", "Seq2SeqTrainingArguments")
    draft.assume("gradient_checkpointing", True)
    dtype = draft.fields.get("weights_dtype")
    if dtype in ("float16", "bfloat16") and "weights_dtype" in draft.places:
        draft.assume("autocast", dtype)
    else:
        draft.assume("autocast", "bfloat16", FOLLOWS_CARD)
        draft.assume("weights_dtype", "bfloat16", FOLLOWS_CARD)
    draft.keys(script.document(arguments.only(FOLLOW_MODEL)), ("*",))
    rest = arguments.without(FOLLOW_MODEL)
    effects = (*ARGUMENTS_WITHOUT_EFFECT, "embedding_learning_rate")
    keys = script.keys(draft, rest, effects, ("output_dir",), script.left)
    defaults = OF_CONFIG if of_trl else huggingface_keys.TRAINING_ARGUMENTS
    huggingface.take_training_arguments(draft, keys, request, defaults)
    older = script.keys(draft, training.trainer, (*OF_TRAINER, "max_seq_length", "max_length"))
    draft.take("data.packing", older, "packing")
    draft.take("data.num_proc", older, "dataset_num_proc")
    longest, place = draft.fields["seq_len"], draft.places.get("seq_len")
    if draft.fields.get("task", "sft") in LANGUAGE:
        huggingface.take_sft_config(draft, keys)
    else:
        take_task(draft, script, training, keys, older)
    wanted, limit = number(draft.fields["seq_len"]), number(longest)
    is_rollout = draft.fields.get("task") in ROLLOUTS
    if (
        not is_rollout and wanted is not None and limit is not None and wanted > limit
    ):  # rows no longer than the model was made for
        draft.fields["seq_len"] = longest
        if place is not None:
            draft.places["seq_len"] = place
    if older.get("optimizers") is not None or is_given(training.trainer.get("optimizers")):
        draft.not_modelled(older, "optimizers", "an optimizer of the script's own")


WITHIN = "tunecast: half of max_seq_length, of which the script's text does not tell the parts"


def keep_within(draft: Draft, limit: int) -> None:
    """Rows of a prompt and a completion are no longer than the model was made for. What only a run would tell of them
    is half of that."""
    parts = ("rl.prompt_length", "rl.completion_length")
    prompt, completion = (whole(draft.fields.get(name)) or 0 for name in parts)
    if prompt + completion <= limit:
        return
    for name in parts:
        if name not in draft.places:
            draft.drop(name)
            draft.assume(name, max(1, limit // 2), WITHIN)
    draft.drop("seq_len")
    draft.assume("seq_len", sum(whole(draft.fields[name]) or 0 for name in parts), WITHIN)


def take_task(draft: Draft, script: ScriptSource, training: ScriptTraining, keys: Keys, older: Keys) -> None:
    """Of a batch that generations do not divide Unsloth makes one of as many as these
    (unsloth/models/rl.py, `check_num_generations`)."""
    limit = whole(draft.fields["seq_len"])
    take_cut_of_trainer(draft, older, training)
    take_models_of_task(draft, script, training)
    if draft.fields.get("task") in ROLLOUTS:
        completion = whole(keys.get("max_completion_length"))
        if keys.get("max_prompt_length") is None and limit and completion and completion < limit:
            draft.put("rl.prompt_length", limit - completion, script.called(draft), draft.places["seq_len"].key)
        keys.ignore("use_vllm")
    huggingface_tasks.take_task_config(draft, keys)
    if draft.fields.get("task") in ROLLOUTS and limit:
        keep_within(draft, limit)
    counts = [whole(draft.fields.get(name)) for name in ("micro_batch", "grad_accum", "rl.generations")]
    rows, steps, generations = (count or 1 for count in counts)
    if draft.fields.get("task") in ("grpo", "rloo") and rows * steps % generations:
        draft.put("micro_batch", generations, keys, "num_generations")
