"""torch.compile: the real compiler runs, its kernels do not.

Dynamo captures the graph, AOTAutograd and the partitioner decide what the backward pass keeps, Inductor fuses,
schedules, plans buffers and writes its Python wrapper; all of that is host code and runs here as on a machine with
the card. The wrapper is then executed on fake tensors: its allocations, reuses and `del`s are those of the real run.
Only Triton kernels are neither compiled nor launched. What each patch below cures is said in its docstring.

Modelled  the first launch of a kernel with several configurations, which Inductor times: it copies what the kernel
          overwrites and takes a buffer as large as the L2 cache.
Not       tensors made while compiling (a few bytes), the pools of CUDA graphs, kernels chosen by timing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map

from tunecast.tape.op import Op
from tunecast.tape.trace.packages import after_import, inductor_lines
from tunecast.tape.trace.recorder import Recorder, nbytes
from tunecast.tape.trace.scopes import Scopes
from tunecast.tape.trace.values import forget

TIMED = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning")
CUDA_GRAPHS = "triton.cudagraphs"
MANY_REGISTERS, FEW_REGISTERS = 64, 32
LOADS_OF_MANY_REGISTERS = 10

_missing: list[str] = []
"""What this torch lacks of what is patched here: then compiled code is traced as if it were not compiled."""


def install(recorder: Recorder) -> None:
    let_dynamo_compile(recorder)
    keep_phase(recorder.scopes)
    tell_functions_apart()
    answer_for_the_device()
    allocate_through_torch()
    inductor_lines.follow(recorder.scopes)
    enter_compiled_code(recorder)
    leave_out_timed_modes(recorder)
    keep_random_states(recorder)
    after_import("triton.backends.nvidia.driver", load_no_driver)
    after_import("torch._inductor.config", cache_nothing)
    after_import("torch._inductor.compile_fx", compile_outside_the_trace)
    after_import("torch._inductor.fx_passes.joint_graph", fold_on_the_host)
    after_import("torch._inductor.fx_passes.pad_mm", lambda module: pad_without_timing(module, recorder))
    after_import("torch._inductor.async_compile", compile_no_host_kernels)
    after_import("torch._inductor.runtime.benchmarking", time_nothing)
    after_import("torch._inductor.runtime.triton_heuristics", lambda module: launch_nothing(module, recorder))
    after_import("torch._inductor.graph", inductor_lines.remember_lines)


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """`owner.name` becomes `make(what it was)`."""
    if hasattr(owner, name):
        setattr(owner, name, make(getattr(owner, name)))
    else:
        _missing.append(f"{getattr(owner, '__name__', owner)}.{name}")


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


# ---------------------------------------------------------------------- compiling


def let_dynamo_compile(recorder: Recorder) -> None:
    """Dynamo leaves code alone under a dispatch mode, unless that is infrastructure such as FakeTensorMode. It
    switches such modes off while it compiles and on again to run what it compiled, which is just what is wanted."""
    type(recorder).is_infra_mode = classmethod(lambda cls: True)  # type: ignore[method-assign]


def tell_functions_apart() -> None:
    """Dynamo keeps a table of what `torch.cuda` and `torch.accelerator` offer, and wants no function in it twice."""
    seen: set[int] = set()
    for module in (torch.cuda, torch.accelerator):
        for name, value in list(vars(module).items()):
            if isinstance(value, FunctionType) and value.__module__.startswith("tunecast."):
                if id(value) in seen:
                    setattr(module, name, functools.partial(value))
                seen.add(id(value))


def keep_phase(scopes: Scopes) -> None:
    """To draw the backward graph the compiler runs a backward pass of its own, which is not the program's."""
    from torch._dynamo import convert_frame

    def within_phase(convert: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(*args: Any, **kwargs: Any) -> Any:
            phase = scopes.phase
            try:
                return convert(*args, **kwargs)
            finally:
                scopes.phase = phase

        return __call__

    _replace(convert_frame.CatchErrorsWrapper, "__call__", within_phase)


def answer_for_the_device() -> None:
    """The compiler's view of a CUDA device holds the functions `torch.cuda` had before the card was pretended."""
    from torch._dynamo.device_interface import CudaInterface

    names = ("current_device", "set_device", "device_count", "device", "stream", "current_stream", "set_stream",
             "synchronize", "get_device_properties", "memory_allocated", "is_bf16_supported")  # fmt: skip
    for name in names:
        _replace(CudaInterface, name, functools.partial(_as_torch_cuda_has_it, name))
    for name in ("exchange_device", "maybe_exchange_device", "get_raw_stream"):
        _replace(CudaInterface, name, lambda old: staticmethod(_constant(0)))


def _as_torch_cuda_has_it(name: str, old: Any) -> Any:
    return staticmethod(getattr(torch.cuda, name))


def load_no_driver(module: ModuleType) -> None:
    """Triton builds a C extension against libcuda to launch kernels."""
    _replace(module.CudaUtils, "__init__", lambda old: lambda self: None)


def cache_nothing(module: ModuleType) -> None:
    """A first run finds no caches; and no pool of processes is needed to compile nothing."""
    import torch._functorch.config as functorch

    functorch.enable_autograd_cache = False
    module.compile_threads = 1  # type: ignore[attr-defined]
    for name in ("fx_graph_cache", "fx_graph_remote_cache", "autotune_local_cache", "autotune_remote_cache"):
        setattr(module, name, False)


@functools.cache
def _private_folder() -> Any:
    """The compiler writes what it generates; it goes away with the process."""
    folder = tempfile.TemporaryDirectory(prefix="tunecast-compiled-")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder.name
    return folder


def compile_outside_the_trace(module: ModuleType) -> None:
    """With varying lengths the backward graph is compiled inside the first backward pass, where the trace runs."""

    def outside(compile_graph: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compile_graph)
        def compile_without_modes(*args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes():
                return compile_graph(*args, **kwargs)

        return compile_without_modes

    _replace(module, "_compile_fx_inner", outside)


class OnHost(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(_host_for_card, (args, kwargs or {}))
        return func(*args, **kwargs)


def _host_for_card(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value


def fold_on_the_host(module: ModuleType) -> None:
    """Constants are folded by computing with real one-element tensors on the card; only their values are used."""

    def on_host(method: Callable[..., Any]) -> Callable[..., Any]:
        def compute(*args: Any, **kwargs: Any) -> Any:
            with OnHost():
                return method(*args, **kwargs)

        return compute

    for name in ("__init__", "run"):
        _replace(module.UniformValueConstantFolder, name, on_host)


def pad_without_timing(module: ModuleType, recorder: Recorder) -> None:
    """A product with a side that is no multiple of 8 is padded if timing says so. In 16 bits tensor cores want it."""

    def padded(key: str) -> bool:
        pads = "torch.float32" not in key
        recorder.guesses[
            f"torch.compile times odd-sized matrix products to choose; they are taken as {'' if pads else 'not '}padded"
        ] += 1
        return pads

    _replace(module, "get_cached_should_pad", lambda old: padded)


def compile_no_host_kernels(module: ModuleType) -> None:
    """What a graph computes on the host becomes C++ that a compiler would have to build; it allocates nothing."""
    for name in ("cpp", "cpp_pybinding"):
        _replace(module.AsyncCompile, name, lambda old: lambda self, *args, **kwargs: _constant(None))


def leave_out_timed_modes(recorder: Recorder) -> None:
    def without(apply: Callable[..., None]) -> Callable[..., None]:
        def apply_options(self: Any, options: dict[str, Any] | None) -> None:
            options = dict(options or {})
            asked = [name for name in (*TIMED, CUDA_GRAPHS) if options.pop(name, False)]
            if asked:
                recorder.guesses[
                    f"torch.compile with {', '.join(asked)} is traced without: kernels chosen by timing, and the "
                    "pools of CUDA graphs, are not modelled"
                ] += 1
            apply(self, options)

        return apply_options

    _replace(torch._TorchCompileInductorWrapper, "apply_options", without)


# ---------------------------------------------------------------------- running what was compiled


def allocate_through_torch() -> None:
    """The wrapper allocates and views through shortcuts past the dispatcher, where the trace would not see them."""

    def empty_on(device: str) -> Callable[..., torch.Tensor]:
        return lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype, device=device)

    def reinterpret(tensor: torch.Tensor, size: Any, stride: Any, offset: int = 0) -> torch.Tensor:
        return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)

    shortcuts = torch._C._dynamo.guards  # type: ignore[attr-defined]
    _replace(shortcuts, "_empty_strided_cuda", lambda old: empty_on("cuda"))
    _replace(shortcuts, "_empty_strided_cpu", lambda old: empty_on("cpu"))
    _replace(shortcuts, "_reinterpret_tensor", lambda old: reinterpret)
    if hasattr(shortcuts, "_empty_strided_cpu_pinned"):
        shortcuts._empty_strided_cpu_pinned = empty_on("cpu")
    _replace(shortcuts, "assert_alignment", lambda old: _constant(None))  # it reads addresses, and there are none
    # The allocator hands out aligned blocks, so an input is misaligned (and copied) only if it starts inside one.
    # Nor is a saved tensor's address (autograd compares them) one that matters.
    warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
    FakeTensor.data_ptr = lambda self: self.storage_offset() * self.element_size()  # type: ignore[method-assign]


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
    mode = type(recorder)

    def set_state_and_run(mode: Any, operation: Any, *args: Any, rng_state: Any = None, **kwargs: Any) -> Any:
        with mode:
            return operation(*args, **kwargs)

    def run_with_state(mode: Any, state: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
        return set_state_and_run(mode, operation, *args, **kwargs)

    def run_and_save_state(mode: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
        return torch.cuda.get_rng_state(), set_state_and_run(mode, operation, *args, **kwargs)

    for name, rule in {"graphsafe_run_with_rng_state": set_state_and_run, "run_with_rng_state": run_with_state,
                       "run_and_save_rng_state": run_and_save_state}.items():  # fmt: skip
        if mode not in getattr(rng_prims, name).python_key_table:
            getattr(rng_prims, name).py_impl(mode)(rule)


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
        _replace(getattr(module, kind), "benchmark_gpu", lambda old: benchmark_gpu)


def launch_nothing(module: ModuleType, recorder: Recorder) -> None:
    """A kernel's configurations are chosen as ever; in place of a binary each gets a launcher that notes the launch.

    A looped reduction that needs more than 32 registers a thread is also tried with half its block
    (`_dynamic_scale_rblock`). Only the binary tells; Inductor itself expects it of kernels with ten or more loads and
    reductions (`register_intensive` in `_reduction_configs`), and on an H200 it was those.
    """

    def precompile(old: Callable[..., Any]) -> Callable[..., Any]:
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

    _replace(module.CachingAutotuner, "_precompile_config", precompile)


def enter_compiled_code(recorder: Recorder) -> None:
    """The tracer's module hooks are hidden from the compiler, which would compile them into the graph; the module
    whose compiled code runs is named here instead. Where the compiler fails the code runs as it was written."""
    from torch._dynamo import eval_frame, exc
    from torch._dynamo.utils import counters
    from torch.nn.modules import module as hooks

    scopes = recorder.scopes
    in_torch = (hooks._global_forward_pre_hooks, hooks._global_forward_hooks, hooks._global_forward_hooks_always_called)
    put_away: tuple[dict[Any, Any], ...] = ({}, {}, {})
    hidden = False

    @contextlib.contextmanager
    def hooks_are(wanted: bool) -> Iterator[None]:
        """Hidden (True) or in place (False) until the end of the block."""
        nonlocal hidden
        change = hidden is not wanted
        if change:
            exchange()
            hidden = wanted
        try:
            yield
        finally:
            if change:
                exchange()
                hidden = not wanted

    def exchange() -> None:
        for here, there in zip(in_torch, put_away, strict=True):
            kept = dict(here)
            here.clear()
            here.update(there)
            there.clear()
            there.update(kept)

    @contextlib.contextmanager
    def inside(module: torch.nn.Module | None) -> Iterator[None]:
        if module is not None:
            scopes._enter(module, ())
        try:
            yield
        finally:
            if module is not None:
                scopes._leave(module, (), None)

    def region(function: Callable[..., Any], compiled: Callable[..., Any]) -> Callable[..., Any]:
        failure = ""

        @functools.wraps(compiled)
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal failure
            _private_folder()
            failure = failure or (f"it lacks {', '.join(_missing)}" if _missing else "")
            if not failure:
                try:
                    with hooks_are(True), inside(_module_of(function, args)):
                        result = compiled(*args, **kwargs)
                    if not counters["stats"]["unique_graphs"]:
                        recorder.guesses["torch.compile compiled nothing: traced as if it were not there"] += 1
                    return result
                except exc.TorchDynamoException as error:
                    if os.environ.get("DBG"): raise
                    failure = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            recorder.guesses[
                f"compiled code is traced as if it were not compiled, because torch {torch.__version__}'s compiler "
                f"cannot be followed here ({failure})"
            ] += 1
            with hooks_are(False):
                return function(*args, **kwargs)

        return run

    def compile_into_region(make: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(self: Any, function: Any) -> Any:
            compiled = make(self, function)
            return compiled if isinstance(function, (torch.nn.Module, type)) else region(function, compiled)

        return __call__

    def without_hooks(call: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            with hooks_are(True):
                return call(self, *args, **kwargs)

        return __call__

    _replace(eval_frame.OptimizeContext, "__call__", compile_into_region)
    _replace(eval_frame.OptimizedModule, "__call__", without_hooks)


def _module_of(function: Callable[..., Any], args: tuple[Any, ...]) -> torch.nn.Module | None:
    """The module a compiled function runs: its own, the one it wraps, or one it is given or closes over."""
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _filled(cell)]
    used = [getattr(function, "__globals__", {}).get(name) for name in getattr(function, "__code__", _NO_CODE).co_names]
    candidates = (getattr(function, "__self__", None), getattr(function, "__wrapped__", None), *args, *cells, *used)
    module = next((c for c in candidates if isinstance(c, torch.nn.Module)), None)
    return getattr(module, "_orig_mod", module)


_NO_CODE = SimpleNamespace(co_names=())


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  a cell that is still empty raises
    except ValueError:
        return False
    return True
