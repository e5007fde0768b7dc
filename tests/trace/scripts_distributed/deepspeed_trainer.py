"""transformers' Trainer under DeepSpeed's ZeRO, one rank of many: python deepspeed_trainer.py CASE (as JSON)."""

import json
import sys
import tempfile

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments, default_data_collator

case = json.loads(sys.argv[1])
job, length = case["job"], case["job"]["seq_len"]
torch.zeros(1, device="cuda")
zero = {"stage": int(job["parallel"]["data"][-1]), **case["file"]}
arguments = TrainingArguments(  # before the model: stage 3 cuts it while it is made (`deepspeed.zero.Init`)
    output_dir=tempfile.mkdtemp(), max_steps=2, per_device_train_batch_size=job["micro_batch"], bf16=True,
    gradient_accumulation_steps=job["grad_accum"], optim=job["optimizer"], logging_steps=100, save_strategy="no",
    gradient_checkpointing=job["gradient_checkpointing"], gradient_checkpointing_kwargs={"use_reentrant": False},
    report_to=[],
    deepspeed={
        "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto", "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto", "bf16": {"enabled": "auto"}, "zero_allow_untested_optimizer": True,
        "zero_optimization": zero,
    },
)  # fmt: skip
values = {name: value for name, value in case["config"].items() if name != "model_type"}
kind = AutoConfig.for_model(case["config"]["model_type"], **values)
model = AutoModelForCausalLM.from_config(kind, dtype=getattr(torch, job["weights_dtype"]))
rows = [[3 + (i * 7 + j) % 1000 for j in range(length)] for i in range(400)]
samples = [{"input_ids": row, "attention_mask": [1] * length, "labels": row} for row in rows]
Trainer(model, arguments, train_dataset=samples, data_collator=default_data_collator).train()
