"""QLoRA with Unsloth in a plain loop, on a checkpoint folder (config.json and a tokenizer are enough for the trace).

python unsloth_qlora.py FOLDER --seq 2048 --batch 2
tunecast trace --steps all -- unsloth_qlora.py FOLDER --seq 2048 --batch 2
"""

import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--seq", type=int, default=2048)
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--rank", type=int, default=16)
parser.add_argument("--steps", type=int, default=6)
args = parser.parse_args()
os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")

from unsloth import FastLanguageModel  # isort: skip  # noqa: E402  first: it turns expandable segments on

import bitsandbytes  # noqa: E402
import torch  # noqa: E402
from common_data import print_memory  # noqa: E402

model, _ = FastLanguageModel.from_pretrained(
    model_name=args.folder, max_seq_length=args.seq, dtype=torch.bfloat16, load_in_4bit=True
)
model = FastLanguageModel.get_peft_model(
    model, r=args.rank, lora_alpha=args.rank, lora_dropout=0.0, use_gradient_checkpointing="unsloth",
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
)  # fmt: skip
model.train()
parameters = [p for p in model.parameters() if p.requires_grad]
optimizer = bitsandbytes.optim.AdamW8bit(parameters, lr=1e-5)
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
for _ in range(args.steps):
    ids = torch.randint(0, model.config.vocab_size, (args.batch, args.seq), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    del loss
print_memory()
