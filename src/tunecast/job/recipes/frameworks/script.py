"""Scripts and notebooks around transformers' Trainer and TRL's trainers, read without running them.

Defaults: peft/tuners/lora/config.py, `LoraConfig`; transformers/utils/quantization_config.py, `BitsAndBytesConfig`;
transformers/modeling_utils.py, `PreTrainedModel.from_pretrained`; trl/trainer/sft_trainer.py, `SFTTrainer.__init__`.
Where the text is not enough, `tunecast trace -- FILE` runs the script on tensors without contents.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from tunecast.errors import UsageError
from tunecast.job.names import HEADS, LANGUAGE, PREFERENCES, ROLLOUTS
from tunecast.job.recipes import huggingface, huggingface_keys, huggingface_tasks
from tunecast.job.recipes.data_sets import take_data_set
from tunecast.job.recipes.document import Document
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.frameworks import trl
from tunecast.job.recipes.request import Invocation, ReadRequest
from tunecast.job.recipes.scripts import DottedName, Made, ScriptDocument, ScriptSource
from tunecast.job.recipes.scripts.data_sets import longest_row, training_data
from tunecast.job.recipes.scripts.shown import shown_command
from tunecast.job.recipes.scripts.training import ScriptTraining, loaders, model_name, put_task, training_of
from tunecast.job.recipes.words import Word, flags_of
from tunecast.job.releases import RELEASES

NAME = "transformers"
RELEASE = RELEASES["transformers"].newest
_LORA = "peft/tuners/lora/config.py: LoraConfig"
LORA_CONFIG: huggingface_keys.Defaults = {
    "lora.rank": (8, f"{_LORA}.r"),
    "lora.alpha": (8, f"{_LORA}.lora_alpha"),
    "lora.dropout": (0.0, f"{_LORA}.lora_dropout"),
}
DEFAULTS = LORA_CONFIG
TRACE = "its steps are its own: tunecast trace -- {}"
OF_TRAINER = (
    *("train_dataset", "eval_dataset", "tokenizer", "processing_class", "data_collator", "callbacks", "model", "args"),
    *("dataset_text_field", "formatting_func", "peft_config", "model_init", "compute_loss_func", "quantization_config"),
    *("preprocess_logits_for_metrics", "dataset_batch_size", "infer_schema", "eval_packing", "num_of_sequences"),
    *("neftune_noise_alpha", "dataset_kwargs", "chars_per_token", "reward_funcs", "ref_model", "reward_model"),
    *("value_model", "teacher_model", "reward_processing_classes", "loss", "evaluator", "environment_factory"),
    *("rollout_func", "tools", "teacher_tokenizer"),
)
"""Arguments of a trainer that are objects, or say nothing of memory and time."""
OF_LOADING = (
    *("device_map", "trust_remote_code", "token", "use_auth_token", "cache_dir", "revision", "low_cpu_mem_usage"),
    *(
        "config",
        "max_memory",
        "use_cache",
        "local_files_only",
        "pad_token_id",
        "quantization_config",
        "use_safetensors",
    ),
    *("offload_folder", "ignore_mismatched_sizes", "force_download", "model_max_length", "return_dict", "subfolder"),
    *("vocab_size", "proxies", "resume_download", "output_loading_info", "attention_dropout", "pretraining_tp"),
    *("num_labels", "id2label", "label2id", "problem_type"),
)
OF_ADAPTER = ("task_type", "inference_mode", "init_lora_weights", "base_model_name_or_path", "fan_in_fan_out", "bias")
OF_QUANTIZATION = ("bnb_4bit_compute_dtype", "llm_int8_*", "bnb_4bit_quant_storage")
ARGUMENTS_WITHOUT_EFFECT = (*huggingface_keys.WITHOUT_EFFECT, *huggingface_keys.SFT_WITHOUT_EFFECT)


def recognises(document: Document) -> bool:
    if not isinstance(document, ScriptDocument) or document.script is None:
        return False
    script = document.script
    return training_of(script) is not None or bool(loaders(script))


def use_without_training(document: Document) -> str | None:
    script = document.script if isinstance(document, ScriptDocument) else None
    if script is None or has_own_loop(script):
        return None
    return "its text makes no trainer of transformers, TRL or Unsloth, and goes backward nowhere"


def has_own_loop(script: ScriptSource) -> bool:
    """It goes backward by itself."""
    return any(call.is_a("backward") for call in script.calls)


def read(draft: Draft, request: ReadRequest) -> None:
    assert isinstance(request.document, ScriptDocument) and request.document.script is not None
    script = request.document.script
    training = training_of(script)
    if training is None and has_own_loop(script):
        draft.refuse("a loop of its own", TRACE.format(script.file))
        return
    if training is None:
        loader = script.last(*loaders(script))
        told = f"{script.file}: no training that is known here"
        if loader is not None:
            told = f"{script.called(draft).place(loader.title)}: loads a model, and nothing in the script trains it"
        raise UsageError(f"{told}. To fix: name the script or notebook that trains", field="task")
    called = script.called(draft)
    is_trls = training.trainer.is_a("SFTTrainer") or training.task not in ("sft", "pretrain")
    draft.put("stack", "trl" if is_trls else "transformers", called, training.trainer.title)
    put_task(draft, script, training)
    take_model(draft, script, training)
    take_quantization(draft, script, training)
    take_adapter(draft, script, training)
    take_arguments(draft, script, training, request, is_trls)
    take_methods(draft, script, training)
    take_data(draft, script, training, request)
    take_environment(draft, script)


def with_shown_command(request: ReadRequest) -> ReadRequest:
    """Of a script whose text names no model: with what the command sets that its docstring shows."""
    script = request.document.script if isinstance(request.document, ScriptDocument) else None
    training = None if script is None else training_of(script)
    if script is None or training is None or script.given or names_a_model(script, training):
        return request
    shown = shown_command(request)
    if shown is None:
        return request
    return request._replace(document=request.document.with_values(shown.values, shown.places), launch=shown.launch)


def names_a_model(script: ScriptSource, training: ScriptTraining) -> bool:
    read = Draft(NAME, RELEASE)
    take_model(read, script, training)
    return "model" in read.fields


def take_data(draft: Draft, script: ScriptSource, training: ScriptTraining, request: ReadRequest) -> None:
    """What is here is counted; a well-known data set has known lengths."""
    found = training_data(script, training.trainer)
    if found is None:
        return
    keys, title = script.called(draft), found.call.title
    take_data_set(draft, keys, title, found.source, found.call.get("split"), request.folder)
    if found.held_back is not None:
        draft.put("data.held_back", found.held_back, keys, title)


def take_arguments(
    draft: Draft, script: ScriptSource, training: ScriptTraining, request: ReadRequest, is_trls: bool
) -> None:
    """Of older releases TRL's trainers themselves took what their configs hold now."""
    arguments = training.arguments or Made("TrainingArguments", training.trainer.line)
    of_trl = is_trls and not (training.arguments is not None and arguments.is_a(*OF_TRANSFORMERS))
    defaults = huggingface_keys.TRL_ARGUMENTS if of_trl else huggingface_keys.TRAINING_ARGUMENTS
    keys = script.keys(draft, arguments, ARGUMENTS_WITHOUT_EFFECT, ("output_dir",), script.left)
    huggingface.take_training_arguments(draft, keys, request, defaults)
    if arguments.is_open:
        draft.note(script.called(draft).place(arguments.title), "more arguments than its text tells")
    older = script.keys(draft, training.trainer, OF_TRAINER)
    is_language = draft.fields.get("task", "sft") in LANGUAGE
    if is_trls:
        take_cut_of_trainer(draft, older, training)
        draft.take("data.packing", older, "packing")
        draft.take("data.num_proc", older, "dataset_num_proc")
        if is_language:
            huggingface.take_sft_config(draft, keys)
        if isinstance(training.model, str):
            take_init_kwargs(draft, keys)
    else:
        keys.get("max_seq_length", "max_length")
        if not draft.take("seq_len", keys, "max_seq_length", "max_length") and (cut := longest_row(script)) is not None:
            draft.put("seq_len", cut[1], script.called(draft), cut[0].title)
    if not is_language:
        take_models_of_task(draft, script, training)
        huggingface_tasks.take_task_config(draft, keys)
        take_labels(draft, script, training)
    if training.trainer.get("compute_metrics") is not None and draft.fields.get("run.eval_strategy") not in (
        None,
        "no",
    ):
        draft.not_modelled(older, "compute_metrics", "logits of evaluations are kept")
    older.ignore("compute_metrics")
    if is_given(training.trainer.get("optimizers")):
        draft.not_modelled(older, "optimizers", "an optimizer of the script's own")
    older.ignore("optimizers")


