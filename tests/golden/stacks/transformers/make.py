"""Trace the jobs of era_cases.py with older releases of transformers; writes events.json.gz.

    PYTHONPATH=src python tests/golden/stacks/transformers/make.py 4.45.2=ENV/bin/python 4.48.1=ENV/bin/python ...

An environment holds that release, torch 2.13.0, bitsandbytes 0.50.2, and PEFT of its time: 0.13.2 beside 4.45.2 and
4.48.1, 0.17.1 beside 4.57.1.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from pathlib import Path

from era_cases import CASES, case

from tunecast.job import job_from_dict
from tunecast.tape.card import Card
from tunecast.tape.trace.run import trace_training

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1] / "tools"))  # not stacks: its folders would pass for packages
from sizes import told  # noqa: E402

STEPS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="+", metavar="RELEASE=PYTHON")
    pythons = dict(given.split("=", 1) for given in parser.parse_args().environments)
    path = HERE / "events.json.gz"
    found = json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {}
    for name in CASES:
        release, config, values = case(name)
        if release not in pythons:
            continue
        values = {field: value for field, value in values.items() if field != "transformers_version"}
        values.setdefault("checkpoint_reentrant", True)  # the recipe asks for one of the two by name
        job = job_from_dict(values)
        tape = trace_training(job, config, [job.seq_len] * STEPS, Card(), python=pythons[release])
        found[name] = told(tape.events)
        print(name, len(found[name]), flush=True)
        path.write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))


if __name__ == "__main__":
    main()
