"""The decision tables keep to their own conditions, and the page says what the results say."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import decisions  # noqa: E402
from decisions_guides import GUIDES, RECOMMENDED, recommended  # noqa: E402
from decisions_page import TABLES, guide_told, page  # noqa: E402

from tunecast.hardware.catalog import gpus  # noqa: E402

FOUND: dict[str, Any] = json.loads(decisions.RESULTS.read_text("utf-8"))
ROWS = [(name, row) for name, rows in FOUND["tables"].items() for row in rows]


def named(entry: tuple[str, dict[str, Any]]) -> str:
    return f"{entry[0]}-{entry[1]['size']}-{entry[1]['method']}"


def test_every_table_has_every_size_and_method() -> None:
    assert list(FOUND["tables"]) == list(TABLES) == list(decisions.TABLES)
    for rows in FOUND["tables"].values():
        assert [(row["size"], row["method"]) for row in rows] == [
            (size, method) for size in decisions.SIZES for method in decisions.METHODS
        ]


def test_the_page_is_what_the_results_say() -> None:
    assert decisions.PAGE.read_text("utf-8") == page(FOUND), "run benchmarks/decisions.py"


@pytest.mark.parametrize("entry", ROWS, ids=named)
def test_picks_keep_to_the_conditions(entry: tuple[str, dict[str, Any]]) -> None:
    name, row = entry
    picks = [one for one in (row.get("picks") or {}).values() if one]
    assert picks or row["refused"]
    assert all(one["surely"] for one in picks)
    if name != "anything":
        assert not [one["offer"] for one in picks if "spot" in one["offer"] or "vast.ai" in one["offer"]]
    if name == "contract":
        assert not [one["hardware"] for one in picks if "rtx" in one["hardware"] or " mi" in one["hardware"]]


@pytest.mark.parametrize("entry", ROWS, ids=named)
def test_no_pick_is_beaten_by_another(entry: tuple[str, dict[str, Any]]) -> None:
    picks = entry[1].get("picks") or {}
    if not picks.get("cheapest"):
        return
    cheapest, balanced, fastest = (picks[name] for name in decisions.PICKS)
    assert cheapest["total_usd"] <= balanced["total_usd"] <= fastest["total_usd"]
    assert cheapest["total_s"] >= balanced["total_s"] >= fastest["total_s"]
    measured = picks["cheapest measured"]
    assert (measured is None) or (measured["validated"] and not cheapest["validated"])


@pytest.mark.parametrize("entry", ROWS, ids=named)
def test_guides_stand_beside_their_row(entry: tuple[str, dict[str, Any]]) -> None:
    _, row = entry
    assert [each["hardware"] for each in row["guides"]] == [
        each.hardware for each in recommended(row["size"], row["method"])
    ]
    best = (row.get("picks") or {}).get("cheapest")
    for each in row["guides"]:
        assert guide_told(each)
        if "choice" in each and best:
            assert each["dearer"] == pytest.approx(each["choice"]["total_usd"] / best["total_usd"] - 1)
            assert each["dearer"] > -0.05, "a pick is the cheapest there is, but for what is called alike"


def test_recommendations_name_cards_and_guides() -> None:
    assert {each.guide for each in RECOMMENDED} == set(GUIDES)
    assert {each.gpu for each in RECOMMENDED} <= set(gpus())
    assert {each.size for each in RECOMMENDED} <= set(decisions.SIZES)
