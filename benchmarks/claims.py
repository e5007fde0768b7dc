"""What guides claim about fine-tuning, computed: a verdict for each claim of data/claims.csv.

python benchmarks/claims.py                 writes benchmarks/results/claims.json and docs/claims.md
python benchmarks/claims.py qlora-70b-48gb  computes one claim (or several) and prints its cases and its commands
python benchmarks/claims.py --write NAME..  the same, and puts it among the results and on the page
python benchmarks/claims.py --page          writes the page of the results there are
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import claims_bills  # noqa: E402
import claims_memory  # noqa: E402
import claims_money  # noqa: E402
import claims_sheets  # noqa: E402
import claims_tables  # noqa: E402
import claims_time  # noqa: E402
from claims_jobs import command  # noqa: E402
from claims_page import page  # noqa: E402
from claims_rule import (  # noqa: E402
    Case,
    Claim,
    NotComputed,
    is_narrow,
    is_unvalidated,
    read_claims,
    rests_on_unvalidated,
    side,
    verdict,
)

RESULTS, PAGE = HERE / "results" / "claims.json", HERE.parent / "docs" / "claims.md"
Row = dict[str, Any]
ROOMS = (claims_memory, claims_tables, claims_sheets, claims_time, claims_money, claims_bills)
CASES: Mapping[str, Callable[[], Iterator[Case]]] = {name: make for room in ROOMS for name, make in room.CASES.items()}
NOT_MODELLED: Mapping[str, str] = {
    "token-dropping": "no stack tunecast follows drops tokens, and how many are dropped is the user's choice",
    "inference-tokens": "tunecast predicts training, not generation",
    "quality-lora": "tunecast predicts what a run takes, not what it teaches; the figures have no source to check",
    "tokens-plateau": "how a model improves with data is not in its memory, time or cost",
    "calls-break-even": "it turns on what a call to somebody else's model costs, which is no part of a training run",
    "evaluation-phase": "the guide gives it no number that could be checked; `tunecast predict` times evaluation with "
    "data.eval_samples and run.eval_strategy",
    "model-recommendations": "the list itself was not at hand; recommendations by size are in decisions.md, with what "
    "each costs more than the pick",
}


def judged(claim: Claim) -> Row:
    """A claim's cases, where each lies, and what follows."""
    why, cases = NOT_MODELLED.get(claim.id), []
    if why is None:
        try:
            cases = list(CASES[claim.id]())
        except NotComputed as error:
            why = str(error)
    rows = [
        {
            **case._asdict(),
            "value": _rounded(case.value),
            "side": side(claim, case),
            "unvalidated": is_unvalidated(claim, case),
        }
        for case in cases
    ]
    return {
        "id": claim.id,
        "verdict": verdict(claim, cases),
        "narrow": is_narrow(claim, cases),
        "unvalidated": rests_on_unvalidated(claim, cases),
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
    claims = {claim.id: claim for claim in read_claims()}
    if sys.argv[1:] == ["--page"]:
        PAGE.write_text(page({row["id"]: row for row in json.loads(RESULTS.read_text("utf-8"))}), encoding="utf-8")
        return
    write = "--write" in sys.argv[1:]
    wanted = [name for name in sys.argv[1:] if name != "--write"]
    if unknown := set(wanted) - set(claims):
        sys.exit(f"no such claim: {', '.join(sorted(unknown))}; data/claims.csv has their names")
    known = {row["id"]: row for row in json.loads(RESULTS.read_text("utf-8"))} if wanted else {}
    for name in wanted or claims:
        known[name] = judged(claims[name])
        if wanted:
            print(shown(known[name]), flush=True)
    if write or not wanted:
        results = {name: known[name] for name in claims if name in known}
        RESULTS.write_text(json.dumps(list(results.values()), indent=1) + "\n", encoding="utf-8")
        if len(results) == len(claims):
            PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
