"""How many of the models that public training configurations name resolve without a network, and why the others do not.

named_models.csv counts the files that name each; wanted_models.toml says what is missing of the rest.
"""

from __future__ import annotations

import csv
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tunecast.job.model import resolve_model
from tunecast.job.registry import bundled_models, bundled_name, hub_ids

HERE = Path(__file__).parent
LEAST_OF_ALL = 0.91
LEAST_OF_STATED = 0.93
"""Of those whose shape a public source states, other things than language models counted too."""
LEAST_OF_LANGUAGE_MODELS = 0.96
"""Of those of them that transformers builds as language models, or that come with code of their own."""


@cache
def named() -> dict[str, int]:
    """Files by Hub id."""
    lines = (HERE / "named_models.csv").read_text("utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {row["hub_id"]: int(row["files"]) for row in rows}


@cache
def wanted() -> dict[str, frozenset[str]]:
    """Hub ids by what is missing of them."""
    tables = tomllib.loads((HERE / "wanted_models.toml").read_text("utf-8"))
    assert all(table["why"] for table in tables.values())
    return {reason: frozenset(table["ids"]) for reason, table in tables.items()}


def weight(ids: frozenset[str]) -> int:
    return sum(named().get(hub_id, 0) for hub_id in ids)


def test_most_that_files_name_resolve_offline() -> None:
    total = sum(named().values())
    resolved = sum(files for hub_id, files in named().items() if bundled_name(hub_id))
    stated = total - weight(wanted()["not_found"] | wanted()["fine_tunes"] | wanted()["uncited"])
    language = stated - weight(wanted()["no_language_model"])
    print(f"{resolved} of {total} pairs of a file and a model resolve offline: {resolved / total:.1%};")
    print(f"of those whose shape is stated {resolved / stated:.1%}, of language models {resolved / language:.1%}")
    assert (total, len(named())) == (1428, 460)
    assert resolved / total >= LEAST_OF_ALL
    assert resolved / stated >= LEAST_OF_STATED
    assert resolved / language >= LEAST_OF_LANGUAGE_MODELS


def test_what_does_not_resolve_is_wanted_and_nothing_else() -> None:
    missing = {hub_id for hub_id in named() if bundled_name(hub_id) is None}
    listed = [hub_id for ids in wanted().values() for hub_id in ids]
    assert len(listed) == len(set(listed))
    assert missing == set(listed)


@pytest.mark.parametrize("hub_id", named())
def test_the_shape_is_of_a_model_that_is_read(hub_id: str) -> None:
    name = bundled_name(hub_id)
    if name is not None:
        model = resolve_model(hub_id, offline=True)
        assert model.source == f"bundled ({name})"
        assert "stands in for it" in model.notes[0]


def test_a_name_that_is_listed_is_told_of_no_rule() -> None:
    for entry in bundled_models().values():
        assert resolve_model(hub_ids(entry)[0], offline=True).notes[0].endswith("stands in for it")
