"""torchtitan 0.3's own loop without files: its model configurations, `parallelize_fn`, loss, optimizers and
`Trainer.train_step`. Traced by make.py; its one argument is a case of torchtitan_cases.py.

Its step is a CUDA graph by default, of which there is none on fake tensors: what is captured runs as it is, and
gradients stay between steps as they do for a graph (`zero_grad(set_to_none=False)`). Steps that log nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as dist_utils
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models import llama3, qwen3
from torchtitan.models.common.rope import ComplexRoPE, CosSinRoPE
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

case = json.loads(sys.argv[1])
config, job = case["config"], case["job"]
STEPS = 2
ranks = job.get("ranks", 1)
dim, words, heads = config["hidden_size"], config["vocab_size"], config["num_attention_heads"]
sizes = {
    "n_layers": config["num_hidden_layers"], "dim": dim, "n_heads": heads, "n_kv_heads": config["num_key_value_heads"],
    "hidden_dim": config["intermediate_size"], "attn_backend": "flex",
}  # fmt: skip


def spec() -> ModelSpec:
    of_family = llama3 if config["model_type"] == "llama" else qwen3
    drawn = of_family._LINEAR_INIT
    ends = {
        "tok_embeddings": of_family.Embedding.Config(num_embeddings=words, embedding_dim=dim, param_init=drawn),
        "norm": of_family.RMSNorm.Config(normalized_shape=dim, param_init=of_family._NORM_INIT),
        "lm_head": of_family.Linear.Config(in_features=dim, out_features=words, param_init=drawn),
    }
    if of_family is llama3:
        rope: Any = ComplexRoPE.Config(dim=dim // heads, max_seq_len=job["seq_len"])
        layers = llama3._build_llama3_layers(**sizes, rope=rope)
        model: Any = llama3.Llama3Model.Config(dim=dim, vocab_size=words, layers=layers, **ends)
        parallelize = llama3.parallelize_llama
    else:
        rope = CosSinRoPE.Config(dim=config["head_dim"], max_seq_len=job["seq_len"])
        layers = qwen3._build_qwen3_layers(**sizes, head_dim=config["head_dim"], rope=rope)
        model = qwen3.Qwen3Model.Config(dim=dim, vocab_size=words, layers=layers, **ends)
        parallelize = qwen3.parallelize_qwen3
    return ModelSpec(
        name=config["model_type"], flavor="small", model=model, parallelize_fn=parallelize, pipelining_fn=None,
        post_optimizer_build_fn=None, state_dict_adapter=None,
    )  # fmt: skip


def recomputes() -> Any:
    if not job["gradient_checkpointing"]:
        return None
    return FullAC.Config() if job["recompute"] == "all" else SelectiveAC.Config()


model_spec = spec()
half = "float32" if job.get("autocast", "bfloat16") is None else "bfloat16"
settings = Trainer.Config(
    model_spec=model_spec,
    loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=words)),
    training=TrainingConfig(
        local_batch_size=job["micro_batch"], seq_len=job["seq_len"], mixed_precision_param=half,
        disable_cuda_graphs=False,
    ),
    parallelism=ParallelismConfig(data_parallel_replicate_degree=job.get("replicate", 1)),
    activation_checkpoint=recomputes(),
    optimizer=default_adamw(),
)  # fmt: skip
settings.optimizer.implementation = "fused" if job["optimizer"] == "adamw_torch_fused" else "foreach"

os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks)}
dist.init_process_group("fake", rank=0, world_size=ranks)
trainer = Trainer.__new__(Trainer)
trainer.config = settings
trainer.device = torch.device("cuda", 0)
trainer.parallel_dims = dims = ParallelDims.from_config(settings.parallelism, ranks)
dist_utils.set_spmd_backend(settings.parallelism.spmd_backend)
dims.build_mesh()
trainer.model_config = model_spec.model
model_spec.model.update_from_config(config=settings)
with torch.device("meta"):
    model = model_spec.model.build()
trainer.loss_fn = settings.loss.build(compile_config=settings.compile)
model = model_spec.parallelize_fn(
    model, parallel_dims=dims, training=settings.training, parallelism=settings.parallelism,
    compile_config=settings.compile, ac_config=settings.activation_checkpoint, dump_folder="",
)  # fmt: skip
model.to_empty(device="cuda")
with torch.no_grad():
    model.init_weights(buffer_device=None)
model.train()
trainer.model_parts = [model]
trainer.loss_fn.set_lm_head(model.lm_head)
model._skip_lm_head = True
trainer.optimizers = settings.optimizer.build(model_parts=trainer.model_parts)
trainer.lr_schedulers = SimpleNamespace(get_metrics=dict, step=lambda: None)
trainer.metrics_processor = SimpleNamespace(should_log=lambda step: False)
trainer.checkpointer = SimpleNamespace(maybe_wait_for_staging=lambda: None)
trainer.train_context = dist_utils.get_spmd_context(parallel_dims=dims)
trainer.fwd_bwd_fn = trainer._forward_backward_body
trainer.gradient_accumulation_steps = job.get("grad_accum", 1)
trainer.num_pipeline_parallel_microbatches = 1
trainer.step = trainer.ntokens_seen = 0


def batches() -> Iterator[Any]:
    drawn = partial(torch.randint, 0, 1000, (job["micro_batch"], job["seq_len"]))
    while True:
        yield {"input": drawn(), "positions": drawn()}, drawn()


data_iterator = batches()
for _ in range(STEPS):
    trainer.train_step(data_iterator)
