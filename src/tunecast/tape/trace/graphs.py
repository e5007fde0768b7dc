"""CUDA graphs: what is allocated while one is captured comes from a pool of its own.

The caching allocator keeps a private pool for each capture (c10/cuda/CUDACachingAllocator.cpp, `PrivatePool`), with
segments of its own that nothing else is cut from; graphs that are given each other's handle share one. On a tape such a
pool is a stream of its own, which separates blocks in the same way. A replay allocates nothing.

Left out  a pool's free segments stay as long as its graph lives, while those of a stream go when the cache is emptied.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from tunecast.tape.trace.recorder import Recorder

GUESS = "what a CUDA graph captured is kept in a pool of its own; emptying the cache is taken to shrink that too"


def install(recorder: Recorder) -> None:
    numbers = itertools.count(1)

    def new_pool() -> tuple[int, int]:
        return (0, next(numbers))

    class CUDAGraph:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._pool = new_pool()

        def capture_begin(self, pool: Any = None, **kwargs: Any) -> None:
            self._pool = pool or self._pool
            recorder.guesses[GUESS] = 1
            recorder.captures_into = self._pool[1]

        def capture_end(self) -> None:
            recorder.captures_into = 0

        def pool(self) -> tuple[int, int]:
            return self._pool

        def replay(self) -> None: ...
        def reset(self) -> None: ...
        def instantiate(self) -> None: ...
        def enable_debug_mode(self) -> None: ...
        def debug_dump(self, path: Any) -> None: ...

    for module in (torch.cuda, torch.cuda.graphs):
        module.CUDAGraph = CUDAGraph  # type: ignore[misc, assignment]
        module.graph_pool_handle = new_pool  # type: ignore[assignment]
        module.is_current_stream_capturing = lambda: recorder.captures_into > 0
