"""Corrections to other packages, made the moment each is imported; a package never imported costs nothing.

    accelerate.py        models initialised on another device
    apollo.py            APOLLO's projections, drawn without a generator on the card
    bitsandbytes.py      its CUDA-side Python runs, over a C library that does nothing
    collectives.py       an operation with its bytes, finished when it returns
    datasets.py          maps in this process, and reads back what it wrote
    cudnn_rnn.py         nn.LSTM, nn.GRU and nn.RNN as cuDNN runs them
    data_parallel.py     nn.DataParallel: replicas in one process, what moves between its cards
    ddp.py               DistributedDataParallel, whose reducer is C++ and runs as it is
    deepspeed.py         its ZeRO optimizers run as they are, on gradients taken as finite
    distributed.py       torch.distributed: rank 0 of any number of ranks, alone
    dtensor.py           device meshes and DTensor
    early_stopping.py    callbacks that would end a run for a metric that never moves
    flash_attention.py   a stand-in for flash-attn
    flash_interface.py   the functions of flash-attn that training code calls
    flash_kernels.py     its CUDA extensions: they allocate in the order of the C++ code
    fsdp.py              `fully_shard`: its blocks get names, its copies their tables
    generation.py        `generate()`: completions run to their full length
    inductor/            torch.compile: the real compiler runs, its kernels do not
    launchers.py         launchers that a script starts itself
    megatron.py          states of Megatron Core's random numbers
    pynvml.py            NVIDIA's management library, answered by the card that is not there
    torchscript.py       what TorchScript would compile runs as it is written
    torchvision.py       torchvision built for CUDA beside a torch that is not
    transformers.py      `from_pretrained` without weights
    triton.py            a launch of a Triton kernel is one operation
    unsloth.py           what Unsloth asks of the machine

Each registers `after_import("package.module", action)`; the action gets the freshly executed module. To add a package
to the tracer, add a file and name it in `install`.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]


class AfterImport(importlib.abc.MetaPathFinder):
    """Lets the ordinary finders find the module, and runs the actions once its code has run."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}
        self._finding: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.actions or name in self._finding:
            return None
        self._finding.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._finding.discard(name)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            for action in self.actions[name]:
                action(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_finder = AfterImport()


def after_import(name: str, action: Action) -> None:
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.actions.setdefault(name, []).append(action)
    module = sys.modules.get(name)
    if module is not None:
        action(module)


def install(recorder: Any) -> None:
    from tunecast.tape.trace.packages import (
        accelerate,
        apollo,
        bitsandbytes,
        collectives,
        cudnn_rnn,
        data_parallel,
        ddp,
        deepspeed,
        distributed,
        dtensor,
        early_stopping,
        flash_attention,
        fsdp,
        generation,
        inductor,
        megatron,
        pynvml,
        torchscript,
        torchvision,
        transformers,
        triton,
        unsloth,
    )

    for package in (
        accelerate, apollo, bitsandbytes, collectives, cudnn_rnn, data_parallel, ddp, deepspeed, distributed, dtensor,
        early_stopping, flash_attention, fsdp, generation, inductor, megatron, pynvml, torchscript, torchvision,
        transformers, triton, unsloth,
    ):  # fmt: skip
        package.install(recorder)
