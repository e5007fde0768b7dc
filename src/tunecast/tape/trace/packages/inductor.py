"""torch.compile: the real compiler runs, its kernels do not."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch._subclasses.fake_tensor import FakeTensor

from tunecast.tape.op import Op
from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder, nbytes

NREG=int(os.environ.get('NREG','64'))
_folders: list[Any] = []


def install(recorder: Recorder) -> None:
    type(recorder).ignore_compile_internals = classmethod(lambda cls: True)  # type: ignore
    type(recorder).is_infra_mode = classmethod(lambda cls: True)  # type: ignore
    stream = torch.cuda.current_stream
    torch.accelerator.current_stream = lambda *a, **k: stream(*a, **k)
    FakeTensor.data_ptr = lambda self: 0
    folder = tempfile.TemporaryDirectory(prefix="tunecast-inductor-")
    _folders.append(folder)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder.name
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    hide_hooks(recorder)
    from torch._dynamo.device_interface import CudaInterface
    for name in ("current_device", "set_device", "device_count", "device", "stream", "current_stream", "set_stream", "synchronize", "get_device_properties", "memory_allocated", "is_bf16_supported"):
        setattr(CudaInterface, name, staticmethod(getattr(torch.cuda, name)))
    CudaInterface.exchange_device = CudaInterface.maybe_exchange_device = CudaInterface.get_raw_stream = staticmethod(lambda *a: 0)

    def drive(module):
        module.CudaUtils.__init__ = lambda self: None
    after_import("triton.backends.nvidia.driver", drive)
    import torch.utils._triton as tt
    tt.triton_hash_with_backend = lambda: "0"

    def settle(module):
        module.compile_threads = 1
        module.force_disable_caches = True
    after_import("torch._inductor.config", settle)

    def guards():
        g = torch._C._dynamo.guards
        def empty_strided_cuda(size, stride, dtype):
            return torch.empty_strided(size, stride, dtype=dtype, device="cuda")
        g._empty_strided_cuda = empty_strided_cuda
        def reinterpret(t, size, stride, offset=0):
            return torch.as_strided(t, size, stride, t.storage_offset() + offset)
        g._reinterpret_tensor = reinterpret
    guards()

    def heuristics(module):
        def _precompile_config(self, cfg):
            if os.environ.get('DBG'): print(self.fn.__name__, self.heuristic_type, self.size_hints, cfg)
            return Result(self, cfg, recorder)
        module.CachingAutotuner._precompile_config = _precompile_config
    after_import("torch._inductor.runtime.triton_heuristics", heuristics)

    def bench(module):
        def benchmark_gpu(self, call, *args, **kwargs):
            call()
            buffer = torch.empty(self.L2_cache_size // 4, dtype=torch.int, device="cuda")
            call()
            return 1.0
        module.InductorBenchmarker.benchmark_gpu = benchmark_gpu
    after_import("torch._inductor.runtime.benchmarking", bench)

    def fold(module):
        folder = module.UniformValueConstantFolder
        for name in ("__init__", "run"):
            def method(self, *args, method=getattr(folder, name), **kwargs):
                with OnHost():
                    return method(self, *args, **kwargs)
            setattr(folder, name, method)
    after_import("torch._inductor.fx_passes.joint_graph", fold)


class OnHost(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        def host(x):
            return torch.device("cpu") if isinstance(x, torch.device) and x.type == "cuda" else x
        args, kwargs = tree_map(host, (args, kwargs or {}))
        return func(*args, **kwargs)


class Result:
    def __init__(self, tuner, config, recorder):
        self.config = config
        import types; self.kernel = types.SimpleNamespace(n_regs=NREG)
        self.tuner, self.recorder = tuner, recorder
    def make_launcher(self):
        def launch(*args, stream, **kwargs):
            tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
            self.recorder.launched(Op("triton::" + self.tuner.fn.__name__, read_bytes=sum(map(nbytes, tensors))))
        launch.config = self.config
        launch.n_regs = launch.n_spills = launch.shared = 0
        launch.store_cubin = False
        launch.cache_hash = ""
        return launch


def hide_hooks(recorder):
    warnings.filterwarnings("ignore", message="Using `torch.compile.module.` when there are global hooks")
    from torch._dynamo import eval_frame
    from torch.nn.modules import module as m
    original = eval_frame._TorchDynamoContext.__call__

    @contextlib.contextmanager
    def hidden():
        dicts = (m._global_forward_pre_hooks, m._global_forward_hooks, m._global_forward_hooks_always_called)
        kept = [dict(d) for d in dicts]
        for d in dicts: d.clear()
        try: yield
        finally:
            for d, k in zip(dicts, kept): d.update(k)

    def __call__(self, fn):
        compiled = original(self, fn)
        if isinstance(fn, torch.nn.Module) or isinstance(fn, type):
            return compiled
        @functools.wraps(compiled)
        def region(*args, **kwargs):
            with hidden():
                return compiled(*args, **kwargs)
        return region
    eval_frame.OptimizeContext.__call__ = __call__
