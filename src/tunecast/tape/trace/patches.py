"""Small corrections that let unmodified training code run on fake tensors. One function, one reason."""

from __future__ import annotations

import copy
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._foreach_utils as foreach_utils
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes

from tunecast.tape.trace.recorder import Recorder
from tunecast.tape.trace.values import guess_behind, known

FAKE_DEVICE = "_fake_device" if "_fake_device" in getattr(FakeTensor, "__annotations__", {}) else "fake_device"


def install(recorder: Recorder) -> None:
    start_no_driver()
    make_tensors_on_the_host()
    allow_foreach()
    let_modules_swap_parameters()
    move_data_between_devices()
    graft_parameter_subclasses()
    read_known_values(recorder)
    format_values(recorder)
    follow_resized_storages(recorder)
    load_data_in_this_process()
    save_nothing()
    multiply_into_wider_results()
    lay_out_softplus_gradient()
    multiply_groups_of_any_type()
    copy_tensors_not_the_mode()
    choose_convolutions_without_driver()


def start_no_driver() -> None:
    """FakeTensorMode starts the CUDA context for fake `cuda` tensors, and lifts `torch.tensor(..., device='cuda')`
    onto a real card first, unless it believes there is none."""
    FakeTensorMode.avoid_device_init = property(lambda mode: True)  # type: ignore[method-assign, assignment]
    if hasattr(fake_tensor, "init_gpu_context"):
        fake_tensor.init_gpu_context = lambda *args, **kwargs: None


def make_tensors_on_the_host() -> None:
    """`torch.tensor(values, device="cuda")` asks the driver first. Values are read on the host anyway: make the tensor
    there, then move it."""
    for name in ("tensor", "as_tensor"):
        make: Callable[..., Any] = getattr(torch, name)

        def on_host(data: Any, *args: Any, make: Any = make, device: Any = None, **kwargs: Any) -> Any:
            kwargs.pop("pin_memory", None)  # pinning is the driver's work
            device = _default_device() if device is None else device
            if device is None or torch.device(device).type != "cuda" or isinstance(data, torch.Tensor):
                return make(data, *args, device=device, **kwargs)
            return make(_plain(data), *args, device="cpu", **kwargs).to(device)

        setattr(torch, name, on_host)


def _plain(data: Any) -> Any:
    """Tensors of one number in a list are read one after the other, wherever they are."""
    if isinstance(data, (list, tuple)):
        return [_plain(each) for each in data]
    return data.item() if isinstance(data, torch.Tensor) and data.dim() == 0 else data


def _default_device() -> torch.device | None:
    """What `with torch.device(...)` says, if anything (`torch.get_default_device` makes a tensor to find out)."""
    modes = reversed(_get_current_function_mode_stack())
    return next((mode.device for mode in modes if isinstance(mode, DeviceContext)), None)


def allow_foreach() -> None:
    """Optimizers and gradient clipping use their `foreach` path on plain tensors only; a card would."""
    import torch.optim.optimizer as optimizer

    for module in (foreach_utils, optimizer):
        types_ = getattr(module, "_foreach_supported_types", None)
        if isinstance(types_, list) and FakeTensor not in types_:
            types_.append(FakeTensor)


def let_modules_swap_parameters() -> None:
    """`nn.Module.to` swaps subclass parameters and refuses while weak references to them exist; fake tensors always
    have some, which mean nothing here."""
    import torch.utils as utils

    utils.weakref = types.SimpleNamespace(getweakrefs=lambda tensor: [])  # type: ignore[attr-defined]


def move_data_between_devices() -> None:
    """`parameter.data = other` must carry the device a fake tensor pretends to be on."""
    if "data" in FakeTensor.__dict__:
        return
    data: Any = torch._C.TensorBase.data

    def set_data(self: Any, value: Any) -> None:
        data.__set__(self, value)
        if isinstance(value, FakeTensor):
            setattr(self, FAKE_DEVICE, getattr(value, FAKE_DEVICE))

    FakeTensor.data = property(lambda self: data.__get__(self), set_data)  # type: ignore[assignment, method-assign]


