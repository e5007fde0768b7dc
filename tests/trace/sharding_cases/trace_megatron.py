"""Trace one rank of Megatron Core around small models, one after the other: python trace_megatron.py CASES OUT

CASES is a file with a list of [id, job, config, lengths]; OUT maps ids to events and collectives as trace_all.py tells
them. Model, gradient buffers, optimizer and loss are Megatron Core's own, its layers TransformerEngine's Python over a
stand-in for its C++ (engine_stub.py), on a process group that is not there.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import engine_stub
from trace_all import sent, told
from trace_zero import trained

from tunecast.job import job_from_dict
from tunecast.job.job import Job
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.stacks.megatron import gradients_dtype
from tunecast.tape.card import Card
from tunecast.tape.trace.ending import run_and_leave

RECOMPUTED = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def train(job: Job, config: Any, lengths: list[int], recorder: Any) -> None:
    import torch
    import torch.nn.functional as F
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
    from megatron.core.transformer import TransformerConfig

    torch.zeros(1, device="cuda")
    model_parallel_cuda_manual_seed(1)
    dtype = getattr(torch, job.weights_dtype)
    ways = job.parallel.tensor
    tokens_split = ways > 1 and job.parallel.sequence_parallel is not False
    shape = TransformerConfig(
        num_layers=config["num_hidden_layers"], hidden_size=config["hidden_size"],
        num_attention_heads=config["num_attention_heads"], num_query_groups=config["num_key_value_heads"],
        ffn_hidden_size=config["intermediate_size"], add_bias_linear=False, gated_linear_unit=True,
        activation_func=F.silu, normalization="RMSNorm", hidden_dropout=0.0, attention_dropout=0.0,
        params_dtype=dtype, pipeline_dtype=dtype, bf16=dtype is torch.bfloat16, tensor_model_parallel_size=ways,
        sequence_parallel=tokens_split, perform_initialization=False, gradient_accumulation_fusion=True,
        bias_activation_fusion=True, bias_dropout_fusion=True, apply_rope_fusion=True,
        **(RECOMPUTED if job.gradient_checkpointing else {}),
    )  # fmt: skip
    model = GPTModel(
        shape, get_gpt_layer_with_transformer_engine_spec(), config["vocab_size"], lengths[0],
        position_embedding_type="rope", share_embeddings_and_output_weights=config["tie_word_embeddings"],
    )  # fmt: skip
    model.cuda()
    shares = job.parallel.data == "zero1"
    wide = gradients_dtype(job).name == "float32"
    wrapped = DistributedDataParallel(
        shape, DistributedDataParallelConfig(grad_reduce_in_fp32=wide, use_distributed_optimizer=shares), model
    )
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam", lr=1e-4, bf16=shape.bf16, params_dtype=dtype, use_distributed_optimizer=shares,
            clip_grad=job.max_grad_norm,
        ),
        [wrapped],
    )  # fmt: skip
    for length in lengths:
        recorder.scopes.begin_step()
        wrapped.zero_grad_buffer()
        optimizer.zero_grad()
        for _ in range(job.grad_accum):
            ids = torch.randint(0, config["vocab_size"], (job.micro_batch, length), device="cuda")
            positions = torch.arange(length, device="cuda").unsqueeze(0).expand_as(ids)
            loss = wrapped(ids, positions, None, labels=ids)
            loss.float().mean().backward()
            del loss
        finalize_model_grads([wrapped])
        optimizer.step()
    recorder.scopes.begin_step()
    optimizer.zero_grad()


def trace(job: Job, config: Any, lengths: list[int]) -> Any:
    from tunecast.tape.trace.session import tracing

    with tracing(Card(), devices=8) as recorder:
        engine_stub.install()
        import torch.distributed as dist
        from megatron.core import parallel_state

        dist.init_process_group("nccl", rank=0, world_size=job.hardware.gpus * job.hardware.nodes)
        parallel_state.initialize_model_parallel(job.parallel.tensor)
        try:
            train(job, config, lengths, recorder)
        except Exception:
            return traceback.format_exc()
        events = recorder.tape({}).events
        return [told(events), sent(trained(events))]


def write_trace(answer: Path, job: Job, config: Any, lengths: list[int]) -> None:
    answer.write_text(json.dumps(trace(job, config, lengths)))


def main() -> None:
    """Each case in a process of its own: TransformerEngine keeps workspaces, and dynamo what it compiled, for the life
    of one."""
    import torch._dynamo  # noqa: F401  for all of them

    cases, answer = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    found: dict[str, Any] = {}
    for name, values, config, lengths in cases:
        child = os.fork()
        if child == 0:
            run_and_leave(partial(write_trace, answer, fill_in(job_from_dict(values), config), config, lengths))
        os.waitpid(child, 0)
        found[name] = json.loads(answer.read_text())
    answer.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
