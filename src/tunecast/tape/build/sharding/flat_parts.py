"""What a flat parameter of FSDP 1 is made of: settings, weights and their lengths, a rank's pieces. See fsdp1.py."""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.errors import UsageError
from tunecast.records import dataclass
from tunecast.tape.build.dtypes import UINT8, Dtype
from tunecast.tape.build.event_log import HOST
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.sharding.ddp import BROADCAST, IN_FLIGHT, bucketed
from tunecast.tape.build.tensor import Storage, Tensor

ALIGNED_BYTES = 16
"""`_get_aligned_numel`: with the original parameters kept, each starts at a multiple."""
GROUP, REPLICAS = "shard", "replicate"


@dataclass(frozen=True)
class Options:
    """What the caller of FSDP says (its constructor's arguments)."""

    ranks: int
    """That share one copy of the model."""
    param_dtype: Dtype | None = None
    reduce_dtype: Dtype | None = None
    buffer_dtype: Dtype | None = None
    use_orig_params: bool = False
    backward_prefetch: bool = True
    """BACKWARD_PRE; without, none."""
    reshard_after_forward: bool = True
    """FULL_SHARD; without, SHARD_GRAD_OP."""
    replicas: int = 1
    """HYBRID_SHARD: copies of the model, whose gradients are summed after the shards'."""
    shards: bool = True
    """Without, NO_SHARD: every rank has all, and gradients are summed in place."""
    upcast: bool = False
    """accelerate's `prepare_model`: flat parameters that train become fp32 where precision is mixed."""
    inside_checkpoint: bool = False
    """Recomputation is around the unit, not inside it."""
    sync_module_states: bool = False
    """The first rank's weights are sent to the others when a unit is made, through buffers."""
    on_host: bool = False
    """`CPUOffload(offload_params=True)`: a rank's parts, their gradients and the optimizer are on the host."""

    @property
    def parts(self) -> int:
        return self.ranks if self.shards else 1


class Whole(Storage):
    """A flat parameter nobody cuts: its own memory, always there."""

    __slots__ = ("held", "nbytes")
    is_there = True

    def __init__(self, machine: Machine, flat: Tensor) -> None:
        super().__init__(machine, flat.storage.block)
        self.held, self.nbytes = flat.storage, flat.nbytes

    def give_back(self) -> None: ...

    def __del__(self) -> None: ...


class ParameterShard(Tensor):
    """What a rank holds of one original parameter: part of its part."""

    __slots__ = ("decays",)

    def __init__(self, shard: Tensor, numel: int, decays: bool) -> None:
        super().__init__(shard.machine, shard.storage, (numel,), shard.dtype)
        self.requires_grad, self.decays = True, decays


class Weight:
    """One parameter of a unit and every module that holds it under some name."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.view = tensor
        """Into the gathered weights."""
        self.places: list[tuple[Module, str]] = []


def uniform_dtype(path: str, tensors: Sequence[Tensor]) -> Dtype:
    """`_validate_tensors_to_flatten`. Packed weights are stored in the dtype of the others (`quant_storage`)."""
    dtypes = {tensor.dtype if tensor.dtype.floating else tensor.machine.weights_dtype for tensor in tensors}
    if len(dtypes) > 1:
        names = " and ".join(sorted(map(str, dtypes)))
        raise UsageError.at(
            "parallel.data",
            f"FSDP 1 flattens weights of one dtype only, and {path} has {names}. To fix: "
            "quantization.prepare_kbit false, or parallel.fsdp_version 2",
        )
    return dtypes.pop()


def lengths(
    tensors: Sequence[Tensor], dtype: Dtype, compute_dtype: Dtype, options: Options
) -> tuple[list[int], list[bool]]:
    """Elements of each weight and of the padding between them, and which is which."""
    sizes: list[int] = []
    padding: list[bool] = []
    aligned = ALIGNED_BYTES // compute_dtype.itemsize if options.use_orig_params else 1

    def pad(multiple: int) -> None:
        if missing := -sum(sizes) % multiple:
            sizes.append(missing)
            padding.append(True)

    for tensor in tensors:
        pad(aligned)
        sizes.append(tensor.nbytes // dtype.itemsize)
        padding.append(False)
    if options.use_orig_params:
        pad(options.ranks)
    return sizes, padding


def send(tensors: Sequence[Tensor], ranks: int) -> None:
    """`_sync_params_and_buffers`: in buffers of 250 MiB, two at a time (torch/csrc/distributed/c10d/comm.cpp,
    `broadcast_coalesced`)."""
    machine, under_way = tensors[0].machine, [tensors[0]][:0]
    for bucket in bucketed(tensors, [BROADCAST]):
        nbytes = sum(tensor.nbytes for tensor in bucket)
        if len(under_way) == IN_FLIGHT:
            under_way.pop(0)
        under_way.append(machine.run("cat", bucket, (nbytes,), UINT8))
        machine.collective("broadcast", GROUP, ranks, bucket[0].dtype, nbytes, nbytes, nbytes)


def on_host(tensor: Tensor) -> bool:
    return tensor.storage is None or tensor.block.stream == HOST
