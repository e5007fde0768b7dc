"""Trainers of heads in the vocabulary's place, as a script calls them."""

from __future__ import annotations

from typing import Any

from common import adapters, model_of, settings, text, tokenizer
from datasets import Dataset
from peft import get_peft_model
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)
from trl import RewardConfig, RewardTrainer
from trl.trainer.utils import disable_dropout_in_model


def train(case: dict[str, Any]) -> None:
    trainers = {"reward": train_reward, "classify": train_classifier, "prm": train_process_reward}
    trainers[case["task"]](case)


def model_with_head(case: dict[str, Any]) -> Any:
    return model_of(case, AutoModelForSequenceClassification, num_labels=case["labels"], pad_token_id=0)


def train_reward(case: dict[str, Any]) -> None:
    length = case["length"] - 1  # and the end
    pairs = [{"chosen": text(length, i + 1), "rejected": text(length, i + 2)} for i in range(16)]
    RewardTrainer(
        model_with_head(case),
        RewardConfig(max_length=case["length"], **settings(case)),
        train_dataset=Dataset.from_list(pairs),
        processing_class=tokenizer(),
        peft_config=adapters(case, "SEQ_CLS"),
    ).train()


def train_classifier(case: dict[str, Any]) -> None:
    words = tokenizer()
    samples = [{**words(text(case["length"], i)), "label": i % case["labels"]} for i in range(16)]
    model, lora = model_with_head(case), adapters(case, "SEQ_CLS")
    Trainer(
        model if lora is None else get_peft_model(model, lora),
        TrainingArguments(**settings(case)),
        train_dataset=Dataset.from_list(samples),
        data_collator=DataCollatorWithPadding(words),
    ).train()


def train_process_reward(case: dict[str, Any]) -> None:
    """What `PRMTrainer` of TRL 1.13 and before does: transformers' Trainer with a classifier of tokens."""
    words = tokenizer()
    samples = [
        {**words(text(case["length"], i)), "labels": [place % 2 for place in range(case["length"])]} for i in range(16)
    ]
    model = model_of(case, AutoModelForTokenClassification, num_labels=case["labels"], pad_token_id=0)
    lora = adapters(case, "TOKEN_CLS")
    model = model if lora is None else get_peft_model(model, lora)
    disable_dropout_in_model(model)
    Trainer(
        model,
        TrainingArguments(**settings(case)),
        train_dataset=Dataset.from_list(samples),
        data_collator=DataCollatorForTokenClassification(words),
    ).train()