def graft_parameter_subclasses() -> None:
    """`Tensor._make_subclass` (bitsandbytes' Params4bit, Int8Params) would lose the fake tensor inside; make a class
    that is both, of the same name: PEFT asks for it."""
    make = torch.Tensor._make_subclass
    grafted: dict[type, type] = {}

    def detach(self: Any) -> Any:
        copy = torch.Tensor.detach(self)
        copy.__class__ = type(self)
        copy.__dict__.update({k: v for k, v in self.__dict__.items() if k not in copy.__dict__})
        return copy

    def _make_subclass(cls: Any, data: Any, require_grad: bool = False, **kwargs: Any) -> Any:
        if not isinstance(data, FakeTensor):
            return make(cls, data, require_grad, **kwargs)
        if not issubclass(cls, FakeTensor):
            if cls not in grafted:
                grafted[cls] = type(cls)(
                    cls.__name__, (cls, FakeTensor), {"detach": detach, "device": torch.Tensor.device}
                )
            cls = grafted[cls]
        tensor = data.detach()
        tensor._tunecast_known = known(data)
        tensor.__class__ = cls
        return tensor.requires_grad_(require_grad)

    torch.Tensor._make_subclass = staticmethod(_make_subclass)  # type: ignore[method-assign, assignment]


def read_known_values(recorder: Recorder) -> None:
    """`numpy()` and `tolist()` read contents; known ones are given, unknown ones are ones, and written down."""
    to_numpy, to_list, equal = torch.Tensor.numpy, torch.Tensor.tolist, torch.equal

    def contents(tensor: Any) -> torch.Tensor:
        value = known(tensor)
        if value is not None:
            return value
        recorder.assumptions[f"contents of a {tensor.dtype} tensor read by the host are taken as ones"] += 1
        dtype = torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype
        return torch.ones(tuple(tensor.shape), dtype=dtype)

    def numpy(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, FakeTensor):
            return to_numpy(self, *args, **kwargs)
        with _disable_current_modes():
            return contents(self).detach().numpy()

    def tolist(self: Any) -> Any:
        if not isinstance(self, FakeTensor):
            return to_list(self)
        with _disable_current_modes():
            return contents(self).tolist()

    def same(a: Any, b: Any) -> bool:
        if not isinstance(a, FakeTensor) and not isinstance(b, FakeTensor):
            return equal(a, b)
        torch.eq(a, b).all()  # what the card does before it answers (ATen/native/cuda/Equal.cpp)
        known_a, known_b = known(a), known(b)
        if known_a is None or known_b is None:
            return tuple(a.shape) == tuple(b.shape)
        with _disable_current_modes():
            return equal(known_a, known_b)

    torch.Tensor.numpy, torch.Tensor.tolist, torch.equal = numpy, tolist, same  # type: ignore[method-assign, assignment]


def format_values(recorder: Recorder) -> None:
    """`f"{loss:.4f}"`: torch formats a tensor of one number as that number, but only `type(tensor) is Tensor`. Nothing
    depends on a text, so a value that is not known is an assumption here, never a guess."""
    formatted = torch.Tensor.__format__

    def __format__(self: Any, spec: str) -> str:
        if not isinstance(self, FakeTensor) or self.dim() or isinstance(self, torch.nn.Parameter):
            return formatted(self, spec)
        value = known(self)
        if guess_behind(self) or (value is None and not self.dtype.is_floating_point):
            with _disable_current_modes():
                shown = 1 if value is None else value.item()
            recorder.assumptions[f"a {self.dtype} value that is only printed is shown as {shown}"] += 1
            return format(shown, spec)
        return format(self.item(), spec)

    torch.Tensor.__format__ = __format__  # type: ignore[method-assign]


