"""Trace the jobs of unsloth_cases.py with the real package; writes events.json.gz.

    PYTHONPATH=src python tests/golden/stacks/unsloth/make.py ENV/bin/python [--only NAME]

ENV: unsloth 2026.10.9, unsloth_zoo of the same day, torch 2.11.0, transformers 5.17.0, peft 0.21.0,
bitsandbytes 0.50.2, triton 3.6.0. A compiled case takes a minute or more.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from pathlib import Path

from unsloth_cases import CASES

from tunecast.job.mapping import job_from_dict
from tunecast.tape.op import Alloc, Begin, Event, Free, Phase
from tunecast.tape.trace.run import trace_training

HERE = Path(__file__).parent
EVENTS = HERE / "events.json.gz"
STEPS = 2


def told(events: tuple[Event, ...]) -> list[int]:
    """Sizes asked for, and between two of them the sizes let go as negative numbers, sorted; from the first forward
    pass to the last request."""
    out: list[int] = []
    sizes: dict[int, int] = {}
    frees: list[int] = []
    started = False
    for event in events:
        if isinstance(event, Begin):
            started = started or event.phase is Phase.FORWARD
        elif isinstance(event, Free):
            if started:
                frees.append(-sizes[event.block])
        elif isinstance(event, Alloc):
            sizes[event.block] = event.nbytes
            if started and event.nbytes:
                out += sorted(size for size in frees if size)
                frees.clear()
                out.append(event.nbytes)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python")
    parser.add_argument("--only", help="one case; the others stay as they are")
    options = parser.parse_args()
    found = json.loads(gzip.decompress(EVENTS.read_bytes())) if EVENTS.exists() else {}
    for name, (values, config, card) in CASES.items():
        if options.only not in (None, name):
            continue
        os.environ["UNSLOTH_COMPILE_DISABLE"] = "1" if name.startswith("eager") else "0"
        job = job_from_dict(values)
        tape = trace_training(job, config, list(job.lengths or [job.seq_len] * STEPS), card, python=options.python)
        found[name] = told(tape.events)
        print(name, len(found[name]), *tape.guesses)
        save(found)


def save(found: dict[str, list[int]]) -> None:
    EVENTS.write_bytes(gzip.compress(json.dumps(found, sort_keys=True).encode(), mtime=0))


if __name__ == "__main__":
    main()