OF_TRANSFORMERS = (
    *("TrainingArguments", "Seq2SeqTrainingArguments", "UnslothTrainingArguments"),
    *("SentenceTransformerTrainingArguments", "CrossEncoderTrainingArguments"),
)
"""Arguments with transformers' own defaults."""


def take_cut_of_trainer(draft: Draft, older: Keys, training: ScriptTraining) -> None:
    """What TRL's trainers took before their configs did."""
    name = next((name for name in ("max_seq_length", "max_length") if training.trainer.get(name) is not None), None)
    if name is not None:
        draft.take("seq_len", older, name)
    if training.task in PREFERENCES:
        draft.take("preference.beta", older, "beta")
        older.ignore("max_prompt_length", "max_target_length", "loss_type")


def take_models_of_task(draft: Draft, script: ScriptSource, training: ScriptTraining) -> None:
    """Models beside the one that is trained: a reference, one that rewards, a teacher."""
    called, trainer, task = script.called(draft), training.trainer, draft.fields.get("task")
    if task in PREFERENCES and isinstance(trainer.get("ref_model"), Made):
        draft.put("preference.reference", "model", called, trainer.title)
    if task in ROLLOUTS:
        rewards = trainer.get("reward_model") or trainer.get("reward_funcs")
        for each in rewards if isinstance(rewards, (list, tuple)) else [rewards]:
            if (name := model_name(each)) is not None:
                draft.put("rl.reward_model", name, called, trainer.title)
    if task == "distill" and (name := model_name(trainer.get("teacher_model"))) is not None:
        draft.put("distill.teacher", name, called, trainer.title)


