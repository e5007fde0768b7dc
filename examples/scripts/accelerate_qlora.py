"""QLoRA in a plain accelerate loop on texts of varying length: nf4 weights, LoRA on every linear layer.

Self-contained and offline: a Llama of the size of Llama-3.2-1B with random weights, saved once and loaded quantised.

    python accelerate_qlora.py --steps 12                 train, and print the memory it took
    tunecast trace --steps 12 -- accelerate_qlora.py      the same figures before the job starts, without a GPU
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, get_cosine_schedule_with_warmup

VOCABULARY = 128256


def config(layers: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=2048, intermediate_size=8192, num_hidden_layers=layers,
        num_attention_heads=32, num_key_value_heads=8, head_dim=64, max_position_embeddings=131072,
        rope_theta=500000.0, rms_norm_eps=1e-5, tie_word_embeddings=True,
    )  # fmt: skip


def quantized_model(layers: int) -> torch.nn.Module:
    quantization = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        AutoModelForCausalLM.from_config(config(layers), dtype=torch.bfloat16).save_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=quantization, dtype=torch.bfloat16, device_map={"": 0}
        )
    model = prepare_model_for_kbit_training(model, gradient_checkpointing_kwargs={"use_reentrant": False})
    return get_peft_model(model, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules="all-linear"))


def texts(count: int, shortest: int, longest: int, seed: int) -> list[list[int]]:
    chance = random.Random(seed)
    return [
        [chance.randrange(VOCABULARY - 1) for _ in range(chance.randint(shortest, longest))] for _ in range(count)
    ]


def padded(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    longest = max(map(len, rows))
    ids = [row + [VOCABULARY - 1] * (longest - len(row)) for row in rows]
    mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
    labels = [row + [-100] * (longest - len(row)) for row in rows]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), "labels": torch.tensor(labels)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--longest", type=int, default=2048)
    options = parser.parse_args()

    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=options.accumulate)
    model = quantized_model(options.layers)
    rows = texts(options.steps * options.batch * options.accumulate, 64, options.longest, seed=3)
    loader = DataLoader(
        rows, batch_size=options.batch, shuffle=True, generator=torch.Generator().manual_seed(3), collate_fn=padded
    )
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    schedule = get_cosine_schedule_with_warmup(optimizer, 2, options.steps)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    model.train()
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            print(f"loss {loss.item():.3f}", flush=True)
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
