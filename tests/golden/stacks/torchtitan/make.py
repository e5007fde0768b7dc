"""Trace the programs of torchtitan_cases.py with the real packages; writes events.json.gz.

    PYTHONPATH=src python tests/golden/stacks/torchtitan/make.py PYTHON RELEASE=FOLDER ... [--only NAME ...]

PYTHON's environment: torch 2.13.0 (2.11.0 of two cases, README.md), torchao 0.18.0, tyro; of 0.3 torch 2.15.0 and what
its wheel requires, without torchao. A FOLDER holds the unpacked wheel of torchtitan 0.1.0 (release 0.1), 0.2.0 (0.2),
0.2.2 or 0.3.0 (0.3).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torchtitan_cases import CASES, COMPILED_CASES, REWRITTEN, STEPS

from tunecast.tape.build.compiler.execute import L2_CACHE_BYTES
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Begin, Event, Free, Phase
from tunecast.tape.trace.run import trace_script

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1] / "tools"))
from sizes import told  # noqa: E402


def figures(events: Iterable[Event]) -> dict[str, int]:
    """Bytes held beyond what was when the second step began: as its forward pass ends, and at most."""
    sizes: dict[int, int] = {}
    held = most = ended = begun = 0
    now = Begin(Phase.LOAD)
    for event in events:
        if isinstance(event, Begin):
            if (event.phase, event.step) == (Phase.FORWARD, 1) and not begun:
                begun = held
            if (now.phase, now.step) == (Phase.FORWARD, 1):
                ended = held
            now = event
        elif isinstance(event, Alloc):
            sizes[event.block] = event.nbytes
            held += event.nbytes
        elif isinstance(event, Free):
            held -= sizes[event.block]
        if begun and now.step == 1:
            most = max(most, held)
    return {"forward": ended - begun, "most": most - begun}


def counted(case: dict[str, Any]) -> Callable[[int], bool]:
    """With tensor parallelism DTensor's own small change is left out: masks, sums of norms' gradients. Of 0.3 so is
    what flex attention's mask is made of, and the buffer Inductor flushes the L2 cache with while it times a kernel."""
    is_rewritten = case["release"] == REWRITTEN
    smallest = 4097 if "tensor" in case["job"] or is_rewritten else 1
    flushed_bytes = L2_CACHE_BYTES if is_rewritten else None
    return lambda nbytes: nbytes >= smallest and nbytes != flushed_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python")
    parser.add_argument("folders", nargs="*", metavar="RELEASE=FOLDER")
    parser.add_argument("--only", nargs="*", default=[], help="cases; the others stay as they are")
    options = parser.parse_args()
    folders = dict(given.split("=", 1) for given in options.folders)
    path = HERE / "events.json.gz"
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {}
    for name, case in {**CASES, **COMPILED_CASES}.items():
        if options.only and name not in options.only:
            continue
        os.environ["PYTHONPATH"] = folders[case["release"]]
        is_rewritten = case["release"] == REWRITTEN
        program = HERE / ("program_0_3.py" if is_rewritten else "program.py")
        steps = STEPS * (2 if is_rewritten else 1)  # its `OptimizersContainer` is an optimizer that steps, too
        tape, answer = trace_script(str(program), [json.dumps(case)], Card(), steps=steps, python=options.python)
        if answer.error:
            raise SystemExit(f"{name}: {answer.error}\n{answer.detail}")
        found[name] = figures(tape.events) if name in COMPILED_CASES else told(tape.events, counted(case))
        print(name, found[name] if name in COMPILED_CASES else len(found[name]), flush=True)
        path.write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))


if __name__ == "__main__":
    main()
