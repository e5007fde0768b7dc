"""What CUDA kernels allocate inside one operation, which no fake kernel shows. Read steps.py first.

    steps.py       what a rule says: outputs made, buffers borrowed and returned, in order
    attention.py   fused attention              products.py  matrix products, softmax, dropout, convolution
    reductions.py  sums, norms, maxima          indexing.py  gathers, scatters, sorts, scans
    flash.py       the flash-attn package       backend.py   which attention kernel runs
    launch.py      how a reduction is launched  cub.py       scratch memory of CUB's algorithms
    blas.py        workspaces kept for life     factorizations.py  singular values

Sizes are bytes asked for. Every rule names the source it follows (paths in the PyTorch repository unless said) and
was compared with the real kernel's allocation history on an H200 (tests/golden/data/h200_kernel_temporaries.jsonl).
"""

from __future__ import annotations

from tunecast.tape.kernels import attention, factorizations, indexing, products, reductions
from tunecast.tape.kernels.indexing import IN_PLACE_IN_BACKWARD
from tunecast.tape.kernels.steps import Rule

RULES: dict[str, Rule] = attention.RULES | factorizations.RULES | indexing.RULES | products.RULES | reductions.RULES

__all__ = ["IN_PLACE_IN_BACKWARD", "RULES"]
