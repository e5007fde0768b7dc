"""Trace one rank of torch's FSDP 1 around small models, many in one process: python trace_flat.py CASES.json OUT.json

CASES is a list of [id, job, config, lengths, how]; `how` are FSDP's own settings: use_orig_params, strategy, offload.
OUT maps ids to events as trace_all.py tells them. Wrapping is accelerate's (accelerator.py, `prepare_model`), adapters
by PEFT's policy (`fsdp_auto_wrap_policy`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import _or_policy, lambda_auto_wrap_policy, transformer_auto_wrap_policy
from trace_all import sent, told

from tunecast.job import job_from_dict
from tunecast.tape.card import Card
from tunecast.tape.trace import cuda, recipe
from tunecast.tape.trace.ending import run_and_leave
from tunecast.tape.trace.session import tracing


def trains(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return not list(module.named_children()) and weight is not None and weight.requires_grad


def wrapped(job: Any, model: Any, how: dict[str, Any]) -> Any:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    policy: Any = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={type(base.model.layers[0])})
    if job.method != "full":
        own = functools.partial(lambda_auto_wrap_policy, lambda_fn=trains)
        policy = functools.partial(_or_policy, policies=[own, policy])
    half = recipe.DTYPES[job.autocast] if job.autocast else None
    sharded = FullyShardedDataParallel(
        model,
        auto_wrap_policy=policy,
        mixed_precision=None if half is None else MixedPrecision(half, half, half),
        use_orig_params=how.get("use_orig_params", True),
        device_id=torch.device("cuda", 0),
        sharding_strategy=ShardingStrategy[how.get("strategy", "FULL_SHARD")],
        cpu_offload=CPUOffload(offload_params=True) if how.get("offload") else None,
    )
    if half is not None:
        for module in FullyShardedDataParallel.fsdp_modules(sharded):
            if module._has_params and module._flat_param.requires_grad:
                module._flat_param.data = module._flat_param.data.to(torch.float32)
                module._handle._orig_param_dtype = torch.float32
    return sharded


def pack_into(dtype: torch.dtype) -> None:
    """`bnb_4bit_quant_storage`."""
    import bitsandbytes as bnb
    from bitsandbytes.nn import modules

    class Linear4bit(modules.Linear4bit):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs, quant_storage=dtype)

    class Params4bit(modules.Params4bit):  # type: ignore[misc]
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return super().__new__(cls, *args, **(kwargs | {"quant_storage": dtype}))

    bnb.nn.Linear4bit, bnb.nn.Params4bit = Linear4bit, Params4bit


def train(job: Any, config: dict[str, Any], lengths: list[int], how: dict[str, Any], recorder: Any) -> None:
    torch.zeros(1, device="cuda")
    if job.quantization.format is not None:
        pack_into(recipe.DTYPES[job.weights_dtype])
    model = recipe.build(job, config)
    model.train()
    model = recipe.adapt(job, model)
    vocabulary = model.config.get_text_config().vocab_size
    model = wrapped(job, model, how)
    parameters = [p for p in model.parameters() if p.requires_grad]
    gc.collect()
    torch.cuda.empty_cache()
    optimizer = recipe.make_optimizer(job, parameters)
    half = recipe.DTYPES[job.autocast or "bfloat16"]
    for length in lengths:
        recorder.scopes.begin_step()
        for micro in range(job.grad_accum):
            ids = torch.randint(0, vocabulary, (job.micro_batch, length), device="cuda")
            mask = torch.ones_like(ids)
            reduces = micro == job.grad_accum - 1 or job.parallel.sync_each_batch
            with contextlib.nullcontext() if reduces else model.no_sync():
                with torch.autocast("cuda", half, enabled=job.autocast is not None):
                    loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss / job.grad_accum
                loss.backward()
        if job.max_grad_norm:
            model.clip_grad_norm_(job.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del loss
    recorder.scopes.begin_step()


def main() -> None:
    os.environ["FSDP_SKIP_WRITEBACK_CHECK"] = "1"  # which looks at addresses, to see that nobody moved a parameter
    found: dict[str, Any] = {}
    with tracing(Card(), devices=8) as recorder:
        for name, values, config, lengths, how in json.loads(Path(sys.argv[1]).read_text()):
            gc.collect()
            gc.freeze()  # torch and the rest are there to stay: looking through them again took a third of the time
            recorder.forget_all()
            cuda.Stream._numbers = itertools.count(1)  # streams are numbered anew in each program
            job = job_from_dict(values)
            dist.init_process_group("nccl", rank=0, world_size=job.hardware.gpus * job.hardware.nodes)
            try:
                train(job, config, lengths, how, recorder)
                events = recorder.tape({}).events
                found[name] = [told(events), sent(events)]
            except Exception:
                found[name] = traceback.format_exc()
            dist.destroy_process_group()
    Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    run_and_leave(main)
