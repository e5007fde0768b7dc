"""FSDP2 (`fully_shard`) is Python on top of torch and is traced as it is; its blocks only need names.

It gathers a group's parameters into a staging buffer (on a stream of its own in the forward pass), copies them out
into full parameters, computes, and scatters the summed gradients through a second staging buffer. The streams it
switches to are seen by `cuda.Stream`; the references that keep a buffer alive until the next collective has started
are its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from tunecast.tape.kernels.gathered import (
    chunk_cat_is_direct,
    chunk_cat_table_bytes,
    mixed_chunk_cat_table_bytes,
    split_table_bytes,
)
from tunecast.tape.op import Op, Role
from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder, nbytes


def install(recorder: Recorder) -> None:
    copies = Copies(recorder)
    after_import("torch.distributed.fsdp._runtime_utils", reshard_what_is_whole)
    after_import("torch.distributed.fsdp._fully_shard._fsdp_collectives", copies.emulate)
    after_import("torch.distributed.fsdp._fully_shard._fsdp_param", cut_one_chunk)
    after_import("torch.distributed.fsdp._fully_shard._fsdp_param_group", functools.partial(name_blocks, recorder))


def name_blocks(recorder: Recorder, module: ModuleType) -> None:
    group = module.FSDPParamGroup
    group.unshard = with_role(recorder, group.unshard, Role.TEMPORARIES)
    group.wait_for_unshard = with_role(recorder, group.wait_for_unshard, Role.WEIGHTS)
    group.post_backward = with_role(recorder, with_gradients_named(recorder, group.post_backward), Role.TEMPORARIES)


def with_role(recorder: Recorder, method: Callable[..., Any], role: Role) -> Callable[..., Any]:
    """What the method allocates and nobody else names has this role; whose it is, if not clear, is the group's."""

    @functools.wraps(method)
    def run(group: Any, *args: Any, **kwargs: Any) -> Any:
        first = len(recorder._blocks)
        result = method(group, *args, **kwargs)
        for number in range(first, len(recorder._blocks)):
            block = recorder._blocks[number]
            block.role = block.role or role
            block.module = block.module or recorder.scopes.name_of(group.modules[0])
        return result

    return run


def with_gradients_named(recorder: Recorder, method: Callable[..., Any]) -> Callable[..., Any]:
    """Whole gradients live until they are scattered, or over several micro-batches; both are gradients."""

    @functools.wraps(method)
    def run(group: Any, *args: Any, **kwargs: Any) -> Any:
        name_whole_gradients(recorder, group)
        result = method(group, *args, **kwargs)
        name_whole_gradients(recorder, group)
        return result

    return run


