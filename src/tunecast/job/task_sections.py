"""What a job says of tasks beyond a language model's own loss: preferences, rollouts, heads, teachers; of images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tunecast.job.knob import OURS, Section, field, section, trl
from tunecast.job.names import HEADS, PREFERENCES, ROLLOUTS, TAUGHT
from tunecast.records import dataclass


@dataclass(frozen=True)
class Preference(Section):
    reference: str | None = field(
        None,
        OURS,
        "where the reference's log-probabilities come from: a second model on the card, the same model with its "
        "adapters off, a pass over the data before training, or nowhere; null: as the trainer does (a model, or "
        "adapters_off with method lora and qlora; none for tasks without a reference)",
        choices=("model", "adapters_off", "precomputed", "none"),
    )
    beta: float = field(0.1, trl("DPOConfig.beta"), "weight of the reference", within=(0, 1e6), flag="beta")
    sft_weight: float | None = field(
        None,
        OURS,
        "weight of the language-modelling loss on the chosen answers, which cpo and simpo may add to theirs; "
        "null: 1 for cpo, 0 for simpo",
        within=(0, 1e6),
        aka="cpo_alpha",
        flag="sft-weight",
    )
    prompt_length: int = field(
        0,
        OURS,
        "prompt tokens at the start of each row, which have no labels; used if the data does not say",
        within=(0, 10_000_000),
        aka="max_prompt_length",
        kilo=1024,
        flag="preference-prompt-length",
    )


@dataclass(frozen=True)
class Vllm(Section):
    within: ClassVar[str] = "rl."

    place: str = field(
        "colocate",
        trl("GRPOConfig.vllm_mode"),
        "where vLLM runs: on the training cards, or on cards of its own, which cost extra",
        choices=("colocate", "server"),
        aka="vllm_mode",
        flag="vllm-place",
    )
    memory_fraction: float = field(
        0.3,
        trl("GRPOConfig.vllm_gpu_memory_utilization"),
        "share of a card that vLLM may take for weights, cache and CUDA graphs; a server's own default is 0.9",
        within=(0, 1),
        above_low=True,
        aka="vllm_gpu_memory_utilization gpu_memory_utilization",
        flag="vllm-memory-fraction",
    )
    tensor: int = field(
        1,
        trl("GRPOConfig.vllm_tensor_parallel_size"),
        "cards that share one copy of vLLM's weights",
        within=(1, 1024),
        aka="vllm_tensor_parallel_size",
        flag="vllm-tensor",
    )
    sleep: bool = field(
        False,
        trl("GRPOConfig.vllm_enable_sleep_mode"),
        "vLLM frees its memory while the model trains",
        aka="vllm_enable_sleep_mode",
        flag="vllm-sleep",
    )
    cards: int = field(
        1, OURS, "with place server: cards of the server, besides those that train", within=(1, 1024), flag="vllm-cards"
    )


@dataclass(frozen=True)
class Rl(Section):
    generations: int = field(
        8,
        trl("GRPOConfig.num_generations"),
        "completions per prompt",
        within=(1, 65536),
        aka="num_generations group_size",
    )
    prompt_length: int | None = field(
        None,
        OURS,
        "tokens of the longest prompt; if seq_len is not given, it is this plus completion_length; null: seq_len "
        "minus completion_length, or 512 if seq_len is not given either",
        within=(1, 10_000_000),
        kilo=1024,
        flag="prompt-length",
    )
    completion_length: int = field(
        512,
        trl("GRPOConfig.max_completion_length"),
        "tokens generated per completion",
        within=(1, 10_000_000),
        aka="max_completion_length response_length max_new_tokens",
        kilo=1024,
    )
    steps_per_generation: int | None = field(
        None,
        trl("GRPOConfig.steps_per_generation"),
        "micro-batches per generation; null: grad_accum",
        within=(1, 100_000),
    )
    iterations: int = field(
        1,
        trl("GRPOConfig.num_iterations"),
        "times each completion is trained on",
        within=(1, 1000),
        aka="num_iterations num_ppo_epochs",
    )
    beta: float = field(
        0.0,
        trl("GRPOConfig.beta"),
        "weight of the distance to a reference; 0: no reference",
        within=(0, 1e6),
        flag="rl-beta",
        aka="kl_coef",
    )
    reward_model: str | None = field(
        None,
        OURS,
        "model on the card that scores completions; null: functions, which take no memory there; for ppo, a model "
        "of the policy's size",
    )
    engine: str = field(
        "transformers",
        trl("GRPOConfig.use_vllm", False),
        "what generates the completions",
        choices=("transformers", "vllm"),
        flag="rl-engine",
    )
    vllm: Vllm = section(Vllm, "with engine vllm")


@dataclass(frozen=True)
class Vision(Section):
    images: int = field(
        0, OURS, "images per sample; 0: text only", within=(0, 10_000), aka="images_per_sample", kilo=1000
    )
    pixels: int | None = field(
        None,
        OURS,
        "pixels of each image or frame as the model gets it; null: the most that its processor allows and a row "
        "has room for",
        within=(1, 10**9),
        aka="max_pixels image_max_pixels",
        kilo=1000,
    )
    frames: int = field(
        0,
        OURS,
        "frames of the video in each sample; 0: no video",
        within=(0, 1_000_000),
        aka="num_frames video_max_frames",
    )
    tiles: int | None = field(
        None,
        OURS,
        "tiles per image, for models that cut images up (Llama 3.2, InternVL, LLaVA-NeXT); null: as many as "
        "pixels fill, or one",
        within=(1, 1000),
        aka="max_num_tiles max_patches",
    )
    trained: tuple[str, ...] | None = field(
        None,
        OURS,
        "parts to train, or to adapt if the method has adapters: tower, projector, language; null: as the stack does",
        choices=("tower", "projector", "language"),
        flag="vision-trained",
    )

    @property
    def has_images(self) -> bool:
        return self.images > 0 or self.frames > 0


@dataclass(frozen=True)
class Distill(Section):
    teacher: str | None = field(
        None, OURS, "the teacher model: bundled name, Hub id or path", aka="teacher_model_name_or_path"
    )
    place: str = field(
        "card", OURS, "where the teacher runs: on the training cards, or elsewhere", choices=("card", "server"),
        flag="teacher-place",
    )  # fmt: skip
    on_policy: float | None = field(
        None,
        OURS,
        "share of batches whose completions the student generates; null: as the trainer does",
        within=(0, 1),
        aka="lmbda",
    )
    top_k: int | None = field(
        None,
        OURS,
        "largest teacher logits kept per token; null: all, or 64 if the teacher runs elsewhere",
        within=(1, 1_000_000),
        aka="gkd_logits_topk",
        flag="teacher-top-k",
    )


@dataclass(frozen=True)
class Head(Section):
    labels: int | None = field(
        None,
        OURS,
        "outputs of the head that replaces the vocabulary's; null: 2 for classify and prm, 1 for reward and rerank",
        within=(1, 10_000_000),
        aka="num_labels",
    )
    negatives: int = field(
        0,
        OURS,
        "with embed: negative texts per sample, besides the positive one",
        within=(0, 1000),
        aka="num_hard_negatives",
    )


OF_TASKS: Mapping[str, tuple[str, ...]] = {
    "preference": PREFERENCES,
    "rl": (*ROLLOUTS, "distill"),
    "head": HEADS,
    "distill": TAUGHT,
}
"""By section: the tasks it says something about."""
OF_OTHERS: Mapping[str, str] = {
    "preference": "which compares no answers",
    "rl": "which generates nothing",
    "head": "whose head is the vocabulary's",
    "distill": "which has no teacher",
}
"""What is said of other tasks."""
SECTIONS: Mapping[str, type[Section]] = {"preference": Preference, "rl": Rl, "head": Head, "distill": Distill}
"""Those of them, as they are declared."""
