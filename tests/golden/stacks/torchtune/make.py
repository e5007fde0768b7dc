"""Trace the programs of torchtune_cases.py with the real packages; writes events.json.gz.

    PYTHONPATH=src python tests/golden/stacks/torchtune/make.py PYTHON 0.7=FOLDER 0.4=FOLDER 0.1=FOLDER [--only NAME]

PYTHON's environment: torchtune 0.6.1, torchao 0.9.0, bitsandbytes 0.50.2, triton 3.9.0, torch 2.13.0. A FOLDER holds an
older release's unpacked wheel, 0.4.0 or 0.1.0; that of 0.7 the repository's torchtune/ with torchao 0.18.0 beside it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchtune_cases import CASES, COMPILED_CASES, PACKED_CASES

from tunecast.tape.card import Card
from tunecast.tape.op import Begin, EmptyCache, Event, Free, Op, Phase
from tunecast.tape.trace.run import trace_script

HERE = Path(__file__).parent
A100 = Card("NVIDIA A100-SXM4-80GB", 85_000_000_000, (8, 0), 108)
SMALLEST = 513
"""Of packed rows the mask's own tables are left out, of compiled ones losses of a chunk."""


class Change(NamedTuple):
    nbytes: int
    """Negative: let go."""
    starts: bool
    """The embedding's result: a forward pass starts."""
    phase: Phase


def changes(events: Sequence[Event], smallest: int = 1) -> Iterator[Change]:
    """What is asked for and let go of, of a program that empties the cache after that alone (the closed form does not:
    recipes for one card have no such call); between two requests the frees are sorted."""
    sizes: dict[int, int] = {}
    frees: list[int] = []
    loaded, op, phase = not any(isinstance(event, EmptyCache) for event in events), "", Phase.LOAD
    for event in events:
        if isinstance(event, EmptyCache):
            loaded = True
            frees.clear()
        elif isinstance(event, Op):
            op = event.name
        elif isinstance(event, Begin):
            phase = event.phase
        elif isinstance(event, Free):
            frees.append(-sizes[event.block])
        else:
            sizes[event.block] = event.nbytes
            if loaded and event.nbytes >= smallest:
                yield from (Change(size, False, phase) for size in sorted(frees) if size <= -smallest)
                frees.clear()
                yield Change(event.nbytes, op == "embedding", phase)


def told(events: Sequence[Event]) -> list[int]:
    return [change.nbytes for change in changes(events)]


def second_step(events: Sequence[Event]) -> list[int]:
    """From the second forward pass on, as far as large requests go."""
    found = list(changes(events, SMALLEST))
    start = [place for place, change in enumerate(found) if change.starts][1]
    return [change.nbytes for change in found[start:]]


def figures(events: Sequence[Event]) -> dict[str, int]:
    """Bytes held beyond what was when the second step began: as its forward pass ends, and at most."""
    held = most = ended = begun = passes = 0
    for change in changes(events, SMALLEST):
        passes += change.starts
        if change.starts and passes == 2:
            begun = held
        held += change.nbytes
        if passes == 2:
            most = max(most, held)
            ended = held if change.phase is Phase.FORWARD else ended
    return {"forward": ended - begun, "most": most - begun}


KINDS: tuple[tuple[dict[str, Any], Any, Card], ...] = (
    (CASES, told, Card()), (PACKED_CASES, second_step, A100), (COMPILED_CASES, figures, A100),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python")
    parser.add_argument("folders", nargs="*", metavar="RELEASE=FOLDER")
    parser.add_argument("--only", nargs="*", default=[], help="cases; the others stay as they are")
    options = parser.parse_args()
    folders = dict(given.split("=", 1) for given in options.folders)
    path = HERE / "events.json.gz"
    found = json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {}
    for cases, read, card in KINDS:
        for name, case in cases.items():
            if options.only and name not in options.only:
                continue
            os.environ["PYTHONPATH"] = folders.get(case["release"], "")
            program = HERE / ("program_0_1.py" if case["release"] == "0.1" else "program.py")
            tape, answer = trace_script(str(program), [json.dumps(case)], card, steps=2, python=options.python)
            if answer.error:
                raise SystemExit(f"{name}: {answer.error}\n{answer.detail}")
            found[name] = read(tape.events)
            print(name, found[name] if isinstance(found[name], dict) else len(found[name]), flush=True)
            path.write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))


if __name__ == "__main__":
    main()
