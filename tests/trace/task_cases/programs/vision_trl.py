"""TRL's SFTTrainer of a model with a vision tower. What its `DataCollatorForVisionLanguageModeling` gives is the
processor's, as programs/vision.py makes it: processors need packages for images, which are not installed."""

from __future__ import annotations

from typing import Any

from common import adapters, model_of, settings, tokenizer
from datasets import Dataset
from transformers import AutoModelForImageTextToText
from trl import SFTConfig, SFTTrainer
from vision import Collator


def train(case: dict[str, Any]) -> None:
    arguments = {"remove_unused_columns": False, "dataset_kwargs": {"skip_prepare_dataset": True}}
    SFTTrainer(
        model_of(case, AutoModelForImageTextToText),
        SFTConfig(max_length=None, **arguments, **settings(case)),
        Collator(case),
        train_dataset=Dataset.from_list([{"input_ids": [n], "labels": [n]} for n in range(16)]),
        processing_class=tokenizer(),
        peft_config=adapters(case),
    ).train()