def take_labels(draft: Draft, script: ScriptSource, training: ScriptTraining) -> None:
    if isinstance(training.model, Made) and draft.fields.get("task") in HEADS:
        keys = script.keys(draft, training.model.only(("num_labels",)))
        draft.take("head.labels", keys, "num_labels")


def take_init_kwargs(draft: Draft, keys: Keys) -> None:
    """Of a model that SFTTrainer loads itself."""
    huggingface.take_dtype(draft, keys, "model_init_kwargs.dtype", "model_init_kwargs.torch_dtype")
    huggingface.take_attention(draft, keys, "model_init_kwargs.attn_implementation")
    keys.ignore(*(f"model_init_kwargs.{name}" for name in OF_LOADING))
    huggingface.assume(draft, "weights_dtype", huggingface_keys.MODEL_CONFIG)


def is_given(value: Any) -> bool:
    """Whether an argument is there and not (None, None)."""
    return value is not None and not (isinstance(value, (tuple, list)) and all(each is None for each in value))


def take_model(draft: Draft, script: ScriptSource, training: ScriptTraining) -> None:
    """A model that SFTTrainer is given by name loads in float32 (`create_model_from_path`); `from_pretrained` takes
    the checkpoint's own dtype."""
    called = script.called(draft)
    if isinstance(training.model, str):
        draft.put("model", str(training.model), called, training.trainer.title)
        if isinstance(training.model, DottedName):
            draft.drop("model")
        return
    if training.model is None:
        return
    keys = script.keys(draft, training.model, OF_LOADING, ("pretrained_model_name_or_path",))
    draft.take("model", keys, "pretrained_model_name_or_path", "model_name_or_path", "model_id")
    huggingface.take_dtype(draft, keys, "dtype", "torch_dtype")
    draft.assume("weights_dtype", "auto", f"transformers {RELEASE}")
    huggingface.take_attention(draft, keys, "attn_implementation")
    if huggingface.is_on(keys.get("use_flash_attention_2")):
        draft.put("attention", "flash_attention_2", keys, "use_flash_attention_2")
    for name, kind in (("load_in_4bit", "fp4"), ("load_in_8bit", "int8")):
        if huggingface.is_on(keys.get(name)):
            draft.put("quantization.format", kind, keys, name)


def take_quantization(draft: Draft, script: ScriptSource, training: ScriptTraining) -> None:
    packed = training.quantization
    if packed is None:
        return
    if not packed.is_a("BitsAndBytesConfig"):
        if not packed.is_a("get_quantization_config"):
            told = f"{packed.title}: how the weights are stored"
            draft.note(script.called(draft).place(packed.title), told)
        return
    keys = script.keys(draft, packed, OF_QUANTIZATION)
    four, eight = keys.get("load_in_4bit"), keys.get("load_in_8bit")
    if huggingface.is_on(eight):
        draft.put("quantization.format", "int8", keys, "load_in_8bit")
        keys.ignore("bnb_4bit_quant_type", "bnb_4bit_use_double_quant")
    elif huggingface.is_on(four):
        kind = keys.get("bnb_4bit_quant_type")
        draft.put("quantization.format", kind or "fp4", keys, "bnb_4bit_quant_type", "load_in_4bit")
        double = keys.get("bnb_4bit_use_double_quant")
        draft.put("quantization.double_quant", huggingface.is_on(double), keys, "bnb_4bit_use_double_quant")


