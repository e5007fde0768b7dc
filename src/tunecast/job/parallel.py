"""How a job is split over cards: the fields of `parallel`."""

from __future__ import annotations

from tunecast.job.knob import OURS, Origin, Section, accelerate, field
from tunecast.job.shardings import REPLICATED, SHARDINGS
from tunecast.records import dataclass

_AS_STACK = "null: as in the DeepSpeed file that the stack's users start from"


@dataclass(frozen=True)
class Parallel(Section):
    data: str = field(REPLICATED, OURS, "how data-parallel ranks hold the model", choices=tuple(SHARDINGS))
    replicate: int | None = field(
        None,
        OURS,
        "with hsdp: whole copies of the weights, each sharded over the rest of the ranks (dp_replicate); null: one a "
        "machine",
        within=(2, 65536),
        aka="dp_replicate data_parallel_replicate_degree dp_replicate_size",
    )
    fsdp_version: int | None = field(
        None,
        OURS,
        "with fsdp: 1 for flat parameters, 2 for fully_shard; null: the Trainer's, 1 before transformers 5 and 2 since",
        within=(1, 2),
    )
    use_orig_params: bool = field(
        True,
        OURS,
        "with fsdp_version 1: the optimizer sees the model's own parameters; false: flat ones, a unit each",
        aka="fsdp_use_orig_params",
    )
    reduce_dtype: str | None = field(
        None,
        OURS,
        "what gradients are summed over ranks in; null: as the stack does",
        choices=("float32", "bfloat16", "float16"),
    )
    reshard_after_forward: bool = field(
        True,
        OURS,
        "with fsdp: a layer's weights are let go after its forward pass and gathered again (FULL_SHARD, ZeRO-3)",
        aka="fsdp_reshard_after_forward",
    )
    shard_ends: bool | None = field(
        None,
        OURS,
        "torchtune: embedding and head are gathered apart from the rest (custom_sharded_layers); null: with full "
        "training and not with adapters, as most of its files have it",
    )
    sync_each_batch: bool = field(
        False,
        accelerate("GradientAccumulationPlugin.sync_each_batch"),
        "with grad_accum above 1: gradients are summed over ranks, and cut, after every micro-batch instead of waiting "
        "whole for the last (no_sync); Trainer: accelerator_config gradient_accumulation_kwargs",
    )
    cpu_ram_efficient_loading: bool = field(
        False,
        accelerate("FullyShardedDataParallelPlugin.cpu_ram_efficient_loading", None),
        "with fsdp: weights are sent from the first rank when they are cut; on its own it saves no host memory, since "
        "from_pretrained loads them on every rank (load_on_rank_0)",
        aka="fsdp_cpu_ram_efficient_loading",
    )
    load_on_rank_0: bool = field(
        False,
        OURS,
        "with fsdp and cpu_ram_efficient_loading: the script loads the model on rank 0 alone, and makes it of memory "
        "that nobody touches on the others (docs/host_memory.md)",
    )
    state_dict_type: str = field(
        "full",
        Origin("tunecast", "the Trainer asks accelerate for FULL_STATE_DICT unless fsdp_config says otherwise", "full"),
        "with fsdp: the first rank gathers and writes a checkpoint (full), or each rank writes its part (sharded), of "
        "which accelerate merge-weights makes a model",
        choices=("full", "sharded"),
        aka="fsdp_state_dict_type",
    )
    layers: int = field(1, OURS, 'device_map="auto": cards of one machine the layers are spread over', within=(1, 1024))
    tensor: int = field(
        1, OURS, "cards a layer is split over", within=(1, 65536), aka="tp tensor_parallel_size tp_size"
    )
    sequence_parallel: bool | None = field(
        None,
        OURS,
        "with tensor: cards split the tokens outside attention and MLP; null: as the stack's recipes do, which is true",
        aka="sp",
    )
    pipeline: int = field(1, OURS, "pipeline stages", within=(1, 65536), aka="pp pipeline_parallel_size pp_size")
    virtual_stages: int = field(
        1,
        OURS,
        "pieces of the model a pipeline stage holds: more than 1 interleaves them",
        within=(1, 1024),
        aka="vp virtual_pipeline_model_parallel_size vpp",
    )
    context: int = field(
        1, OURS, "cards a sequence is split over", within=(1, 65536), aka="cp context_parallel_size cp_size"
    )
    context_kind: str = field(
        "ring",
        OURS,
        "with context: keys and values go around (ring), or heads are split while attention sees all of a row "
        "(ulysses: DeepSpeed's, accelerate's sp_size)",
        choices=("ring", "ulysses"),
    )
    expert: int = field(
        1, OURS, "cards the experts are split over", within=(1, 65536), aka="ep expert_parallel_size ep_size"
    )
    expert_tensor: int | None = field(
        None,
        OURS,
        "with expert, in Megatron Core: cards each expert is split over; null: as many as tensor",
        within=(1, 65536),
        aka="etp expert_tensor_parallel_size",
    )
    offload: str = field("none", OURS, "what waits in host memory", choices=("none", "optimizer", "parameters"))
    offload_device: str = field(
        "cpu", OURS, "with offload: where it waits, host memory or NVMe drives (ZeRO-Infinity)", choices=("cpu", "nvme")
    )
    reduce_bucket_size: int | str | None = field(
        None,
        OURS,
        "with zero1, zero2 and zero3: elements of the bucket that gradients are summed in; auto: the square of the "
        f"hidden size; {_AS_STACK}",
        choices=("auto",),
        within=(0, 10**13),
        kilo=1000,
    )
    prefetch_bucket_size: int | str | None = field(
        None,
        OURS,
        "with zero3: elements of weights that are fetched ahead; auto: 0.9 of the square of the hidden size; "
        f"{_AS_STACK}",
        choices=("auto",),
        within=(0, 10**13),
        aka="stage3_prefetch_bucket_size",
        kilo=1000,
    )
    param_persistence_threshold: int | str | None = field(
        None,
        OURS,
        f"with zero3: weights of so many elements or fewer are never cut; auto: 10 times the hidden size; {_AS_STACK}",
        choices=("auto",),
        within=(0, 10**13),
        aka="stage3_param_persistence_threshold",
        kilo=1000,
    )
    max_live_parameters: int | None = field(
        None,
        OURS,
        f"with zero3: elements of whole weights beyond which nothing is fetched ahead; {_AS_STACK}",
        within=(0, 10**13),
        aka="stage3_max_live_parameters",
        kilo=1000,
    )
    max_reuse_distance: int | None = field(
        None,
        OURS,
        "with zero3: a weight that is needed again within so many elements of others stays whole; " + _AS_STACK,
        within=(0, 10**13),
        aka="stage3_max_reuse_distance",
        kilo=1000,
    )
    sub_group_size: int | None = field(
        None,
        OURS,
        f"with zero3: elements of a rank's part that take an optimizer step at once; {_AS_STACK}",
        within=(0, 10**13),
        kilo=1000,
    )
    overlap_comm: bool | None = field(
        None,
        OURS,
        "with zero1, zero2 and zero3: gradients are summed while the backward pass goes on, with a second bucket in "
        f"zero1 and zero2; {_AS_STACK}",
    )
    round_robin_gradients: bool | None = field(
        None, OURS, f"with zero1 and zero2: weights are dealt out to ranks before they are cut; {_AS_STACK}"
    )

    @property
    def cards_of_one_expert(self) -> int:
        """megatron/core/model_parallel_config.py, `__post_init__`: as of other layers where nothing is said."""
        return self.expert_tensor or self.tensor
