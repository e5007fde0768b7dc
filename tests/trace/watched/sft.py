"""TRL's SFTTrainer on CPUs, of what tiny_training.py made: `sft.py FOLDER`."""

import sys
from pathlib import Path

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

made = Path(sys.argv[1])
rows = load_dataset("json", data_files=str(made / "train.jsonl"), split="train", cache_dir=str(made / "cache"))
arguments = SFTConfig(
    output_dir=str(made / "output"), max_steps=4, per_device_train_batch_size=2, max_length=64, report_to=[],
    save_strategy="no", use_cpu=True, bf16=False, disable_tqdm=True, logging_steps=1,
)  # fmt: skip
model, tokenizer = AutoModelForCausalLM.from_pretrained(made / "model"), AutoTokenizer.from_pretrained(made / "model")
SFTTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer).train()
