"""bitsandbytes: its own CUDA-side Python runs, with the C library behind it silent.

The shape-only kernels bitsandbytes registers for fake tensors return results but not the temporaries its CUDA path
allocates. That path is Python that allocates with torch and then calls the C library; with a library whose every
function does nothing it runs here as it is, so its allocations are the real ones of the installed version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tunecast.tape.kernels.outliers import GATES, share_of_outlier_columns
from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder

OUTLIERS_GUESSED = (
    "LLM.int8 keeps columns with a value beyond its threshold in 16 bits; taken: as many as"
    " untrained weights are expected to give; trained ones may give others"
)


class SilentFunction:
    argtypes: Any = None
    restype: Any = None

    def __call__(self, *args: Any) -> int:
        return 0


class SilentLibrary:
    compiled_with_cuda = True

    def __init__(self) -> None:
        self._functions: dict[str, SilentFunction] = {}

    def __getattr__(self, name: str) -> SilentFunction:
        return self._functions.setdefault(name, SilentFunction())

    def __getitem__(self, name: str) -> SilentFunction:
        return getattr(self, name)  # type: ignore[no-any-return]


def install(recorder: Recorder) -> None:
    after_import("bitsandbytes.backends.cuda.ops", partial(know_outliers, recorder))
    after_import("bitsandbytes.cuda_specs", look_for_no_driver)
    after_import("bitsandbytes.cextension", silence)
    after_import("bitsandbytes._ops", partial(keep_cuda_kernels, recorder))
    after_import("bitsandbytes.functional", partial(page_on_the_host, recorder))


def look_for_no_driver(module: ModuleType) -> None:
    module.get_cuda_specs = lambda: None  # type: ignore[attr-defined]


def silence(module: ModuleType) -> None:
    module.lib = SilentLibrary()  # type: ignore[attr-defined]


def keep_cuda_kernels(recorder: Recorder, module: ModuleType) -> None:
    register: Callable[..., Any] = module.register_kernel

    def register_kernel(operation: str, device: str) -> Any:
        """A kernel for any device is used on cards too, unless one for `cuda` follows."""

        def keep(kernel: Any) -> Any:
            recorder.emulated[operation] = kernel
            return kernel

        return keep if device in ("cuda", "default") else register(operation, device)

    module.register_kernel = register_kernel  # type: ignore[attr-defined]


def page_on_the_host(recorder: Recorder, module: ModuleType) -> None:
    """Paged optimizer state is managed memory, outside the caching allocator."""

    def get_paged(*shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
        out = torch.empty(shape, dtype=dtype, device="cpu")
        recorder.managed_bytes += out.nbytes
        out.is_paged, out.page_deviceid = True, 0  # type: ignore[attr-defined]
        return out

    module.get_paged = get_paged  # type: ignore[attr-defined]
    if "data_ptr" not in vars(FakeTensor):
        FakeTensor.data_ptr = lambda self: 0  # type: ignore[method-assign]


def know_outliers(recorder: Recorder, module: ModuleType) -> None:
    recorder.emulated["bitsandbytes::int8_vectorwise_quant"] = partial(int8_vectorwise_quant, recorder)
    recorder.emulated["bitsandbytes::int8_vectorwise_dequant"] = int8_vectorwise_dequant


def int8_vectorwise_quant(recorder: Recorder, A: torch.Tensor, threshold: float = 0.0) -> tuple[Any, Any, Any]:
    """As bitsandbytes/backends/cuda/ops.py does it, but for the columns that hold a value beyond the threshold."""
    rows = A.numel() // A.shape[-1]
    row_stats = torch.empty(rows, device=A.device, dtype=torch.float32)
    out = torch.empty(A.shape, device=A.device, dtype=torch.int8)
    columns = None
    if threshold > 0.0:
        outliers = A.abs() >= threshold  # lives to the end of the function, there as here
        count = expected_outlier_columns(next(iter(recorder.scopes.roots), None), A.shape[-1], rows, threshold)
        columns = outlier_columns(outliers, count)
        recorder.guesses[OUTLIERS_GUESSED] += 1
    if rows > 1 and columns is not None:
        out[:, columns] = 0
    return out, row_stats, columns


def outlier_columns(outliers: torch.Tensor, count: int) -> torch.Tensor:
    """The indices of the columns that hold an outlier; which they are only the data knows."""
    outliers.any()
    if not count:
        return torch.empty(0, device=outliers.device, dtype=torch.int64)
    outliers.any(dim=0)
    return torch.empty((count, 1), device=outliers.device, dtype=torch.int64).view(-1)


def expected_outlier_columns(model: torch.nn.Module | None, width: int, rows: int, threshold: float) -> int:
    """An MLP's inner activations are told by being wider than the first layer's input; others have none."""
    hidden = first_width(model) or width
    if width <= hidden:
        return 0
    deviation, gated = initializer_range(model), is_gated(model)
    return round(width * share_of_outlier_columns(threshold, rows, hidden, deviation, gated))


def int8_vectorwise_dequant(A: torch.Tensor, stats: torch.Tensor) -> torch.Tensor:
    """bitsandbytes/_ops.py, which registers it before `keep_cuda_kernels` can see it: two products."""
    return A * stats.view(-1, 1) * (1 / 127)


def first_width(model: torch.nn.Module | None) -> int:
    """Of the first layer's input that is quantised to 8 bits."""
    modules: Iterable[Any] = model.modules() if model is not None else ()
    return next((int(module.in_features) for module in modules if type(module).__name__ == "Linear8bitLt"), 0)


def initializer_range(model: torch.nn.Module | None) -> float:
    return float(getattr(getattr(model, "config", None), "initializer_range", 0.02))


def is_gated(model: torch.nn.Module | None) -> bool:
    return model is not None and any(name.rpartition(".")[2] in GATES for name, _ in model.named_modules())
