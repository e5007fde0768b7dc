"""`${name}` in a file: names are followed, nothing is computed, and nothing grows without end."""

from __future__ import annotations

import pytest

from tunecast.job.recipes.document import yaml_document
from tunecast.job.recipes.references import LONGEST, resolved


def value(text: str, name: str) -> object:
    return resolved(yaml_document(text, "x.yaml")).get(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: ${b}\nb: 4", 4),
        ("a: ${b.c}\nb: {c: true}", True),
        ("a: ${b}/logs\nb: /tmp", "/tmp/logs"),
        ("a: ${b}-${c}\nb: 1\nc: 2", "1-2"),
        ("a: ${b}\nb: ${c}\nc: 7", 7),
        ("a: [1, x]", [1, "x"]),
    ],
)
def test_names_are_followed_and_a_name_alone_keeps_its_type(text: str, expected: object) -> None:
    assert value(text, "a") == expected


@pytest.mark.parametrize(
    "text",
    ["a: ${gone}", "a: ${a}", "a: ${b}\nb: {c: 1}", "a: ${b}\nb: null", "a: ${oc.env:HOME}", "a: \"${eval:'1 + 1'}\""],
)
def test_what_names_nothing_or_calls_something_stays_text(text: str) -> None:
    assert str(value(text, "a")).startswith("${")


def test_two_names_of_each_other_come_to_an_end() -> None:
    assert value("a: ${b}\nb: ${a}", "a") in ("${a}", "${b}")


def test_names_that_double_stop_at_a_length() -> None:
    text = "a0: xxxxxxxxxxxxxxxx\n" + "\n".join(f"a{n + 1}: ${{a{n}}}${{a{n}}}" for n in range(30))
    assert all(len(str(value(text, f"a{n}"))) <= 2 * LONGEST for n in range(31))


def test_values_of_the_command_line_may_name_others() -> None:
    document = yaml_document("a: 1\nb: 5", "x.yaml").with_values({"a": "${b}"})
    assert resolved(document).get("a") == 5
