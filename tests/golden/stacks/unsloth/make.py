"""Trace the jobs of unsloth_cases.py with the real package; writes events.json.gz, and flops.json of those in FLOPS.

    PYTHONPATH=src python tests/golden/stacks/unsloth/make.py ENV/bin/python [--only NAME]

ENV: unsloth 2026.10.9, unsloth_zoo of the same day, torch 2.11.0, transformers 5.17.0, peft 0.21.0,
bitsandbytes 0.50.2, triton 3.6.0. A compiled case takes a minute or more.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
from collections import Counter
from pathlib import Path

from unsloth_cases import CASES

from tunecast.job.mapping import job_from_dict
from tunecast.tape.op import Op, Tape
from tunecast.tape.trace.run import trace_training

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1] / "tools"))  # not stacks: its folders would pass for packages
from sizes import told  # noqa: E402

EVENTS = HERE / "events.json.gz"
FLOPS = HERE / "flops.json"
OF_INTEREST = ("eager qlora", "compiled qlora", "compiled qwen2, dropout")
STEPS = 2


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
        if name in OF_INTEREST:
            known = json.loads(FLOPS.read_text()) if FLOPS.exists() else {}
            FLOPS.write_text(json.dumps(known | {name: computed(tape)}, indent=1, sort_keys=True) + "\n")
        print(name, len(found[name]), *tape.guesses)
        save(found)


def computed(tape: Tape) -> dict[str, int]:
    """Operations of the last step that compute: their name and FLOPs, and how often they run."""
    ops = [event for event in tape.steps()[STEPS - 1] if isinstance(event, Op) and event.flops]
    return dict(Counter(f"{op.name.rstrip('_')} {op.flops}" for op in ops))


def save(found: dict[str, list[int]]) -> None:
    EVENTS.write_bytes(gzip.compress(json.dumps(found, sort_keys=True).encode(), mtime=0))


if __name__ == "__main__":
    main()
