"""The ranges in the package are what the committed results say, and they keep what is promised of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import ranges as benchmark  # noqa: E402

from tunecast.prediction.memory.ranges import KINDS, MEASURED_CARD  # noqa: E402

FOUND = benchmark.residuals()


def test_the_table_is_the_one_the_results_give() -> None:
    assert benchmark.TABLE.read_text() == benchmark.written(FOUND), "run benchmarks/ranges.py"


@pytest.mark.parametrize("kind", KINDS)
def test_four_of_five_runs_of_a_model_left_out_lie_in_their_range(kind: str) -> None:
    covered = benchmark.bands(FOUND)[MEASURED_CARD, kind].covered
    assert covered is not None and covered >= 0.8


@pytest.mark.parametrize("kind", KINDS)
def test_half_of_all_ranges_on_one_card_are_at_most_three_percent_to_either_side(kind: str) -> None:
    alone = [r for r in FOUND if not r.basis.several]
    assert benchmark.median_half_widths(alone, benchmark.bands(FOUND))[kind] <= 0.03


def test_ends_of_a_range_by_hand() -> None:
    nine = [-0.9, -0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.2]
    assert benchmark.ends(nine) == (0.9, 0.2), "(9 + 1) x 0.9 = 9th of nine: the outermost"
    nineteen = [-0.9, -0.1, *[0.0] * 14, 0.1, 0.2, 0.9]
    assert benchmark.ends(nineteen) == (0.1, 0.2), "(19 + 1) x 0.9 = 18th of nineteen: the last but one"
    four = [-0.3, 0.0, 0.1, 0.2]
    assert benchmark.ends(four) == (0.3, 0.3), "(4 + 1) x 0.8 = 4th of their sizes, to both sides"
    assert benchmark.ends(four[:3]) is None
    assert benchmark.ends([0.1] * 9) == (0.0, 0.1), "the prediction itself is never excluded"
