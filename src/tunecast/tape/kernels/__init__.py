"""What CUDA kernels allocate inside one operation, which no fake kernel shows. Read steps.py first.

    attention.py        what the fused attention kernels borrow and in which order they allocate
    backend.py          which kernel scaled dot-product attention runs on a card
    blas.py             what cuBLAS and cublasLt keep for life once a product has run, whoever writes the tape
    counts.py           operations that are several kernels, by name; all others are one
    cub.py              scratch memory of CUB's device-wide algorithms
    factorizations.py   singular value decomposition and triangular systems on the card
    flash.py            what the flash-attn CUDA extensions allocate
    four_bit.py         which way bitsandbytes multiplies by a 4-bit weight
    gathered.py         what FSDP2's two copy kernels borrow
    indexing.py         gathers, scatters, sorts and scans: most sort their indices first, with CUB
    launch.py           the buffers a CUDA reduction borrows when several thread blocks work on one result
    lists.py            kernels that take lists of tensors (`_foreach`, `_fused`)
    outliers.py         how many columns of an activation LLM.int8 keeps in 16 bits
    products.py         matrix products, softmax, dropout and convolutions
    reductions.py       operations that reduce: which launcher each uses, and the copies made around it
    shapes.py           what a rule may ask of a tensor
    steps.py            how one operation on the card allocates

Sizes are bytes asked for. Every rule names the source it follows (paths in the PyTorch repository unless said) and
was compared with the real kernel's allocation history on an H200 (tests/golden/data/h200_kernel_temporaries.jsonl).
"""

from __future__ import annotations

from tunecast.tape.kernels import attention, factorizations, indexing, products, reductions
from tunecast.tape.kernels.indexing import IN_PLACE_IN_BACKWARD
from tunecast.tape.kernels.steps import Rule

RULES: dict[str, Rule] = attention.RULES | factorizations.RULES | indexing.RULES | products.RULES | reductions.RULES

__all__ = ["IN_PLACE_IN_BACKWARD", "RULES"]
