"""transformers' Trainer or TRL's SFTTrainer on one rank of many: python trainers.py CASE (as JSON)."""

import json
import sys
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    default_data_collator,
)
from trl import SFTConfig, SFTTrainer

case = json.loads(sys.argv[1])
job, length = case["job"], case["job"]["seq_len"]
torch.zeros(1, device="cuda")
values = {name: value for name, value in case["config"].items() if name != "model_type"}
kind = AutoConfig.for_model(case["config"]["model_type"], **values)
model = AutoModelForCausalLM.from_config(kind, dtype=getattr(torch, job["weights_dtype"]))
settings = {
    "output_dir": tempfile.mkdtemp(), "max_steps": 2, "per_device_train_batch_size": job["micro_batch"],
    "gradient_accumulation_steps": job["grad_accum"], "optim": job["optimizer"], "bf16": True, "logging_steps": 100,
    "gradient_checkpointing": job["gradient_checkpointing"], "save_strategy": "no", "report_to": [],
    "gradient_checkpointing_kwargs": {"use_reentrant": False},
}  # fmt: skip
if job["parallel"]["data"] == "fsdp":
    settings["fsdp"] = True
    settings["fsdp_config"] = {"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
if job["parallel"].get("sync_each_batch"):
    settings["accelerator_config"] = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
adapters = None
if job["method"] == "lora":
    adapters = LoraConfig(
        r=16, lora_alpha=32, lora_dropout=0.05, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
    )
rows = [[3 + (i * 7 + j) % 1000 for j in range(length)] for i in range(400)]
if job["stack"] == "trl":
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    SFTTrainer(
        model, SFTConfig(max_length=length, **settings), peft_config=adapters, processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"input_ids": row} for row in rows]),
    ).train()  # fmt: skip
else:
    samples = [{"input_ids": row, "attention_mask": [1] * length, "labels": row} for row in rows]
    model = model if adapters is None else get_peft_model(model, adapters)
    Trainer(model, TrainingArguments(**settings), train_dataset=samples, data_collator=default_data_collator).train()
