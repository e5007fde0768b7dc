"""QLoRA on a 3B Llama 3.2 in a plain loop: bitsandbytes 4-bit weights, 8-bit Adam, a length of its own each step.

python loop_qlora.py --steps 10
tunecast trace --steps all -- loop_qlora.py --steps 10
"""

import argparse

import bitsandbytes as bnb
import torch
from common_data import padded, print_memory, samples
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoConfig, AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--layers", type=int, default=28)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--longest", type=int, default=2048)
args = parser.parse_args()


def in_four_bits(module: torch.nn.Module) -> None:
    for name, child in list(module.named_children()):
        if isinstance(child, torch.nn.Linear) and name != "lm_head":
            new = bnb.nn.Linear4bit(
                child.in_features,
                child.out_features,
                bias=child.bias is not None,
                compute_dtype=torch.bfloat16,
                quant_type="nf4",
            )
            new.weight = bnb.nn.Params4bit(child.weight.data, requires_grad=False, quant_type="nf4", module=new)
            setattr(module, name, new)
        else:
            in_four_bits(child)


config = AutoConfig.for_model(
    "llama",
    hidden_size=3072,
    intermediate_size=8192,
    num_hidden_layers=args.layers,
    num_attention_heads=24,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=128256,
    tie_word_embeddings=True,
    use_cache=False,
)
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
in_four_bits(model)
model.to("cuda")
model.is_loaded_in_4bit = model.is_quantized = True
model = prepare_model_for_kbit_training(model, gradient_checkpointing_kwargs={"use_reentrant": False})
model = get_peft_model(model, LoraConfig(r=32, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM"))
model.train()
optimizer = bnb.optim.AdamW8bit([p for p in model.parameters() if p.requires_grad], lr=1e-4)
rows = samples(args.steps * args.batch, config.vocab_size, args.longest // 8, args.longest)
for step in range(args.steps):
    batch = {k: v.to("cuda") for k, v in padded(rows[step * args.batch : (step + 1) * args.batch]).items()}
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
print_memory()
