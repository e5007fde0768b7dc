"""The functions of flash-attn that training code calls, around kernels that only allocate (`flash_kernels.py`).

`flash_attn` as of flash-attn 2.8.3 (flash_attn/flash_attn_interface.py, bert_padding.py, layers/rotary.py,
losses/cross_entropy.py) and FlashAttention 3's `flash_attn_interface` (hopper/flash_attn_interface.py): the same
signatures, which transformers inspects, and autograd functions that save the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import metadata
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tunecast.errors import Unsupported
from tunecast.tape.kernels.flash import VERSION, FlashCall
from tunecast.tape.op import Op
from tunecast.tape.trace.packages import flash_kernels as kernels
from tunecast.tape.trace.recorder import Recorder, nbytes

ASSUMED = (
    f"flash-attn is not installed here; its kernels are taken to be those of flash-attn {VERSION} "
    "(csrc/flash_attn/flash_api.cpp, hopper/flash_api.cpp)"
)


@cache
def installed_version() -> str | None:
    for name in ("flash-attn", "flash_attn"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


class Attend2(torch.autograd.Function):
    """`FlashAttnFunc`, `FlashAttnVarlenFunc` and their packed relatives: they differ in how q, k and v arrive."""

    @staticmethod
    def forward(
        ctx: Any, recorder: Recorder, call: FlashCall, cu_q: Any, cu_k: Any, grad: bool, *packed: Tensor
    ) -> Any:
        _assume(recorder)
        saves = grad and any(x.requires_grad for x in packed)
        width = packed[0].shape[-1]
        q, k, v = (_padded(x) for x in _unpacked(packed))
        rows = [kernels.rows_side_by_side(x) for x in (q, k, v)]
        out, lse, probs, random = kernels.forward_2(recorder, *rows, cu_q, call)  # type: ignore[misc, call-arg]
        del rows
        if saves:
            ctx.save_for_backward(q, k, v, out, lse, random, *([] if cu_q is None else [cu_q, cu_k]))
        ctx.recorder, ctx.call, ctx.form = recorder, call, len(packed)
        out = out[..., :width]
        return (out, lse, probs) if call.return_probs else out

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *unused: Any) -> Any:
        q, k, v, out, lse, random, *ends = ctx.saved_tensors
        whole, (dq, dk, dv) = _gradients(q, k, v, ctx.form)
        dout_padded = kernels.rows_side_by_side(_padded(dout))
        q, k, v, out = (kernels.rows_side_by_side(x) for x in (q, k, v, out))
        kernels.backward_2(ctx.recorder, dout_padded, q, k, dq, dk, dv, ends[0] if ends else None, ctx.call)
        del lse, random  # the kernel reads them
        return (None, None, None, None, None, *(x[..., : dout.shape[-1]] for x in whole))


class Attend3(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, recorder: Recorder, call: FlashCall, cu_q: Any, cu_k: Any, q: Tensor, k: Tensor, v: Tensor
    ) -> Any:
        _assume(recorder)
        if q.shape[-1] % 8:
            raise RuntimeError("FlashAttention 3: head_size should be a multiple of 8")
        rows = [kernels.rows_side_by_side(q), kernels.rows_side_by_side(k)]
        out, lse = kernels.forward_3(recorder, *rows, v, cu_q, call)  # type: ignore[misc, call-arg]
        del rows
        ctx.save_for_backward(q, k, v, out, lse, *([] if cu_q is None else [cu_q, cu_k]))
        ctx.recorder, ctx.call = recorder, call
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *unused: Any) -> Any:
        q, k, v, out, lse, *ends = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        rows = [kernels.rows_side_by_side(x) for x in (dout, q, k, v, out)]
        kernels.backward_3(ctx.recorder, *rows[:4], dq, ends[0] if ends else None, ctx.call)  # type: ignore[call-arg]
        del lse  # the kernel reads it
        return None, None, None, None, dq, dk, dv


def _assume(recorder: Recorder) -> None:
    if installed_version() is None:
        recorder.assumptions[ASSUMED] = 1


def _unpacked(packed: tuple[Tensor, ...]) -> list[Tensor]:
    """q, k, v | q, kv | qkv; the packed ones keep them in the third dimension from the end."""
    parts = [packed[0]] if len(packed) == 2 else list(packed) if len(packed) == 3 else []
    if len(packed) < 3:
        parts += [x.detach() for x in packed[-1].unbind(-3)]
    return parts


def _gradients(q: Tensor, k: Tensor, v: Tensor, form: int) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors handed back, and where in them dq, dk and dv lie."""
    if form == 3:
        whole = [torch.empty_like(x) for x in (q, k, v)]
        return whole, whole
    last = k if form == 2 else q
    packed = torch.empty((*last.shape[:-2], 4 - form, *last.shape[-2:]), dtype=q.dtype, device=q.device)
    if form == 1:
        return [packed], list(packed.unbind(-3))
    dq = torch.empty_like(q)
    return [dq, packed], [dq, *packed.unbind(-3)]


