"""TRL's trainers of rollouts, as a script calls them: GRPO and RLOO, rewarded by a function."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from common import adapters, folder_of, model_of, settings, text, tokenizer
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration

TRAINERS = {"grpo": (GRPOTrainer, GRPOConfig), "rloo": (RLOOTrainer, RLOOConfig)}


def reward(completions: list[str], **kwargs: Any) -> list[float]:
    """Longer is better."""
    return [float(len(completion)) for completion in completions]


class Engine:
    """In vLLM's place: what it gives back, without what it holds of the card."""

    def generate(self, prompts: list[dict[str, Any]], sampling_params: dict[str, Any], use_tqdm: bool) -> list[Any]:
        length = sampling_params["max_tokens"]
        written = SimpleNamespace(
            token_ids=[5] * length, logprobs=[{5: SimpleNamespace(rank=1, logprob=-0.5)}] * length
        )
        return [SimpleNamespace(prompt_token_ids=prompt["prompt_token_ids"], outputs=[written]) for prompt in prompts]


class Written(VLLMGeneration):
    """With that engine, which reads no weights."""

    def _init_vllm(self) -> None:
        self.llm = Engine()

    def sync_weights(self) -> None:
        for _ in self._iter_named_params():
            pass


def train(case: dict[str, Any]) -> None:
    vllm_generation.SamplingParams = dict
    for name in (GRPOTrainer.__module__, RLOOTrainer.__module__):
        sys.modules[name].VLLMGeneration = Written  # type: ignore[attr-defined]
    trainer, config = TRAINERS[case["task"]]
    model = model_of(case)
    model.config._name_or_path = str(folder_of(case["config"], case["weights_dtype"]))  # a reference is loaded from it
    trainer(
        model,
        reward_funcs=reward,
        args=config(
            max_completion_length=case["completion"],
            num_generations=case["generations"],
            beta=case["beta"],
            num_iterations=case["iterations"],
            steps_per_generation=case["served"],
            use_vllm=case["engine"] == "vllm",
            **settings(case),
        ),
        train_dataset=Dataset.from_list([{"prompt": text(case["prompt"], i)} for i in range(16)]),
        processing_class=tokenizer(),
        peft_config=adapters(case),
    ).train()
