"""The table of evidence in the package is what the committed results say."""

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import evidence as benchmark  # noqa: E402
import report_summary  # noqa: E402
from figures import load  # noqa: E402

from tunecast.hardware import known_gpu  # noqa: E402
from tunecast.prediction.evidence import FEWEST, MEMORY, SIXTEEN_BITS, TIME, spread, table  # noqa: E402

FOUND = benchmark.measured()


def test_the_table_is_the_one_the_results_give() -> None:
    assert benchmark.TABLE.read_text() == benchmark.written(FOUND), "run benchmarks/evidence.py"


def test_every_answered_run_of_what_is_predicted_is_in_it_once() -> None:
    def answered(name: str) -> list[dict[str, object]]:
        rows = load(f"{name}.json")["rows"]
        return [row for row in rows if "tunecast" in row["error"] and not benchmark.is_of_something_else(row)]

    elsewhere = sum(len(answered(name)) for name in ("time_public", "time_vendor"))
    counts = {kind: spread([runs for runs in table() if runs.kind == kind]).runs for kind in (TIME, MEMORY)}
    assert counts[TIME] == elsewhere + len(load("time_h200.json")["rows"])
    assert counts[TIME] > 800 and counts[MEMORY] > 350


def test_cards_are_those_of_the_catalogue() -> None:
    for runs in table():
        assert known_gpu(runs.card).name == runs.card


def test_medians_of_cards_and_families_in_16_bits() -> None:
    """What `prediction/evidence.py` says of them."""
    pairs: dict[tuple[str, str], list[object]] = {}
    for runs in table():
        if runs.kind == TIME and runs.precision == SIXTEEN_BITS:
            pairs.setdefault((runs.card, runs.family), []).append(runs)
    medians = [found.median for group in pairs.values() if (found := spread(group)).runs >= FEWEST]  # type: ignore[arg-type]
    assert len(medians) == 13
    assert all(median is not None and 0.015 <= median < 0.075 for median in medians)


def test_the_summary_of_the_accuracy_pages_counts_every_run_once() -> None:
    cards = [card for group in report_summary.CARDS.values() for card in group]
    assert sorted(cards) == sorted({runs.card for runs in table()})
    assert set(report_summary.STACKS) == {runs.family for runs in table()}
    everything = [f"| **all** | {spread([runs for runs in table() if runs.kind == MEMORY]).runs} |"]
    assert any(line.startswith(everything[0]) for line in report_summary.by_stack())
