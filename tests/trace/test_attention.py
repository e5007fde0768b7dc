"""Which attention kernel a card takes, and the sizes of its buffers, redone on paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tunecast.tape.card import Card
from tunecast.tape.kernels.attention import backward_tiles, efficient_workspace_floats, flash_splits, flash_width
from tunecast.tape.kernels.backend import Attention, choose, priority
from tunecast.tape.trace.attention import enabled

H200 = Card()
CARDS = {
    "sm_80": replace(H200, name="A100", capability=(8, 0), sm_count=108),
    "sm_86": replace(H200, name="A40", capability=(8, 6), sm_count=84),
    "sm_89": replace(H200, name="L4", capability=(8, 9), sm_count=58),
    "sm_90": H200,
    "sm_100": replace(H200, name="B200", capability=(10, 0), sm_count=148),
    "sm_120": replace(H200, name="RTX 5090", capability=(12, 0), sm_count=170),
}


def call(
    width: int = 128, value_width: int | None = None, dtype: torch.dtype = torch.bfloat16, heads: int = 8,
    key_heads: int = 8, queries: int = 64, keys: int = 64, mask: bool = False, **rest: Any,
) -> Attention:  # fmt: skip
    def tensor(heads: int, length: int, width: int) -> torch.Tensor:
        return torch.empty(2, length, heads, width, dtype=dtype, device="meta").transpose(1, 2)

    made = torch.empty(2, 1, queries, keys, dtype=torch.bool, device="meta") if mask else None
    key, value = tensor(key_heads, keys, width), tensor(key_heads, keys, value_width or width)
    return Attention(tensor(heads, queries, width), key, value, made, **rest)


@pytest.mark.parametrize(
    ("card", "first"),
    [*((card, "flash") for card in ("sm_80", "sm_86", "sm_89", "sm_120")), ("sm_90", "cudnn"), ("sm_100", "cudnn")],
)
def test_the_first_choice(card: str, first: str) -> None:
    assert priority(CARDS[card])[0] == first == choose(call(), CARDS[card])


@pytest.mark.parametrize(
    ("why", "attention", "card", "chosen"),
    [
        ("cuDNN takes 256 on Hopper", call(256), "sm_90", "cudnn"),
        ("and 128 on Blackwell", call(256), "sm_100", "flash"),
        ("but DeepSeek's 192 and 128", call(192, 128), "sm_100", "cudnn"),
        ("flash wants equal widths", call(192, 128), "sm_80", "efficient"),
        ("above 256 only the efficient one", call(512), "sm_90", "efficient"),
        ("flash pads what 8 does not divide", call(100), "sm_90", "flash"),
        ("with a mask nobody does", call(100, mask=True), "sm_90", "math"),
        ("cuDNN takes masks", call(mask=True), "sm_90", "cudnn"),
        ("flash does not", call(mask=True), "sm_80", "efficient"),
        ("fp32 is the efficient one's", call(dtype=torch.float32), "sm_90", "efficient"),
        ("which has no grouped queries", call(dtype=torch.float32, key_heads=2, gqa=True), "sm_90", "math"),
        ("grouped queries must be asked for", call(key_heads=2), "sm_90", "math"),
        ("grouped queries", call(key_heads=2, gqa=True), "sm_90", "cudnn"),
        ("one key", call(queries=1, keys=1), "sm_90", "flash"),
        ("a causal square", call(causal=True, keys=128), "sm_80", "efficient"),
        ("cuDNN needs none", call(causal=True, keys=128), "sm_90", "cudnn"),
    ],
)
def test_the_choice(why: str, attention: Attention, card: str, chosen: str) -> None:
    assert choose(attention, CARDS[card]) == chosen, why


def test_a_backend_switched_off_is_passed_over() -> None:
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        assert choose(call(), H200, enabled()) == "flash"
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)


def test_flash_splits_keys_when_queries_are_few() -> None:
    """16 tiles on 2 * 132 places, 8192 keys in 64 blocks. Splits that change how many blocks each has: ... 11
    (6 blocks), 13 (5), 16 (4), 22 (3), 32 (2), 64 (1). 16 fill 256 of 264 places, as good as it gets; 13 fill 208 of
    264, less than 85 % of that."""
    assert flash_splits(16, 64, 8192, 128, H200) == 16
    assert flash_splits(256, 64, 8192, 128, H200) == 1  # 256 tiles fill 80 % of 264 places alone


def test_flash_rounds_widths_to_32_and_above_128_to_64() -> None:
    assert [flash_width(w) for w in (64, 80, 128, 136, 160, 256)] == [64, 96, 128, 192, 192, 256]


def floats(width: int, keys: int, card: Card, dtype: torch.dtype = torch.bfloat16, batch: int = 2) -> int:
    query, key = (torch.empty(batch, 16, n, width, dtype=dtype, device="meta") for n in (1000, keys))
    return efficient_workspace_floats(query, key, key, card, dropout=False)


def test_the_efficient_workspace_by_hand() -> None:
    """Per head, 1000 queries. Width 64: 16 blocks of 64 rows, a 64 x 64 tile and 4 counters each. Width 160: 8 blocks
    of 128 rows by 3 of 64 columns, and dK and dV for 200 // 32 = 6 splits of 64 keys, 160 rounded up to 256 wide."""
    assert floats(64, 1000, H200) == 16 * (4 + 64 * 64)
    assert floats(128, 1000, H200) == 8 * (4 + 128 * 128)
    assert floats(160, 1000, H200) == 8 * 3 * (4 + 128 * 64) + 6 * 64 * (256 + 256)
    assert floats(128, 1000, H200, torch.float32) == 8 * 2 * (4 + 128 * 64)
    assert floats(160, 100, H200, batch=16) == 8 * 3 * (4 + 128 * 64) + 1 * 64 * (256 + 256)  # enough heads: one split


def test_cards_with_less_shared_memory_take_smaller_tiles() -> None:
    assert floats(128, 1000, CARDS["sm_86"]) == 16 * 2 * (4 + 64 * 64) + 6 * 64 * (128 + 128)
    assert next(t for t in backward_tiles(True, CARDS["sm_89"], False) if t.widest >= 96)[:2] == (128, 64)
    assert next(t for t in backward_tiles(True, CARDS["sm_89"], True) if t.widest >= 96)[:2] == (64, 64)
