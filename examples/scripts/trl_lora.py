"""LoRA with TRL's SFTTrainer on texts of varying length.

Self-contained and offline: a Llama of the size of Llama-3.2-1B with random weights, a tokenizer of made-up words.

    python trl_lora.py --steps 12                         train, and print the memory it took
    tunecast trace --steps 12 -- trl_lora.py              the same figures before the job starts, without a GPU
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

VOCABULARY = 128256
WORDS = VOCABULARY - 4


def config(layers: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=2048, intermediate_size=8192, num_hidden_layers=layers,
        num_attention_heads=32, num_key_value_heads=8, head_dim=64, max_position_embeddings=131072,
        rope_theta=500000.0, rms_norm_eps=1e-5, tie_word_embeddings=True,
    )  # fmt: skip


def tokenizer() -> PreTrainedTokenizerFast:
    special = ("<unk>", "<pad>", "<s>", "</s>")
    vocabulary = {f"w{i}": i for i in range(WORDS)} | {name: WORDS + i for i, name in enumerate(special)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    unknown, padding, begin, end = special
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token=unknown, pad_token=padding, bos_token=begin, eos_token=end
    )


def texts(count: int, shortest: int, longest: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [
        " ".join(f"w{chance.randrange(WORDS)}" for _ in range(chance.randint(shortest, longest))) for _ in range(count)
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--packing", action="store_true")
    options = parser.parse_args()

    model = AutoModelForCausalLM.from_config(config(options.layers), dtype=torch.bfloat16)
    rows = texts(options.steps * options.batch, 32, options.longest, seed=2)
    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            model=model,
            args=SFTConfig(
                folder, max_steps=options.steps, per_device_train_batch_size=options.batch, bf16=True,
                max_length=options.longest, packing=options.packing, learning_rate=1e-4, logging_steps=1,
                save_strategy="no", report_to=[],
            ),  # fmt: skip
            train_dataset=Dataset.from_list([{"text": text} for text in rows]),
            processing_class=tokenizer(),
            peft_config=LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules="all-linear"),
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
