import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

MODEL = "models/qwen3-0.6b"
texts = load_dataset("json", data_files={"train": "data/texts.jsonl"})["train"]
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
tokenizer = AutoTokenizer.from_pretrained(MODEL)

config = SFTConfig(
    output_dir="out",
    packing=True,
    packing_strategy="wrapped",
    max_length=2048,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=4,
    gradient_checkpointing=False,
    max_steps=20,
    optim="adamw_torch_fused",
    save_strategy="no",
    report_to="none",
)
SFTTrainer(model, args=config, train_dataset=texts, processing_class=tokenizer).train()
