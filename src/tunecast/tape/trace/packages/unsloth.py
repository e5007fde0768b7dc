"""Unsloth: its own code runs; what it asks of the machine is answered as the card's machine would.

Unsloth looks closely at where it runs: it links libraries, times and picks attention kernels, tests for plain tensors
and sizes its loss by the memory left. One function, one such question.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import tempfile
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import flop_registry

from tunecast.tape.kernels.backend import Attention, choose
from tunecast.tape.trace.attention import enabled, keeps_gradient
from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder

BACKENDS = {"math": 0, "flash": 1, "efficient": 2, "cudnn": 3}
"""torch.nn.attention.SDPBackend, as `torch._fused_sdp_choice` numbers them."""
ASKS_FOR_PLAIN_TENSORS = (
    "unsloth_zoo.peft_utils", "unsloth_zoo.gradient_checkpointing", "unsloth_zoo.dataset_utils",
    "unsloth_zoo.temporary_patches.moe_fused_swiglu", "unsloth_zoo.temporary_patches.gpt_oss", "unsloth.models.vision",
)  # fmt: skip
NAMESPACES = ("unsloth", "unsloth_zoo", "xformers_flash", "xformers_flash3")
"""Of the operations whose Python bodies are run."""
IMPORT_PROBES = ("moe_fused_swiglu.py", "torch.compile with")
"""Guessed while Unsloth is imported, and without consequence: a probe of clamp's gradient at its bound, and options of
functions that are compiled when they first run."""
EXPANDABLE = "expandable_segments:True"
_folders: list[tempfile.TemporaryDirectory[str]] = []  # deleted when the process ends


def install(recorder: Recorder) -> None:
    flop_registry.setdefault(torch.ops.aten.addmm_, flop_registry[torch.ops.aten.addmm])
    if importlib.util.find_spec("unsloth_zoo") is None:
        return
    folder = tempfile.TemporaryDirectory(prefix="tunecast-unsloth-")
    _folders.append(folder)
    os.environ["UNSLOTH_COMPILE_LOCATION"] = folder.name  # it writes generated modules into the user's folder else
    run_custom_operations(recorder)
    after_import("torch._inductor.decomposition", allocate_from_pools)
    after_import("triton.backends.nvidia.driver", link_no_libraries)
    after_import("transformers.utils.hub", document_uploads)
    answer_which_attention(recorder)
    after_import("bitsandbytes.functional", tell_tensors_apart)
    for name in ASKS_FOR_PLAIN_TENSORS:
        after_import(name, see_plain_tensors)
    after_import("unsloth.utils.attention_dispatch", probe_without_a_card)
    after_import("unsloth_zoo.tokenizer_utils", lambda module: find_all_tokens_trained(module, recorder))
    after_import("unsloth_zoo.tiled_mlp", lambda module: tell_free_memory(module, recorder))
    after_import("unsloth.models._block_compile", lambda module: tell_compiled_blocks(module, recorder))
    after_import("unsloth", lambda module: forget_import_probes(recorder))
    after_import("unsloth", lambda module: tell_allocator(recorder))


def run_custom_operations(recorder: Recorder) -> None:
    """Operations a package defines in Python (`torch.library.custom_op`) answer fake tensors with shapes alone. Their
    bodies allocate with torch and launch Triton kernels, so they run here; the fused loss is one of them."""
    initialise = CustomOpDef.__init__

    def __init__(self: Any, namespace: str, name: str, *args: Any, **kwargs: Any) -> None:
        initialise(self, namespace, name, *args, **kwargs)
        if namespace in NAMESPACES:
            recorder.emulated[f"{namespace}::{name}"] = lambda *args, **kwargs: body(self)(*args, **kwargs)

    def body(operation: Any) -> Callable[..., Any]:
        kernels = operation._backend_fns
        chosen: Callable[..., Any] = kernels.get("cuda") or kernels.get(None) or operation._init_fn
        return chosen

    CustomOpDef.__init__ = __init__  # type: ignore[method-assign]


def allocate_from_pools(module: ModuleType) -> None:
    """Unsloth lets Inductor plan memory: buffers become parts of pools, cut out past the dispatcher
    (torch/csrc/inductor/inductor_ops.cpp, `_alloc_from_pool`)."""

    def _alloc_from_pool(pool: torch.Tensor, offset: int, dtype: torch.dtype, size: Any, stride: Any) -> torch.Tensor:
        held = pool.untyped_storage().nbytes() // pool.itemsize  # a pool may itself be a buffer of any strides
        whole = pool.as_strided((held,), (1,), 0).view(torch.uint8)
        values = whole[: whole.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
        return values.as_strided(size, stride, offset // dtype.itemsize)

    _alloc_from_pool.default = torch.ops.inductor._alloc_from_pool.default  # type: ignore[attr-defined]
    torch.ops.inductor._alloc_from_pool = _alloc_from_pool


def link_no_libraries(module: ModuleType) -> None:
    """Finding no CUDA driver, Unsloth runs `ldconfig` on the machine when it may; Triton compiles one to ask it."""
    module.libcuda_dirs = list  # type: ignore[attr-defined]
    module.CudaUtils.__init__ = lambda self: None


def document_uploads(module: ModuleType) -> None:
    """Unsloth writes a function of its own from the signature and the documentation of `push_to_hub`."""
    upload: Callable[..., Any] = module.PushToHubMixin.push_to_hub

    def push_to_hub(self, repo_id, **kwargs):  # type: ignore[no-untyped-def]
        """Uploads."""
        return upload(self, repo_id, **kwargs)

    module.PushToHubMixin.push_to_hub = push_to_hub


def answer_which_attention(recorder: Recorder) -> None:
    """Where cuDNN's attention would be chosen, Unsloth pads sequences so that fewer plans are built."""

    def _fused_sdp_choice(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
    ) -> int:  # fmt: skip
        keeps = keeps_gradient(query, key, value)
        call = Attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, keeps)
        return BACKENDS[choose(call, recorder.card, enabled())]

    torch._fused_sdp_choice = _fused_sdp_choice


