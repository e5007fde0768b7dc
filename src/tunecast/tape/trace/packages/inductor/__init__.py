"""torch.compile: the real compiler runs, its kernels do not.

    compiling.py   what Inductor asks of a card, a compiler or a clock while it compiles, answered without them
    dynamo.py      the front end of the compiler at work inside the trace
    lines.py       whose work a line of compiled code is
    regions.py     where compiled code begins and ends
    replacing.py   how the compiler is changed, and what to do when it is not what we knew
    running.py     the wrapper Inductor wrote, run on fake tensors

Dynamo captures the graph, AOTAutograd and the partitioner decide what the backward pass keeps, Inductor fuses,
schedules, plans buffers and writes its Python wrapper; all of that is host code and runs here as on a machine with
the card. The wrapper is then executed on fake tensors: its allocations, reuses and `del`s are those of the real run.
Only Triton kernels are neither compiled nor launched.

Modelled  the first launch of a kernel with several configurations, which Inductor times: it copies what the kernel
          overwrites and takes a buffer as large as the L2 cache.
Not       tensors made while compiling (a few bytes, or the operands of a product timed for padding), the pools of
          CUDA graphs, kernels chosen by timing. The last two are told as guesses.
"""

from __future__ import annotations

from tunecast.tape.trace.packages.inductor import compiling, dynamo, lines, regions, running
from tunecast.tape.trace.packages.inductor.replacing import missing
from tunecast.tape.trace.recorder import Recorder


def install(recorder: Recorder) -> None:
    try:
        for part in (dynamo, compiling, running, regions, lines):
            part.install(recorder)
    except (ImportError, AttributeError) as error:  # a torch that is built otherwise still traces what is not compiled
        missing.append(str(error))
