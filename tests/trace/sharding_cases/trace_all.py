"""Trace one rank of many small sharded trainings in one process: python trace_all.py CASES.json OUT.json

CASES is a list of [id, job, config, lengths]; OUT maps ids to events: [step, phase, +bytes or -bytes, stream,
operation], frees that follow each other sorted, and to the collectives in order: [name, sent, received, ranks, stream].
The model and the loop are those of tape/trace/recipe.py; replicas are torch's, shards are accelerate's own
(`fsdp2_prepare_model`), on a process group that is not there.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tunecast.job import job_from_dict
from tunecast.job.job import Job
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.card import Card
from tunecast.tape.op import COLLECTIVES, Alloc, Begin, Event, Free, Op, Phase
from tunecast.tape.trace.ending import run_and_leave

ACCELERATE = {"bfloat16": "bf16", "float16": "fp16", None: "no"}


def told(events: tuple[Event, ...]) -> list[list[Any]]:
    """What an allocator sees: requests with their step, phase and stream; between two requests the sizes let go,
    sorted; and the operation before each request for whoever reads a difference."""
    out: list[list[Any]] = []
    sizes: dict[int, tuple[int, int]] = {}
    frees: list[tuple[int, int]] = []
    op = ""
    place: list[Any] = [0, "load"]
    for event in events:
        if isinstance(event, Free):
            frees.append(sizes[event.block])
        elif isinstance(event, Begin):
            place = [event.step, "other" if event.phase is Phase.CLIP else event.phase.value]
        elif isinstance(event, Op):
            op = f"{event.name} {event.module} {[list(shape) for shape in event.shapes]}"
        elif isinstance(event, Alloc):
            sizes[event.block] = (-event.nbytes, event.stream)
            if event.nbytes:
                out += [[*place, size, stream, ""] for size, stream in sorted(frees) if size]
                frees.clear()
                out.append([*place, event.nbytes, event.stream, op])
    return out + [[*place, size, stream, ""] for size, stream in sorted(frees) if size]


def sent(events: tuple[Event, ...]) -> list[list[Any]]:
    ops = [event for event in events if isinstance(event, Op) and event.name in COLLECTIVES]
    return [[op.name, op.read_bytes, op.written_bytes, op.shapes[1][0], op.stream] for op in ops]


def main() -> None:
    import torch.distributed as dist

    from tunecast.tape.trace import cuda
    from tunecast.tape.trace.session import tracing

    cases = json.loads(Path(sys.argv[1]).read_text())
    found: dict[str, Any] = {}
    with tracing(Card(), devices=8) as recorder:
        for name, values, config, lengths in cases:
            gc.collect()
            gc.freeze()  # torch and the rest are there to stay: looking through them again took a third of the time
            recorder.forget_all()
            cuda.Stream._numbers = itertools.count(1)  # streams are numbered anew in each program
            job = fill_in(job_from_dict(values), config)
            dist.init_process_group("nccl", rank=0, world_size=job.hardware.gpus * job.hardware.nodes)
            try:
                train(job, config, lengths, recorder)
                events = recorder.tape({}).events
                found[name] = [told(events), sent(events)]
            except Exception as error:
                if len(cases) == 1:
                    raise
                found[name] = f"{type(error).__name__}: {error}"
            dist.destroy_process_group()
    Path(sys.argv[2]).write_text(json.dumps(found))


def train(job: Job, config: Any, lengths: list[int], recorder: Any) -> None:
    import torch

    from tunecast.tape.trace import recipe

    torch.zeros(1, device="cuda")
    model = recipe.build(job, config)
    model.train()
    model = recipe.adapt(job, model)
    if job.quantization.format is not None and job.parallel.data != "ddp":
        store_as(model, torch.bfloat16)
    vocabulary = model.config.get_text_config().vocab_size
    if job.parallel.data == "ddp":
        model = replicated(job, model)
        autocast = job.autocast
    else:
        model = sharded(job, model)
        autocast = None
    parameters = [p for p in model.parameters() if p.requires_grad]
    gc.collect()
    torch.cuda.empty_cache()
    optimizer = recipe.make_optimizer(job, parameters)
    for length in lengths:
        recorder.scopes.begin_step()
        for micro in range(job.grad_accum):
            ids = torch.randint(0, vocabulary, (job.micro_batch, length), device="cuda")
            mask = torch.ones_like(ids)
            waits = micro < job.grad_accum - 1 and not job.parallel.sync_each_batch
            with unsynchronised(model) if waits else contextlib.nullcontext():
                with torch.autocast("cuda", recipe.DTYPES[autocast or "bfloat16"], enabled=autocast is not None):
                    loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss / job.grad_accum
                loss.backward()
        if job.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(parameters, job.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del loss
    recorder.scopes.begin_step()


def replicated(job: Job, model: Any) -> Any:
    """transformers' Trainer: unused parameters are looked for unless layers are recomputed, and always with PEFT."""
    from torch.nn.parallel import DistributedDataParallel
    from transformers import PreTrainedModel

    find_unused = not (isinstance(model, PreTrainedModel) and job.gradient_checkpointing)
    return DistributedDataParallel(model, device_ids=[0], output_device=0, find_unused_parameters=find_unused)


def sharded(job: Job, model: Any) -> Any:
    import torch
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model
    from torch.distributed.device_mesh import init_device_mesh

    from tunecast.tape.trace import recipe

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False,
        reshard_after_forward=job.parallel.reshard_after_forward, cpu_offload=job.parallel.offload == "parameters",
    )  # fmt: skip
    if job.autocast:
        plugin.set_mixed_precision(ACCELERATE[job.autocast])
        if job.parallel.reduce_dtype:
            reduce_dtype = recipe.DTYPES[job.parallel.reduce_dtype]
            plugin.mixed_precision_policy = replace(plugin.mixed_precision_policy, reduce_dtype=reduce_dtype)
    gpus, nodes = job.hardware.gpus, job.hardware.nodes
    copies = job.parallel.replicate or nodes
    shape, names = (copies, gpus * nodes // copies), ("dp_replicate", "dp_shard")
    if job.parallel.data != "hsdp":
        shape, names = (gpus * nodes,), ("dp_shard",)
    accelerator = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin), mixed_precision=ACCELERATE[job.autocast], is_main_process=False,
        device=torch.device("cuda", 0), torch_device_mesh=init_device_mesh("cuda", shape, mesh_dim_names=names),
        parallelism_config=SimpleNamespace(fsdp_dim_names=names),
    )  # fmt: skip
    return fsdp2_prepare_model(accelerator, model)


def store_as(model: Any, dtype: Any) -> None:
    """`bnb_4bit_quant_storage`: the same bytes under a floating dtype, which FSDP can shard."""
    import bitsandbytes as bnb

    for module in model.modules():
        if isinstance(module, bnb.nn.Linear4bit):
            old = module.weight
            module.quant_state, module.quant_storage = old.quant_state, dtype
            module.weight = bnb.nn.Params4bit(
                old.data.view(-1).view(dtype).view(-1, 1), requires_grad=False, quant_state=old.quant_state,
                quant_storage=dtype, compress_statistics=old.compress_statistics, quant_type=old.quant_type,
                bnb_quantized=True, module=module,
            )  # fmt: skip


@contextlib.contextmanager
def unsynchronised(model: Any) -> Any:
    """accelerate's `no_sync`."""
    if hasattr(model, "no_sync"):
        with model.no_sync():
            yield
        return
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


if __name__ == "__main__":
    run_and_leave(main)
