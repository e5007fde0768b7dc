"""The wrapper Inductor wrote, run on fake tensors: what it allocates is seen, what it launches is noted."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tunecast.tape.op import Op
from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.packages.inductor.replacing import constant, replace
from tunecast.tape.trace.recorder import Recorder, nbytes
from tunecast.tape.trace.values import forget

MANY_REGISTERS, FEW_REGISTERS = 64, 32
LOADS_OF_MANY_REGISTERS = 10


def install(recorder: Recorder) -> None:
    allocate_through_torch()
    read_no_addresses()
    keep_random_states(recorder)
    run_wrapped_regions(recorder)
    after_import("torch._inductor.runtime.benchmarking", time_nothing)
    after_import("torch._inductor.runtime.triton_heuristics", lambda module: launch_nothing(module, recorder))


def allocate_through_torch() -> None:
    """The wrapper allocates and views through shortcuts past the dispatcher, where the trace would not see them."""

    def empty_on(device: str) -> Callable[..., torch.Tensor]:
        return lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype, device=device)

    def reinterpret(tensor: torch.Tensor, size: Any, stride: Any, offset: int = 0) -> torch.Tensor:
        return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)

    shortcuts = torch._C._dynamo.guards  # type: ignore[attr-defined]
    replace(shortcuts, "_empty_strided_cuda", lambda old: empty_on("cuda"))
    replace(shortcuts, "_empty_strided_cpu", lambda old: empty_on("cpu"))
    replace(shortcuts, "_reinterpret_tensor", lambda old: reinterpret)
    if hasattr(shortcuts, "_empty_strided_cpu_pinned"):  # since torch 2.10
        shortcuts._empty_strided_cpu_pinned = empty_on("cpu")


def read_no_addresses() -> None:
    """The allocator hands out aligned blocks, so an input is misaligned (and copied) only if it starts inside one."""
    FakeTensor.data_ptr = lambda self: self.storage_offset() * self.element_size()  # type: ignore[method-assign]
    replace(torch._C._dynamo.guards, "assert_alignment", lambda old: constant(None))  # type: ignore[attr-defined]
    # Autograd looks at the addresses of what a compiled function returns; they are all the same, and that is fine.
    warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")


class CardGenerator(torch.Generator):
    """A generator of the card; its state is two numbers on the host, and nothing random is drawn here."""

    device = torch.device("cuda", 0)

    def clone_state(self) -> CardGenerator:
        return CardGenerator()

    def graphsafe_get_state(self) -> CardGenerator:
        return self

    def graphsafe_set_state(self, state: Any) -> CardGenerator:
        return self


def keep_random_states(recorder: Recorder) -> None:
    """What is recomputed in the backward pass must draw the same numbers: such operations run inside others that set
    the generator. A dispatch mode has to say what those do; they do what is inside."""
    from torch._prims import rng_prims

    torch.cuda.default_generators = (CardGenerator(),) * torch.cuda.device_count()
    if hasattr(torch._C, "_accelerator_getDefaultGenerator"):  # how torch 2.15 asks for it
        torch._C._accelerator_getDefaultGenerator = constant(torch.cuda.default_generators[0])

    def set_state_and_run(mode: Any, operation: Any, *args: Any, rng_state: Any = None, **kwargs: Any) -> Any:
        with mode:
            return operation(*args, **kwargs)

    def run_with_state(mode: Any, state: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
        return set_state_and_run(mode, operation, *args, **kwargs)

    def run_and_save_state(mode: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
        return torch.cuda.get_rng_state(), set_state_and_run(mode, operation, *args, **kwargs)

    for name, rule in {"graphsafe_run_with_rng_state": set_state_and_run, "run_with_rng_state": run_with_state,
                       "run_and_save_rng_state": run_and_save_state}.items():  # fmt: skip
        operator = getattr(rng_prims, name)
        if type(recorder) not in operator.python_key_table:
            operator.py_impl(type(recorder))(rule)


def run_wrapped_regions(recorder: Recorder) -> None:
    """With `wrap_inductor_compiled_regions` compiled code is one operation, so that selective checkpointing may keep
    its results (torch/_higher_order_ops/wrap.py, `InductorCompiledCode`); it does what is inside."""
    from torch._higher_order_ops import wrap

    operator = getattr(wrap, "inductor_compiled_code", None)
    if operator is None or type(recorder) in operator.python_key_table:
        return

    def run_region(mode: Any, function: Any, inputs: Any, *, name: str | None = None) -> Any:
        with mode:
            return wrap._resolve_inductor_callable(function)(inputs)  # type: ignore[attr-defined]

    operator.py_impl(type(recorder))(run_region)


def time_nothing(module: ModuleType) -> None:
    """What timing a kernel allocates (torch/_inductor/runtime/benchmarking.py, `InductorBenchmarker.benchmark_gpu`):
    the call, then a buffer of the size of the L2 cache to flush it, then calls while the buffer lives."""

    def benchmark_gpu(self: Any, call: Callable[[], Any], *args: Any, **kwargs: Any) -> float:
        call()
        size = torch.cuda.get_device_properties().L2_cache_size // 4
        flushed = torch.empty(size, dtype=torch.int, device="cuda")
        call()
        del flushed
        return 1.0

    for kind in ("TritonBenchmarker", "InductorBenchmarker"):
        replace(getattr(module, kind), "benchmark_gpu", lambda old: benchmark_gpu)


def launch_nothing(module: ModuleType, recorder: Recorder) -> None:
    """A kernel's configurations are chosen as ever; in place of a binary each gets a launcher that notes the launch.

    A looped reduction that needs more than 32 registers a thread is also tried with half its block
    (`_dynamic_scale_rblock`). Only the binary tells; Inductor itself expects it of kernels with ten or more loads and
    reductions (`register_intensive` in `_reduction_configs`), and on an H200 it was those.
    """

    def without_binary(old: Callable[..., Any]) -> Callable[..., Any]:
        def _precompile_config(self: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
            first = self.configs is not None  # they are dropped before halved ones are tried
            counts = [self.inductor_meta.get(name) or 0 for name in ("num_load", "num_reduction")]
            many = first and sum(counts) >= LOADS_OF_MANY_REGISTERS
            kernel = SimpleNamespace(n_regs=MANY_REGISTERS if many else FEW_REGISTERS, hash="")
            return SimpleNamespace(config=config, kernel=kernel, make_launcher=lambda: launcher(self, config))

        return _precompile_config

    def launcher(tuner: Any, config: Any) -> Any:
        def launch(*args: Any, **kwargs: Any) -> None:
            named = [(n, x) for n, x in zip(tuner.fn.arg_names, args, strict=False) if isinstance(x, torch.Tensor)]
            for name, tensor in named:
                if name in tuner.mutated_arg_names and isinstance(tensor, FakeTensor):
                    forget(tensor)
            recorder.launched(Op(
                f"triton::{tuner.fn.__name__}",
                read_bytes=sum(nbytes(x) for name, x in named if not name.startswith("out")),
                written_bytes=sum(nbytes(x) for name, x in named if "out" in name),
                dtype=str(named[0][1].dtype).removeprefix("torch.") if named else "",
                shapes=tuple(tuple(x.shape) for _, x in named[:3]),
            ))  # fmt: skip

        for name, value in {"config": config, "n_regs": FEW_REGISTERS, "n_spills": 0, "shared": 0,
                            "store_cubin": False, "cache_hash": ""}.items():  # fmt: skip
            setattr(launch, name, value)
        return launch

    replace(module.CachingAutotuner, "_precompile_config", without_binary)
