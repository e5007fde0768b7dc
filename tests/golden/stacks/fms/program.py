"""Two training steps of fms-acceleration's kernels on a small model, by the real packages; `make.py` traces it.

    python program.py '{"kernels": ["foak"], "format": "gptq", ...}'

Only bitsandbytes' dequantisation, a C function that needs a card, is written out: the same tensors in the same order.
"""

from __future__ import annotations

import json
import sys
import types
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

case = json.loads(sys.argv[1])
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj"]


def quantized(linear: torch.nn.Linear, dtype: torch.dtype) -> Any:
    if case["format"] == "gptq":
        from fms_acceleration_peft.gptqmodel.nn_modules.qlinear.qlinear_tritonv2 import QuantLinear

        return QuantLinear(4, 128, linear.in_features, linear.out_features, False)
    import bitsandbytes as bnb

    options = {"compress_statistics": True, "quant_type": "nf4"}
    shape = (linear.in_features, linear.out_features)
    new = bnb.nn.Linear4bit(*shape, bias=False, compute_dtype=dtype, device="meta", **options)
    new.weight = bnb.nn.Params4bit(linear.weight.data, requires_grad=False, module=new, **options).to("cuda")
    return new


def replace_in(module: torch.nn.Module, dtype: torch.dtype) -> None:
    for name, child in list(module.named_children()):
        if isinstance(child, torch.nn.Linear) and name != "lm_head":
            setattr(module, name, quantized(child, dtype))
        else:
            replace_in(child, dtype)


def adapted(model: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    for parameter in model.parameters():
        parameter.requires_grad_(False)
    settings = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.1, target_modules=PROJECTIONS, task_type="CAUSAL_LM")
    if case["format"] != "gptq":
        return get_peft_model(model, settings)
    from fms_acceleration_peft.gptqmodel.utils.peft import get_gptq_peft_model

    wrapped = types.SimpleNamespace(model=model)
    return get_gptq_peft_model(wrapped, peft_config=settings, auto_find_all_linears=False, train_mode=True)


def fast_dequantize(W: Any, quant_state: Any = None, out: Any = None) -> Any:
    """fused_ops/unsloth_lora/utils.py, without the two calls into bitsandbytes' library."""
    if quant_state is None:
        return W
    out = torch.empty(quant_state.shape, dtype=quant_state.dtype, device="cuda")
    out_absmax = torch.empty(quant_state.absmax.numel(), dtype=torch.float32, device="cuda")
    out_absmax += quant_state.offset
    return out.t() if W.shape[0] == 1 else out


def patch(model: Any) -> None:
    import fms_acceleration_foak.fused_ops.unsloth_lora.bnb.fast_lora as fast_lora
    import fms_acceleration_foak.fused_ops.unsloth_lora.utils as utils
    from fms_acceleration.model_patcher import ModelPatcher
    from fms_acceleration_foak.framework_plugin_fast_kernels import register_foak_model_patch_rules

    utils.fast_dequantize = fast_lora.fast_dequantize = fast_dequantize
    terms = {"rms", "rope"} | ({"fused-lce"} if "liger" in case["kernels"] else {"cross-ent", "custom-loss"})
    if case["format"]:
        terms |= {"qkvo", "mlp"}
    base = "auto_gptq" if case["format"] == "gptq" else "bitsandbytes"
    register_foak_model_patch_rules(base_type=base, filter_endswith=terms, config=model.config)
    ModelPatcher.patch(model)


def main() -> None:
    import transformers.modeling_utils

    if not hasattr(transformers.modeling_utils, "shard_checkpoint"):  # the plugin's import of it; never called here
        transformers.modeling_utils.shard_checkpoint = None
    dtype = DTYPES[case["weights_dtype"]]
    torch.set_default_dtype(dtype)
    config = AutoConfig.for_model(**case["config"], use_cache=False)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="flash_attention_2", torch_dtype=dtype)
    torch.set_default_dtype(torch.float32)
    if case["format"]:
        model = model.cpu()
        replace_in(model, dtype)
        model.to("cuda")
    model.train()
    if case["method"] != "full":
        model = adapted(model)
    if case["reentrant"] is not None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": case["reentrant"]})
        if case["method"] != "full":
            model.enable_input_require_grads()
    if case["kernels"]:
        patch(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-5)
    for _ in range(2):
        ids = torch.randint(0, config.vocab_size, (case["batch"], case["length"]), device="cuda")
        mask = torch.ones_like(ids)
        low = DTYPES[case["autocast"] or "bfloat16"]
        with torch.autocast("cuda", low, enabled=case["autocast"] is not None):
            loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss / 1
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del loss


main()
