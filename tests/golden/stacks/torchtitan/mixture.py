"""What program.py needs of torchtitan's models with experts, Qwen 3, DeepSeek V3 and Llama 4: arguments, and experts
over ranks.

Counts of tokens are read by the host, and sizes follow from them. A router nobody trained is taken to choose all
experts equally often, on every rank: the counts are filled in where the tracer cannot know them (torch counts whole
numbers on a card only; what other ranks send is what this one does).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torchtitan.distributed import ParallelDims, expert_parallel
from torchtitan.models.llama4.infra.parallelize import apply_fsdp, apply_moe_ep_tp
from torchtitan.models.moe import MoEArgs
from torchtitan.models.qwen3.model.args import Qwen3ModelArgs

counted = torch.histc
sent = expert_parallel.all_to_all_single


def of_family(model_type: str) -> tuple[Any, Any]:
    if model_type == "qwen3_moe":
        from torchtitan.models.qwen3.infra import parallelize
        from torchtitan.models.qwen3.model.model import Qwen3Model as Model
    elif model_type == "llama4_text":
        from torchtitan.models.llama4.infra import parallelize
        from torchtitan.models.llama4.model.model import Transformer as Model
    else:
        from torchtitan.models.deepseek_v3.infra import parallelize
        from torchtitan.models.deepseek_v3.model.model import DeepSeekV3Model as Model
    return parallelize, Model


def arguments(config: dict[str, Any], job: dict[str, Any]) -> Any:
    names = {"qwen3_moe": "num_experts", "llama4_text": "num_local_experts"}
    experts = config[names.get(config["model_type"], "n_routed_experts")]
    tokens = job["micro_batch"] * job["seq_len"]
    balance(experts, tokens * config["num_experts_per_tok"] // experts)
    return {"qwen3_moe": qwen3, "llama4_text": llama4}.get(config["model_type"], deepseek)(config, job)


def llama4(config: dict[str, Any], job: dict[str, Any]) -> Any:
    """Whose hidden sizes are multiples: of 256 and 512 for a width of 256, two experts a token."""
    from torchtitan.models.llama4.model.args import TransformerModelArgs

    return TransformerModelArgs(
        dim=config["hidden_size"], n_layers=config["num_hidden_layers"], n_heads=config["num_attention_heads"],
        n_kv_heads=config["num_key_value_heads"], vocab_size=config["vocab_size"], max_seq_len=job["seq_len"],
        multiple_of=256, interleave_moe_layer_step=config["interleave_moe_layer_step"],
        moe_args=MoEArgs(num_experts=config["num_local_experts"]),
    )  # fmt: skip


def deepseek(config: dict[str, Any], job: dict[str, Any]) -> Any:
    from torchtitan.models.deepseek_v3.model.args import DeepSeekV3ModelArgs

    groups = config["n_group"] if config["n_group"] > 1 else None
    given = DeepSeekV3ModelArgs(
        dim=config["hidden_size"], n_layers=config["num_hidden_layers"], n_heads=config["num_attention_heads"],
        vocab_size=config["vocab_size"], inter_dim=config["intermediate_size"], max_seq_len=job["seq_len"],
        moe_inter_dim=config["moe_intermediate_size"], n_dense_layers=config["first_k_dense_replace"],
        q_lora_rank=config["q_lora_rank"] or 0, kv_lora_rank=config["kv_lora_rank"], v_head_dim=config["v_head_dim"],
        qk_nope_head_dim=config["qk_nope_head_dim"], qk_rope_head_dim=config["qk_rope_head_dim"],
        moe_args=MoEArgs(
            num_experts=config["n_routed_experts"], num_shared_experts=config["n_shared_experts"],
            top_k=config["num_experts_per_tok"], score_func=config["scoring_func"],
            route_norm=config["norm_topk_prob"], route_scale=2.5, score_before_experts=False,
            num_expert_groups=groups, num_limited_groups=groups and config["topk_group"],
        ),
    )  # fmt: skip
    given.moe_impl = "standard"
    return given


def qwen3(config: dict[str, Any], job: dict[str, Any]) -> Qwen3ModelArgs:
    experts = config["num_experts"]
    return Qwen3ModelArgs(
        dim=config["hidden_size"], n_layers=config["num_hidden_layers"], n_heads=config["num_attention_heads"],
        n_kv_heads=config["num_key_value_heads"], vocab_size=config["vocab_size"], head_dim=config["head_dim"],
        hidden_dim=config["intermediate_size"], max_seq_len=job["seq_len"], moe_enabled=True,
        moe_inter_dim=config["moe_intermediate_size"],
        moe_args=MoEArgs(
            num_experts=experts, num_shared_experts=0, top_k=config["num_experts_per_tok"], score_func="softmax",
            route_norm=True, route_scale=1.0, score_before_experts=False,
        ),
    )  # fmt: skip


def balance(experts: int, tokens: int) -> None:
    def known(made: Any) -> Any:
        made._tunecast_known = even
        return made

    with _disable_current_modes():
        even = torch.full((experts,), tokens, device="cpu")
    wait = torch.ops._c10d_functional.wait_tensor
    torch.histc = lambda *args, **kwargs: known(counted(*args, **kwargs))
    expert_parallel.all_to_all_single = lambda *args, **kwargs: known(wait(sent(*args, **kwargs)))


def dims(ranks: int, expert: int) -> ParallelDims:
    made = ParallelDims(dp_replicate=1, dp_shard=ranks, cp=1, tp=1, pp=1, ep=expert, etp=1, world_size=ranks)
    made.build_mesh()
    return made


def spread(model: Any, ranks: int, expert: int) -> None:
    mesh = dims(ranks, expert).get_mesh("ep")
    apply_moe_ep_tp(model, tp_mesh=None, ep_mesh=mesh, etp_mesh=None, ep_etp_mesh=None)


def share(model: Any, ranks: int, expert: int) -> None:
    found = dims(ranks, expert)
    apply_fsdp(
        model, found.get_mesh(["fsdp"]), param_dtype=torch.bfloat16, reduce_dtype=torch.float32, pp_enabled=False,
        ep_degree=expert, edp_mesh=found.get_mesh(["efsdp"]),
    )  # fmt: skip
