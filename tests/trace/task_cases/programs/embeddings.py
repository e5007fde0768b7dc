"""sentence-transformers' trainers of embeddings and rerankers, as a script calls them."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from common import adapters, folder_of, settings, text, tokenizer
from datasets import Dataset
from sentence_transformers import (
    CrossEncoder,
    CrossEncoderTrainer,
    CrossEncoderTrainingArguments,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import AutoProcessor


def train(case: dict[str, Any]) -> None:
    {"embed": train_embedder, "rerank": train_reranker}[case["task"]](case)


def train_embedder(case: dict[str, Any]) -> None:
    """sentence-transformers: the last token's hidden state stands for a text."""
    folder = folder_of({**case["config"], "pad_token_id": 0}, case["weights_dtype"])
    with patch.object(AutoProcessor, "from_pretrained", return_value=tokenizer()):
        body = Transformer(str(folder), model_kwargs={"dtype": case["weights_dtype"]})
    body.max_seq_length = case["length"]
    pooling = Pooling(case["config"]["hidden_size"], pooling_mode="lasttoken")
    model = SentenceTransformer(modules=[body, pooling], device="cpu")
    lora = adapters(case, "FEATURE_EXTRACTION")
    if lora is not None:
        model.add_adapter(lora)
    length = case["length"]
    samples = [{"anchor": text(length, i), "positive": text(length, i + 1)} for i in range(16)]
    SentenceTransformerTrainer(
        model,
        SentenceTransformerTrainingArguments(**settings(case)),
        train_dataset=Dataset.from_list(samples),
        loss=MultipleNegativesRankingLoss(model),
    ).train()


def train_reranker(case: dict[str, Any]) -> None:
    """sentence-transformers: a query and a document are one row, of a classifier. Of a language model it would take the
    vocabulary's logits of the last token for scores."""
    architectures = ["LlamaForSequenceClassification"]
    config = {**case["config"], "architectures": architectures, "pad_token_id": 0}
    folder = folder_of(config, case["weights_dtype"])
    with patch.object(AutoProcessor, "from_pretrained", return_value=tokenizer()):
        model = CrossEncoder(
            str(folder), num_labels=case["labels"], device="cpu", max_length=case["length"],
            model_kwargs={"dtype": case["weights_dtype"]},
        )  # fmt: skip
    lora = adapters(case, "SEQ_CLS")
    if lora is not None:
        lora.modules_to_save = ["score"]  # which transformers' `add_adapter` leaves frozen by itself
        model.add_adapter(lora)
    half = case["length"] // 2
    samples = [
        {"query": text(half, i), "document": text(case["length"] - half, i + 1), "label": float(i % 2)}
        for i in range(16)
    ]
    CrossEncoderTrainer(
        model,
        CrossEncoderTrainingArguments(**settings(case)),
        train_dataset=Dataset.from_list(samples),
        loss=BinaryCrossEntropyLoss(model),
    ).train()
