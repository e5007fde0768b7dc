"""What Automodel trains for: recipes by their classes, teachers, encoders of texts, and what is refused by name.

Recipes  nemo_automodel/recipes: llm/train_ft.py, llm/kd.py, vlm/finetune.py, vlm/kd.py, retrieval/train_bi_encoder.py,
         `TrainBiEncoderRecipe`, and train_cross_encoder.py; of 0.7.0
Data     components/datasets/llm/retrieval_dataset.py, `RetrievalDatasetConfig` (n_passages: one that answers, and
         others) and retrieval_collator.py (`q_max_len`, `p_max_len`, `rerank_max_length`)
"""

from __future__ import annotations

from collections.abc import Mapping

from tunecast.job.recipes.cards import is_count
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.frameworks.automodel_images import VISION_MODEL, VISION_RECIPE, VISION_STUDENT
from tunecast.job.recipes.frameworks.automodel_parallel import class_name
from tunecast.job.recipes.huggingface import is_on
from tunecast.job.recipes.values import number

NEXT_TOKEN = "TrainFinetuneRecipeForNextTokenPrediction"
BENCHMARK = "BenchmarkingRecipeForNextTokenPrediction"
_SPECULATIVE = ("speculative decoding", "a head that drafts tokens is trained beside a frozen model")
_VISION = ("vision", "the model takes images or sound beside text")
_DISTILLATION = ("distillation", "a teacher's logits stand beside the model's own")
_DIFFUSION = ("diffusion", "images or videos are made of noise")
_DIFFUSION_TEXT = ("diffusion language model", "masked tokens are told at once, not the next one")
OTHER_RECIPES: Mapping[str, tuple[str, str]] = {
    "FinetuneRecipeForMultimodal": _VISION,
    "PretrainRecipeForMultimodal": _VISION,
    "EmbeddingDistillRecipe": _DISTILLATION,
    "TrainFinetuneRecipeForSequenceClassification": ("classification", "a head of labels takes the vocabulary's place"),
    "MineHardNegativesRecipe": ("inference", "hard negatives are looked for; nothing is trained"),
    "TrainDiffusionRecipe": _DIFFUSION,
    "DiffusionLMSFTRecipe": _DIFFUSION_TEXT,
    "DiffusionGemmaSFTRecipe": _DIFFUSION_TEXT,
    **dict.fromkeys(
        ("TrainEagle1Recipe", "TrainEagle2Recipe", "TrainEagle3Recipe", "TrainDFlashRecipe", "TrainDFlash2Recipe",
         "TrainDSparkRecipe", "TrainDominoRecipe", "TrainJetSpecRecipe", "TrainVispecRecipe",
         "TrainVispecStage1Recipe"),
        _SPECULATIVE,
    ),
}  # fmt: skip
"""Classes of nemo_automodel/recipes that train for something else."""
OTHER_MODELS: Mapping[str, tuple[str, str]] = {
    VISION_MODEL: _VISION,
    "NeMoAutoModelForMultimodalLM": _VISION,
    "NeMoAutoModelForTextToWaveform": _VISION,
    "NeMoAutoModelForSeq2SeqLM": ("sequence to sequence", "the model has an encoder"),
    "NeMoAutoModelForSequenceClassification": ("classification", "a head of labels takes the vocabulary's place"),
    "NeMoAutoDiffusionPipeline": _DIFFUSION,
    "Gemma4WithDrafter": _SPECULATIVE,
}
"""What `model._target_` may name; the recipe's class need not say it."""
OTHER_SECTIONS: Mapping[str, tuple[str, str]] = {
    "flow_matching": _DIFFUSION,
    "dllm": _DIFFUSION_TEXT,
    "recipe_args.draft_num_hidden_layers": _SPECULATIVE,
    "recipe_args.target_model_name_or_path": _SPECULATIVE,
    "processor": _VISION,
    "inference": ("inference", "nothing is trained"),
}
OWN_TASKS: Mapping[str, str] = {
    "KnowledgeDistillationRecipeForNextTokenPrediction": "distill",
    VISION_STUDENT: "distill",
    "TrainBiEncoderRecipe": "embed",
    "TrainCrossEncoderRecipe": "rerank",
}
ENCODERS = ("embed", "rerank")
OWN_RECIPES = frozenset({NEXT_TOKEN, BENCHMARK, VISION_RECIPE, *OWN_TASKS, *OTHER_RECIPES})
PRETRAINING = ("MegatronPretraining", "NanogptDataset", "MockIterableDataset")
"""Data sets of text without prompts, in full rows."""

