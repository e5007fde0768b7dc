"""The training in a script: its trainer, its arguments, its model, and what is put into that."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunecast.errors import TunecastError
from tunecast.job.model import known_model
from tunecast.job.names import TASKS
from tunecast.job.recipes.draft import Draft
from tunecast.job.recipes.huggingface_tasks import task_of_loss
from tunecast.job.recipes.images import assume_images
from tunecast.job.recipes.scripts.script import ScriptSource
from tunecast.job.recipes.scripts.source import statements_of
from tunecast.job.recipes.scripts.values import DottedName, Made
from tunecast.records import NamedTuple

TRAINERS: Mapping[str, str] = {
    **dict.fromkeys(("Trainer", "Seq2SeqTrainer", "SFTTrainer", "UnslothTrainer"), "sft"),
    **{"DPOTrainer": "dpo", "ORPOTrainer": "orpo", "KTOTrainer": "kto", "RewardTrainer": "reward"},
    **{"GRPOTrainer": "grpo", "CPOTrainer": "cpo", "PPOTrainer": "ppo", "PPOv2Trainer": "ppo", "RLOOTrainer": "rloo"},
    **{"OnlineDPOTrainer": "online dpo", "XPOTrainer": "xpo", "NashMDTrainer": "nash-md", "BCOTrainer": "bco"},
    **{"PRMTrainer": "prm", "GKDTrainer": "distill", "DistillationTrainer": "distill", "GOLDTrainer": "gold"},
    **{"MiniLLMTrainer": "minillm", "SDFTTrainer": "sdft", "SDPOTrainer": "sdpo", "SSDTrainer": "ssd"},
    **{"AsyncGRPOTrainer": "asynchronous grpo", "GSPOTokenTrainer": "grpo", "GRPOWithReplayBufferTrainer": "grpo"},
    **{"PAPOTrainer": "papo", "TPOTrainer": "tpo", "DDPOTrainer": "diffusion", "DiffusionGemmaSFTTrainer": "diffusion"},
    **{"SentenceTransformerTrainer": "embed", "CrossEncoderTrainer": "rerank", "AlignPropTrainer": "diffusion"},
    **{"IterativeSFTTrainer": "iterative sft", "EBFTTrainer": "energy-based tuning"},
}
"""By the name of its class: the task, or what is refused by that name."""
ARGUMENTS = (
    *("TrainingArguments", "SFTConfig", "Seq2SeqTrainingArguments", "UnslothTrainingArguments"),
    *("DPOConfig", "GRPOConfig", "ORPOConfig", "KTOConfig", "RewardConfig", "CPOConfig", "RLOOConfig", "PPOConfig"),
    *("GKDConfig", "DistillationConfig", "PRMConfig", "SentenceTransformerTrainingArguments"),
    "CrossEncoderTrainingArguments",
)
WRAPPERS = (
    *("get_peft_model", "prepare_model_for_kbit_training", "prepare_model_for_int8_training", "compile", "prepare"),
    *("PeftModel.from_pretrained", "patch_model", "prepare_model"),
)
"""Calls that give a model back, which is their first argument or `model`."""
OTHER_MODELS: Mapping[str, str] = {
    **{"SequenceClassification": "classify", "TokenClassification": "classification of tokens"},
    "QuestionAnswering": "classification of tokens",
    **dict.fromkeys(("ImageTextToText", "Vision2Seq", "VisionModel", "VisionEncoderDecoder"), "vision"),
    **dict.fromkeys(("MaskedLM", "Seq2SeqLM"), "another architecture than a decoder"),
    **dict.fromkeys(("SpeechSeq2Seq", "Whisper", "Csm", "TextToWaveform", "AudioModel", "SpeechT5"), "audio"),
    **dict.fromkeys(("SentenceTransformer", "AutoModel.from_pretrained"), "embed"),
    **dict.fromkeys(("DiffusionPipeline", "UNet2DConditionModel", "StableDiffusion", "FluxPipeline"), "diffusion"),
    **dict.fromkeys(("DiffusionGemma", "BlockDiffusion"), "diffusion"),
}
"""Parts of a class's name, and what it is trained for."""
SERVED = ("vllm.LLM",)
"""Models that answer and are not trained."""
COLUMNS = ("image", "images", "pixel_values")
VISION_COLLATORS = ("UnslothVisionDataCollator", "DataCollatorForVisionLanguageModeling")


