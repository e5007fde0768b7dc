"""Trace the runs of automodel_cases.py; writes events.json.gz.

    PYTHONPATH=src:AUTOMODEL python tests/golden/stacks/automodel/make.py ENV/bin/python

AUTOMODEL: NVIDIA-NeMo/Automodel at 36044ad3. ENV: transformers 5.17.0, torch 2.13.0.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

from automodel_cases import CASES

from tunecast.tape.card import Card
from tunecast.tape.trace.run import trace_script

LEAST_BYTES = 1024
"""Below are numbers that books are kept with."""
HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1] / "tools"))  # not stacks: its folders would pass for packages
from sizes import told  # noqa: E402


def main() -> None:
    found = {}
    for name, case in CASES.items():
        tape, answer = trace_script(
            str(HERE / "program.py"), [json.dumps(case)], Card(), as_module=False, steps=3,
            nproc_per_node=case["ranks"], nnodes=1, models={}, python=sys.argv[1],
        )  # fmt: skip
        if answer.error:
            raise SystemExit(f"{name}: {answer.error}\n{answer.detail}")
        found[name] = told(tape.events, lambda nbytes: nbytes >= LEAST_BYTES)
        print(name, len(found[name]), flush=True)
    (HERE / "events.json.gz").write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))


if __name__ == "__main__":
    main()