PASSAGES = 5
"""components/datasets/llm/retrieval_dataset.py, `RetrievalDatasetConfig`, n_passages."""
LENGTH = 512
"""components/datasets/llm/retrieval_collator.py, `BiEncoderCollator`, p_max_len."""


def factory(path: object) -> str:
    """Of `package.Class.from_pretrained` the class, else what is called."""
    parts = path.split(".") if isinstance(path, str) else [""]
    return parts[-2] if len(parts) > 1 and parts[-1].startswith("from_") else parts[-1]


def take_task(draft: Draft, keys: Keys, sees: bool) -> None:
    """`sees`: on images, whose recipe has a model and a section of its own."""
    recipe = class_name(keys.get("recipe"), keys.get("recipe._target_"))
    own = (VISION_MODEL, "processor") if sees else ()
    trains = OWN_TASKS.get(recipe, "sft")
    model = factory(keys.document.get("model._target_"))
    other = OTHER_RECIPES.get(recipe) or (None if model in own else OTHER_MODELS.get(model))
    if other is None and recipe not in (NEXT_TOKEN, *OWN_TASKS):
        sections = (name for name in OTHER_SECTIONS if name not in own and keys.document.get(name) is not None)
        other = next((OTHER_SECTIONS[name] for name in sections), None)
    if other is None and keys.get("qat.enabled") is True:
        other = ("QAT", "weights are rounded while they are trained")
    if other is not None:
        draft.refuse(*other)
    elif recipe not in ("", *OWN_RECIPES):
        draft.refuse(recipe[:60], "a recipe that is not known here")
    if class_name(keys.document.get("dataset._target_")) in PRETRAINING:
        draft.put("task", "pretrain", keys, "dataset._target_")
        draft.put("data.packing", True, keys, "dataset._target_")
        draft.put("data.packing_strategy", "wrapped", keys, "dataset._target_")
    elif other is None:
        draft.put("task", trains, keys, "recipe", "model._target_")


def take_task_keys(draft: Draft, keys: Keys) -> None:
    if draft.fields.get("task") == "distill":
        take_teacher(draft, keys)
    elif draft.fields.get("task") in ENCODERS:
        take_passages(draft, keys)


def take_teacher(draft: Draft, keys: Keys) -> None:
    """recipes/kd_utils.py, `create_kd_distributed_setups`: with `separate_meshes` the teacher has cards of its own,
    beyond those of `distributed`."""
    draft.take("distill.teacher", keys, "teacher_model.pretrained_model_name_or_path")
    draft.assume("distill.on_policy", 0.0)
    if is_on(keys.get("separate_meshes")):
        draft.put("distill.place", "server", keys, "separate_meshes")
        draft.not_modelled(keys, "teacher_distributed", "the teacher's own cards are not counted")
    elif is_on(keys.get("offload_teacher_model")):
        draft.not_modelled(keys, "offload_teacher_model", "the teacher is taken to stay on the card")
    if (number(keys.get("kd_loss_fn.chunk_size")) or 0) > 0:
        draft.not_modelled(keys, "kd_loss_fn.chunk_size", "the loss is told of all tokens at once, which takes more")
    keys.without("teacher_model.*", "kd_loss_fn.*", "kd_ratio", "teacher_distributed.*", "offload_teacher_model")


def take_passages(draft: Draft, keys: Keys) -> None:
    """Of each query one passage answers it; a reranker reads every pair."""
    passages = keys.get("dataset.n_passages", "train_n_passages", "dataset.train_n_passages")
    if is_count(passages):
        draft.put("head.negatives", passages - 1, keys, "dataset.n_passages", "train_n_passages")
    draft.assume("head.negatives", PASSAGES - 1)
    draft.assume("loss", None)
    if is_on(keys.get("model.use_liger_kernel")):
        draft.not_modelled(keys, "model.use_liger_kernel", "transformers' own kernels are taken")
    keys.without(
        *("model.pooling", "model.l2_normalize", "model.temperature", "temperature", "model.do_distributed*"),
        *("model.detach_distributed*", "train_n_passages", "model.num_labels", "model.share_encoder"),
        *("model.add_linear_pooler", "model.out_dimension", "eval_negative_size"),
    )


def take_rows_of_encoders(draft: Draft, keys: Keys) -> None:
    """Queries are told as long as passages."""
    collator = "dataloader.collate_fn"
    names = (f"{collator}.p_max_len", f"{collator}.rerank_max_length", f"{collator}.q_max_len")
    draft.take("seq_len", keys, *names)
    draft.assume("seq_len", LENGTH)
    draft.assume("data.packing", False)