def _padded(tensor: Tensor) -> Tensor:
    missing = -tensor.shape[-1] % 8
    return functional.pad(tensor, [0, missing]) if missing else tensor


def interface_2(recorder: Recorder) -> dict[str, Any]:
    def run(packed: tuple[Tensor, ...], ends: tuple[Any, Any], call: FlashCall) -> Any:
        return Attend2.apply(recorder, call, *ends, torch.is_grad_enabled(), *packed)  # type: ignore[no-untyped-call]

    def flash_attn_func(q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: Any = None, causal: bool = False,
                        window_size: Any = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None,
                        deterministic: bool = False, return_attn_probs: bool = False) -> Any:  # fmt: skip
        call = FlashCall(causal, tuple(window_size), dropout_p, softcap, deterministic, return_attn_probs)
        return run((q, k, v), (None, None), call)

    def flash_attn_kvpacked_func(q: Any, kv: Any, dropout_p: float = 0.0, softmax_scale: Any = None,
                                 causal: bool = False, window_size: Any = (-1, -1), softcap: float = 0.0,
                                 alibi_slopes: Any = None, deterministic: bool = False,
                                 return_attn_probs: bool = False) -> Any:  # fmt: skip
        call = FlashCall(causal, tuple(window_size), dropout_p, softcap, deterministic, return_attn_probs)
        return run((q, kv), (None, None), call)

    def flash_attn_qkvpacked_func(qkv: Any, dropout_p: float = 0.0, softmax_scale: Any = None, causal: bool = False,
                                  window_size: Any = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None,
                                  deterministic: bool = False, return_attn_probs: bool = False) -> Any:  # fmt: skip
        call = FlashCall(causal, tuple(window_size), dropout_p, softcap, deterministic, return_attn_probs)
        return run((qkv,), (None, None), call)

    def flash_attn_varlen_func(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int,
                               max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: Any = None,
                               causal: bool = False, window_size: Any = (-1, -1), softcap: float = 0.0,
                               alibi_slopes: Any = None, deterministic: bool = False, return_attn_probs: bool = False,
                               block_table: Any = None) -> Any:  # fmt: skip
        call = FlashCall(causal, tuple(window_size), dropout_p, softcap, deterministic, return_attn_probs,
                    int(max_seqlen_q), int(max_seqlen_k))  # fmt: skip
        return run((q, k, v), (cu_seqlens_q, cu_seqlens_k), call)

    def flash_attn_varlen_qkvpacked_func(qkv: Any, cu_seqlens: Any, max_seqlen: int, dropout_p: float = 0.0,
                                         softmax_scale: Any = None, causal: bool = False, window_size: Any = (-1, -1),
                                         softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False,
                                         return_attn_probs: bool = False) -> Any:  # fmt: skip
        call = FlashCall(causal, tuple(window_size), dropout_p, softcap, deterministic, return_attn_probs,
                    int(max_seqlen), int(max_seqlen))  # fmt: skip
        return run((qkv,), (cu_seqlens, cu_seqlens), call)

    names = {name: value for name, value in locals().items() if name.startswith("flash_attn_")}
    return names | {"__version__": installed_version() or VERSION, "flash_attn_with_kvcache": _generation}


