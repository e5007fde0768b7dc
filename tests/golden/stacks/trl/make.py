"""Trace the runs of trl_cases.py; writes events.json.gz.

    PYTHONPATH=src python tests/golden/stacks/trl/make.py ENV/bin/python

ENV: trl 1.16.0, transformers 5.17.0, accelerate 1.15.0, peft 0.21.0, bitsandbytes 0.50.2, torch 2.13.0.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

from trl_cases import CASES

from tunecast.tape.card import Card
from tunecast.tape.trace.run import trace_script

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1] / "tools"))  # not stacks: its folders would pass for packages
from sizes import told  # noqa: E402


def main() -> None:
    found = {}
    for name, case in CASES.items():
        tape, answer = trace_script(
            str(HERE / "program.py"), [json.dumps(case)], Card(), as_module=False, steps=3, nproc_per_node=1, nnodes=1,
            models={}, python=sys.argv[1],
        )  # fmt: skip
        if answer.error:
            raise SystemExit(f"{name}: {answer.error}\n{answer.detail}")
        found[name] = told(tape.events)
        print(name, len(found[name]), flush=True)
    (HERE / "events.json.gz").write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))


if __name__ == "__main__":
    main()
