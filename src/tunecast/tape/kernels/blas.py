"""What cuBLAS and cublasLt keep for life once a product has run, whoever writes the tape.

Source   aten/src/ATen/cuda/CublasHandlePool.cpp: `parseChosenWorkspaceSize` (4096 KiB x 8 on Hopper, 4096 KiB x 2 +
         16 KiB x 8 on others) and `getCUDABlasLtWorkspace`.
"""

from __future__ import annotations

from tunecast.tape.card import Card
from tunecast.tape.symbols import compute
from tunecast.units import MIB

MATRIX_PRODUCTS = frozenset({
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm", "aten::mv", "aten::addmv", "aten::dot",
    "aten::_int_mm",
})  # fmt: skip
ONE_WORKSPACE_FROM = (2, 13)
"""The torch release whose cublasLt shares cuBLAS' workspace, and which gives Blackwell the larger one."""
LT_WORKSPACE_BYTES = MIB


def shares_workspace(torch_version: str) -> bool:
    return tuple(int(part) for part in torch_version.split(".")[:2]) >= ONE_WORKSPACE_FROM


def workspace_bytes(card: Card, shared: bool) -> int:
    if type(card.capability) is tuple:
        return _workspace_bytes(shared, card.capability)
    made: int = compute(_workspace_bytes, shared, [card.capability])
    return made


def _workspace_bytes(shared: bool, capability: tuple[int, int]) -> int:
    large = capability == (9, 0) or (shared and capability[0] in (10, 12))
    return 32 * MIB if large else 8 * MIB + 128 * 1024
