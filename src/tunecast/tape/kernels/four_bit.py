"""Which way bitsandbytes multiplies by a 4-bit weight: one kernel that reads it packed, or a dequantised copy.

After bitsandbytes 0.50.2, backends/cuda/ops.py, `gemm_4bit` and `_gemm_4bit_use_custom_cuda`: thresholds its authors
measured card by card. The kernel saves the copy of the weight, so which one runs is memory.
"""

from __future__ import annotations

from tunecast.records import NamedTuple
from tunecast.tape.card import Card

BLOCK = 64
"""Values that share a scale."""
MOST_ROWS = 1536
ALWAYS_ROWS = 4
SMALL_WEIGHT = 4 << 20
ANY = MOST_ROWS


class FourBitProduct(NamedTuple):
    """[rows, inputs] times the transposed [outputs, inputs] weight, on a card of `sms` multiprocessors."""

    rows: int
    outputs: int
    inputs: int
    sms: int

    @property
    def blocks(self) -> int:
        return -(-self.outputs // 64)

    def waves(self, times: int, parts: int = 1) -> bool:
        """At least times / parts blocks for each multiprocessor."""
        return self.blocks * parts >= self.sms * times


def takes_fused_kernel(card: Card, dtype: str, rows: int, outputs: int, inputs: int) -> bool:
    if rows > MOST_ROWS or inputs % BLOCK:
        return False
    if rows <= ALWAYS_ROWS:
        return True
    product = FourBitProduct(rows, outputs, inputs, card.sm_count)
    if dtype == "float32" or card.capability < (7, 5) or (card.capability < (8, 0) and dtype != "float16"):
        return rows < 8
    return rows <= _most_rows(product, card.capability)


def _most_rows(product: FourBitProduct, capability: tuple[int, int]) -> int:
    major, minor = capability
    wide = product.inputs < product.outputs
    if capability == (8, 7) or major == 11:
        return 0
    if major == 10:
        if product.waves(3):
            return 32
        return 8 if product.waves(1) and wide else 0
    kind = {(8, 0): "sm80", (7, 5): "sm75", (8, 6): "sm86", (12, 0): "sm120", (12, 1): "sm121"}.get(
        (major, minor), "sm90" if major == 9 else "other"
    )
    if product.outputs * product.inputs < SMALL_WEIGHT:
        return _small(product, kind)
    if product.rows > 512:
        return 0
    if product.rows < 8:
        return _few_rows(product, kind)
    return LADDERS.get(kind, _other)(product)


def _small(p: FourBitProduct, kind: str) -> int:
    """Reading the weight is most of the work."""
    if p.inputs * 2 < p.outputs:
        if kind in ("sm80", "sm90"):
            low, high = (1536, 512) if kind == "sm80" else (512, 320)
            return high if p.waves(1, 3) else low
        if kind == "sm75":
            if p.waves(3):
                return 320
            return 64 if p.inputs >= 1024 else 96 if p.inputs >= 704 else 320
        return 192 if not p.waves(1) and p.blocks * p.inputs > p.sms * 320 else 320
    quarter_wave = p.blocks * 4 <= p.sms
    if kind == "sm80" and quarter_wave:
        if p.inputs < p.outputs:
            return 384
        return 32 if p.blocks * 8 <= p.sms else 128
    if kind == "sm75" and not p.waves(1) and p.rows > 8:
        return 64
    if quarter_wave:
        return 32 if p.inputs < p.outputs or kind in ("sm80", "sm90") else 23
    return 16 if p.blocks * 2 <= p.sms else 0


def _few_rows(p: FourBitProduct, kind: str) -> int:
    """5 to 7 rows: the kernel, but for two shapes on cards with HBM."""
    if kind not in ("sm80", "sm90") or p.rows < 6 or p.blocks < (36 if kind == "sm90" else 48):
        return ANY
    below_3_quarters, below_3_fifths = not p.waves(3, 4), not p.waves(3, 5)
    if p.inputs > p.outputs and below_3_quarters:
        return 0
    if p.inputs == p.outputs:
        loses = below_3_fifths if kind == "sm80" else below_3_quarters and not below_3_fifths
        return 0 if loses else ANY
    return ANY


def _sm75(p: FourBitProduct) -> int:
    if p.waves(3):
        return 128 if p.inputs < p.outputs else 64
    return 64 if p.blocks >= p.sms // 2 else 32


def _sm80(p: FourBitProduct) -> int:
    if p.waves(3):
        return 128
    if p.waves(1):
        return 64 if p.inputs < p.outputs else 32
    if p.inputs >= p.outputs * 3 and p.blocks * 4 > p.sms:
        return 0
    if p.inputs == p.outputs and p.blocks >= 48 and not p.waves(3, 5):
        return 0
    if not p.waves(1, 2):
        if p.inputs <= p.outputs:
            return 128
        if p.waves(1, 3):
            return 0
    return 128 if p.blocks >= p.sms // 2 and p.inputs < p.outputs else 16


def _sm86(p: FourBitProduct) -> int:
    return 128 if p.waves(1) else 64 if p.blocks >= p.sms // 2 else 16


def _sm90(p: FourBitProduct) -> int:
    for waves, most in ((3, 64), (2, 48), (1, 32)):
        if p.waves(waves):
            return most
    if p.blocks < p.sms // 2 or (p.inputs >= p.outputs and not p.waves(3, 4)):
        return 0
    return 16


def _sm120(p: FourBitProduct) -> int:
    if p.waves(3):
        return 256
    if p.waves(2):
        return 128
    if p.waves(4, 5):
        return 96 if p.inputs >= p.outputs else 64
    if p.blocks >= p.sms // 2:
        return 64 if p.inputs * 2 >= p.outputs and p.blocks >= 128 else 8
    return 16 if p.inputs > p.outputs * 2 and p.blocks > 64 else 8


def _sm121(p: FourBitProduct) -> int:
    return 256 if p.waves(1) else _other(p)


def _other(p: FourBitProduct) -> int:
    """Ada, and what nobody measured."""
    tall = p.inputs > p.outputs * 2
    if p.waves(3):
        return 256
    if p.waves(2):
        return 128
    if p.waves(4, 5):
        if tall or p.blocks >= 200:
            return 128
        if p.inputs >= p.outputs:
            return 128 if p.sms >= 60 else 32
        return 64
    if p.blocks >= p.sms // 2:
        return 64 if tall else 8 if p.blocks >= 64 else 32
    if p.inputs > p.outputs and p.blocks <= 48:
        return 12 if p.inputs >= p.outputs * 3 else 10
    return 16 if tall or p.blocks < 48 else 8


LADDERS = {"sm75": _sm75, "sm80": _sm80, "sm86": _sm86, "sm90": _sm90, "sm120": _sm120, "sm121": _sm121}