def tell_tensors_apart(module: ModuleType) -> None:
    """Weights at one address are tied; with one address for all, the output layer would become the embedding."""

    def data_ptr(self: Any) -> int:
        return int(self.untyped_storage()._cdata) + int(self.storage_offset()) * int(self.element_size())

    if FakeTensor.data_ptr.__module__ != "tunecast.tape.trace.tensor_files":  # which tells them apart already
        FakeTensor.data_ptr = data_ptr  # type: ignore[method-assign]


def probe_without_a_card(module: ModuleType) -> None:
    """While it compiles, the same question is asked with tensors made outside the trace; shapes are enough for it."""
    for name in ("_sdpa_choice", "_sdpa_gqa_choices"):
        choose: Callable[..., Any] = getattr(module, name)
        setattr(module, name, lambda device, *args, choose=choose, **kwargs: choose("meta", *args, **kwargs))


class _AsPlain(builtins.type):
    """The name `type`, where a fake tensor is what it stands for."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        kind = builtins.type(*args, **kwargs)
        if len(args) == 1 and kind is FakeTensor:
            return torch.nn.Parameter if getattr(args[0], "_is_param", False) else torch.Tensor
        return kind

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, builtins.type)


class _PlainType(metaclass=_AsPlain):
    pass


def see_plain_tensors(module: ModuleType) -> None:
    """`type(x) is torch.Tensor` guards the hooks that make embeddings require gradients, and faster kernels."""
    module.type = _PlainType  # type: ignore[attr-defined]


def find_all_tokens_trained(module: ModuleType, recorder: Recorder) -> None:
    """Before training it looks for rows of the embedding that are zero, and what it found is as long as it is many."""
    fix: Callable[..., Any] = module.fix_untrained_tokens

    def fix_untrained_tokens(*args: Any, **kwargs: Any) -> Any:
        where: Callable[..., Any] = torch.where
        recorder.assumptions["Unsloth found no token without a trained embedding: the weights are not read"] = 1
        torch.where = lambda *given: where(*given) if len(given) > 1 else (_no_rows(given[0]),)  # type: ignore[assignment]
        try:
            return fix(*args, **kwargs)
        finally:
            torch.where = where  # type: ignore[assignment]

    module.fix_untrained_tokens = fix_untrained_tokens  # type: ignore[attr-defined]


def _no_rows(found: torch.Tensor) -> torch.Tensor:
    return found.new_empty(0, dtype=torch.int64)


def tell_free_memory(module: ModuleType, recorder: Recorder) -> None:
    """The fused loss makes its chunks half as large as the memory left when it first runs."""
    target: Callable[..., float] = module._default_target_gb

    def _default_target_gb(*args: Any, **kwargs: Any) -> float:
        answer = target(*args, **kwargs)
        recorder.assumptions[
            f"Unsloth sized the chunks of its loss (or tiled MLP) for {answer:.2f} GiB, half of what this card has "
            "left beside what was allocated by then; it takes 2 GiB at most"
        ] = 1
        return answer

    module._default_target_gb = _default_target_gb  # type: ignore[attr-defined]


def tell_compiled_blocks(module: ModuleType, recorder: Recorder) -> None:
    """Each decoder layer is compiled as one region. Where that fails Unsloth says so and goes on without."""
    patch: Callable[[Any], list[str]] = module.patch_block_compile

    def patch_block_compile(model: Any) -> list[str]:
        show_quantised_weights(model)
        return patch(model)

    def say(message: str, *args: Any, **kwargs: Any) -> None:
        if "block compile failed" in message:
            recorder.guesses[f"{message.removeprefix('Unsloth: ')} On the card it may not fail."] += 1
        builtins.print(message, *args, **kwargs)

    module.patch_block_compile = patch_block_compile  # type: ignore[attr-defined]
    module.print = say  # type: ignore[attr-defined]


def show_quantised_weights(model: torch.nn.Module) -> None:
    """Dynamo takes fake tensors for tensors, and so it shall bitsandbytes' parameters that are both."""
    from torch._dynamo.variables.builder import VariableBuilder

    for kind in {builtins.type(p) for p in model.parameters() if isinstance(p, FakeTensor)}:
        for trace_numpy in (True, False):
            VariableBuilder._type_dispatch_impl(trace_numpy).setdefault(kind, VariableBuilder.wrap_tensor)


def tell_allocator(recorder: Recorder) -> None:
    """`import unsloth` sets this before torch first allocates on the card; whoever replays the tape must know."""
    settings = " ".join(os.environ.get(name, "") for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))
    if EXPANDABLE in settings:
        recorder.assumptions[f"Unsloth set PYTORCH_ALLOC_CONF to {EXPANDABLE}: allocator is expandable_segments"] = 1


def forget_import_probes(recorder: Recorder) -> None:
    for sentence in [s for s in recorder.guesses if any(probe in s for probe in IMPORT_PROBES)]:
        del recorder.guesses[sentence]
