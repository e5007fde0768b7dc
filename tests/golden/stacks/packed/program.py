"""Two training steps of PEFT's adapters on weights in FP8 or torchao's formats, by the real packages; `make.py` traces
it.

    python program.py '{"format": "finegrained_fp8", "recomputed": true}'

transformers' FP8 kernels come from the Hub: in their place is what they give back (finegrained_fp8.py,
`finegrained_fp8_linear`, whose quantisation of activations is fused).
"""

from __future__ import annotations

import json
import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, FineGrainedFP8Config
from transformers.integrations import finegrained_fp8

case = json.loads(sys.argv[1])
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj"]
DTYPE = torch.bfloat16


class Kernel:
    @staticmethod
    def matmul(x: torch.Tensor, weight: torch.Tensor, *rest: object, **how: object) -> torch.Tensor:
        return torch.empty(*x.shape[:-1], weight.shape[0], dtype=x.dtype, device=x.device)


def pack(model: torch.nn.Module) -> torch.nn.Module:
    if case["format"] == "finegrained_fp8":
        finegrained_fp8.load_finegrained_fp8_kernel = lambda: Kernel
        finegrained_fp8.is_deepgemm_loadable = lambda *args: False
        how = FineGrainedFP8Config(weight_block_size=case["block"])
        model = finegrained_fp8.replace_with_fp8_linear(model, ["lm_head"], how, pre_quantized=True)
        for module in list(model.modules()):
            for key, parameter in list(module.named_parameters(recurse=False)):
                if parameter.device.type == "meta":
                    dtype = DTYPE if key == "bias" else parameter.dtype
                    made = torch.empty(parameter.shape, dtype=dtype, device="cuda")
                    setattr(module, key, torch.nn.Parameter(made, requires_grad=False))
        return model
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

    kind = {"torchao_int8": Int8WeightOnlyConfig, "torchao_float8": Float8WeightOnlyConfig}[case["format"]]
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            quantize_(module, kind())
    return model


def main() -> None:
    config = AutoConfig.for_model(**case["config"], use_cache=False)
    torch.set_default_dtype(DTYPE)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    torch.set_default_dtype(torch.float32)
    model = pack(model.to("cuda"))
    model.train()
    for parameter in model.parameters():
        parameter.requires_grad = False
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
        with torch.autocast("cuda", DTYPE, enabled=case["autocast"] is not None):
            loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss / 1
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del loss


main()
