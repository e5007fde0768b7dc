"""Full fine-tuning with the Hugging Face Trainer on texts of varying length, padded batch by batch.

Self-contained and offline: a Llama of the size of Llama-3.2-1B with random weights, synthetic data.

    python trainer_full.py --steps 12                     train, and print the memory it took
    tunecast trace -- trainer_full.py --steps 12          the same figures before the job starts, without a GPU
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments

VOCABULARY = 128256


def config(layers: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=2048, intermediate_size=8192, num_hidden_layers=layers,
        num_attention_heads=32, num_key_value_heads=8, head_dim=64, max_position_embeddings=131072,
        rope_theta=500000.0, rms_norm_eps=1e-5, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip


def texts(count: int, shortest: int, longest: int, seed: int) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randrange(VOCABULARY - 1) for _ in range(chance.randint(shortest, longest))] for _ in range(count)]


def padded(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    longest = max(len(row["input_ids"]) for row in rows)
    ids = [row["input_ids"] + [VOCABULARY - 1] * (longest - len(row["input_ids"])) for row in rows]
    mask = [[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows]
    labels = [row["input_ids"] + [-100] * (longest - len(row["input_ids"])) for row in rows]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), "labels": torch.tensor(labels)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--longest", type=int, default=2048)
    parser.add_argument("--checkpointing", action="store_true")
    options = parser.parse_args()

    model = AutoModelForCausalLM.from_config(config(options.layers), dtype=torch.float32)
    rows = texts(options.steps * options.batch * options.accumulate, 64, options.longest, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                folder,
                max_steps=options.steps,
                per_device_train_batch_size=options.batch,
                gradient_accumulation_steps=options.accumulate,
                gradient_checkpointing=options.checkpointing,
                bf16=True,
                learning_rate=1e-5,
                lr_scheduler_type="cosine",
                warmup_steps=2,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                dataloader_num_workers=2,
            ),
            train_dataset=[{"input_ids": ids} for ids in rows],
            data_collator=padded,
        )
        trainer.train()
    report()


def report() -> None:
    if torch.cuda.is_available():
        figures = {
            "max_memory_allocated": torch.cuda.max_memory_allocated(),
            "max_memory_reserved": torch.cuda.max_memory_reserved(),
        }
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
