"""LoRA on Qwen2.5-7B with the Hugging Face Trainer: rows of 2,048 tokens, one at a time.

    python trainer_lora.py                                        train, and print the memory it took
    tunecast trace --gpu rtx-4090 -- trainer_lora.py              the same figures before the job starts, without a GPU

The data is made up, so that nothing but the model has to be downloaded; the trace needs not even that.
"""

import tempfile

import torch
from common_data import print_memory
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 150000, (2048,))
        return {"input_ids": ids, "labels": ids.clone()}


model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B")
model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, task_type="CAUSAL_LM"))
model.enable_input_require_grads()
with tempfile.TemporaryDirectory() as folder:
    settings = TrainingArguments(
        folder,
        per_device_train_batch_size=1,
        gradient_checkpointing=True,
        bf16=True,
        max_steps=3,
        report_to="none",
    )
    Trainer(model, settings, train_dataset=Rows()).train()
print_memory()
