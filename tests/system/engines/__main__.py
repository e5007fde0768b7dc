"""What is rendered for SkyPilot, dstack and lyceum, given to those packages' own readers.

    ./dev system engines                     render every case, and let each package read it
    ./dev system engines --out FILE          also write the result (the committed one: results/engines.json)
    ./dev system engines --only skypilot     one of them

Each package is in an environment of its own, and nothing is started: no account is needed, and no network.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from committed import commit

from engines.cases import CASES, OPTIONS, write_cases
from engines.catalogue import write_catalogue

ROOT, HERE = Path(__file__).parents[3], Path(__file__).parent
PACKAGES = {"skypilot": "skypilot", "dstack": "dstack", "lyceum": "lyceum-cli"}
LIST_VERSION = "v8"
"""sky/skylet/constants.py, CATALOG_SCHEMA_VERSION."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="./dev system engines", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=tuple(OPTIONS), help="one engine")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the dated result goes")
    arguments = parser.parse_args(argv)
    chosen = [arguments.only] if arguments.only else list(OPTIONS)
    with tempfile.TemporaryDirectory(prefix="engines-") as folder:
        rows = write_cases(chosen, Path(folder) / "cases")
        results = {engine: result_of(engine, rows[engine], Path(folder) / engine) for engine in chosen}
    failures = [
        f"{engine}, {row['case']}: {each}"
        for engine in results
        for row in results[engine]["cases"]
        for each in row["wrong"]
    ]
    for engine, result in results.items():
        rows = result["cases"]
        good = sum(not row["wrong"] for row in rows)
        print(f"{engine} {result['release']}: {good} of {len(rows)} accepted, {len(result['refused'])} not rendered")
    print("\n".join(failures))
    if arguments.out:
        result = {
            "date": date.today().isoformat(), "commit": commit(), "inputs": [case.name for case in CASES],
            "engines": results, "failures": failures,
        }  # fmt: skip
        arguments.out.write_text(f"{json.dumps(result, indent=1)}\n", encoding="utf-8")
    return 1 if failures else 0


def result_of(engine: str, rows: list[dict[str, Any]], place: Path) -> dict[str, Any]:
    home = place / "home"
    home.mkdir(parents=True)
    listed = write_catalogue(home / ".sky" / "catalogs" / LIST_VERSION) if engine == "skypilot" else {}
    cases = place / "cases.json"
    rendered = [row for row in rows if "refused" not in row]
    cases.write_text(json.dumps({"clouds": list(listed), "cases": rendered}), encoding="utf-8")
    python = Path(os.environ.get("TUNECAST_VENVS", ROOT / ".venvs")) / engine / "bin" / "python"
    environment = {
        **os.environ, "HOME": str(home), "SKY_RUNTIME_DIR": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        "PYTHONPATH": "",
    }  # fmt: skip
    done = subprocess.run(
        [str(python), str(HERE / f"with_{engine}.py"), str(cases)], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{engine}: {done.stderr[-3000:]}")
    release = f"from importlib.metadata import version; print(version({PACKAGES[engine]!r}))"
    return {
        "release": subprocess.run([str(python), "-c", release], capture_output=True, text=True).stdout.strip(),
        "lists": listed,
        "refused": [{name: row[name] for name in ("case", "refused")} for row in rows if "refused" in row],
        "cases": json.loads(done.stdout.splitlines()[-1]),
    }


if __name__ == "__main__":
    sys.exit(main())
