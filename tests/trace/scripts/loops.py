"""Loops of one's own: accelerate with a quantised model, and Lightning Fabric where it is installed. Two steps each."""

from __future__ import annotations

import importlib.util
import itertools

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from tiny import folder, texts, tokenizer
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

words = tokenizer()


def loader():
    def padded(lines):
        return dict(words(lines, return_tensors="pt", padding=True))

    return DataLoader(texts(), batch_size=2, collate_fn=padded)


for quantization in (
    BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16),
    BitsAndBytesConfig(load_in_8bit=True),
):
    accelerator = Accelerator(mixed_precision="bf16")
    model = AutoModelForCausalLM.from_pretrained(folder(), quantization_config=quantization, dtype=torch.bfloat16)
    weight = model.model.layers[0].mlp.up_proj.weight
    assert model.device.type == "cuda" and weight.dtype in (torch.uint8, torch.int8)
    assert model.lm_head.weight.dtype == torch.bfloat16
    model = get_peft_model(prepare_model_for_kbit_training(model), LoraConfig(r=4, target_modules="all-linear"))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader())
    for batch in itertools.islice(batches, 2):
        loss = model(**batch, labels=batch["input_ids"]).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        assert loss.item() == loss.item()

if importlib.util.find_spec("lightning_fabric"):
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cuda", devices=1, precision="bf16-mixed")
    fabric.launch()
    model = AutoModelForCausalLM.from_pretrained(folder(), dtype=torch.float32)
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
    model.train()
    for batch in itertools.islice(fabric.setup_dataloaders(loader()), 2):
        fabric.backward(model(**batch, labels=batch["input_ids"]).loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
