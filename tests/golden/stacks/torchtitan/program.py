"""torchtitan's loop without files: its model, its wrappers in its order, its loss and the steps of its Trainer. Traced
by make.py; its one argument is a case of torchtitan_cases.py."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torchtitan.components.loss import cross_entropy_loss

case = json.loads(sys.argv[1])
config, job = case["config"], case["job"]
STEPS = 2
ranks, tensor, context = job.get("ranks", 1), job.get("tensor", 1), job.get("context", 1)
expert = job.get("expert", 1)
if config["model_type"] == "llama":
    from torchtitan.models.llama3.infra import parallelize
    from torchtitan.models.llama3.model.args import TransformerModelArgs
    from torchtitan.models.llama3.model.model import Transformer
else:
    import mixture

    parallelize, Transformer = mixture.of_family(config["model_type"])


def arguments() -> Any:
    if config["model_type"] != "llama":
        return mixture.arguments(config, job)
    given = TransformerModelArgs(
        dim=config["hidden_size"], n_layers=config["num_hidden_layers"], n_heads=config["num_attention_heads"],
        n_kv_heads=config["num_key_value_heads"], vocab_size=config["vocab_size"], max_seq_len=job["seq_len"],
        multiple_of=config["intermediate_size"],
    )  # fmt: skip
    return given


def wrapped(model: Any) -> Any:
    mesh = None
    if expert > 1:
        mixture.spread(model, ranks, expert)
    elif ranks > 1:
        names, sizes = (("dp_shard", "tp"), (ranks // tensor, tensor)) if tensor > 1 else (("dp_shard",), (ranks,))
        mesh = dist.device_mesh.init_device_mesh("cuda", sizes, mesh_dim_names=names)
    if tensor > 1:
        more = {"enable_async_tp": False} if case["release"] == "0.1" else {}
        parallelize.apply_tp(model, mesh["tp"], loss_parallel=True, enable_float8_tensorwise_tp=False, **more)
    if job["gradient_checkpointing"]:
        mode = "full" if job["recompute"] == "all" else "selective"
        settings = SimpleNamespace(
            mode=mode, selective_ac_option="op", early_stop=True, debug=False,
            per_op_sac_force_recompute_mm_shapes_by_fqns=["moe.router.gate"], preserve_rng_state=True,
            determinism_check="default",
        )  # fmt: skip
        if case["release"] == "0.1":
            parallelize.apply_ac(model, settings)
        else:
            parallelize.apply_ac(model, settings, op_sac_save_list=parallelize._op_sac_save_list)
    if job.get("compile"):
        parallelize.apply_compile(model, *([SimpleNamespace(backend="inductor")] if case["release"] != "0.1" else []))
    if expert > 1:
        mixture.share(model, ranks, expert)
    elif ranks > 1:
        half = torch.float32 if job.get("autocast", "bfloat16") is None else torch.bfloat16
        parallelize.apply_fsdp(
            model,
            mesh["dp_shard"],
            param_dtype=half,
            reduce_dtype=torch.float32,
            pp_enabled=False,
            reshard_after_forward_policy="default",
        )
    return model


if ranks > 1:
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks)}
    dist.init_process_group("fake", rank=0, world_size=ranks)
with torch.device("meta"):
    model = Transformer(arguments())
model = wrapped(model)
model.to_empty(device="cuda")
with torch.no_grad():
    model.init_weights(buffer_device=None)
model.train()
fused = job["optimizer"] == "adamw_torch_fused"
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused, foreach=not fused)
loss_fn = torch.compile(cross_entropy_loss) if job.get("compile") else cross_entropy_loss
amp = nullcontext()
if ranks == 1 and job.get("autocast", "bfloat16") is not None:
    amp = torch.autocast("cuda", dtype=torch.bfloat16)
if tensor > 1:
    from torch.distributed.tensor.parallel import loss_parallel
else:
    loss_parallel = nullcontext


def sequence_split(inputs: Any, labels: Any) -> Any:
    """torchtitan/distributed/utils.py, `create_context_parallel_ctx`."""
    if context == 1:
        return nullcontext()
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method

    set_rotate_method("allgather")
    mesh = dist.device_mesh.init_device_mesh("cuda", (ranks // context, context), mesh_dim_names=("dp", "cp"))
    buffers = [inputs, labels, model.freqs_cis]
    return context_parallel(mesh["cp"], buffers=buffers, buffer_seq_dims=[1, 1, 0], no_restore_buffers={inputs, labels})


def forward_backward_step() -> Any:
    inputs = torch.randint(0, 1000, (job["micro_batch"], job["seq_len"])).to("cuda")
    labels = torch.randint(0, 1000, (job["micro_batch"], job["seq_len"])).to("cuda")
    with loss_parallel(), sequence_split(inputs, labels):
        with amp:
            pred = model(inputs)
            loss = loss_fn(pred, labels)
        del pred
        loss.backward()
    return loss


def clip(parameters: list[Any]) -> None:
    """torchtitan/distributed/utils.py, `clip_grad_norm_`."""
    if expert > 1:
        from torchtitan.distributed.utils import clip_grad_norm_

        clip_grad_norm_(parameters, 1.0, foreach=True, ep_enabled=True)
        return
    total_norm = get_total_norm([p.grad for p in parameters], 2.0, False, True)
    if ranks > 1:
        total_norm = total_norm.full_tensor()
    clip_grads_with_norm_(parameters, 1.0, total_norm, True)


for _ in range(STEPS):
    optimizer.zero_grad()
    losses = []
    for _ in range(job.get("grad_accum", 1)):
        loss = forward_backward_step()
        losses.append(loss.detach())
    clip(list(model.parameters()))
    optimizer.step()
