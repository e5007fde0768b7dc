"""Trace one rank of the jobs of ulysses_cases.py with the real packages; writes events.json.gz.

    CUDA_VISIBLE_DEVICES= PYTHONPATH=src ENV/bin/python tests/golden/stacks/ulysses/make.py

ENV: deepspeed 0.19.8 (DS_BUILD_OPS=0), transformers 5.17.0, trl 1.16.0, peft 0.21.0, liger-kernel 0.8.5, torch 2.13.0.

The model is transformers' own with the attention DeepSpeed registers for it
(`UlyssesSPAttentionHF.register_with_transformers`), on a process group that is not there. Its batches are what the
loader adapter leaves of them (`UlyssesSPDataLoaderAdapter`: a rank's tokens, positions and shifted labels), its loss is
transformers' `deepspeed_sp_compute_loss`. ZeRO's engine is left out.
"""

from __future__ import annotations

import gc
import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ulysses_cases import CASES, LENGTHS

from tunecast.job import job_from_dict
from tunecast.job.job import Job
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.card import Card
from tunecast.tape.op import Event, Op
from tunecast.tape.trace.ending import run_and_leave

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1] / "tools"))  # not stacks: its folders would pass for packages
from sizes import told  # noqa: E402

CARD = Card()


def exchanged(events: tuple[Event, ...]) -> list[int]:
    """Bytes of each exchange between the ranks of a row."""
    return [event.written_bytes for event in events if isinstance(event, Op) and "all_to_all" in event.name]


def main() -> None:
    import torch.distributed as dist

    from tunecast.tape.trace.session import tracing

    found: dict[str, Any] = {}
    with tracing(CARD, devices=8) as recorder:
        import deepspeed.comm
        from deepspeed.runtime.sequence_parallel import parallel_state_sp

        for name, (values, config) in CASES.items():
            gc.collect()
            recorder.forget_all()
            job = fill_in(job_from_dict(values), config)
            dist.init_process_group("nccl", rank=0, world_size=job.hardware.gpus)
            deepspeed.comm.init_distributed("nccl", auto_mpi_discovery=False, verbose=False)
            train(job, config, recorder)
            events = recorder.tape({}).events
            found[name] = {"sizes": told(events), "exchanged": exchanged(events)}
            print(name, len(found[name]["sizes"]), flush=True)
            parallel_state_sp._release_sequence_parallel_groups()
            deepspeed.comm.comm.cdb = None
            dist.destroy_process_group()
    (HERE / "events.json.gz").write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))


def train(job: Job, config: Any, recorder: Any) -> None:
    """The loop of tape/trace/recipe.py."""
    import torch
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
    from deepspeed.utils import groups
    from transformers.integrations.deepspeed import deepspeed_sp_compute_loss
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from tunecast.tape.trace import recipe

    ranks = job.parallel.context
    torch.zeros(1, device="cuda")
    model = recipe.build(job, config)
    model.train()
    if job.loss == "chunked":
        from trl.trainer.utils import add_fused_lm_head

        add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
    model = recipe.adapt(job, model)
    own = ALL_ATTENTION_FUNCTIONS[job.attention]
    groups.mpu = UlyssesSPAttentionHF.register_with_transformers(model, job.attention, ranks, job.micro_batch)
    vocabulary = model.config.get_text_config().vocab_size
    parameters = [p for p in model.parameters() if p.requires_grad]
    gc.collect()
    torch.cuda.empty_cache()
    optimizer = recipe.make_optimizer(job, parameters)
    spread = SimpleNamespace(sp_backend="deepspeed", sp_size=ranks)
    for length in LENGTHS:
        recorder.scopes.begin_step()
        for _ in range(job.grad_accum):
            ids = torch.randint(0, vocabulary, (job.micro_batch, length // ranks), device="cuda")
            mask = torch.ones_like(ids)
            positions = torch.zeros_like(ids)
            with torch.autocast("cuda", recipe.DTYPES[job.autocast or "bfloat16"], enabled=job.autocast is not None):
                batch = batch_of(job, ids, mask, positions)
                loss = deepspeed_sp_compute_loss(None, model, batch, False, spread) / job.grad_accum
                del batch
            loss.backward()
        if job.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(parameters, job.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del loss
    recorder.scopes.begin_step()  # what the end of the program frees belongs to no step
    ALL_ATTENTION_FUNCTIONS[job.attention] = own


def batch_of(job: Job, ids: Any, mask: Any, positions: Any) -> dict[str, Any]:
    how = {"fused_lm_head": True} if job.loss == "chunked" else {}
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "shift_labels": ids, **how}


if __name__ == "__main__":
    run_and_leave(main)
