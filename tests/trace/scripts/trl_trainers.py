"""TRL: SFT with LoRA padded and packed, DPO with a reference model. Two steps each."""

from __future__ import annotations

from datasets import Dataset
from peft import LoraConfig
from tiny import folder, texts, tokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

words = tokenizer()
settings = {
    "max_steps": 2, "per_device_train_batch_size": 2, "logging_steps": 1, "report_to": [], "bf16": True,
    "max_length": 48, "save_strategy": "no",
}  # fmt: skip
lines = texts()
for packing in (False, True):
    SFTTrainer(
        model=folder(),
        args=SFTConfig("out", packing=packing, dataset_num_proc=2, **settings),
        train_dataset=Dataset.from_list([{"text": line} for line in lines]),
        processing_class=words,
        peft_config=LoraConfig(r=4, target_modules="all-linear"),
    ).train()
pairs = [{"prompt": a, "chosen": b, "rejected": c} for a, b, c in zip(lines, lines[1:], lines[2:], strict=False)]
DPOTrainer(
    model=folder(), args=DPOConfig("out", **settings), train_dataset=Dataset.from_list(pairs), processing_class=words
).train()
