"""The Hugging Face Trainer, two steps of each kind, and a loop that does by hand what the first of them does."""

from __future__ import annotations

import os
import sys

import torch
from tiny import folder, texts, tokenizer
from transformers import (
    AutoModelForCausalLM,
    DataCollatorForLanguageModeling,
    DataCollatorWithFlattening,
    Trainer,
    TrainingArguments,
)

words = tokenizer()
rows = [{"input_ids": ids} for ids in words(texts())["input_ids"]]
padded = DataCollatorForLanguageModeling(words, mlm=False)


def model(dtype=torch.bfloat16, **options):
    return AutoModelForCausalLM.from_pretrained(folder(), dtype=dtype, **options)


def train(model, data=rows, collator=padded, **options):
    settings = {"max_steps": 2, "per_device_train_batch_size": 2, "logging_steps": 1, "report_to": []}
    arguments = TrainingArguments("out", **settings | {"save_strategy": "no"} | options)
    trained_on = {"train_dataset": data, "eval_dataset": rows[:4], "data_collator": collator}
    Trainer(model, arguments, processing_class=words, **trained_on).train()


# steps 0 and 1, then 2 and 3: the same work by the Trainer and by hand, 2 x 32 tokens
same = [{"input_ids": list(range(32))} for _ in range(8)]
train(model(torch.float32), same, bf16=True, optim="adamw_torch")
byhand = model(torch.float32).cuda().train()
optimizer = torch.optim.AdamW(byhand.parameters(), lr=5e-5, weight_decay=0.0)
for _ in range(2):
    batch = {name: value.cuda() for name, value in padded(same[:2]).items()}
    with torch.autocast("cuda", torch.bfloat16):
        loss = byhand(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(byhand.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
assert sys.argv[1:] == ["--all"]

# 4, 5: float16 with a gradient scaler that reads overflows
train(model(torch.float32), fp16=True, optim="adamw_torch", lr_scheduler_type="cosine", warmup_steps=1)
# 6, 7: evaluation and checkpoints between the steps
train(model(), eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1, save_total_limit=1, bf16=True)
assert os.listdir("out") == ["checkpoint-2"], os.listdir("out")
# 8 to 11: recomputation, both kinds
train(model(), gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": True})
train(model(), gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False})
# 12, 13: without padding, sequences told apart by position_ids
train(model(), collator=DataCollatorWithFlattening())
# 14, 15: batches of like lengths, accumulated, with workers, 8-bit Adam
newer = hasattr(TrainingArguments, "train_sampling_strategy")
options = {"train_sampling_strategy": "group_by_length"} if newer else {"group_by_length": True}
options |= {"gradient_accumulation_steps": 2, "dataloader_num_workers": 2, "optim": "adamw_8bit"}
train(model(device_map="auto"), **options)
