"""bitsandbytes: its own CUDA-side Python runs, with the C library behind it silent.

The shape-only kernels bitsandbytes registers for fake tensors return results but not the temporaries its CUDA path
allocates. That path is Python that allocates with torch and then calls the C library; with a library whose every
function does nothing it runs here as it is, so its allocations are the real ones of the installed version. What the
library would have computed is written down as an operation behind them, with the names and sizes that the closed form
gives it, so that it takes time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import prod
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tunecast.tape.kernels.outliers import GATES, share_of_outlier_columns
from tunecast.tape.op import Op
from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder, card_of, nbytes, tensors_in

OUTLIERS_GUESSED = (
    "LLM.int8 keeps columns with a value beyond its threshold in 16 bits; taken: as many as"
    " untrained weights are expected to give; trained ones may give others"
)


PRODUCTS = frozenset({"gemm_4bit", "gemv_4bit", "int8_linear_matmul"})


class SilentFunction:
    argtypes: Any = None
    restype: Any = None

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name, self._calls = name, calls

    def __call__(self, *args: Any) -> int:
        self._calls.append(self._name)
        return 0


class SilentLibrary:
    compiled_with_cuda = True

    def __init__(self) -> None:
        self.calls: list[str] = []
        """Since they were last looked at."""
        self._functions: dict[str, SilentFunction] = {}

    def __getattr__(self, name: str) -> SilentFunction:
        return self._functions.setdefault(name, SilentFunction(name, self.calls))

    def __getitem__(self, name: str) -> SilentFunction:
        return getattr(self, name)  # type: ignore[no-any-return]


def install(recorder: Recorder) -> None:
    library = SilentLibrary()
    after_import("bitsandbytes.backends.cuda.ops", partial(know_outliers, recorder))
    after_import("bitsandbytes.cuda_specs", look_for_no_driver)
    after_import("bitsandbytes.cextension", partial(silence, library))
    after_import("bitsandbytes._ops", partial(keep_cuda_kernels, recorder, library))
    after_import("bitsandbytes.functional", partial(page_on_the_host, recorder))


def look_for_no_driver(module: ModuleType) -> None:
    module.get_cuda_specs = lambda: None  # type: ignore[attr-defined]


def silence(library: SilentLibrary, module: ModuleType) -> None:
    module.lib = library  # type: ignore[attr-defined]


def keep_cuda_kernels(recorder: Recorder, library: SilentLibrary, module: ModuleType) -> None:
    register: Callable[..., Any] = module.register_kernel

    def register_kernel(operation: str, device: str) -> Any:
        """A kernel for any device is used on cards too, unless one for `cuda` follows."""

        def keep(kernel: Any) -> Any:
            recorder.emulated[operation] = with_its_work(recorder, library, operation, kernel)
            return kernel

        return keep if device in ("cuda", "default") else register(operation, device)

    module.register_kernel = register_kernel  # type: ignore[attr-defined]


def with_its_work(
    recorder: Recorder, library: SilentLibrary, operation: str, kernel: Callable[..., Any]
) -> Callable[..., Any]:
    """The kernel, and behind it what its calls of the library compute."""
    name = operation.partition("::")[2].partition(".")[0]

    def run(*args: Any, **kwargs: Any) -> Any:
        library.calls.clear()
        result = kernel(*args, **kwargs)
        if library.calls:
            given = tensors_in((args, kwargs))
            for op in work_of(name, tuple(library.calls), args, given, tensors_in(result)):
                recorder.launched(op._replace(source=recorder.scopes.source()), card_of(given[0]))
        return result

    return run


def work_of(
    name: str, calls: tuple[str, ...], args: tuple[Any, ...], given: list[torch.Tensor], made: list[torch.Tensor]
) -> Iterable[Op]:
    """Of a kernel that called the library: as `tape/build` tells the same operation."""
    if name.startswith("optimizer_update"):
        gradient, weight, *kept = (each for each in args[1:5] if isinstance(each, torch.Tensor))
        yield work(name, [weight, gradient], weight.dtype, nbytes(weight) + sum(map(nbytes, kept)))
    elif name in PRODUCTS and not any("dequantize" in call for call in calls):
        out = (made or given[-1:])[0]
        yield work(name, given[:2], out.dtype, nbytes(out), 2 * given[0].numel() * out.shape[-1])
    elif name == "gemm_4bit":
        # the weight is unpacked, and its product is an operation of its own; of a nested one the scales come first
        x, packed, elements = args[0], args[1], prod(args[2])
        blocks = -(-elements // args[4])
        scales = torch.empty(blocks, dtype=torch.float32, device="meta")
        if len(calls) > 1:
            yield work("dequantize_blockwise", [scales.to(torch.uint8)], scales.dtype, nbytes(scales))
        yield work("dequantize_4bit", [packed, scales], x.dtype, elements * x.element_size())
    else:
        yield work(name, given, (made or given[-1:])[0].dtype, sum(map(nbytes, made or given[-1:])))


def work(name: str, given: list[torch.Tensor], dtype: torch.dtype, written_bytes: int, flops: int = 0) -> Op:
    shapes = tuple(tuple(each.shape) for each in given[:3])
    told = str(dtype).removeprefix("torch.")
    return Op(name, "", flops, sum(map(nbytes, given)), written_bytes, 1, told, shapes)


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
