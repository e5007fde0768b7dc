"""One case of automodel_cases.py by Automodel's own modules: python program.py CASE (as JSON).

The loop is that of recipes/llm/train_ft.py without its logging. Norms are torch's (`rms_norm: torch`), one kernel as
the compiled ones of the default are; a module of Triton kernels that nothing here calls is left out.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
from types import ModuleType
from typing import Any

import torch
from automodel_cases import BATCH, LENGTH, OWN_MODELS, STEPS
from transformers import AutoConfig, AutoModelForCausalLM

kernels = ModuleType("nemo_automodel.components._peft.lora_kernel")
for name in ("lora_da_dx_update_wrapper", "lora_db_update_wrapper", "lora_forward_wrapper"):
    setattr(kernels, name, None)
sys.modules[kernels.__name__] = kernels

from nemo_automodel.components._peft.lora import PeftConfig, apply_lora_to_linear_modules  # noqa: E402
from nemo_automodel.components.distributed.activation_checkpointing import apply_submodule_checkpointing  # noqa: E402
from nemo_automodel.components.distributed.config import DistributedSetup, FSDP2Config  # noqa: E402
from nemo_automodel.components.distributed.fsdp2 import FSDP2Manager  # noqa: E402
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy  # noqa: E402
from nemo_automodel.components.models.common import BackendConfig  # noqa: E402

case = json.loads(sys.argv[1])
kind, ranks, dtype = case["config"]["model_type"], case["ranks"], getattr(torch, case["weights_dtype"])
torch.zeros(1, device="cuda")
config = AutoConfig.for_model(kind, **{name: value for name, value in case["config"].items() if name != "model_type"})
config.use_cache, config._attn_implementation, config.dtype, config.torch_dtype = False, "sdpa", dtype, dtype
torch.set_default_dtype(dtype)
with torch.device("cuda" if ranks == 1 else "cpu"):
    if kind in OWN_MODELS:
        backend = BackendConfig(attn="sdpa", linear="torch", rms_norm="torch", rope_fusion=False)
        code = importlib.import_module(f"nemo_automodel.components.models.{kind}.model")
        model = getattr(code, OWN_MODELS[kind])(config, backend=backend)
    else:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
torch.set_default_dtype(torch.float32)
if case["method"] == "lora":
    apply_lora_to_linear_modules(model, PeftConfig(target_modules=["*_proj"], dropout=case["dropout"]))
model.train()
if ranks > 1:
    torch.distributed.init_process_group("nccl")
    setup = DistributedSetup.build(FSDP2Config(activation_checkpointing=case["recomputed"]), world_size=ranks)
    model = FSDP2Manager(setup.strategy_config, setup.mesh_context.device_mesh).parallelize(model)
    model.to("cuda")
elif case["recomputed"] and kind in OWN_MODELS:
    apply_submodule_checkpointing(list(model.model.layers), has_kv_sharing=False)
elif case["recomputed"]:
    model.gradient_checkpointing_enable()
gc.collect()
torch.cuda.empty_cache()
parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(parameters, lr=1e-5)
loss_fn = MaskedCrossEntropy()


def forward_backward_step(last: bool, loss_buffer: list[Any]) -> None:
    names = ("input_ids", "attention_mask", "labels")
    batch = {name: torch.ones(BATCH, LENGTH, dtype=torch.long).to("cuda") for name in names}
    labels = batch.pop("labels")
    if ranks > 1:
        model.set_requires_gradient_sync(last)
        model.set_is_last_backward(last)
    out = model(**batch)
    local_loss = loss_fn(logits=getattr(out, "logits", out), labels=labels, num_label_tokens=100)
    loss_buffer.append(local_loss.clone().detach())
    (local_loss * ranks).backward()


for _ in range(STEPS):
    losses: list[Any] = []
    for micro in range(case["accumulated"]):
        forward_backward_step(micro == case["accumulated"] - 1, losses)
    torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad()
