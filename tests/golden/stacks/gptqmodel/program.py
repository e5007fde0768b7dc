"""Two training steps of PEFT's adapters on gptqmodel's linear layers, by the real packages; `make.py` traces it.

    python program.py '{"recomputed": true}'

The layers are made and readied (`post_init`) as optimum and transformers do for a checkpoint; their contents do not
matter. AWQ's kernels are an extension that a card's compiler builds: in their place is what they ask torch for
(gptqmodel_ext/awq/quantization/gemm_cuda_gen.cu).
"""

from __future__ import annotations

import json
import sys

import torch
from gptqmodel.nn_modules.qlinear import gemm_awq
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

case = json.loads(sys.argv[1])
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj"]
KINDS = {"gptq": TorchLinear, "awq": gemm_awq.AwqGEMMLinear}
AUTOCAST = getattr(torch, case["autocast"])


def dequantize_weights(qweight: torch.Tensor, scales: torch.Tensor, *rest: object) -> torch.Tensor:
    return torch.empty(qweight.shape[0], scales.shape[1], dtype=scales.dtype, device=scales.device)


def gemm_forward(x: torch.Tensor, qweight: torch.Tensor, scales: torch.Tensor, *rest: object) -> torch.Tensor:
    parts = torch.empty(8, x.shape[0], scales.shape[1], dtype=torch.float32, device=x.device)
    return torch.empty(parts.shape[1:], dtype=x.dtype, device=x.device)


gemm_awq.awq_runtime_available = lambda: True
gemm_awq.awq_dequantize_weights, gemm_awq.awq_gemm_forward = dequantize_weights, gemm_forward


def replace_in(module: torch.nn.Module) -> None:
    for name, child in list(module.named_children()):
        if isinstance(child, torch.nn.Linear) and name != "lm_head":
            shape = {"in_features": child.in_features, "out_features": child.out_features}
            how = {"bits": case["bits"], "group_size": case["group"], "sym": True, "desc_act": False}
            bias = child.bias is not None
            layer = KINDS[case["format"]](bias=bias, register_buffers=True, **how, **shape)
            setattr(module, name, layer)
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
        if isinstance(module, tuple(KINDS.values())):
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
        with torch.autocast("cuda", AUTOCAST):
            loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss / 1
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del loss


main()
