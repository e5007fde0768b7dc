"""torch.distributed: a job of any number of ranks, of which this process is rank 0 and the only one.

Every process group becomes torch's own "fake" one (torch/csrc/distributed/c10d/FakeProcessGroup.hpp), of the size the
script asks for. Nothing travels; what rank 0 allocates is what every rank of a homogeneous job allocates. A group
keeps the name of the backend it was asked for, so that code which asks (`dist.get_backend()`) takes NCCL's path.
"""

from __future__ import annotations

import datetime
import inspect
import os
import types
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder, nbytes

NCCL_VERSION = (2, 27, 3)
"""Shipped with torch 2.8; code asks only whether it is recent enough."""
NCCL_TIMEOUT = datetime.timedelta(minutes=10)
NCCL_BUFFERS = "NCCL's own buffers lie outside torch's allocator and come on top of device memory"


WORTH_SAYING_BYTES = 1 << 20
REUSED_AT_ONCE = (
    "a block handed to another stream (record_stream) is reused as soon as it is freed; on a card it waits for that "
    "stream, and what is reserved can be more"
)


def install(recorder: Recorder) -> None:
    def fake_groups(module: ModuleType) -> None:
        have_nccl(module)
        rendezvous_with_nobody(module)
        make_fake_groups(module, recorder)
        pass_objects_on(module, recorder)

    reuse_at_once(recorder)
    after_import("torch.distributed.distributed_c10d", fake_groups)
    after_import("torch.multiprocessing.spawn", spawn_rank_zero)
    after_import("accelerate.utils.random", keep_generators)


def reuse_at_once(recorder: Recorder) -> None:
    """`tensor.record_stream(stream)`: when freed, the block waits until that stream has passed the point. How far the
    card is behind the program is a matter of time, which a trace has none of."""
    import torch

    def record_stream(self: Any, stream: Any) -> None:
        if self.device.type == "cuda" and nbytes(self) >= WORTH_SAYING_BYTES:
            recorder.guesses[REUSED_AT_ONCE] += 1

    torch.Tensor.record_stream = record_stream  # type: ignore[method-assign, assignment]


def rendezvous_with_nobody(c10d: ModuleType) -> None:
    """`init_process_group` meets its peers in a store; there are none. Rank and world size come from the caller or,
    as with torchrun, from the environment."""

    def rendezvous(url: str, rank: int = -1, world_size: int = -1, **kwargs: Any) -> Iterator[tuple[Any, int, int]]:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
        yield FakeStore(), 0, size

    c10d.rendezvous = rendezvous  # type: ignore[attr-defined]


def make_fake_groups(c10d: ModuleType, recorder: Recorder) -> None:
    make: Callable[..., Any] = c10d._new_process_group_helper
    signature = inspect.signature(make)

    def _new_process_group_helper(*args: Any, **kwargs: Any) -> Any:
        from torch.testing._internal.distributed import fake_pg

        bound = signature.bind(*args, **kwargs)
        asked = bound.arguments["backend"]
        # An NCCL communicator's options and its device mean nothing to a fake group.
        bound.arguments.update(backend=c10d.Backend("fake"), store=fake_pg.FakeStore(), backend_options=None)
        bound.arguments.pop("device_id", None)
        group, store = make(*bound.args, **bound.kwargs)
        if store is not None:
            c10d._world.pg_map[group] = (asked, store)
            if group.size() > 1:
                recorder.assumptions[NCCL_BUFFERS] = 1
        return group, store

    c10d._new_process_group_helper = _new_process_group_helper  # type: ignore[attr-defined]


def pass_objects_on(c10d: ModuleType, recorder: Recorder) -> None:
    """Pickled objects travel as bytes, which fake tensors have none of. Every rank is taken to hold rank 0's object."""

    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        object_list[:] = [obj] * len(object_list)

    def gather_object(obj: Any, object_gather_list: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def scatter_object_list(outputs: list[Any], inputs: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
        if inputs:
            outputs[0] = inputs[0]

    def unchanged(object_list: list[Any], *args: Any, **kwargs: Any) -> None:
        """broadcast from rank 0, send: the list is already right."""

    named = {
        "all_gather_object": all_gather_object, "gather_object": gather_object,
        "scatter_object_list": scatter_object_list, "broadcast_object_list": unchanged, "send_object_list": unchanged,
    }  # fmt: skip
    import torch.distributed as public

    for name, function in named.items():
        for module in (c10d, public):
            setattr(module, name, function)


def have_nccl(c10d: ModuleType) -> None:
    """A CPU-only build has no NCCL, a machine without a GPU no use for it; the job's machine has both."""
    import torch
    import torch.distributed as public

    public.is_nccl_available = lambda: True
    if not hasattr(public, "ProcessGroupNCCL"):
        public.ProcessGroupNCCL = type("ProcessGroupNCCL", (), {"Options": types.SimpleNamespace})
    c10d.default_pg_nccl_timeout = c10d.default_pg_nccl_timeout or NCCL_TIMEOUT  # type: ignore[attr-defined]
    torch.cuda.nccl.version = lambda: NCCL_VERSION  # type: ignore[assignment]


def spawn_rank_zero(module: ModuleType) -> None:
    """`torch.multiprocessing.spawn(train, args, nprocs=8)`: this process is its first."""

    def spawn(fn: Callable[..., None], args: tuple[Any, ...] = (), *rest: Any, **kwargs: Any) -> None:
        fn(0, *args)

    import torch.multiprocessing as public

    for name in ("spawn", "start_processes"):
        setattr(module, name, spawn)
        setattr(public, name, spawn)


def keep_generators(module: ModuleType) -> None:
    """accelerate sends rank 0's random state to every rank through the card; rank 0 already has it."""
    synchronize: Callable[..., None] = module.synchronize_rng_state

    class Kept:
        def __init__(self, generator: Any) -> None:
            self._generator = generator

        def get_state(self) -> Any:
            return self._generator.get_state().clone()  # the copy is a fake tensor, and can go to the card

        def set_state(self, state: Any) -> None: ...

    def synchronize_rng_state(rng_type: Any = None, generator: Any = None) -> None:
        synchronize(rng_type, None if generator is None else Kept(generator))

    module.synchronize_rng_state = synchronize_rng_state  # type: ignore[attr-defined]
