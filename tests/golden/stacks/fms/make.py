"""Trace the programs of fms_cases.py with the real packages; writes events.json.gz.

    PYTHONPATH=src python tests/golden/stacks/fms/make.py 4.48.1=ENV/bin/python 4.45.2=OLDER/bin/python [--only NAME]

ENV: transformers 4.48.1, fms-acceleration 0.6.1, fms-acceleration-foak 0.6.0, fms-acceleration-peft 0.3.5, peft 0.13.2,
bitsandbytes 0.50.2, triton, torch 2.13.0. OLDER: transformers 4.45.2, fms-acceleration 0.5.0, foak 0.4.0, else alike.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from pathlib import Path

from fms_cases import CASES

from tunecast.tape.card import Card
from tunecast.tape.trace.run import trace_script

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1] / "tools"))  # not stacks: its folders would pass for packages
from sizes import told  # noqa: E402

CARD = Card("NVIDIA A100-SXM4-80GB", 85_000_000_000, (8, 0), 108)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="+", metavar="RELEASE=PYTHON")
    parser.add_argument("--only", help="one case; the others stay as they are")
    options = parser.parse_args()
    pythons = dict(given.split("=", 1) for given in options.environments)
    path = HERE / "events.json.gz"
    found = json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {}
    for name, case in CASES.items():
        if options.only not in (None, name):
            continue
        tape, answer = trace_script(
            str(HERE / "program.py"), [json.dumps(case)], CARD, as_module=False, steps=2, nproc_per_node=1, nnodes=1,
            models={}, python=pythons[case["release"]],
        )  # fmt: skip
        if answer.error:
            raise SystemExit(f"{name}: {answer.error}\n{answer.detail}")
        found[name] = told(tape.events)
        print(name, len(found[name]), flush=True)
        path.write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))


if __name__ == "__main__":
    main()
