"""LoRA with the Hugging Face Trainer over rows of random lengths: `lora_lengths.py MODEL STEPS`."""

import random
import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

ROWS_PER_BATCH = 2


class Rows(torch.utils.data.Dataset):
    def __init__(self, count):
        self.lengths = random.Random(0).choices(range(64, 2049), k=count)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, number):
        return [7] * self.lengths[number]


def padded(rows):
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


name, steps = sys.argv[1], int(sys.argv[2])
model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16)
model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, task_type="CAUSAL_LM"))
model.enable_input_require_grads()
settings = TrainingArguments(
    "out", per_device_train_batch_size=ROWS_PER_BATCH, gradient_checkpointing=True, bf16=True, max_steps=steps,
    report_to="none", save_strategy="no",
)  # fmt: skip
Trainer(model, settings, train_dataset=Rows(ROWS_PER_BATCH * steps), data_collator=padded).train()
