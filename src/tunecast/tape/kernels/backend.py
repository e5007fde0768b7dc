"""Which kernel scaled dot-product attention runs on a card, as aten/src/ATen/native/transformers/cuda/sdp_utils.cpp
(`select_sdp_backend`) chooses it."""

from __future__ import annotations

from typing import Any

from tunecast.records import NamedTuple
from tunecast.tape.card import Card
from tunecast.tape.kernels.shapes import HALF, name_of
from tunecast.tape.symbols import ask


class Attention(NamedTuple):
    query: Any
    key: Any
    value: Any
    mask: Any = None
    dropout: float = 0.0
    causal: bool = False
    scale: float | None = None
    gqa: bool = False
    needs_gradient: bool = True


ALL = frozenset({"cudnn", "flash", "efficient"})


def choose(call: Attention, card: Card, enabled: frozenset[str] = ALL) -> str:
    """The first backend whose conditions hold (sdp_utils.cpp, `can_use_cudnn_attention` and its neighbours)."""
    if not _well_formed(call):
        return "math"
    can_use = {"cudnn": _can_use_cudnn, "flash": _can_use_flash, "efficient": _can_use_efficient}
    return next((name for name in priority(card) if name in enabled and can_use[name](call, card)), "math")


def priority(card: Card) -> tuple[str, ...]:
    """cuDNN goes first on Hopper and data-centre Blackwell (cuDNN 9.15.1 and later, which torch's default wheels
    bring); elsewhere it stands behind the math path, which takes everything (`check_prefer_cudnn_attention`)."""
    if ask(_prefers_cudnn, None, [card.capability]):
        return ("cudnn", "flash", "efficient")
    return ("flash", "efficient")


def _prefers_cudnn(_: None, capability: tuple[int, int]) -> bool:
    return capability in ((9, 0), (10, 0), (10, 3))


def _well_formed(call: Attention) -> bool:
    """What all fused kernels ask: four dimensions, one batch size, nothing empty, widths side by side in memory."""
    tensors = (call.query, call.key, call.value)
    if any(t.dim() != 4 or t.shape[0] != call.query.shape[0] or t.shape[2] == 0 for t in tensors):
        return False
    looked_at = tensors if call.mask is None else (*tensors, call.mask)
    return all(t.stride()[-1] == 1 or t.shape[-1] == 1 for t in looked_at)


def _heads_fit(call: Attention) -> bool:
    heads, key_heads, value_heads = call.query.shape[1], call.key.shape[1], call.value.shape[1]
    if call.gqa:
        return bool(key_heads == value_heads and heads % key_heads == 0)
    return bool(heads == key_heads == value_heads)


def _can_use_cudnn(call: Attention, card: Card) -> bool:
    widths = call.query.shape[3], call.value.shape[3]
    queries, keys = call.query.shape[2], call.key.shape[2]
    return (
        name_of(call.query.dtype) in HALF and card.capability >= (8, 0)
        and _heads_fit(call) and ask(_cudnn_takes, None, [card.capability, *widths])
        and keys > 1 and not (queries == 1 and call.dropout > 0)
    )  # fmt: skip


def _cudnn_takes(_: None, capability: tuple[int, int], *widths: int) -> bool:
    widest = 256 if capability == (9, 0) else 192 if capability[0] == 10 and widths == (192, 128) else 128
    return all(w % 8 == 0 and w <= widest for w in widths)


def _can_use_flash(call: Attention, card: Card) -> bool:
    width = call.query.shape[3]
    too_wide = 192 < width <= 224 or (width > 224 and call.dropout > 0)
    return (
        name_of(call.query.dtype) in HALF and card.capability >= (8, 0)
        and call.mask is None and width == call.value.shape[3] and width <= 256 and _heads_fit(call)
        and not (call.causal and call.query.shape[2] != call.key.shape[2])
        and not (too_wide and call.needs_gradient and _is_consumer(card))
    )  # fmt: skip


def _is_consumer(card: Card) -> bool:
    return bool(card.capability in ((8, 6), (8, 7), (8, 9)) or card.capability[0] == 12)


def _can_use_efficient(call: Attention, card: Card) -> bool:
    alignment = 8 if name_of(call.query.dtype) in HALF else 4
    return (
        name_of(call.query.dtype) in (*HALF, "float32")
        and call.query.shape[1] == call.key.shape[1] == call.value.shape[1]
        and call.query.shape[3] % alignment == 0 and call.value.shape[3] % alignment == 0
    )  # fmt: skip
