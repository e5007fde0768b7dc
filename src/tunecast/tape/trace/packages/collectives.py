"""Collectives: an operation with its bytes, no memory of its own, finished when it returns.

In place (`c10d::`), a collective moves data between buffers its caller made. torch's fake group would copy rank 0's
part into every slot of an all-gather, one small operation a rank; here nothing runs at all. Functional ones
(`_c10d_functional::`, what DTensor uses) make their result themselves and are ordinary operations.

NCCL's asynchronous collectives keep their tensors alive until somebody waits, synchronous ones run on the current
stream and keep none (torch 2.8 and later: pytorch/pytorch#148590; ProcessGroupNCCL.hpp, `TensorShelf`). Functional
ones are always asynchronous.

On the tape  name `all_gather`, `reduce_scatter`, `all_reduce`, ...; shapes ((elements sent by this rank), (ranks));
             read_bytes what this rank sends, written_bytes what it receives.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes, _pop_mode_temporarily
from torch.utils._pytree import tree_flatten

from tunecast.tape.op import Op
from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder, nbytes
from tunecast.tape.trace.values import forget, known

SAME_ON_ALL = "integers that other ranks send are taken to be rank 0's own"
SENT_RECEIVED: dict[str, tuple[str, int | None, int | None]] = {
    # operator of c10d: what it is, which argument this rank sends, which it receives
    "allreduce_": ("all_reduce", 0, 0), "allreduce_coalesced_": ("all_reduce", 0, 0),
    "broadcast_": ("broadcast", 0, 0), "reduce_": ("reduce", 0, 0),
    "allgather_": ("all_gather", 1, 0), "_allgather_base_": ("all_gather", 1, 0),
    "allgather_coalesced_": ("all_gather", 1, 0), "allgather_into_tensor_coalesced_": ("all_gather", 1, 0),
    "reduce_scatter_": ("reduce_scatter", 1, 0), "_reduce_scatter_base_": ("reduce_scatter", 1, 0),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1, 0), "scatter_": ("scatter_from_one", 1, 0),
    "gather_": ("gather_to_one", 1, 0), "gather_into_tensor_": ("gather_to_one", 1, 0),
    "alltoall_": ("all_to_all", 1, 0), "alltoall_base_": ("all_to_all", 1, 0),
    "send": ("send", 0, None), "recv_": ("recv", None, 0), "recv_any_source_": ("recv", None, 0),
}  # fmt: skip
FUNCTIONAL = {
    "all_reduce": "all_reduce", "all_reduce_coalesced": "all_reduce", "broadcast": "broadcast",
    "all_gather_into_tensor": "all_gather", "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter", "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}  # fmt: skip


def install(recorder: Recorder) -> None:
    def emulate(module: ModuleType) -> None:
        for name in SENT_RECEIVED:
            if hasattr(torch.ops.c10d, name):
                recorder.emulated[f"c10d::{name}"] = in_place(recorder, name)
        recorder.emulated["c10d::barrier"] = barrier
        recorder.emulated["c10d::monitored_barrier_"] = lambda *args, **kwargs: None
        hold_inputs_until_waited(recorder)
        remember_reductions(module)

    after_import("torch.distributed.distributed_c10d", emulate)


def in_place(recorder: Recorder, name: str) -> Callable[..., Any]:
    what, sends, receives = SENT_RECEIVED[name]
    schema = getattr(torch.ops.c10d, name).default._schema
    returns_tensors = len(schema.returns) == 2

    def run(*args: Any, **kwargs: Any) -> Any:
        sent = [] if sends is None else tensors_in(args[sends])
        received = [] if receives is None else tensors_in(args[receives])
        ranks = group_size(args)
        if any(tensor.device.type == "cuda" for tensor in (*sent, *received)):
            recorder.launched(
                Op(
                    what, read_bytes=sum(map(nbytes, sent)), written_bytes=sum(map(nbytes, received)),
                    dtype=str((*sent, *received)[0].dtype).removeprefix("torch."),
                    shapes=((sum(tensor.numel() for tensor in sent),), (ranks,)),
                )
            )  # fmt: skip
        carry_values(recorder, what, sent, received, ranks)
        work = finished([tensor for tensor in received if isinstance(tensor, torch.Tensor)])
        return (args[0], work) if returns_tensors else work

    return run


def barrier(*args: Any, **kwargs: Any) -> Any:
    """NCCL has no barrier: it sums one number on the card (ProcessGroupNCCL.cpp, `barrier`)."""
    torch.zeros(1, device="cuda")
    return finished([])


def finished(result: list[torch.Tensor]) -> Any:
    """A `Work` that is done. DDP's reducer reads the reduced bucket from its future."""
    from torch._C import _distributed_c10d as c10d

    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return c10d._create_work_from_future(future).boxed()  # type: ignore[attr-defined]


