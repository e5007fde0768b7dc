"""Singular value decomposition and triangular systems on the card."""

from __future__ import annotations

from math import prod

from tunecast.tape.kernels.steps import KernelCall, Rule, Script, nbytes

INFO_BYTES = 4
ADDRESS_BYTES = 8
MOST_SOLVED_IN_TURN, SMALLEST_SOLVED_IN_TURN = 8, 64


def singular_values(call: KernelCall, script: Script) -> None:
    """Results, then the error code, then the matrix by columns (it is destroyed), then cuSOLVER's workspace
    (aten/src/ATen/native/BatchLinearAlgebra.cpp, `_linalg_svd_out`; cuda/linalg/BatchLinearAlgebraLib.cpp,
    `svd_cusolver_gesvdj`).

    Guessed  the workspace, which `cusolverDnSgesvdj_bufferSize` tells at run time only: as large as the matrix.
    """
    script.make(*range(len(call.outputs)))
    matrix = call.args[0]
    script.borrow(INFO_BYTES)
    script.borrow(nbytes(matrix))
    script.borrow(nbytes(matrix))


def triangular_system(call: KernelCall, script: Script) -> None:
    """Where cuBLAS solves them all at once, both operands' addresses (aten/src/ATen/native/cuda/linalg/
    BatchLinearAlgebra.cpp, `triangular_solve_kernel`: few large ones follow each other)."""
    script.make(0)
    *batch, size, _ = call.args[0].shape
    if prod(batch) > MOST_SOLVED_IN_TURN or size < SMALLEST_SOLVED_IN_TURN:
        script.borrow(prod(batch) * ADDRESS_BYTES)
        script.borrow(prod(batch) * ADDRESS_BYTES)


RULES: dict[str, Rule] = {
    "aten::_linalg_svd": singular_values,
    "aten::linalg_solve_triangular": triangular_system,
}
