"""Small distributed trainings, one rank of a group that is not there, run in one of three ways:

    python programs.py traced FOLDER NAME...   under the tracer; a tape a program
    python programs.py host FOLDER NAME...     real tensors on the CPU; what they allocate and free, as JSON
    python programs.py card FOLDER NAME...     real tensors on a CUDA card; the allocator's own peaks, as JSON

The first two are compared by test_distributed.py. The third needs a GPU and serves to check the first by hand:
torch's fake process group sends nothing, so one card can be one rank of any world.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy, gelu
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from tunecast.tape.trace.ending import run_and_leave

WIDTH, BLOCKS, STEPS = 512, 4, 3
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

Program = Callable[[str], None]
PROGRAMS: dict[str, tuple[int, Program]] = {}


def program(name: str, world: int, make: Callable[..., None], **options: Any) -> None:
    PROGRAMS[name] = world, lambda device: make(device, world, **options)


class Block(nn.Module):
    """Two square weights of 1 MiB in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.down(gelu(self.up(values)))


def steps(model: nn.Module, device: str, micro_batches: int = 1, between: Any = None, width: int = WIDTH) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for _ in range(STEPS):
        for micro in range(micro_batches):
            with between(model, micro) if between else contextlib.nullcontext():
                model(torch.zeros(4, width, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


# ---------------------------------------------------------------------------------------------------------- replicas


def ddp(device: str, world: int, accumulate: bool = False, **options: Any) -> None:
    with torch.device(device):
        model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    replica = DistributedDataParallel(model, device_ids=None if device == "cpu" else [0], **options)
    steps(replica, device, 2 if accumulate else 1, unsynchronised if accumulate else None)


def unsynchronised(model: Any, micro: int) -> Any:
    return model.no_sync() if micro == 0 else contextlib.nullcontext()


program("ddp", 8, ddp)
program("ddp_views", 8, ddp, gradient_as_bucket_view=True)
program("ddp_static", 8, ddp, static_graph=True)
program("ddp_unused", 8, ddp, find_unused_parameters=True)
program("ddp_accumulating", 8, ddp, accumulate=True)


# ----------------------------------------------------------------------------------------------------------- sharded


def fsdp(device: str, world: int, shape: tuple[int, ...] = (), accumulate: bool = False, **options: Any) -> None:
    mesh = init_device_mesh(device, shape or (world,), mesh_dim_names=("replicate", "shard")[-len(shape or (1,)) :])
    with torch.device(device):
        model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    for block in model:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    steps(model, device, 2 if accumulate else 1, unreduced if accumulate else None)


@contextlib.contextmanager
def unreduced(model: Any, micro: int) -> Any:
    model.set_requires_gradient_sync(micro == 1)
    yield


program("fsdp_2", 2, fsdp, mp_policy=BF16)
program("fsdp_8", 8, fsdp, mp_policy=BF16)
program("fsdp_1024", 1024, fsdp, mp_policy=BF16)
program("fsdp_float32", 8, fsdp)
program("fsdp_kept", 8, fsdp, mp_policy=BF16, reshard_after_forward=False)
program("fsdp_resharded_to_2", 8, fsdp, mp_policy=BF16, reshard_after_forward=2)
program("fsdp_accumulating", 8, fsdp, mp_policy=BF16, accumulate=True)
program("fsdp_offloaded", 8, fsdp, mp_policy=BF16, offload_policy=CPUOffloadPolicy(pin_memory=False))
program("hsdp", 8, fsdp, mp_policy=BF16, shape=(2, 4))


def uneven(device: str, world: int) -> None:
    """10 rows over 8 ranks: two each, the last ranks padded; 3 rows: one each, most ranks with padding alone."""
    mesh = init_device_mesh(device, (world,))
    with torch.device(device):
        model = nn.Sequential(nn.Linear(64, 10, bias=False), nn.Linear(10, 3, bias=False))
    fully_shard(model, mesh=mesh)
    steps(model, device, width=64)


program("fsdp_uneven", 8, uneven)


def fsdp1(device: str, world: int) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    with torch.device(device):
        model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    sharded = FullyShardedDataParallel(
        model, auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu") if device == "cpu" else torch.device("cuda", 0),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    )  # fmt: skip
    steps(sharded, device)


program("fsdp1", 8, fsdp1)


# ------------------------------------------------------------------------------------------------------------ tensor


def tensor_parallel(device: str, world: int, shape: tuple[int, ...] = (), sequence: bool = False) -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh(device, shape or (world,), mesh_dim_names=("data", "tensor")[-len(shape or (1,)) :])
    with torch.device(device):
        model = nn.Sequential(nn.LayerNorm(WIDTH, bias=False), Block())
    plan: dict[str, Any] = {"1.up": ColwiseParallel(), "1.down": RowwiseParallel()}
    if sequence:
        plan["0"] = SequenceParallel()
        plan["1"] = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        plan["1.down"] = RowwiseParallel(output_layouts=Shard(1))
    parallelize_module(model, mesh["tensor"], plan)
    if shape:
        fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for _ in range(STEPS):
        values = torch.zeros(1, 64 // (world if sequence else 1), WIDTH, device=device)
        model(values).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


program("tensor_2", 2, tensor_parallel)
program("tensor_2_sequence", 2, tensor_parallel, sequence=True)
program("tensor_2_data_4", 8, tensor_parallel, shape=(4, 2))


def parallel_loss(device: str, world: int) -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

    mesh = init_device_mesh(device, (world,))
    with torch.device(device):
        model = nn.Sequential(nn.Linear(96, 4096, bias=False))
    head = ColwiseParallel(input_layouts=Replicate(), output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh, {"0": head})
    labels = torch.zeros(32, dtype=torch.long, device=device)
    with loss_parallel():
        cross_entropy(model(torch.zeros(32, 96, device=device)), labels).backward()


program("tensor_2_loss", 2, parallel_loss)


# ------------------------------------------------------------------------------------------------------------- llama


def llama(device: str, world: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=2048, use_cache=False, attn_implementation="eager",
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=BF16)
    fully_shard(model, mp_policy=BF16)
    model.to_empty(device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(2):
        tokens = torch.zeros(1, 16, dtype=torch.long, device=device)
        model(input_ids=tokens, labels=tokens).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


for ranks in (2, 8, 128):
    program(f"llama_{ranks}", ranks, llama)


# ------------------------------------------------------------------------------------------------------- three ways


def traced(folder: Path, names: list[str]) -> None:
    from tunecast.tape.card import Card
    from tunecast.tape.file import write_tape
    from tunecast.tape.trace.session import tracing

    with tracing(Card(), devices=8) as recorder:
        for name in names:
            world, run = PROGRAMS[name]
            gc.collect()
            recorder.forget_all()
            dist.init_process_group("nccl", rank=0, world_size=world)
            run("cuda")
            write_tape(recorder.tape({}), folder / f"{name}.gz")
            dist.destroy_process_group()


ONE_THREAD = "gloo_of_one_thread"


def gloo_of_one_thread(store: Any, rank: int, size: int, timeout: Any) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_default_device()]
    options._threads, options._timeout = 1, timeout
    return dist.ProcessGroupGloo(store, rank, size, options)


dist.Backend.register_backend(ONE_THREAD, gloo_of_one_thread, devices=["cpu"])


def let_go_of_tensors() -> None:
    """Gloo's thread holds a collective's tensors a moment after their waiter woke; at the next one it holds none."""
    if dist.get_backend() == ONE_THREAD:
        dist.barrier()


def for_real(folder: Path, names: list[str], device: str) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    for name in names:
        world, run = PROGRAMS[name]
        gc.collect()
        if name.startswith("ddp"):  # its reducer wants an answer, which the fake group has not; alone, a real one has
            backend = ONE_THREAD if device == "cpu" else "nccl"
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        else:
            dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
        told: Any
        if device == "cpu":
            with Storages() as storages:
                run(device)
            told = storages.events
        else:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            run(device)
            told = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        (folder / f"{name}.json").write_text(json.dumps(told))
        dist.destroy_process_group()


class Storages(TorchDispatchMode):
    """[number, bytes] where a real storage comes to life, [number, 0] where it dies."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[int, int]] = []
        self._alive: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._count = 0
        resize = torch.UntypedStorage.resize_

        def resize_(storage: Any, size: int) -> Any:
            result = resize(storage, size)
            number = self._number(storage)
            if number is not None:
                self.events.append((number, 0))
                self._watch(storage)
            return result

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented
        let_go_of_tensors()
        out = func(*args, **(kwargs or {}))
        for tensor in tree_flatten(out)[0]:
            real = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.device.type != "meta"
            if real and self._number(tensor.untyped_storage()) is None:
                self._watch(tensor.untyped_storage())
        return out

    def _number(self, storage: Any) -> int | None:
        number, alive = self._alive.get(storage._cdata, (0, lambda: None))
        return None if alive() is None else number

    def _watch(self, storage: Any) -> None:
        number, key = self._count, storage._cdata
        self._count += 1

        def died(reference: weakref.ref[Any]) -> None:
            if self._alive.get(key, (0, None))[1] is reference:
                del self._alive[key]
            self.events.append((number, 0))

        self.events.append((number, storage.nbytes()))
        self._alive[key] = number, weakref.ref(storage, died)


def main() -> None:
    how, target, *chosen = sys.argv[1:]
    if how == "traced":
        traced(Path(target), chosen)
    else:
        for_real(Path(target), chosen, "cpu" if how == "host" else "cuda")


if __name__ == "__main__":
    run_and_leave(main)
