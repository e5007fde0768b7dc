"""What Inductor asks of a card, a compiler or a clock while it compiles, answered without them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map

from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.packages.inductor.replacing import constant, replace
from tunecast.tape.trace.recorder import Recorder

TIMED = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning")
CUDA_GRAPHS = "triton.cudagraphs"


def install(recorder: Recorder) -> None:
    leave_out_timed_modes(recorder)
    ask_for_no_assembler()
    after_import("triton.backends.nvidia.driver", load_no_driver)
    after_import("torch._inductor.config", cache_nothing)
    after_import("torch._dynamo.repro.after_aot", write_no_reproducer)
    after_import("torch._inductor.compile_fx", compile_outside_the_trace)
    after_import("torch._inductor.fx_passes.joint_graph", fold_on_the_host)
    after_import("torch._inductor.fx_passes.pad_mm", lambda module: pad_without_timing(module, recorder))
    after_import("torch._inductor.async_compile", build_no_host_kernels)
    after_import("torch._inductor.cpu_vec_isa", try_no_instructions)
    after_import("torch._inductor.cpp_builder", look_for_no_compiler)


def leave_out_timed_modes(recorder: Recorder) -> None:
    """`mode="max-autotune"` and `"reduce-overhead"` are traced as the default mode, and that is said."""

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

    replace(torch._TorchCompileInductorWrapper, "apply_options", without)


def ask_for_no_assembler() -> None:
    """The name of a kernel in the cache holds the version of `ptxas`, which is started to tell it."""
    import torch.utils._triton as triton

    replace(triton, "triton_hash_with_backend", lambda old: constant(""))


def load_no_driver(module: ModuleType) -> None:
    """Triton builds a C extension against libcuda to launch kernels."""
    replace(module.CudaUtils, "__init__", lambda old: lambda self: None)


def write_no_reproducer(module: ModuleType) -> None:
    """Every graph is also written out as a script for bug reports, with what `nvcc` says of itself."""
    replace(module, "save_graph_repro", lambda old: constant(None))


def cache_nothing(module: ModuleType) -> None:
    """A first run finds no caches; and no pool of processes is needed to compile nothing."""
    import torch._functorch.config as functorch

    functorch.enable_autograd_cache = False
    module.compile_threads = 1  # type: ignore[attr-defined]
    for name in ("fx_graph_cache", "fx_graph_remote_cache", "autotune_local_cache", "autotune_remote_cache"):
        setattr(module, name, False)


def compile_outside_the_trace(module: ModuleType) -> None:
    """With varying lengths the backward graph is compiled inside the first backward pass, where the trace runs."""

    def outside(compile_graph: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compile_graph)
        def compile_without_modes(*args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes():
                return compile_graph(*args, **kwargs)

        return compile_without_modes

    replace(module, "_compile_fx_inner", outside)


class HostDispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(_host_for_card, (args, kwargs or {}))
        return func(*args, **kwargs)


def _host_for_card(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value


def fold_on_the_host(module: ModuleType) -> None:
    """Constants are folded by computing with real one-element tensors on the card; only their values are used."""

    def on_host(method: Callable[..., Any]) -> Callable[..., Any]:
        def compute(*args: Any, **kwargs: Any) -> Any:
            with HostDispatch():
                return method(*args, **kwargs)

        return compute

    for name in ("__init__", "run"):
        replace(module.UniformValueConstantFolder, name, on_host)


def pad_without_timing(module: ModuleType, recorder: Recorder) -> None:
    """A product with an odd side (a vocabulary of 50,257) is padded if timing says so. Sixteen-bit products on tensor
    cores gain by it, fp32 ones without them do not."""

    def padded(key: str) -> bool:
        pads = "torch.float32" not in key
        recorder.guesses[
            "torch.compile times matrix products with odd sides to choose between padding them and not; "
            f"they are taken as {'' if pads else 'not '}padded"
        ] += 1
        return pads

    replace(module, "get_cached_should_pad", lambda old: padded)


def build_no_host_kernels(module: ModuleType) -> None:
    """What a graph computes on the host becomes C++ that a compiler would have to build; it allocates nothing."""
    for name in ("cpp", "cpp_pybinding"):
        replace(module.AsyncCompile, name, lambda old: lambda self, *args, **kwargs: constant(None))


def try_no_instructions(module: ModuleType) -> None:
    """To learn which vector instructions the host has, a C++ compiler is tried."""
    replace(module, "valid_vec_isa_list", lambda old: constant([]))


def look_for_no_compiler(module: ModuleType) -> None:
    """Source for the host differs by compiler, which is started to tell its name."""
    for name, answer in {"is_gcc": True, "is_clang": False, "is_msvc_cl": False}.items():
        replace(module, name, functools.partial(_always, answer))


def _always(answer: bool, old: Any) -> Callable[..., bool]:
    return constant(answer)
