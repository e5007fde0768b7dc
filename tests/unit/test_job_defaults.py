from __future__ import annotations

from pathlib import Path

from tunecast.job.defaults import ORDER, defaults_markdown, group_of
from tunecast.job.job import VERSIONS, all_knobs

PAGE = Path(__file__).parents[2] / "docs" / "defaults.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text("utf-8") == defaults_markdown(), "run: python -m tunecast.job.defaults > docs/defaults.md"


def test_every_field_says_whose_default_it_has():
    for name, knob in all_knobs().items():
        assert knob.origin.package in {*VERSIONS, "tunecast"}, name
        assert knob.help, name


def test_every_field_stands_in_one_table():
    page = defaults_markdown()
    for name in all_knobs():
        assert group_of(name) in ORDER, name
        assert page.count(f"| `{name}`<br>") == 1, name
