import argparse

import torch
from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--accumulate", type=int, default=4)
parser.add_argument("--longest", type=int, default=1024)
parser.add_argument("--epochs", type=float, default=1.0)
args = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained(args.model)
model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16, attn_implementation="sdpa")
model.config.use_cache = False

texts = load_dataset("json", data_files="data/texts.jsonl", split="train")
texts = texts.map(
    lambda rows: tokenizer(rows["text"], truncation=True, max_length=args.longest),
    batched=True,
    remove_columns=["text"],
)
Trainer(
    model=model,
    args=TrainingArguments(
        "out",
        per_device_train_batch_size=args.batch_size,
        gradient_accumulation_steps=args.accumulate,
        num_train_epochs=args.epochs,
        bf16=True,
        optim="adafactor",
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=texts,
    data_collator=DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm=False),
).train()
