"""The closed form against its referee on the newest releases that are followed, and the dated result.

    ./dev system newest                     trace every case with the packages of tests/environments/newest.txt
    ./dev system newest --out FILE          also write the result (the committed one: results/newest.json)

The same tests run with every change on a torch that comes without CUDA's libraries; this one takes 6 GB of disk.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

import pytest
from long import ROOT, Outcomes, commit

REFEREES = ("test_build.py", "test_loading.py")
PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "accelerate", "liger-kernel")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev system newest", description=__doc__)
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the dated result goes")
    arguments = parser.parse_args(argv)
    outcomes = Outcomes()
    code = pytest.main(["-q", *(str(ROOT / "tests" / "trace" / name) for name in REFEREES)], plugins=[outcomes])
    if arguments.out:
        releases = {package: version(package) for package in PACKAGES}
        result = {
            "date": date.today().isoformat(), "commit": commit(), "releases": releases,
            "inputs": dict(sorted(outcomes.tests.items())), "failures": outcomes.failures,
        }  # fmt: skip
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    return int(code)


if __name__ == "__main__":
    raise SystemExit(main())
