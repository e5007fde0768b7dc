"""Two training steps of PEFT's adapters on gptqmodel's linear layers, by the real packages; `make.py` traces it.

    python program.py '{"recomputed": true}'

The layers are made and readied (`post_init`) as optimum does for a checkpoint; their contents do not matter.
"""

from __future__ import annotations

import json
import sys

import torch
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

case = json.loads(sys.argv[1])
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj"]


def replace_in(module: torch.nn.Module) -> None:
    for name, child in list(module.named_children()):
        if isinstance(child, torch.nn.Linear) and name != "lm_head":
            shape = {"in_features": child.in_features, "out_features": child.out_features}
            setattr(module, name, TorchLinear(bits=4, group_size=128, sym=True, desc_act=False, bias=False, **shape))
        else:
            replace_in(child)


def main() -> None:
    config = AutoConfig.for_model(**case["config"], use_cache=False)
    torch.set_default_dtype(torch.float16)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    torch.set_default_dtype(torch.float32)
    replace_in(model)
    model.to("cuda")
    for module in model.modules():
        if isinstance(module, TorchLinear):
            module.post_init()
    model.train()
    settings = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.1, target_modules=PROJECTIONS, task_type="CAUSAL_LM")
    model = get_peft_model(model, settings)
    if case["recomputed"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-5)
    for _ in range(2):
        ids = torch.randint(0, config.vocab_size, (case["batch"], case["length"]), device="cuda")
        mask = torch.ones_like(ids)
        with torch.autocast("cuda", torch.float16):
            loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss / 1
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del loss


main()