def group_size(args: tuple[Any, ...]) -> int:
    """Of the group among a collective's arguments: boxed in c10d's operators, itself or its name in functional ones."""
    from torch._C._distributed_c10d import ProcessGroup, _resolve_process_group

    for value in reversed(args):
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
            return int(ProcessGroup.unbox(value).size())
        if isinstance(value, ProcessGroup):
            return int(value.size())
        if isinstance(value, str):
            return int(_resolve_process_group(value).size())
    raise TypeError("a collective without a process group")


def tensors_in(value: Any) -> list[torch.Tensor]:
    return [x for x in tree_flatten(value)[0] if isinstance(x, torch.Tensor)]


def carry_values(
    recorder: Recorder, what: str, sent: list[torch.Tensor], received: list[torch.Tensor], ranks: int
) -> None:
    """Small integers (lengths, token counts, flags) keep their values through a collective: scripts gather sizes and
    pad to the largest, or count tokens over all ranks. Every rank is taken to send what rank 0 sends."""
    if what == "broadcast":
        return
    values = [known(tensor) for tensor in sent]
    if what not in ("all_gather", "all_reduce") or len(sent) != 1 or values[0] is None:
        for tensor in received:
            if isinstance(tensor, FakeTensor):
                forget(tensor)
        return
    recorder.assumptions[SAME_ON_ALL] = 1
    with _disable_current_modes(), torch.no_grad():
        if what == "all_gather":
            copies = [values[0]] * (ranks if len(received) == 1 else 1)
            value = torch.cat([v.reshape(-1) for v in copies if v is not None])
        else:
            value = values[0] * ranks if adds_up() else values[0].clone()
        for tensor in received:
            tensor._tunecast_known = value.reshape(tensor.shape)  # type: ignore[attr-defined]


def remember_reductions(module: ModuleType) -> None:
    """The operator carries its reduction in a box Python cannot open before torch 2.14; `all_reduce` is told it."""
    import torch.distributed as public

    reduce: Callable[..., Any] = module.all_reduce

    @functools.wraps(reduce)
    def all_reduce(tensor: Any, op: Any = module.ReduceOp.SUM, *args: Any, **kwargs: Any) -> Any:
        _reductions.append(op)
        try:
            return reduce(tensor, op, *args, **kwargs)
        finally:
            _reductions.pop()

    module.all_reduce = public.all_reduce = all_reduce  # type: ignore[attr-defined]


_reductions: list[Any] = []


def adds_up() -> bool:
    """Whether the reduction under way is a sum, as opposed to an average, a least or a greatest."""
    from torch._C._distributed_c10d import ReduceOp

    return not _reductions or bool(_reductions[-1] == ReduceOp.SUM)


def hold_inputs_until_waited(recorder: Recorder) -> None:
    held: dict[int, list[torch.Tensor]] = {}

    def starting(what: str, operator: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            place = len(recorder._events)
            with _pop_mode_temporarily():
                out = recorder._run(operator, what, args, kwargs)
            elements = sum(tensor.numel() for tensor in tensors_in(args))
            for at, event in enumerate(recorder._events[place:], start=place):
                if isinstance(event, Op) and event.name == what:
                    recorder._events[at] = event._replace(shapes=((elements,), (group_size(args),)))
            for tensor in tensors_in(out):
                storage = tensor.untyped_storage()
                held[storage._cdata] = tensors_in(args)
                weakref.finalize(storage, held.pop, storage._cdata, None)  # dropped without ever being waited for
            return out

        return run

    def wait_tensor(tensor: torch.Tensor) -> torch.Tensor:
        held.pop(tensor.untyped_storage()._cdata, None)
        return tensor

    def wait_tensors(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [wait_tensor(tensor) for tensor in tensors]

    for name, what in FUNCTIONAL.items():
        operator = getattr(torch.ops._c10d_functional, name).default
        recorder.emulated[f"_c10d_functional::{name}"] = starting(what, operator)
    recorder.emulated["_c10d_functional::wait_tensor"] = wait_tensor
    recorder.emulated["_c10d_functional::wait_tensors"] = wait_tensors
