"""Megatron Core's arguments, by the names that ms-swift and LLaMA-Factory share with Megatron-LM.

Keys: megatron/training/arguments.py, `_add_distributed_args`, `_add_mixed_precision_args`, `_add_training_args`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.huggingface import is_on
from tunecast.job.recipes.values import whole, word

SPLITS: Mapping[str, str] = {
    "tensor_model_parallel_size": "parallel.tensor",
    "pipeline_model_parallel_size": "parallel.pipeline",
    "context_parallel_size": "parallel.context",
    "expert_model_parallel_size": "parallel.expert",
}
WITHOUT_EFFECT = (
    *("overlap_grad_reduce", "overlap_param_gather", "bias_activation_fusion", "bias_swiglu_fusion", "bias_dropout_*"),
    *("no_*_fusion", "apply_rope_fusion", "no_load_*", "no_save_rng", "use_checkpoint_args", "distributed_timeout_*"),
    *("moe_token_dispatcher_type", "moe_permute_fusion", "moe_router_*", "moe_aux_loss_coeff", "moe_z_loss_coeff"),
    *("moe_enable_deepep", "moe_shared_expert_overlap", "lr*", "min_lr", "clip_grad_*", "load", "save", "seed_*"),
    *("gradient_accumulation_fusion", "delay_wgrad_compute", "tp_comm_overlap*", "align_grad_reduce"),
    *("moe_expert_capacity_factor", "moe_grouped_gemm", "async_save", "eval_iters"),
    *("manual_gc*", "tensorboard_*", "log_*", "use_flash_attn", "attention_softmax_in_fp32"),
)
"""What overlaps with what is part of the stack's own estimate of time."""
REPORTED: Mapping[str, str] = {
    "decoder_first_pipeline_num_layers": "the first stage holds another number of layers",
    "decoder_last_pipeline_num_layers": "the last stage holds another number of layers",
    "pipeline_model_parallel_layout": "layers are dealt to stages by hand",
    "account_for_embedding_in_pipeline_split": "the embedding counts as a layer of the pipeline",
    "account_for_loss_in_pipeline_split": "the loss counts as a layer of the pipeline",
    "cross_entropy_fusion_impl": "the loss is TransformerEngine's kernel, which keeps less",
    "overlap_p2p_comm": "stages send while they compute",
    "use_precision_aware_optimizer": "the optimizer's states and master weights are in other dtypes",
    "optimizer_cpu_offload": "the optimizer's states wait in host memory",
    "fp8_param_gather": "weights are kept in FP8",
    "mtp_num_layers": "further layers predict tokens after the next",
    "use_megatron_fsdp": "Megatron's own FSDP",
    "enable_cuda_graph": "steps are CUDA graphs, which keep memory of their own",
}


def take_megatron(draft: Draft, keys: Keys) -> None:
    """How the model is split, what is computed again, and whose kernels do it."""
    for name, field in SPLITS.items():
        given = keys.get(name)
        if given is not None and whole(given) != 1:
            draft.put(field, given, keys, name)
    draft.take("parallel.expert_tensor", keys, "expert_tensor_parallel_size")
    tensor = whole(keys.get("tensor_model_parallel_size")) or 1
    parallel = keys.get("sequence_parallel")
    if tensor > 1:
        if parallel is None:
            draft.assume("parallel.sequence_parallel", False)
        else:
            draft.put("parallel.sequence_parallel", is_on(parallel), keys, "sequence_parallel")
    take_stages(draft, keys)
    take_recomputation(draft, keys)
    shards = keys.get("use_distributed_optimizer")
    sharding = "ddp" if shards is not None and not is_on(shards) else "zero1"
    if shards is None:
        draft.assume("parallel.data", sharding)
    else:
        draft.put("parallel.data", sharding, keys, "use_distributed_optimizer")
    if keys.get("fp8_format", "fp8") is not None:
        draft.put("matmul_dtype", "float8", keys, "fp8_format", "fp8")
        keys.ignore("fp8_recipe", "fp8_amax_history_len", "fp8_amax_compute_algo")
    for name, why in REPORTED.items():
        value = keys.get(name)
        plain = name != "mtp_num_layers" and whole(value) == 1
        if value is not None and value != "native" and is_on(value) and not plain:
            draft.not_modelled(keys, name, why)


def take_stages(draft: Draft, keys: Keys) -> None:
    virtual = keys.get("virtual_pipeline_model_parallel_size")
    if virtual is not None and whole(virtual) != 1:
        draft.put("parallel.virtual_stages", virtual, keys, "virtual_pipeline_model_parallel_size")
    if keys.get("num_layers_per_virtual_pipeline_stage") is not None:
        name = "num_layers_per_virtual_pipeline_stage"
        draft.not_modelled(keys, name, "how many pieces a stage holds follows from the model's layers")


def take_recomputation(draft: Draft, keys: Keys) -> None:
    """`--recompute-granularity`: all of a layer, or its attention alone. The latter keeps what FlashAttention keeps in
    any case: memory is the same, and time grows by one more attention of the forward pass."""
    granularity = word(keys.get("recompute_granularity"))
    if granularity == "full":
        draft.put("gradient_checkpointing", True, keys, "recompute_granularity")
        method, layers = word(keys.get("recompute_method")), keys.get("recompute_num_layers")
        if method == "block" or (layers is not None and whole(layers) != 1):
            draft.not_modelled(keys, "recompute_num_layers", "taken is every layer, computed again one by one")
    elif granularity == "selective":
        draft.put("gradient_checkpointing", False, keys, "recompute_granularity")
        keys.ignore("recompute_method", "recompute_num_layers")
    elif granularity in ("none", "no"):
        draft.put("gradient_checkpointing", False, keys, "recompute_granularity")
    modules = keys.get("recompute_modules")
    if modules not in (None, ["core_attn"], "core_attn") and granularity in ("", "selective"):
        draft.not_modelled(keys, "recompute_modules", "these parts of a layer are computed again")
