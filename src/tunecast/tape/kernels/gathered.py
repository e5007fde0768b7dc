"""What FSDP2's two copy kernels borrow: a table of 8-byte entries that says which thread block copies what.

Source  aten/src/ATen/native/cuda/TensorShape.cu: `split_with_sizes_copy_out_cuda_contiguous_no_cast`, whose table is
        made by `pack_vecs`, takes a gathered buffer apart; `_chunk_cat` (`get_chunk_cat_metadata`) puts gradients
        together for scattering, a block for each 2 KiB.
        torch/csrc/distributed/fsdp/ChunkCat.cu (2.15): `chunk_cat_mixed_dtype_cuda`, the same for two dtypes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tunecast.tape.card import Card
from tunecast.tape.kernels.launch import threads_per_sm
from tunecast.tape.symbols import compute

BLOCK_THREADS, BLOCK_BYTES = 128, 2048
ENTRY_BYTES = 8


def split_table_bytes(part_bytes: Sequence[int], chunks: int, card: Card) -> int:
    """Of `chunks` ranks' parts, each of these sizes, copied apart."""
    made: int = compute(_split_table_bytes, None, [chunks, card.sm_count * threads_per_sm(card), *part_bytes])
    return made


def _split_table_bytes(_: None, chunks: int, threads: int, *part_bytes: int) -> int:
    most = threads // BLOCK_THREADS * 2
    rounds = -(-sum(-(-size // BLOCK_BYTES) for size in part_bytes) * chunks // most)
    rounds_a_chunk = -(-rounds // max(1, min(math.ceil(math.sqrt(rounds)), chunks)))
    blocks = sum(-(-size // (BLOCK_BYTES * max(1, rounds_a_chunk))) for size in part_bytes)
    return ENTRY_BYTES * (4 * len(part_bytes) + 1 + blocks)


def chunk_cat_table_bytes(chunk_bytes: Sequence[int]) -> int:
    """Of tensors whose chunk for one rank has, as written, these sizes."""
    blocks = sum(-(-size // BLOCK_BYTES) for size in chunk_bytes)
    return ENTRY_BYTES * (6 * len(chunk_bytes) + 2 + blocks)


def mixed_chunk_cat_table_bytes(chunk_bytes: Sequence[int]) -> int:
    """The same of gradients in two dtypes: both launches share a table, without the two ends of the other."""
    return chunk_cat_table_bytes(chunk_bytes) - 2 * ENTRY_BYTES


def chunk_cat_is_direct(read: str, written: str) -> bool:
    """Whether the fast kernel does it, by dtypes; the general one pads into copies."""
    return read == written or (read, written) == ("bfloat16", "float32")
