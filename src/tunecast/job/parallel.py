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
        "with hsdp: whole copies of the weights, each sharded over the rest of the ranks (dp_replicate); null: "
        "one per machine",
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
        "with fsdp_version 1: the optimizer sees the model's own parameters; false: flat ones, one per unit",
        aka="fsdp_use_orig_params",
    )
    reduce_dtype: str | None = field(
        None,
        OURS,
        "dtype that gradients are summed over ranks in; null: as the stack does",
        choices=("float32", "bfloat16", "float16"),
    )
    reshard_after_forward: bool = field(
        True,
        OURS,
        "with fsdp: free a layer's weights after its forward pass and gather them again (FULL_SHARD, ZeRO-3)",
        aka="fsdp_reshard_after_forward",
    )
    shard_ends: bool | None = field(
        None,
        OURS,
        "torchtune: gather embedding and head apart from the rest (custom_sharded_layers); null: on for full "
        "training, off with adapters, as in most of its files",
    )
    sync_each_batch: bool = field(
        False,
        accelerate("GradientAccumulationPlugin.sync_each_batch"),
        "with grad_accum above 1: sum gradients over ranks, and shard them, after every micro-batch instead of "
        "keeping them whole until the last (no_sync); Trainer: accelerator_config gradient_accumulation_kwargs",
    )
    cpu_ram_efficient_loading: bool = field(
        False,
        accelerate("FullyShardedDataParallelPlugin.cpu_ram_efficient_loading", None),
        "with fsdp: the first rank sends the weights when they are sharded; on its own it saves no host memory, "
        "since from_pretrained loads them on every rank (load_on_rank_0)",
        aka="fsdp_cpu_ram_efficient_loading",
    )
    load_on_rank_0: bool = field(
        False,
        OURS,
        "with fsdp and cpu_ram_efficient_loading: the script loads the model on rank 0 alone; the other ranks "
        "build it in memory that is never touched (docs/host_memory.md)",
    )
    state_dict_type: str = field(
        "full",
        Origin("tunecast", "the Trainer asks accelerate for FULL_STATE_DICT unless fsdp_config says otherwise", "full"),
        "with fsdp: the first rank gathers and writes a checkpoint (full), or each rank writes its part "
        "(sharded), which accelerate merge-weights turns into a model",
        choices=("full", "sharded"),
        aka="fsdp_state_dict_type",
    )
    layers: int = field(
        1, OURS, 'device_map="auto": cards of one machine that the layers are spread over', within=(1, 1024)
    )
    tensor: int = field(
        1, OURS, "cards each layer is split over", within=(1, 65536), aka="tp tensor_parallel_size tp_size"
    )
    sequence_parallel: bool | None = field(
        None,
        OURS,
        "with tensor: split tokens over the cards outside attention and MLP; null: true, as in the stack's recipes",
        aka="sp",
    )
    pipeline: int = field(1, OURS, "pipeline stages", within=(1, 65536), aka="pp pipeline_parallel_size pp_size")
    virtual_stages: int = field(
        1,
        OURS,
        "pieces of the model per pipeline stage; more than 1 interleaves them",
        within=(1, 1024),
        aka="vp virtual_pipeline_model_parallel_size vpp",
    )
    context: int = field(
        1, OURS, "cards each sequence is split over", within=(1, 65536), aka="cp context_parallel_size cp_size"
    )
    context_kind: str = field(
        "ring",
        OURS,
        "with context: pass keys and values around (ring), or split heads so that attention sees whole rows "
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
    offload: str = field("none", OURS, "what is kept in host memory", choices=("none", "optimizer", "parameters"))
    offload_device: str = field(
        "cpu",
        OURS,
        "with offload: where it is kept, host memory or NVMe drives (ZeRO-Infinity)",
        choices=("cpu", "nvme"),
    )
    reduce_bucket_size: int | str | None = field(
        None,
        OURS,
        "with zero1, zero2 and zero3: elements per bucket that gradients are summed in; auto: hidden size "
        f"squared; {_AS_STACK}",
        choices=("auto",),
        within=(0, 10**13),
        kilo=1000,
    )
    prefetch_bucket_size: int | str | None = field(
        None,
        OURS,
        f"with zero3: elements of weights fetched ahead; auto: 0.9 times hidden size squared; {_AS_STACK}",
        choices=("auto",),
        within=(0, 10**13),
        aka="stage3_prefetch_bucket_size",
        kilo=1000,
    )
    param_persistence_threshold: int | str | None = field(
        None,
        OURS,
        "with zero3: weights of at most this many elements are never sharded; auto: 10 times the hidden size; "
        f"{_AS_STACK}",
        choices=("auto",),
        within=(0, 10**13),
        aka="stage3_param_persistence_threshold",
        kilo=1000,
    )
    max_live_parameters: int | None = field(
        None,
        OURS,
        f"with zero3: gathered elements beyond which nothing is fetched ahead; {_AS_STACK}",
        within=(0, 10**13),
        aka="stage3_max_live_parameters",
        kilo=1000,
    )
    max_reuse_distance: int | None = field(
        None,
        OURS,
        f"with zero3: a weight needed again within this many elements of others stays gathered; {_AS_STACK}",
        within=(0, 10**13),
        aka="stage3_max_reuse_distance",
        kilo=1000,
    )
    sub_group_size: int | None = field(
        None,
        OURS,
        f"with zero3: elements of a rank's shard that the optimizer updates at once; {_AS_STACK}",
        within=(0, 10**13),
        kilo=1000,
    )
    overlap_comm: bool | None = field(
        None,
        OURS,
        "with zero1, zero2 and zero3: sum gradients during the backward pass, with a second bucket in zero1 and "
        f"zero2; {_AS_STACK}",
    )
    round_robin_gradients: bool | None = field(
        None, OURS, f"with zero1 and zero2: deal weights out to ranks before they are sharded; {_AS_STACK}"
    )

    @property
    def cards_of_one_expert(self) -> int:
        """megatron/core/model_parallel_config.py, `__post_init__`: as of other layers where nothing is said."""
        return self.expert_tensor or self.tensor
