"""One case of trl_cases.py by the real packages: python program.py CASE (as JSON)."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    default_data_collator,
)
from trl import SFTConfig, SFTTrainer
from trl_cases import LENGTH, PARTS, RANK, STEPS, TARGETS

case = json.loads(sys.argv[1])
torch.zeros(1, device="cuda")
dtype = getattr(torch, case["weights_dtype"])
folder = Path(tempfile.mkdtemp())
if case["method"] == "qlora":
    (folder / "config.json").write_text(json.dumps({**case["config"], "torch_dtype": case["weights_dtype"]}))
    nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, device_map={"": 0}, quantization_config=nf4)
else:
    values = {name: value for name, value in case["config"].items() if name != "model_type"}
    config = AutoConfig.for_model(case["config"]["model_type"], **values)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
settings = {
    "output_dir": str(folder / "out"), "max_steps": STEPS, "per_device_train_batch_size": case["rows"],
    "optim": "adamw_torch",
    "gradient_accumulation_steps": case["accumulated"], "bf16": case["autocast"] is not None, "seed": 1,
    "gradient_checkpointing": case["recomputed"], "logging_steps": 100, "save_strategy": "no", "report_to": [],
}  # fmt: skip
adapters = LoraConfig(r=RANK, target_modules=TARGETS, task_type="CAUSAL_LM") if case["method"] != "full" else None
rows = [[3 + (i * 7 + j) % 1000 for j in range(LENGTH)] for i in range(16)]
if case["release"] == "trainer":
    samples = [{"input_ids": row, "attention_mask": [1] * LENGTH, "labels": row} for row in rows]
    model = model if adapters is None else get_peft_model(model, adapters)
    Trainer(model, TrainingArguments(**settings), train_dataset=samples, data_collator=default_data_collator).train()
else:
    samples = [row[:part] for row in rows for part in PARTS] if case["packed"] else rows
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    SFTTrainer(
        model,
        SFTConfig(max_length=LENGTH, packing=case["packed"], packing_strategy=case["strategy"], **settings),
        train_dataset=Dataset.from_list([{"input_ids": row} for row in samples]),
        processing_class=tokenizer,
        peft_config=adapters,
    ).train()
