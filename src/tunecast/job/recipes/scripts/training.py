"""The training in a script: its trainer, its arguments, its model, and what is put into that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.job.names import TASKS
from tunecast.job.recipes.draft import Draft
from tunecast.job.recipes.scripts.script import ScriptSource
from tunecast.job.recipes.scripts.values import Made
from tunecast.records import NamedTuple

TRAINERS: Mapping[str, str] = {
    **dict.fromkeys(("Trainer", "Seq2SeqTrainer", "SFTTrainer", "UnslothTrainer"), "sft"),
    **{"DPOTrainer": "dpo", "ORPOTrainer": "orpo", "KTOTrainer": "kto", "RewardTrainer": "reward"},
    **{"GRPOTrainer": "grpo", "CPOTrainer": "cpo", "PPOTrainer": "ppo", "PPOv2Trainer": "ppo", "RLOOTrainer": "rloo"},
    **{"OnlineDPOTrainer": "online dpo", "XPOTrainer": "xpo", "NashMDTrainer": "nash-md", "BCOTrainer": "bco"},
    **{"PRMTrainer": "process reward", "GKDTrainer": "distillation", "GOLDTrainer": "distillation"},
    **{"MiniLLMTrainer": "distillation", "SDFTTrainer": "distillation", "SDPOTrainer": "distillation"},
    **{"DistillationTrainer": "distillation", "AsyncGRPOTrainer": "grpo", "GSPOTokenTrainer": "grpo"},
    **{"GRPOWithReplayBufferTrainer": "grpo", "PAPOTrainer": "grpo", "TPOTrainer": "tpo", "DDPOTrainer": "diffusion"},
    **{"SentenceTransformerTrainer": "embedding", "CrossEncoderTrainer": "reranking", "AlignPropTrainer": "diffusion"},
    **{"IterativeSFTTrainer": "iterative sft", "SSDTrainer": "distillation", "EBFTTrainer": "energy-based tuning"},
}
"""By the name of its class: the task."""
ARGUMENTS = (
    *("TrainingArguments", "SFTConfig", "Seq2SeqTrainingArguments", "UnslothTrainingArguments"),
    *("DPOConfig", "GRPOConfig", "ORPOConfig", "KTOConfig", "RewardConfig"),
)
WRAPPERS = (
    *("get_peft_model", "prepare_model_for_kbit_training", "prepare_model_for_int8_training", "compile", "prepare"),
    *("PeftModel.from_pretrained", "patch_model", "prepare_model"),
)
"""Calls that give a model back, which is their first argument or `model`."""
OTHER_MODELS: Mapping[str, str] = {
    **dict.fromkeys(("SequenceClassification", "TokenClassification", "QuestionAnswering"), "classification"),
    **dict.fromkeys(("ImageTextToText", "Vision2Seq", "VisionModel", "VisionEncoderDecoder"), "vision"),
    **dict.fromkeys(("MaskedLM", "Seq2SeqLM"), "another architecture than a decoder"),
    **dict.fromkeys(("SpeechSeq2Seq", "Whisper", "Csm", "TextToWaveform", "AudioModel", "SpeechT5"), "audio"),
    **dict.fromkeys(("SentenceTransformer", "AutoModel.from_pretrained"), "embedding"),
    **dict.fromkeys(("DiffusionPipeline", "UNet2DConditionModel", "StableDiffusion", "FluxPipeline"), "diffusion"),
    **dict.fromkeys(("DiffusionGemma", "BlockDiffusion"), "diffusion"),
}
"""Parts of a class's name, and what it is trained for."""
SERVED = ("vllm.LLM",)
"""Models that answer and are not trained."""
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
    return "vision" if any(True for _ in script.of(*VISION_COLLATORS)) else None


def put_task(draft: Draft, script: ScriptSource, training: ScriptTraining) -> None:
    kind = other_kind(script, training)
    if training.task not in TASKS:
        draft.refuse(training.task, "nothing of this kind of training is modelled")
    elif kind is not None:
        draft.refuse(kind, "models that continue text are modelled")
    elif training.task == "sft":
        draft.assume("task", "sft")
    else:
        draft.put("task", training.task, script.called(draft), training.trainer.title)