class Copies:
    """FSDP2's operators, which fill buffers that were made before, and what their kernels borrow."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def emulate(self, module: ModuleType) -> None:
        """torch 2.8's first operator makes its buffer itself, and runs as it is. The last two came with 2.15."""
        copies: list[Callable[..., Any]] = [self.split_with_sizes_copy, self.chunk_cat]
        if "dtype" not in str(torch.ops.fsdp.all_gather_copy_in.default._schema):
            copies.append(self.all_gather_copy_in)
        if hasattr(torch.ops.fsdp, "chunk_cat_mixed_dtype"):
            copies += [self.chunk_cat_mixed_dtype, self.record_grad_output_stream]
        self._recorder.emulated.update({f"fsdp::{copy.__name__}": copy for copy in copies})

    def all_gather_copy_in(self, inputs: Any, output: torch.Tensor, sizes: Any, numel: int, rank: int) -> Any:
        self._record("all_gather_copy_in", inputs, inputs)
        return output.narrow(0, numel * rank, numel), output

    def split_with_sizes_copy(self, gathered: torch.Tensor, sizes: Any, dim: int = 0, *, out: Any) -> None:
        stride_bytes = gathered.stride(dim) * gathered.element_size()
        parts, chunks = [size * stride_bytes for size in sizes], gathered.numel() // gathered.size(dim)
        self._record("split_with_sizes_copy", gathered, out, split_table_bytes(parts, chunks, self._recorder.card))

    def chunk_cat(self, tensors: Any, dim: int, num_chunks: int, *, out: torch.Tensor) -> None:
        read, written = (str(dtype).removeprefix("torch.") for dtype in (tensors[0].dtype, out.dtype))
        if not chunk_cat_is_direct(read, written):
            padded = [x for x in tensors if x.size(dim) % num_chunks]  # the general kernel pads into copies
            copies = [x.new_empty((-(-x.size(dim) // num_chunks) * num_chunks, *x.shape[1:])) for x in padded]
            self._record("chunk_cat", tensors, out)
            del copies
            return
        rows = [-(-x.size(dim) // num_chunks) * (x.numel() // x.size(dim)) for x in tensors]
        self._record("chunk_cat", tensors, out, chunk_cat_table_bytes([row * out.element_size() for row in rows]))

    def chunk_cat_mixed_dtype(self, tensors: Any, dim: int, num_chunks: int, *, out: torch.Tensor) -> None:
        """torch/csrc/distributed/fsdp/ChunkCat.cu: gradients of one dtype as before; bfloat16 beside float32 are cast
        on the way, and others before it."""
        dtypes = {x.dtype for x in tensors}
        if len(dtypes) == 1:
            self.chunk_cat(tensors, dim, num_chunks, out=out)
        elif dtypes == {torch.bfloat16, torch.float32} and out.dtype == torch.float32:
            rows = [-(-x.size(dim) // num_chunks) * (x.numel() // x.size(dim)) for x in tensors]
            table_bytes = mixed_chunk_cat_table_bytes([row * out.element_size() for row in rows])
            self._record("chunk_cat_mixed_dtype", tensors, out, table_bytes)
        else:
            self.chunk_cat([x.to(out.dtype) for x in tensors], dim, num_chunks, out=out)

    def record_grad_output_stream(self, buffer: torch.Tensor, stream: int, device: int, kind: int) -> None:
        """Nothing on a CUDA card."""

    def _record(self, name: str, read: Any, written: Any, table_bytes: int = 0) -> None:
        read_bytes, written_bytes = (sum(nbytes(x) for x in tree_flatten(value)[0]) for value in (read, written))
        self._recorder.launched(Op(f"fsdp::{name}", read_bytes=read_bytes, written_bytes=written_bytes))
        if table_bytes:
            table = self._recorder.allocate(table_bytes, self._recorder.scopes.current() or "")
            self._recorder.free(table)


def cut_one_chunk(module: ModuleType) -> None:
    module._chunk_with_empty = Chunks  # type: ignore[attr-defined]


def reshard_what_is_whole(module: ModuleType) -> None:
    """FSDP 1 tells by addresses which flat parameters are whole at the end of a backward pass; there are none."""

    def _catch_all_reshard(state: Any) -> None:
        handle = state._handle
        if handle and (
            handle.flat_param.untyped_storage()._cdata != handle.flat_param._local_shard.untyped_storage()._cdata
            or handle._skipped_use_sharded_views
        ):
            module._reshard(state, handle, module._should_free_in_backward(state, handle))

    module._catch_all_reshard = _catch_all_reshard  # type: ignore[attr-defined]


class Chunks(Sequence[torch.Tensor]):
    """A tensor's parts for all ranks, cut when asked for: FSDP reads its own and the first, of perhaps 1,024."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._count, self._dim = tensor, num_chunks, dim
        self._size = -(-tensor.size(dim) // num_chunks)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rank: Any) -> Any:
        start = rank * self._size
        if start >= self._tensor.size(self._dim):
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(self._size, self._tensor.size(self._dim) - start))


def name_whole_gradients(recorder: Recorder, group: Any) -> None:
    """In a function of its own: a name left bound here would keep a gradient alive longer than FSDP does."""
    for parameter in group.fsdp_params:
        whole = getattr(parameter, "_unsharded_param", None)
        for gradient in (parameter.unsharded_accumulated_grad, None if whole is None else whole.grad):
            if gradient is not None:
                recorder.set_role(getattr(gradient, "_local_tensor", gradient), Role.GRADIENTS)
