"""`./dev system api`: schemathesis asks a running `tunecast serve` what its OpenAPI document allows and what it does
not, and broken uploads are thrown at it. No answer may be a 5xx, and each is as declared.

    ./dev system api --out tests/system/results/api.json        the dated result
    ./dev system api --examples 5 --uploads 50                  fewer
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from committed import commit

ROOT = Path(__file__).parents[2]
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "negative_data_rejection", "unsupported_method",
)  # fmt: skip
"""Not `positive_data_acceptance`: a job whose every field is right may contradict itself, and is refused."""
REFUSALS = (400, 401, 403, 404, 405, 413, 415, 422, 429, 431)
"""Of what is not as declared: schemathesis itself does not know the two for what is too large."""
LONGEST_S = 600
ENDLESS = "/api/runs/live"
"""Answers until its client goes: no schema says when that is (tests/unit/test_serve_runs.py asks it)."""
BESIDE: dict[str, dict[str, Any]] = {"patch": {"job": {"model": "llama-3.1-8b", "method": "qlora"}}}
"""What an upload is sent with."""


@contextmanager
def serving() -> Iterator[str]:
    words = [sys.executable, "-m", "tunecast", "serve", "--no-browser", "--port", "0"]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def ask_by_schema(url: str, examples: int, seed: int, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """What was asked, and what was wrong with the answers."""
    report = folder / "junit.xml"
    statuses = ", ".join(f'"{status}"' for status in REFUSALS)
    (folder / "schemathesis.toml").write_text(f"[checks.negative_data_rejection]\nexpected-statuses = [{statuses}]\n")
    words = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}api/openapi.json", "--url", url.rstrip("/")),
        *("--checks", ",".join(CHECKS), "--max-examples", str(examples), "--seed", str(seed), "--mode", "all"),
        *("--phases", "examples,fuzzing", "--request-timeout", str(LONGEST_S), "--workers", "1"),
        *("--suppress-health-check", "all", "--continue-on-failure", "--generation-database", "none"),
        *("--report", "junit", "--report-junit-path", str(report), "--rate-limit", "60/s"),
        *("--exclude-path", ENDLESS),
    ]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if not report.exists():
        return {}, [f"schemathesis did not run: {(done.stdout + done.stderr)[-2000:]}"]
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failures = [
        f"{case.get('name')}: {(problem.get('message') or problem.text or '')[:1500]}"
        for case in cases
        for kind in ("failure", "error")
        for problem in case.iter(kind)
    ]
    print(done.stdout[-3000:], file=sys.stderr)
    return {"operations": len({case.get("name") for case in cases}), "cases": cases_in(done.stdout)}, failures


def cases_in(text: str) -> int:
    """`Test cases: 1234 generated, …` of its summary."""
    import re

    found = re.search(r"([\d,]+) generated", text)
    return int(found[1].replace(",", "")) if found else 0


def seeds() -> list[tuple[str, str, str]]:
    """Real files that are broken: address, name and text."""
    found = []
    for path in sorted((ROOT / "examples").rglob("*")):
        if path.suffix in (".yaml", ".yml", ".json", ".sh", ".toml"):
            text = path.read_text("utf-8", "replace")[:20_000]
            found += [("read", path.name, text), ("patch", path.name, text)]
    rows = '{"messages": [{"role": "user", "content": "hello"}]}\n{"text": "some words"}\n'
    return [*found, ("data", "d.jsonl", rows), ("data", "d.csv", "text,label\nhello,1\n"), ("data", "d.txt", "hello\n")]


def broken(text: str, draw: random.Random) -> str:
    """Cut, doubled, shuffled, with bytes that no text has, deeper, longer."""
    letters = list(text)
    for _ in range(draw.randint(1, 8)):
        at = draw.randrange(len(letters) + 1)
        end = min(len(letters), at + draw.randint(1, 200))
        how = draw.randrange(7)
        if how == 0:
            del letters[at:end]
        elif how == 1:
            letters[at:at] = letters[at:end] * draw.randint(1, 30)
        elif how == 2:
            letters[at:end] = draw.sample(letters[at:end], end - at)
        elif how == 3:
            letters[at:at] = draw.choices("\0\x1b\u202e\ufeff\U0010ffff{}[]&*!|>'\"%@`:-,\t\n", k=draw.randint(1, 40))
        elif how == 4:
            letters[at:at] = draw.choice("[{(-") * draw.randint(1, 3000)
        elif how == 5:
            letters[at:at] = str(
                draw.choice([10**400, -1, 1e308, "nan", ".inf", "1_0:0", "0x" + "f" * 99, "~", "&a *a"])
            )
        else:
            letters[at:at] = draw.choice(
                ["/etc/passwd", "../" * 20 + "etc/shadow", "${oc.env:HOME}", "!!python/name:os.x"]
            )
    return "".join(letters)


def ask_uploads(url: str, count: int, seed: int) -> tuple[Counter[int], list[str]]:
    draw, statuses, failures, known = random.Random(seed), Counter[int](), [], seeds()
    for _ in range(count):
        address, name, text = draw.choice(known)
        text = broken(text, draw)
        asked = urllib.request.Request(
            f"{url}api/{address}",
            json.dumps({"name": name, "text": text, **BESIDE.get(address, {})}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(asked, timeout=LONGEST_S) as answer:
                status, told = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, told = error.code, error.read()
        statuses[status] += 1
        if status >= 500 or b"root:" in told:
            failures.append(f"{address} {name}: {status}: {told[:300]!r} of {text[:2000]!r}")
    return statuses, failures


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev system api")
    parser.add_argument("--examples", type=int, default=60, help="of each operation, in each phase")
    parser.add_argument("--uploads", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--out")
    given = parser.parse_args()
    with serving() as url, tempfile.TemporaryDirectory() as folder:
        statuses, failures = ask_uploads(url, given.uploads, given.seed)
        print(f"uploads: {dict(statuses)}, {len(failures)} failures", file=sys.stderr, flush=True)
        asked, wrong = ask_by_schema(url, given.examples, given.seed, Path(folder))
    inputs = {
        **asked,
        **{"checks": list(CHECKS), "examples": given.examples, "uploads": given.uploads, "seed": given.seed},
        "upload_statuses": {str(status): count for status, count in sorted(statuses.items())},
    }
    result = {"date": date.today().isoformat(), "commit": commit(), "inputs": inputs, "failures": [*failures, *wrong]}
    if given.out:
        Path(given.out).write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(json.dumps(result, indent=1))
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