def take_adapter(draft: Draft, script: ScriptSource, training: ScriptTraining) -> None:
    called = script.called(draft)
    packed = draft.fields.get("quantization.format") is not None
    adapter = training.adapter
    if adapter is None:
        draft.assume("method", "full")
        return
    if not adapter.is_a("LoraConfig"):
        if adapter.is_a("get_peft_config"):
            take_asked_adapter(draft, script, adapter)
        else:
            draft.refuse(adapter.title.removesuffix("Config"), "adapters of LoRA are modelled")
        return
    draft.put("method", "qlora" if packed else "lora", called, adapter.title)
    keys = script.keys(draft, adapter, OF_ADAPTER)
    take_lora(draft, keys)
    if training.puts_adapters is not None and training.puts_adapters.get("autocast_adapter_dtype") is False:
        draft.put("lora.adapter_dtype", draft.fields.get("weights_dtype"), called, training.puts_adapters.title)


def take_asked_adapter(draft: Draft, script: ScriptSource, adapter: Made) -> None:
    """`get_peft_config(model_args)` of TRL: what the command line says of ModelConfig, and none without `use_peft`."""
    asked = adapter.get("model_args", 0)
    if not isinstance(asked, Made) or asked.is_open:
        draft.note(script.called(draft).place(adapter.title), f"adapters that a command line asks for: {adapter.title}")
        draft.assume("method", "full")
        return
    huggingface.take_model_config(draft, script.keys(draft, asked, huggingface_keys.SFT_WITHOUT_EFFECT))


def take_lora(draft: Draft, keys: Keys, defaults: huggingface_keys.Defaults = LORA_CONFIG) -> None:
    """PEFT's own names."""
    draft.take("lora.rank", keys, "r")
    draft.take("lora.alpha", keys, "lora_alpha")
    draft.take("lora.dropout", keys, "lora_dropout")
    draft.take("lora.targets", keys, "target_modules", read=huggingface.targets)
    draft.take("lora.rslora", keys, "use_rslora")
    draft.take("lora.dora", keys, "use_dora")
    for name, why in (
        ("modules_to_save", "whole modules are trained beside the adapters"),
        ("target_parameters", "parameters of experts get adapters"),
        ("layers_to_transform", "only some layers get adapters"),
        ("rank_pattern", "ranks differ between modules"),
        ("exclude_modules", "some modules get no adapter"),
        ("trainable_token_indices", "some tokens' embeddings are trained"),
        ("layer_replication", "layers are used several times"),
    ):
        if keys.get(name):
            draft.not_modelled(keys, name, why)
    if keys.get("bias") not in (None, "none"):
        draft.not_modelled(keys, "bias", "biases are trained too")
    huggingface.assume_all(draft, defaults)


def take_methods(draft: Draft, script: ScriptSource, training: ScriptTraining) -> None:
    """What is called on the model before it is trained. `prepare_model_for_kbit_training` also switches checkpointing
    on (peft/utils/other.py)."""
    called = script.called(draft)
    resized = script.last("resize_token_embeddings")
    if resized is not None:
        draft.note(called.place(resized.title), "the vocabulary grows with what is added to the tokenizer")
    prepared = script.last("prepare_model_for_kbit_training", "prepare_model_for_int8_training")
    if draft.fields.get("quantization.format") is not None and draft.fields.get("method") == "qlora":
        if prepared is not None:
            draft.put("quantization.prepare_kbit", True, called, prepared.title)
        elif draft.fields["stack"] == "transformers":
            draft.assume("quantization.prepare_kbit", False, "the script, which does not call it")
    enabled = script.last("gradient_checkpointing_enable")
    if enabled is not None:
        draft.put("gradient_checkpointing", True, called, enabled.title)
    elif prepared is not None and prepared.get("use_gradient_checkpointing", 1) is not False:
        draft.put("gradient_checkpointing", True, called, prepared.title)


def take_environment(draft: Draft, script: ScriptSource) -> None:
    """What the script sets before it imports torch."""
    known = {name: value for name, (value, _) in script.environment.items() if isinstance(value, str)}
    lines = {f"env.{name}": line for name, (_, line) in script.environment.items()}
    keys = draft.keys(Document(script.file, {"env": known}, lines), ("env.*",))
    huggingface.take_allocator(draft, keys, "env")


def invocation(words: Sequence[str]) -> Invocation | None:
    """`python train.py --lr 1e-4`: the script is the file, and what it is given are values of its arguments. One of
    TRL's that is given a file reads all from that (trl.py)."""
    given = [word for word in words if isinstance(word, str)]
    while given and PurePath(given[0]).name.startswith("python"):
        given = given[1:]
    if not given or PurePath(given[0]).suffix != ".py":
        return None
    flags = flags_of([word if isinstance(word, Word) else Word(word) for word in given[1:]])
    if str(flags.values.get("config")).endswith((".yaml", ".yml")) and trl.invocation(given) is not None:
        return None
    return Invocation(str(given[0]), flags.values, flags.lines)
