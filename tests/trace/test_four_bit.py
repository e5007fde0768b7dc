"""Which 4-bit product bitsandbytes runs: its own choice on cards of every kind, against the closed form's."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("bitsandbytes")

from tunecast.tape.card import Card  # noqa: E402
from tunecast.tape.kernels.four_bit import takes_fused_kernel  # noqa: E402

CARDS = [
    ((6, 1), 20), ((7, 0), 80), ((7, 5), 40), ((8, 0), 108), ((8, 6), 28), ((8, 6), 84), ((8, 7), 16), ((8, 9), 24),
    ((8, 9), 76), ((8, 9), 128), ((9, 0), 132), ((10, 0), 148), ((11, 0), 20), ((12, 0), 36), ((12, 0), 170),
    ((12, 1), 48),
]  # fmt: skip
WIDTHS = (64, 128, 256, 512, 704, 768, 1024, 1536, 2048, 3072, 4096, 5120, 8192, 11008, 12288, 14336, 28672)


@pytest.mark.parametrize(("capability", "sm_count"), CARDS)
def test_as_bitsandbytes_chooses(capability: tuple[int, int], sm_count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        from bitsandbytes.backends.cuda import ops
    except (ImportError, AttributeError) as error:
        pytest.skip(f"bitsandbytes has no CUDA side here: {error}")
    monkeypatch.setattr(ops, "_gpu_dispatch_props", lambda index: (sm_count, *capability))
    ops._gemm_4bit_use_custom_cuda.cache_clear()
    card, draw = Card(capability=capability, sm_count=sm_count), random.Random(0)
    for _ in range(3000):
        outputs = draw.choice(WIDTHS)
        inputs = draw.choice((*WIDTHS, outputs, 2 * outputs, 3 * outputs))
        rows = draw.choice((draw.randint(1, 12), draw.randint(1, 140), draw.randint(1, ops._gemm_4bit_custom_max_m)))
        dtype = draw.choice(("bfloat16", "float16", "float32"))
        theirs = ops._gemm_4bit_use_custom_cuda(0, getattr(torch, dtype), rows, outputs, inputs)
        assert takes_fused_kernel(card, dtype, rows, outputs, inputs) == bool(theirs), (dtype, rows, outputs, inputs)
    ops._gemm_4bit_use_custom_cuda.cache_clear()


def test_a_long_batch_or_an_odd_width_takes_a_copy() -> None:
    # 704 outputs are 11 blocks of 64, a twelfth of the card's 132: up to 512 rows the kernel runs
    assert takes_fused_kernel(Card(), "bfloat16", 512, 704, 256)
    assert not takes_fused_kernel(Card(), "bfloat16", 513, 704, 256)
    assert not takes_fused_kernel(Card(), "bfloat16", 4, 704, 250)
    assert takes_fused_kernel(Card(), "bfloat16", 4, 704, 256)
