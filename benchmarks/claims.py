"""What guides claim about fine-tuning, computed: a verdict for each claim of data/claims.csv.

python benchmarks/claims.py                 writes benchmarks/results/claims.json and docs/claims.md
python benchmarks/claims.py qlora-70b-48gb  computes one claim (or several) and prints its cases and its commands
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import claims_memory  # noqa: E402
import claims_money  # noqa: E402
import claims_time  # noqa: E402
from claims_jobs import command  # noqa: E402
from claims_page import page  # noqa: E402
from claims_rule import Case, Claim, NotComputed, is_narrow, read_claims, side, verdict  # noqa: E402

RESULTS, PAGE = HERE / "results" / "claims.json", HERE.parent / "docs" / "claims.md"
Row = dict[str, Any]
CASES: Mapping[str, Callable[[], Iterator[Case]]] = {**claims_memory.CASES, **claims_time.CASES, **claims_money.CASES}
NOT_MODELLED: Mapping[str, str] = {
    "token-dropping": "no stack tunecast follows drops tokens, and how many are dropped is the user's choice",
}


def judged(claim: Claim) -> Row:
    """A claim's cases, where each lies, and what follows."""
    why, cases = NOT_MODELLED.get(claim.id), []
    if why is None:
        try:
            cases = list(CASES[claim.id]())
        except NotComputed as error:
            why = str(error)
    rows = [{**case._asdict(), "value": _rounded(case.value), "side": side(claim, case)} for case in cases]
    return {
        "id": claim.id,
        "verdict": verdict(claim, cases),
        "narrow": is_narrow(claim, cases),
        "why": why,
        "cases": [{**row, "jobs": list(row["jobs"])} for row in rows],
    }


def _rounded(value: float | bool | None) -> float | bool | None:
    """Six digits: a file that does not change with the last bit of a float."""
    return value if value is None or isinstance(value, bool) else float(f"{value:.6g}")


def shown(found: Row) -> str:
    lines = [f"{found['id']}: {found['verdict']}" + (f": {found['why']}" if found["why"] else "")]
    for case in found["cases"]:
        lines += [f"  {case['label']}: {case['value']} ({case['side']})", f"    {case['told']}"]
        lines += [f"    {command(row)}" for row in case["jobs"]]
    return "\n".join(lines)


def main() -> None:
    claims = read_claims()
    wanted = set(sys.argv[1:])
    if unknown := wanted - {claim.id for claim in claims}:
        sys.exit(f"no such claim: {', '.join(sorted(unknown))}; data/claims.csv has their names")
    if wanted:
        for claim in claims:
            if claim.id in wanted:
                print(shown(judged(claim)))
        return
    results = {claim.id: judged(claim) for claim in claims}
    RESULTS.write_text(json.dumps(list(results.values()), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
