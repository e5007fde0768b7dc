"""Singular value decomposition on the card."""

from __future__ import annotations

from tunecast.tape.kernels.steps import KernelCall, Rule, Script, nbytes

INFO_BYTES = 4


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


RULES: dict[str, Rule] = {"aten::_linalg_svd": singular_values}