def interface_3(recorder: Recorder) -> dict[str, Any]:
    def flash_attn_func(q: Any, k: Any, v: Any, softmax_scale: Any = None, causal: bool = False, qv: Any = None,
                        q_descale: Any = None, k_descale: Any = None, v_descale: Any = None,
                        window_size: Any = (-1, -1), attention_chunk: int = 0, softcap: float = 0.0,
                        num_splits: int = 1, pack_gqa: Any = None, deterministic: bool = False,
                        sm_margin: int = 0) -> Any:  # fmt: skip
        call = FlashCall(causal, tuple(window_size), softcap=softcap, deterministic=deterministic, splits=num_splits)
        return Attend3.apply(recorder, call, None, None, q, k, v)  # type: ignore[no-untyped-call]

    def flash_attn_varlen_func(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int,
                               max_seqlen_k: int, seqused_q: Any = None, seqused_k: Any = None,
                               softmax_scale: Any = None, causal: bool = False, qv: Any = None, q_descale: Any = None,
                               k_descale: Any = None, v_descale: Any = None, window_size: Any = (-1, -1),
                               attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1,
                               pack_gqa: Any = None, deterministic: bool = False,
                               sm_margin: int = 0) -> Any:  # fmt: skip
        call = FlashCall(causal, tuple(window_size), softcap=softcap, deterministic=deterministic, splits=num_splits,
                    max_q=int(max_seqlen_q), max_k=int(max_seqlen_k))  # fmt: skip
        return Attend3.apply(recorder, call, cu_seqlens_q, cu_seqlens_k, q, k, v)  # type: ignore[no-untyped-call]

    return {"flash_attn_func": flash_attn_func, "flash_attn_varlen_func": flash_attn_varlen_func,
            "flash_attn_with_kvcache": _generation}  # fmt: skip


def _generation(*args: Any, **kwargs: Any) -> Any:
    raise Unsupported("flash_attn_with_kvcache generates text; tunecast traces training only")


def padding(recorder: Recorder) -> dict[str, Any]:
    """flash_attn/bert_padding.py: rows are gathered and scattered by index, not by a boolean mask."""

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, rows: Tensor, indices: Tensor) -> Tensor:
            ctx.save_for_backward(indices)
            ctx.shape = rows.shape
            flat = rows.reshape(rows.shape[0], -1)
            wide = indices[:, None].expand(-1, flat.shape[1])
            return torch.gather(flat, 0, wide).reshape(-1, *rows.shape[1:])

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            (indices,) = ctx.saved_tensors
            flat = grad.reshape(grad.shape[0], -1)
            whole = torch.zeros((ctx.shape[0], flat.shape[1]), device=grad.device, dtype=grad.dtype)
            whole.scatter_(0, indices[:, None].expand(-1, flat.shape[1]), flat)
            return whole.reshape(ctx.shape), None

    class Scatter(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, rows: Tensor, indices: Tensor, count: int) -> Tensor:
            ctx.save_for_backward(indices)
            whole = torch.zeros(count, *rows.shape[1:], device=rows.device, dtype=rows.dtype)
            whole[indices] = rows
            return whole

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return grad[ctx.saved_tensors[0]], None, None

    def unpad_input(hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None) -> Any:
        mask = attention_mask if unused_mask is None else attention_mask + unused_mask
        lengths = mask.sum(dim=-1, dtype=torch.int32)
        used = attention_mask.sum(dim=-1, dtype=torch.int32)
        indices = torch.nonzero(mask.flatten(), as_tuple=False).flatten()
        longest = lengths.max().item()
        ends = functional.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
        rows = Gather.apply(hidden_states.flatten(0, 1), indices)  # type: ignore[no-untyped-call]
        return rows, indices, ends, longest, used

    def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
        whole: Tensor = Scatter.apply(hidden_states, indices, batch * seqlen)  # type: ignore[no-untyped-call]
        return whole.unflatten(0, (batch, seqlen))

    return {"index_first_axis": Gather.apply, "index_put_first_axis": Scatter.apply, "pad_input": pad_input,
            "unpad_input": unpad_input}  # fmt: skip


