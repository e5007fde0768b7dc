"""What TransformerEngine's C++ does to memory, for its Python to run where its library is not: the outputs that each
function allocates, in the order of transformer_engine/pytorch/csrc/extensions (2.5.0): gemm.cpp, normalization.cpp,
apply_rope.cpp, attention.cpp, multi_tensor.

Left out  workspaces that norms (partial sums of their weights' gradients) and cuDNN's attention ask their kernels for.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.util
import os
import sys
import types
from importlib.metadata import version
from typing import Any

import torch

DTYPES = ("kByte", "kInt16", "kInt32", "kInt64", "kFloat32", "kFloat16", "kBFloat16", "kFloat8E4M3", "kFloat8E5M2")

BACKENDS = {
    "NVTE_No_Backend": -1, "NVTE_F16_max512_seqlen": 0, "NVTE_F16_arbitrary_seqlen": 1, "NVTE_FP8": 2,
}  # fmt: skip
CUDNN = 91002
"""9.10.2 of June 2025, when 2.5.0 came out; Python asks only whether it is recent enough."""


class Extension(types.ModuleType):
    """Names nobody calls here are empty enumerations."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__getattr__": lambda self, key: key})()
        setattr(self, name, made)
        return made


def install() -> None:
    tex = Extension("transformer_engine_torch")
    tex.DType = enum.IntEnum("DType", DTYPES, start=0)  # type: ignore[attr-defined]
    tex.NVTE_Fused_Attn_Backend = enum.IntEnum("NVTE_Fused_Attn_Backend", BACKENDS)  # type: ignore[attr-defined]
    of = {
        tex.DType.kFloat32: torch.float32, tex.DType.kFloat16: torch.float16, tex.DType.kBFloat16: torch.bfloat16,
    }  # fmt: skip
    for name, function in {
        "generic_gemm": lambda *args, **kwargs: generic_gemm(of, *args, **kwargs),
        "layernorm_fwd": layernorm_fwd,
        "layernorm_bwd": layernorm_bwd,
        "rmsnorm_fwd": rmsnorm_fwd,
        "rmsnorm_bwd": rmsnorm_bwd,
        "fused_rope_forward": fused_rope_forward,
        "fused_rope_backward": fused_rope_backward,
        "fused_attn_fwd": fused_attn_fwd,
        "fused_attn_bwd": fused_attn_bwd,
        "get_cudnn_version": lambda: CUDNN,
        "get_fused_attn_backend": lambda *args: tex.NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen,
        "multi_tensor_adam": nothing,
        "multi_tensor_scale": nothing,
        "multi_tensor_l2norm": multi_tensor_l2norm,
    }.items():
        setattr(tex, name, function)
    sys.modules["transformer_engine_torch"] = tex
    apex = types.ModuleType("fused_weight_gradient_mlp_cuda")
    apex.wgrad_gemm_accum_fp32 = apex.wgrad_gemm_accum_fp16 = nothing  # type: ignore[attr-defined]
    sys.modules[apex.__name__] = apex
    os.environ["NVTE_PROJECT_BUILDING"] = "1"  # `transformer_engine.common` loads no library
    spec = importlib.util.find_spec("transformer_engine")
    assert spec is not None
    package = types.ModuleType("transformer_engine")
    package.__path__ = list(spec.submodule_search_locations or ())
    package.__version__ = version("transformer_engine")  # type: ignore[attr-defined]
    sys.modules["transformer_engine"] = package
    import transformer_engine.common as common

    common.load_framework_extension = lambda framework: None
    import transformer_engine.pytorch as te_torch

    package.pytorch = te_torch  # type: ignore[attr-defined]
    take_fused_attention()


def take_fused_attention() -> None:
    """It asks for tensors of torch's own class, of which fake ones are not."""
    import transformer_engine.pytorch.attention.dot_product_attention.utils as utils

    chosen = utils.get_attention_backend
    utils.get_attention_backend = lambda asked: chosen(dataclasses.replace(asked, qkv_type=torch.Tensor))


def nothing(*args: Any, **kwargs: Any) -> None: ...


def generic_gemm(
    of: Any, a: Any, transa: bool, b: Any, transb: bool, out: Any, quantizer: Any, out_dtype: Any, bias: Any,
    bias_type: Any, gelu: bool, gelu_in: Any, grad: bool, *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    """D = B A in row-major order: `getGemmOutputShape`."""
    rows = b.shape[:-1] if not transb else b.shape[-1:]
    outputs = a.numel() // a.shape[-1] if transa else a.shape[-1]
    if out is None:
        out = torch.empty((*rows, outputs), dtype=of.get(out_dtype, a.dtype), device=a.device)
    bias_grad = None
    if bias is not None and grad:
        bias_grad = torch.empty((b.shape[-1],), dtype=out.dtype, device=a.device)
    return out, bias_grad, None, None


def layernorm_fwd(x: Any, weight: Any, bias: Any, eps: float, out: Any, *args: Any) -> Any:
    mu, rsigma = (torch.empty((x.shape[0],), dtype=torch.float32, device=x.device) for _ in range(2))
    return torch.empty_like(x) if out is None else out, mu, rsigma


def layernorm_bwd(dz: Any, x: Any, mu: Any, rsigma: Any, gamma: Any, *args: Any) -> Any:
    return torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(gamma)


def rmsnorm_fwd(x: Any, weight: Any, eps: float, out: Any, *args: Any) -> Any:
    rsigma = torch.empty((x.shape[0],), dtype=torch.float32, device=x.device)
    return torch.empty_like(x) if out is None else out, None, rsigma


def rmsnorm_bwd(dz: Any, x: Any, rsigma: Any, gamma: Any, *args: Any) -> Any:
    return torch.empty_like(x), torch.empty_like(gamma)


def fused_rope_forward(x: Any, *args: Any) -> Any:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


fused_rope_backward = fused_rope_forward


def fused_attn_fwd(
    max_q: int, max_kv: int, is_training: bool, scale: float, dropout: float, set_zero: bool, layout: Any, *args: Any,
) -> Any:  # fmt: skip
    """The output, and cuDNN's statistics [batch, heads, tokens, 1] with the state of the generator."""
    cu_seqlens, q, v = args[3], args[5], args[7]
    o = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype, device=q.device)
    state = torch.empty((2,), dtype=torch.int64, device=q.device)
    batch = cu_seqlens.shape[0] - 1
    statistics = torch.empty((batch, q.shape[-2], max_q, 1), dtype=torch.float32, device=q.device)
    return [o, statistics, state]


def fused_attn_bwd(max_q: int, max_kv: int, *args: Any) -> Any:
    q, k, v = args[10], args[11], args[12]
    return [*(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v)), None]


def multi_tensor_l2norm(size: int, noop: Any, tensors: Any, per_tensor: bool = False) -> Any:
    output = torch.zeros((320,), dtype=torch.float32, device=noop.device)
    del output
    return torch.empty((1,), dtype=torch.float32, device=noop.device), torch.empty(0, device=noop.device)
