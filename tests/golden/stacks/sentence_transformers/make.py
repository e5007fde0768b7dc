"""Trace the runs of embedding_cases.py; writes events.json.gz.

    PYTHONPATH=src python tests/golden/stacks/sentence_transformers/make.py ENV/bin/python

ENV: sentence-transformers 6.2.0, transformers 5.17.0, accelerate 1.15.0, peft 0.21.0, torch 2.13.0, and what
tests/trace/task_cases/programs/common.py imports.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from embedding_cases import CASES

HERE = Path(__file__).parent
TRACE = HERE.parents[2] / "trace" / "task_cases" / "trace_tasks.py"


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    asked = [[name, {key: value for key, value in case.items() if key != "job"}] for name, case in CASES.items()]
    (folder / "cases.json").write_text(json.dumps(asked))
    subprocess.run([sys.argv[1], str(TRACE), str(folder / "cases.json"), str(folder / "out.json")], check=True)
    found = json.loads((folder / "out.json").read_text())
    for name, events in found.items():
        if isinstance(events, str):
            raise SystemExit(f"{name}: {events}")
        found[name] = [event[:3] for event in events]
        print(name, len(found[name]))
    (HERE / "events.json.gz").write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))


if __name__ == "__main__":
    main()