def rotary(recorder: Recorder) -> dict[str, Any]:
    class Rotate(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, inplace: bool, ends: Any) -> Tensor:
            ctx.save_for_backward(cos, sin, ends)
            ctx.inplace = inplace
            return turned(x, inplace)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return turned(grad, ctx.inplace), None, None, None, None

    def turned(x: Tensor, inplace: bool) -> Tensor:
        out = x if inplace else torch.empty_like(x)
        recorder.launched(Op("flash_attn::rotary", read_bytes=nbytes(x), written_bytes=nbytes(out)))
        return out

    def apply_rotary_emb(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, inplace: bool = False,
                         seqlen_offsets: Any = 0, cu_seqlens: Any = None,
                         max_seqlen: Any = None) -> Tensor:  # fmt: skip
        return Rotate.apply(x, cos, sin, inplace, cu_seqlens)  # type: ignore[no-any-return, no-untyped-call]

    return {"apply_rotary_emb": apply_rotary_emb, "apply_rotary_emb_func": apply_rotary_emb}


def loss(recorder: Recorder) -> dict[str, Any]:
    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: Tensor, labels: Tensor, inplace: bool) -> Any:
            logits = kernels.rows_side_by_side(logits)
            losses, lse, z_losses = (
                torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device) for _ in range(3)
            )
            recorder.launched(Op("flash_attn::cross_entropy_fwd", read_bytes=nbytes(logits)))
            ctx.save_for_backward(logits, lse, labels)
            ctx.mark_non_differentiable(z_losses)
            ctx.inplace = inplace
            return losses, z_losses

        @staticmethod
        def backward(ctx: Any, grad: Tensor, unused: Any) -> Any:
            logits = ctx.saved_tensors[0]
            out = logits if ctx.inplace else torch.empty_like(logits)
            recorder.launched(Op("flash_attn::cross_entropy_bwd", read_bytes=nbytes(logits), written_bytes=nbytes(out)))
            return out, None, None

    class CrossEntropyLoss(torch.nn.Module):
        def __init__(self, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0,
                     logit_scale: float = 1.0, lse_square_scale: float = 0.0, inplace_backward: bool = False,
                     process_group: Any = None, return_z_loss: bool = False) -> None:  # fmt: skip
            super().__init__()
            self.ignore_index, self.reduction, self.inplace = ignore_index, reduction, inplace_backward

        def forward(self, input: Tensor, target: Tensor, precomputed_lse: Any = None) -> Tensor:
            losses, _ = Loss.apply(input, target, self.inplace)  # type: ignore[no-untyped-call]
            if self.reduction == "none":
                return losses  # type: ignore[no-any-return]
            total = losses.sum()
            return total if self.reduction == "sum" else total / (target != self.ignore_index).sum()

    return {"CrossEntropyLoss": CrossEntropyLoss}


MODULES: dict[str, Callable[[Recorder], dict[str, Any]]] = {
    "flash_attn": interface_2, "flash_attn.flash_attn_interface": interface_2, "flash_attn.bert_padding": padding,
    "flash_attn.layers": lambda recorder: {}, "flash_attn.layers.rotary": rotary,
    "flash_attn.losses": lambda recorder: {}, "flash_attn.losses.cross_entropy": loss,
    "flash_attn_interface": interface_3,
}  # fmt: skip
"""What the stand-in consists of, module by module."""
