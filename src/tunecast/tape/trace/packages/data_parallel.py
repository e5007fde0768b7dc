"""`nn.DataParallel`: one process, a replica of the model on each card, threads; and what `torch.cuda.comm` does below.

The functions of torch/csrc/cuda/comm.cpp are written out here, allocation for allocation. A build for GPUs has NCCL,
which broadcasts and reduces between the cards of one process without buffers of PyTorch's.

Replicas run one after the other on this thread instead of each on its own: every card has a tape of its own, so their
order does not show. What a new thread starts with is kept: autocast in float16 (its dtype belongs to a thread), and a
cuBLAS handle, which goes back to its card's pool when the thread ends and is the next step's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch

from tunecast.tape.op import Op, Role
from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder, card_of, nbytes

FOLLOWS_SOURCE = "nn.DataParallel follows its source (torch/csrc/cuda/comm.cpp); no run of it was measured"


def install(recorder: Recorder) -> None:
    def replace_native(module: ModuleType) -> None:
        functions: dict[str, Callable[..., Any]] = {
            "_broadcast": lambda tensor, devices: broadcast(recorder, tensor, devices),
            "_broadcast_out": lambda tensor, out: [each.copy_(tensor, non_blocking=True) for each in out],
            "_broadcast_coalesced": lambda tensors, devices, size: broadcast_coalesced(
                recorder, tensors, devices, size
            ),
            "_scatter": scatter,
            "_scatter_out": scatter_out,
            "_gather": gather,
            "_gather_out": gather_out,
        }
        for name, function in functions.items():
            setattr(torch._C, name, function)
        module.nccl.is_available = lambda tensors: len({card_of(tensor) for tensor in tensors}) == len(tensors)
        module.nccl.reduce = lambda inputs, output=None, root=0, *a, **k: reduce(recorder, inputs, output, root)

    def follow_replicas(module: ModuleType) -> None:
        replicate = module.replicate

        def named(network: torch.nn.Module, devices: Any, detach: bool = False) -> Any:
            recorder.guesses[FOLLOWS_SOURCE] = 1
            replicas = replicate(network, devices, detach)
            for replica in replicas:
                name_replica(recorder, network, replica)
            return replicas

        def one_by_one(modules: Any, inputs: Any, kwargs_tup: Any = None, devices: Any = None) -> list[Any]:
            return apply_in_turn(recorder, modules, inputs, kwargs_tup, devices)

        vars(module).update(replicate=named, parallel_apply=one_by_one)
        torch.nn.parallel.replicate, torch.nn.parallel.parallel_apply = named, one_by_one  # type: ignore[assignment]

    streams: dict[int, Any] = {}

    def copy_on_streams(module: ModuleType) -> None:
        """What comes from the host is copied on a stream of its own, one a card."""

        def _get_stream(device: Any) -> Any:
            index = torch.device(device).index if not isinstance(device, int) else device
            if torch.device(device).type != "cuda":
                return None
            return streams.setdefault(index, torch.cuda.Stream(index))

        vars(module)["_get_stream"] = _get_stream

    after_import("torch.nn.parallel.comm", replace_native)
    after_import("torch.nn.parallel._functions", copy_on_streams)
    after_import("torch.nn.parallel.data_parallel", follow_replicas)


def name_replica(recorder: Recorder, network: torch.nn.Module, replica: torch.nn.Module) -> None:
    """Its modules have the names of the originals, and what was broadcast are weights."""
    for original, copy in zip(network.modules(), replica.modules(), strict=False):
        name = recorder.scopes.name_of(original)
        recorder.scopes.set_name(copy, name)
        for tensor in (*getattr(copy, "_former_parameters", {}).values(), *copy._buffers.values()):
            if tensor is not None:
                recorder.set_role(tensor, Role.WEIGHTS, name)


def apply_in_turn(
    recorder: Recorder, modules: Sequence[Any], inputs: Sequence[Any], kwargs_tup: Any, devices: Any
) -> list[Any]:
    """torch/nn/parallel/parallel_apply.py, `_worker`."""
    outputs = []
    autocast = torch.is_autocast_enabled()
    for place, (module, given) in enumerate(zip(modules, inputs, strict=True)):
        named = {} if kwargs_tup is None else kwargs_tup[place]
        card = place if devices is None else torch._utils._get_device_index(devices[place], True)
        values = given if isinstance(given, (list, tuple)) else (given,)
        with (
            recorder.as_thread(f"replica on card {card}"),
            torch.cuda.device(card),
            torch.amp.autocast("cuda", dtype=torch.float16, enabled=autocast),
        ):
            outputs.append(module(*values, **named))
    return outputs


def broadcast(recorder: Recorder, tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    own = card_of(tensor) if tensor.device.type == "cuda" else -1
    copies = {
        card: torch.empty(tensor.shape, dtype=tensor.dtype, device=f"cuda:{card}") for card in devices if card != own
    }
    for card in (*filter(lambda number: number >= 0, [own]), *copies):
        recorder.launched(_collective("broadcast", tensor, 1 + len(copies)), card)
    return [copies.get(card, tensor) for card in devices]


def broadcast_coalesced(
    recorder: Recorder, tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_bytes: int
) -> list[list[torch.Tensor]]:
    """One copy a card of each chunk laid end to end; on the first card the tensors themselves."""
    found: list[dict[int, torch.Tensor]] = [{} for _ in devices]
    for chunk in chunks_of(tensors, buffer_bytes):
        members = [tensors[place] for place in chunk]
        flat = torch._C._nn.flatten_dense_tensors(members)
        for on_card, copy in list(zip(found, broadcast(recorder, flat, devices), strict=True))[1:]:
            parts = torch._C._nn.unflatten_dense_tensors(copy, members)
            on_card.update(zip(chunk, (part.detach() for part in parts), strict=True))
        del flat
    return [list(tensors), *([on_card[place] for place in range(len(tensors))] for on_card in found[1:])]


def chunks_of(tensors: Sequence[torch.Tensor], limit_bytes: int) -> Iterator[list[int]]:
    """Places of tensors of one dtype, until they reach the limit (torch/csrc/utils/tensor_flatten.cpp,
    `take_tensors`): the last to join may go beyond it."""
    groups: dict[torch.dtype, list[int]] = {}
    for place, tensor in enumerate(tensors):
        group = groups.setdefault(tensor.dtype, [])
        group.append(place)
        if sum(nbytes(tensors[member]) for member in group) >= limit_bytes:
            yield groups.pop(tensor.dtype)
    yield from groups.values()


def scatter(
    tensor: torch.Tensor, devices: Sequence[int], chunk_sizes: Any = None, dim: int = 0, streams: Any = None
) -> list[torch.Tensor]:
    chunks = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split_with_sizes(chunk_sizes, dim)
    moved = []
    for place, (chunk, card) in enumerate(zip(chunks, devices, strict=False)):
        with torch.cuda.stream(streams[place] if streams else None):
            moved.append(chunk.to(f"cuda:{card}", non_blocking=True))
    return moved


def scatter_out(tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int = 0, streams: Any = None) -> Any:
    sizes = [each.shape[dim] for each in out]
    for each, chunk in zip(out, tensor.split_with_sizes(sizes, dim), strict=True):
        each.copy_(chunk, non_blocking=True)
    return out


def gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None = None) -> torch.Tensor:
    first = tensors[0]
    shape = list(first.shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    device = (
        "cpu" if destination == -1 else f"cuda:{torch.cuda.current_device() if destination is None else destination}"
    )
    return gather_out(tensors, torch.empty(shape, dtype=first.dtype, device=device), dim)


def gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    parts = out.split_with_sizes([tensor.shape[dim] for tensor in tensors], dim)
    for part, tensor in zip(parts, tensors, strict=True):
        part.copy_(tensor, non_blocking=True)
    return out


def reduce(recorder: Recorder, inputs: Sequence[torch.Tensor], output: Any, root: int) -> None:
    """Into `output`, which its caller has made."""
    for tensor in inputs:
        recorder.launched(_collective("reduce", tensor, len(inputs)), card_of(tensor))


def _collective(name: str, tensor: torch.Tensor, ranks: int) -> Op:
    moved = nbytes(tensor)
    dtype = str(tensor.dtype).removeprefix("torch.")
    shapes = ((tensor.numel(),), (ranks,))
    return Op(name, read_bytes=moved, written_bytes=moved, dtype=dtype, shapes=shapes)
