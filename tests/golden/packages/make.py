"""Trace the jobs of package_cases.py with the real packages; writes events.json.gz.

    PYTHONPATH=src python tests/golden/packages/make.py
    PYTHONPATH=src python tests/golden/packages/make.py float4    (and so for other cases, by how their names begin)

in an environment with galore-torch, apollo-torch, grokadamw, schedulefree, torch-optimi and torchao beside what the
traced engine needs (README.md has the releases).
"""

from __future__ import annotations

import gc
import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tunecast.job import job_from_dict
from tunecast.tape.op import Alloc, Begin, Event, Free, Phase
from tunecast.tape.trace.ending import run_and_leave

HERE = Path(__file__).parent
SCALAR = 8
"""Bytes of single numbers, which are left out."""


def told(events: Sequence[Event], first: int, last: int) -> list[int]:
    """What is asked for and let go of in the steps from `first` to before `last`, from the first request on; between
    two requests frees are sorted. Phases are left out: the tracer calls a step inside the backward pass backward."""
    out: list[int] = []
    sizes: dict[int, int] = {}
    frees: list[int] = []
    counts = False
    for event in events:
        if isinstance(event, Begin):
            counts = event.phase is not Phase.LOAD and first <= event.step < last
        elif isinstance(event, Free) and counts:
            frees.append(-sizes[event.block])
        elif isinstance(event, Alloc):
            sizes[event.block] = event.nbytes
            if event.nbytes and counts:
                out += [size for size in sorted(frees) if size]
                frees.clear()
                out.append(event.nbytes)
    out += sorted(size for size in frees if size)
    out = [size for size in out if abs(size) > SCALAR]
    return out[next((place for place, size in enumerate(out) if size > 0), 0) :]


def main() -> None:
    import torch
    from package_cases import CASES, STEPS, card_of, first_compared

    from tunecast.tape.trace import recipe
    from tunecast.tape.trace.session import tracing

    path, beginning = HERE / "events.json.gz", sys.argv[1] if len(sys.argv) > 1 else ""
    found: dict[str, list[int]] = json.loads(gzip.decompress(path.read_bytes())) if beginning else {}
    card = card_of(next(name for name in CASES if name.startswith(beginning)))
    with tracing(card) as recorder:
        import bitsandbytes.functional

        bitsandbytes.functional.torch = WithPlainNorm(torch)
        for name, (values, config) in CASES.items():
            if not name.startswith(beginning) or card_of(name) != card:
                continue
            gc.collect()
            recorder.forget_all()
            recipe.train(job_from_dict(values), config, [int(values["seq_len"])] * STEPS, recorder)
            found[name] = told(recorder.tape({}).events, first_compared(name), STEPS)
            print(name, len(found[name]), flush=True)
    path.write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))


class WithPlainNorm:
    """torch, but `norm` answers with a number: bitsandbytes hands the norm to a kernel that reads it from the card."""

    def __init__(self, torch: object) -> None:
        self.torch = torch

    def __getattr__(self, name: str) -> object:
        return getattr(self.torch, name)

    def norm(self, x: object) -> float:
        self.torch.norm(x)  # type: ignore[attr-defined]
        return 1.0


if __name__ == "__main__":
    run_and_leave(main)
