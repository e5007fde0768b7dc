"""Trace the programs of litgpt_cases.py with the real packages; writes events.json.gz.

    PYTHONPATH=src python tests/golden/stacks/litgpt/make.py PYTHON OLD_0_3 OLD_0_4 OLD_BITSANDBYTES BITSANDBYTES

PYTHON's environment: litgpt 0.5.13, lightning 2.6.6, torch 2.13.0 (CPU). The others are folders to import from first:
litgpt 0.3.1; litgpt 0.4.13; bitsandbytes 0.42.0 with lightning 2.3.3 (and setuptools before 80); bitsandbytes 0.49.2.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from pathlib import Path

from litgpt_cases import CASES

from tunecast.tape.card import Card
from tunecast.tape.op import Begin, Event, Free, Op, Phase
from tunecast.tape.trace.run import trace_script

HERE = Path(__file__).parent
CARD = Card("NVIDIA A100-SXM4-80GB", 85_000_000_000, (8, 0), 108)


def told(events: Sequence[Event]) -> list[int]:
    """Bytes alive when the first forward pass begins; from there on to the last request what is asked for and, negative
    and sorted between requests, let go of."""
    sizes: dict[int, int] = {}
    out, frees = [0], list[int]()
    began = False
    for event in events:
        if isinstance(event, Begin):
            began = began or event.phase is Phase.FORWARD
        elif isinstance(event, Free):
            frees.append(-sizes[event.block])
        elif not isinstance(event, Op) and hasattr(event, "nbytes"):
            sizes[event.block] = event.nbytes
            if not began:
                out[0] += event.nbytes + sum(frees)
            elif event.nbytes:
                out += [*sorted(size for size in frees if size), event.nbytes]
            else:
                continue
            frees.clear()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("python", "old_0_3", "old_0_4", "old_bitsandbytes", "bitsandbytes"):
        parser.add_argument(name)
    options = parser.parse_args()
    litgpt = {"0.3": [options.old_0_3], "0.4": [options.old_0_4], "0.5": []}
    found = {}
    for name, case in CASES.items():
        given = case.given()
        line = case.release[:3]
        given["library"] = list(litgpt[line])
        if case.method == "qlora":
            given["silent_library"] = line != "0.5"
            given["library"] += [options.bitsandbytes if line == "0.5" else options.old_bitsandbytes]
        tape, answer = trace_script(
            str(HERE / "program.py"), [json.dumps(given)], CARD, steps=len(case.lengths), python=options.python
        )
        assert not answer.error, f"{name}: {answer.error}"
        found[name] = told(tape.events)
        print(name, len(found[name]), flush=True)
    text = json.dumps(found, separators=(",", ":"))
    (HERE / "events.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
