"""Trace one rank of DeepSpeed's ZeRO around small models, many in one process: python trace_zero.py CASES.json OUT.json

CASES is a list of [id, job, config, lengths, file]; `file` is what differs from DeepSpeed's defaults in its
`zero_optimization`. OUT maps ids to events and collectives as trace_all.py tells them. The model is that of
tape/trace/recipe.py, on the host; the engine is DeepSpeed's own (`deepspeed.initialize`), on a process group that is
not there.
"""

from __future__ import annotations

import copy
import gc
import itertools
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from trace_all import sent, store_as, told

from tunecast.job import job_from_dict
from tunecast.job.job import Job
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.card import Card
from tunecast.tape.op import Begin, Event, Phase
from tunecast.tape.trace.ending import run_and_leave

PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}


def settings(job: Job, file: dict[str, Any]) -> dict[str, Any]:
    """A DeepSpeed configuration. Where state is offloaded, torch's own optimizer steps on the host and the card sees no
    difference: DeepSpeed's is C++ to be compiled."""
    zero: dict[str, Any] = {"stage": int(job.parallel.data[-1]), **file}
    if job.parallel.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if job.parallel.offload == "parameters":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    precision = PRECISIONS.get(job.autocast or job.weights_dtype)
    return {
        "train_micro_batch_size_per_gpu": job.micro_batch, "gradient_accumulation_steps": job.grad_accum,
        "gradient_clipping": job.max_grad_norm, "zero_optimization": zero, "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False, **({precision: {"enabled": True}} if precision else {}),
    }  # fmt: skip


def train(job: Job, config: Any, lengths: list[int], file: dict[str, Any], recorder: Any) -> None:
    import deepspeed
    import torch

    from tunecast.tape.trace import recipe

    torch.zeros(1, device="cuda")
    model = recipe.build(job, config)
    model.train()
    model = recipe.adapt(job, model)
    if job.quantization.format is not None and job.parallel.data == "zero3":
        store_as(model, torch.bfloat16)
    vocabulary = model.config.get_text_config().vocab_size
    model = model.cpu()
    optimizer = recipe.make_optimizer(job, [p for p in model.parameters() if p.requires_grad])
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings(job, file))
    del model
    gc.collect()
    torch.cuda.empty_cache()
    for length in lengths:
        recorder.scopes.begin_step()
        for _ in range(job.grad_accum):
            ids = torch.randint(0, vocabulary, (job.micro_batch, length), device="cuda")
            mask = torch.ones_like(ids)
            loss = engine(input_ids=ids, attention_mask=mask, labels=ids).loss
            engine.backward(loss)
            engine.step()
        del loss
    recorder.scopes.begin_step()


def trained(events: tuple[Event, ...]) -> tuple[Event, ...]:
    first = next(place for place, event in enumerate(events) if isinstance(event, Begin) and event.phase != Phase.LOAD)
    return events[first:]


class FreshGroups:
    """DeepSpeed's groups of processes are for one world a process, as is the linear layer stage 3 puts in place of
    torch's."""

    def __init__(self) -> None:
        import torch
        from deepspeed.utils import groups

        self.functional, self.linear = torch.nn.functional, torch.nn.functional.linear
        self.groups = vars(groups)
        self.made = {name: copy.copy(value) for name, value in self.groups.items() if name.isupper()}

    def make(self, ranks: int) -> None:
        import deepspeed.comm
        import torch.distributed as dist

        os.environ.update({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks)})
        self.functional.linear = self.linear
        self.groups.update({name: copy.copy(value) for name, value in self.made.items()})
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("nccl", rank=0, world_size=ranks)
        deepspeed.comm.comm.cdb = None
        deepspeed.comm.init_distributed("nccl", auto_mpi_discovery=False, verbose=False)


def main() -> None:
    from tunecast.tape.trace import cuda
    from tunecast.tape.trace.session import tracing

    found: dict[str, Any] = {}
    with tracing(Card(), devices=8) as recorder:
        fresh = FreshGroups()
        for name, values, config, lengths, file in json.loads(Path(sys.argv[1]).read_text()):
            gc.collect()
            gc.freeze()  # torch and the rest are there to stay: looking through them again took a third of the time
            recorder.forget_all()
            cuda.Stream._numbers = itertools.count(1)  # streams are numbered anew in each program
            job = fill_in(job_from_dict(values), config)
            fresh.make(job.hardware.gpus * job.hardware.nodes)
            try:
                train(job, config, lengths, file, recorder)
                events = recorder.tape({}).events
                found[name] = [told(events), sent(trained(events))]
            except Exception:
                found[name] = traceback.format_exc()
    Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    run_and_leave(main)
