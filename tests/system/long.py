"""The tests that take too long for every change, and their dated result.

    ./dev system long                       run every test marked `long`
    ./dev system long --out FILE            also write the result (the committed one: results/long.json)

A test is marked `long` where others of its kind run with every change and many more of them add minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import pytest
from committed import commit

ROOT = Path(__file__).parents[2]


class Outcomes:
    """Of each test that ran: its function, and whether it failed."""

    def __init__(self) -> None:
        self.tests: Counter[str] = Counter()
        self.failures: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.tests[report.nodeid.partition("[")[0]] += 1
        if report.failed:
            self.failures.append(report.nodeid)


def files_with_long_tests() -> list[str]:
    """Collecting all other files would take longer than some of the tests."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path) for path in files if "pytest.mark.long" in path.read_text(encoding="utf-8")]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev system long", description=__doc__)
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the dated result goes")
    arguments = parser.parse_args(argv)
    outcomes = Outcomes()
    code = pytest.main(["-q", "-m", "long", *files_with_long_tests()], plugins=[outcomes])
    if arguments.out:
        result = {
            "date": date.today().isoformat(), "commit": commit(), "inputs": dict(sorted(outcomes.tests.items())),
            "failures": outcomes.failures,
        }  # fmt: skip
        arguments.out.write_text(f"{json.dumps(result, indent=1)}\n", encoding="utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