def follow_resized_storages(recorder: Recorder) -> None:
    """FSDP frees and refills parameters through `storage.resize_`, which makes no operation."""
    resize = torch.UntypedStorage.resize_

    def resize_(self: Any, size: int) -> Any:
        result = resize(self, size)
        recorder.resized(self, size)
        return result

    torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]

    def resize_tensor(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """`tensor.resize_` grows its storage, which is no new storage: Unsloth's staging buffers, `out=` arguments."""
        before = tensor.untyped_storage().nbytes()
        recorder.paused += 1
        try:
            torch.ops.aten.resize_.default(tensor, *args, **kwargs)
        finally:
            recorder.paused -= 1
        after = tensor.untyped_storage().nbytes()
        if after != before and tensor.device.type == "cuda":
            recorder.resized(tensor.untyped_storage(), after)
        return tensor

    recorder.emulated["aten::resize_"] = resize_tensor


def load_data_in_this_process() -> None:
    """Worker processes and pinning threads would run outside the fake mode; what they yield is the same."""
    from torch.utils.data import DataLoader

    initialise = DataLoader.__init__
    names = tuple(inspect.signature(initialise).parameters)[1:]

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs |= dict(zip(names, args, strict=False))
        kwargs.update(num_workers=0, pin_memory=False, persistent_workers=False)
        for name in ("prefetch_factor", "multiprocessing_context", "timeout"):
            kwargs.pop(name, None)
        initialise(self, **kwargs)

    DataLoader.__init__ = __init__  # type: ignore[method-assign]
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self  # type: ignore[method-assign]


def save_nothing() -> None:
    """Checkpoints of tensors without contents are not worth writing, and nothing may land in the user's folder."""
    nothing: Callable[..., None] = lambda *args, **kwargs: None  # noqa: E731
    torch.save = nothing


def multiply_into_wider_results() -> None:
    """`addmm(..., out_dtype=)` (TRL's chunked loss) has a shape-only kernel that takes the dtype for a factor."""
    from torch._decomp import decomposition_table
    from torch._subclasses.fake_impls import register_op_impl

    def product(
        mode: Any,
        func: Any,
        bias: Any,
        left: Any,
        right: Any,
        out_dtype: torch.dtype,
        *,
        out: Any = None,
        **scales: Any,
    ) -> Any:
        with mode:
            shape = (*left.shape[:-1], right.shape[-1])
            return torch.empty(shape, dtype=out_dtype, device=left.device) if out is None else out

    for operation in (torch.ops.aten.addmm, torch.ops.aten.baddbmm):
        for name in {"dtype", "dtype_out"} & set(operation.overloads()):
            overload = getattr(operation, name)
            decomposition_table.pop(overload, None)
            register_op_impl(overload)(product)


def lay_out_softplus_gradient() -> None:
    """As the gradient that came in is laid out, which the kernel goes by (aten/src/ATen/native/Activation.cpp,
    `softplus_backward`); torch's formula for shapes goes by the input."""
    from torch._decomp import decomposition_table

    operation = torch.ops.aten.softplus_backward.default
    formula = decomposition_table[operation]

    @functools.wraps(formula)
    def gradient(out_grad: torch.Tensor, x: torch.Tensor, beta: float, threshold: float) -> torch.Tensor:
        return out_grad * torch.sigmoid(x * beta)

    decomposition_table[operation] = gradient


def multiply_groups_of_any_type() -> None:
    """The card multiplies groups in fp32 and fp16 too, one after the other (aten/src/ATen/native/GroupedMMUtils.h,
    `_grouped_mm_fallback`); torch's shape-only kernel admits bf16 alone."""
    import torch._meta_registrations as meta

    if not hasattr(meta, "_meta_grouped_mm_common"):
        return
    shapes = meta._meta_grouped_mm_common

    def common(mat_a: torch.Tensor, mat_b: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if mat_a.dtype not in (torch.float32, torch.float16) or mat_a.dtype != mat_b.dtype:
            return shapes(mat_a, mat_b, *args, **kwargs)
        stand_ins = [
            torch.empty_strided(x.shape, x.stride(), dtype=torch.bfloat16, device=x.device) for x in (mat_a, mat_b)
        ]
        return torch.empty_like(shapes(*stand_ins, *args, **kwargs), dtype=mat_a.dtype)

    meta._meta_grouped_mm_common = common


def choose_convolutions_without_driver() -> None:
    """Of channels that are apart a build for CUDA asks the driver which cuDNN there is; torch's own kernel is taken."""
    select = torch._C._select_conv_backend

    def _select_conv_backend(*args: Any, **kwargs: Any) -> Any:
        try:
            return select(*args, **kwargs)
        except torch.AcceleratorError:
            return torch._C._ConvBackend.CudaDepthwise2d

    torch._C._select_conv_backend = _select_conv_backend


def copy_tensors_not_the_mode() -> None:
    """`copy.deepcopy(model)` copies a tensor's attributes, and a fake tensor's hold the mode it lives in."""

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        with torch.no_grad():
            twin = self.detach().clone()
        twin.requires_grad_(self.requires_grad)
        memo[id(self)] = twin
        own = {k: v for k, v in vars(self).items() if k not in vars(twin) and not k.startswith("_tunecast")}
        twin.__dict__.update(copy.deepcopy(own, memo))
        if self.is_leaf and self.grad is not None:
            twin.grad = copy.deepcopy(self.grad, memo)
        return twin

    FakeTensor.__deepcopy__ = __deepcopy__  # type: ignore[attr-defined]
