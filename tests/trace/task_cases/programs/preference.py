"""TRL's trainers of preferences, as a script calls them."""

from __future__ import annotations

from typing import Any

from common import adapters, model_of, settings, text, tokenizer
from datasets import Dataset
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

TRAINERS: dict[str, Any] = {
    "dpo": (DPOTrainer, DPOConfig, {}),
    "kto": (KTOTrainer, KTOConfig, {}),
    "orpo": (ORPOTrainer, ORPOConfig, {}),
    "cpo": (CPOTrainer, CPOConfig, {}),
    "simpo": (CPOTrainer, CPOConfig, {"loss_type": "simpo", "cpo_alpha": 0.0}),
}
WITH_REFERENCE = ("dpo", "kto")
SAMPLES = 24


def train(case: dict[str, Any]) -> None:
    trainer, config, asked = TRAINERS[case["task"]]
    asked = {**asked, "use_liger_kernel": bool(case["kernels"])}
    references = []
    if case["task"] in WITH_REFERENCE:
        asked["precompute_ref_log_probs"] = case["reference"] == "precomputed"
        second = case["reference"] == "model" or (case["method"] == "full" and case["reference"] is None)
        references = [model_of(case) if second else None]
    trainer(
        model_of(case),
        *references,
        config(max_length=case["length"], **settings(case), **asked),
        train_dataset=Dataset.from_list([sample(case, number) for number in range(SAMPLES)]),
        processing_class=tokenizer(),
        peft_config=adapters(case),
    ).train()


def sample(case: dict[str, Any], number: int) -> dict[str, Any]:
    """Rows of the case's length, with the end; every other one of single answers is a good one."""
    answer = case["length"] - case["prompt"] - 1
    prompt = text(case["prompt"], number) + " "
    first, second = (text(answer, number + more) for more in (1, 2))
    if case["task"] == "kto":
        return {"prompt": prompt, "completion": first, "label": number % 2 == 0}
    return {"prompt": prompt, "chosen": first, "rejected": second}