class ScriptTraining(NamedTuple):
    task: str
    trainer: Made
    arguments: Made | None
    model: Made | str | None
    """What loads it, or its name."""
    puts_adapters: Made | None
    """The call of get_peft_model."""
    adapter: Made | None
    """LoraConfig or another."""
    quantization: Made | None
    """BitsAndBytesConfig or another."""


def training_of(script: ScriptSource) -> ScriptTraining | None:
    """The last trainer that is made, where one is."""
    trainer = script.last(*TRAINERS)
    if trainer is None:
        return None
    task = next(task for name, task in TRAINERS.items() if trainer.is_a(name))
    given = trainer.get("args", 1)
    arguments = given if isinstance(given, Made) else script.last(*ARGUMENTS)
    model = loaded(trainer.get("model", 0))
    if model is None or (isinstance(model, Made) and not model.name.endswith("from_pretrained")):
        model = script.last("from_pretrained_model", *loaders(script)) or model
    put = script.last("get_peft_model")
    adapter = trainer.get("peft_config")
    if not isinstance(adapter, Made) and put is not None:
        adapter = put.get("peft_config", 1)
    packed = trainer.get("quantization_config")
    if not isinstance(packed, Made) and isinstance(model, Made):
        packed = model.get("quantization_config")
    if not isinstance(packed, Made) and isinstance(arguments, Made):
        of_model = arguments.get("model_init_kwargs")
        packed = of_model.get("quantization_config") if isinstance(of_model, dict) else None
    return ScriptTraining(
        task, trainer, arguments, model, put, adapter if isinstance(adapter, Made) else None,
        packed if isinstance(packed, Made) else None,
    )  # fmt: skip


def loaders(script: ScriptSource) -> tuple[str, ...]:
    """Names of the calls that load a model rather than a tokenizer, a processor or a configuration."""
    others = ("Tokenizer", "Processor", "Config", "FeatureExtractor", "PeftModel", "get_chat_template")
    return tuple(
        {
            call.name
            for call in script.calls
            if (call.name.endswith(".from_pretrained") and not any(other in call.name for other in others))
            or call.name in SERVED
        }
    )


def loaded(model: Any) -> Made | str | None:
    """Through what was put around it."""
    for _ in range(20):
        if not isinstance(model, Made):
            return model if isinstance(model, str) else None
        if not model.is_a(*WRAPPERS):
            return model
        model = model.get("model", 0)
    return None


def other_kind(script: ScriptSource, training: ScriptTraining) -> str | None:
    """What is trained for where it is no text that is continued."""
    names = [training.model.name] if isinstance(training.model, Made) else []
    if isinstance(training.model, Made):
        names += [str(value) for value in training.model.arguments.values() if isinstance(value, str)][:20]
        auto = training.model.arguments.get("auto_model")
        names += [str(auto)] if auto is not None else []
    for part, kind in OTHER_MODELS.items():
        if any(part in name for name in names):
            return kind
    if any(True for _ in script.of(*VISION_COLLATORS)):
        return "vision"
    return "vision" if sees(model_name(training.model)) and names_images(script) else None


def sees(model: str | None) -> bool:
    """A model with a tower, as far as that is known here."""
    known = known_model(model)
    return known is not None and "vision_config" in known.raw


def names_images(script: ScriptSource) -> bool:
    """Its text takes images out of the data's rows: `example["image"]`."""
    try:
        statements = statements_of(Path(script.file))
    except TunecastError:
        return False
    return any(
        isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value in COLUMNS
        for statement in statements
        for node in ast.walk(statement)
    )


def put_task(draft: Draft, script: ScriptSource, training: ScriptTraining) -> None:
    kind, keys = other_kind(script, training), script.called(draft)
    loss = training.arguments.get("loss_type") if training.arguments is not None else None
    task = task_of_loss(training.task, loss)
    if task not in TASKS:
        draft.refuse(task, "nothing of this kind of training is modelled")
    elif kind == "classify" and task == "sft":
        draft.put("task", kind, keys, training.trainer.title)
        return
    elif kind not in (None, "vision", "classify") and (kind, task) != ("embed", "embed"):
        draft.refuse(str(kind), "models that continue text are modelled")
    if kind == "vision":
        assume_images(draft)
    if task == "sft":
        draft.assume("task", "sft")
    elif task in TASKS:
        draft.put("task", task, keys, training.trainer.title)


def model_name(given: Any) -> str | None:
    """Of a model that is named, or of the call that loads it."""
    found = loaded(given)
    if isinstance(found, Made):
        found = found.get("model_name") or found.get("pretrained_model_name_or_path", 0)
    return found if isinstance(found, str) and not isinstance(found, DottedName) else None
