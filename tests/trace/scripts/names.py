"""Models and tokenizers by name: offered, in the Hub's cache, in a folder with weights, and nowhere."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tiny import folder, tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from transformers import __version__ as transformers_version

stored = torch.bfloat16 if int(transformers_version.split(".")[0]) >= 5 else torch.float32

# only a configuration, from the asking process, from the cache, from a folder
offered = AutoModelForCausalLM.from_pretrained("some/offered-model")
assert offered.config.hidden_size == 96 and offered.dtype == stored and offered.device.type == "cpu"
assert not offered.training
cached = AutoModelForCausalLM.from_pretrained("some/cached-model", dtype=torch.float16, device_map="cuda")
assert cached.config.num_hidden_layers == 2 and cached.dtype == torch.float16 and cached.device.type == "cuda"
tied = AutoModelForCausalLM.from_pretrained(folder(tie_word_embeddings=True))
assert tied.lm_head.weight is tied.model.embed_tokens.weight
classifier = AutoModelForSequenceClassification.from_pretrained(folder(), num_labels=3, device_map={"": 0})
assert classifier.score.weight.shape == (3, 64) and classifier.score.weight.device.type == "cuda"

# a checkpoint and an adapter written by this script, read back for their shapes
adapted = get_peft_model(offered, LoraConfig(r=4, target_modules="all-linear"))
adapted.save_pretrained("adapter")
base = AutoModelForCausalLM.from_pretrained("some/offered-model")
again = PeftModel.from_pretrained(base, "adapter", is_trainable=True)
assert any(p.requires_grad and p.shape == (4, 96) for p in again.parameters())
cached.save_pretrained("mine")
assert any(name.endswith(".safetensors") for name in os.listdir("mine"))
assert AutoModelForCausalLM.from_pretrained("mine", dtype="auto").dtype == torch.float16
tokenizer().save_pretrained("mine")
assert len(AutoTokenizer.from_pretrained("mine")) == 512
assert not Path("mine").is_symlink()

# what is nowhere is named, with the remedy, by an error of the kind transformers raises
for load in (AutoConfig.from_pretrained, AutoTokenizer.from_pretrained):
    try:
        load("nobody/nothing")
    except OSError as error:
        assert "nobody/nothing" in str(error) and "To fix" in str(error), error
AutoModelForCausalLM.from_pretrained("nobody/nothing")
