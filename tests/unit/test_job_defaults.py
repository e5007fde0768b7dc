from __future__ import annotations

from pathlib import Path

from tunecast.job.defaults import defaults_markdown
from tunecast.job.job import VERSIONS, all_knobs

PAGE = Path(__file__).parents[2] / "docs" / "defaults.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text("utf-8") == defaults_markdown(), "run: python -m tunecast.job.defaults > docs/defaults.md"


def test_every_field_says_whose_default_it_has():
    for name, knob in all_knobs().items():
        assert knob.origin.package in {*VERSIONS, "tunecast"}, name
        assert knob.help, name
