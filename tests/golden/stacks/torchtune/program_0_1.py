"""The same for torchtune 0.1.0, whose recipes/lora_finetune_single_device.py had a loop and a loss of its own."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torchao.dtypes
import torchao.quantization
import torchao.quantization.quant_api

for module in (torchao.dtypes, torchao.quantization, torchao.quantization.quant_api):  # names newer releases dropped

    def missing(name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)

    module.__getattr__ = missing  # type: ignore[attr-defined]

from torchtune import modules, utils  # noqa: E402
from torchtune.models.llama2._component_builders import llama2, lora_llama2  # noqa: E402
from torchtune.modules.peft.peft_utils import get_adapter_params, set_trainable_params  # noqa: E402

case = json.loads(sys.argv[1])
config, job = case["config"], case["job"]
given = {
    "vocab_size": config["vocab_size"], "num_layers": config["num_hidden_layers"],
    "num_heads": config["num_attention_heads"], "num_kv_heads": config["num_key_value_heads"],
    "embed_dim": config["hidden_size"], "max_seq_len": config["max_position_embeddings"],
    "intermediate_dim": config["intermediate_size"],
}  # fmt: skip
device = torch.device("cuda")
torch.set_default_dtype(torch.bfloat16)
with device:
    if job["method"] == "full":
        model = llama2(**given)
    else:
        lora = job["lora"]
        given |= {"lora_rank": lora["rank"], "lora_alpha": lora["rank"], "lora_dropout": lora.get("dropout", 0.0)}
        names = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "output_proj"}
        given["lora_attn_modules"] = [names[target] for target in lora["targets"] if target in names]
        given["apply_lora_to_mlp"] = "gate_proj" in lora["targets"]
        given["apply_lora_to_output"] = "lm_head" in lora["targets"]
        model = lora_llama2(**given)
torch.set_default_dtype(torch.float32)
if job["method"] != "full":
    set_trainable_params(model, get_adapter_params(model))
if job["gradient_checkpointing"]:
    utils.set_activation_checkpointing(model, auto_wrap_policy={modules.TransformerDecoderLayer})
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True if job["optimizer"].endswith("fused") else None)
loss_fn = torch.nn.CrossEntropyLoss()
torch.cuda.empty_cache()  # not the recipe's: tells make.py where loading ends
model.train()
accumulated = job.get("grad_accum", 1)
for index in range(2 * accumulated):
    row: Any = torch.randint(0, 1000, (job["micro_batch"], job["seq_len"]))
    input_ids, labels = row, row.clone()
    input_ids = input_ids.to(device)
    labels = labels.to(device)
    logits = model(input_ids)
    logits = logits[..., :-1, :].contiguous()
    labels = labels[..., 1:].contiguous()
    logits = logits.transpose(1, 2)
    loss = loss_fn(logits, labels)
    loss = loss / accumulated
    loss.backward()
    if (index + 1) % accumulated == 0:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
