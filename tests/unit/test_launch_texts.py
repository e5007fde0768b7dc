"""Rendered texts: YAML that is read back as it was, words that a shell takes as they are, an order's time."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from tunecast.errors import UsageError
from tunecast.launching.engines import engine_of, slurm
from tunecast.launching.texts import comment, scalar, shell_script, shell_words, yaml_text

yaml = pytest.importorskip("yaml")


@pytest.mark.parametrize(
    "value",
    [
        "yes",
        "no",
        "null",
        "1e-05",
        "a: b",
        "# a",
        "- a",
        "",
        " ",
        "a\nb",
        "é",
        "\u2028",
        "'",
        '"',
        "\\",
        "~",
        "=",
        "0x1",
    ],
)
def test_text_stays_text(value: str) -> None:
    assert yaml.safe_load(f"{scalar(value)}\n") == value
    assert yaml.safe_load(yaml_text({value: [value, {"a": value}]})) == {value: [value, {"a": value}]}


@pytest.mark.parametrize(
    ("value", "told"), [(1e-05, "1.0e-05"), (2.0, "2.0"), (True, "true"), (None, "null"), (7, "7")]
)
def test_numbers_are_written_so_that_yaml_takes_them_for_numbers(value: object, told: str) -> None:
    assert scalar(value) == told and yaml.safe_load(told) == value
    assert type(yaml.safe_load(told)) is type(value)


def test_a_comment_stays_on_its_line() -> None:
    assert yaml_text({"a": 1}, [f"x{chr(10)}b: 2"]) == "# x b: 2\na: 1\n"
    assert comment("a\u2028b\x1b[1m") == "a b [1m"


@pytest.mark.parametrize("word", ["$(id)", "`id`", "a b", "a;b", "${HOME}", "${X:-$(id)}", "'", "*"])
def test_a_word_stays_a_word(word: str) -> None:
    assert shlex.split(shell_words(("x", word))) == ["x", word]
    text = shell_script(("printf", "%s", word), {"V": word}, [word])
    assert subprocess.run(["bash"], input=text, capture_output=True, text=True, check=True).stdout == word


def test_what_the_shell_fills_in_is_ours_alone() -> None:
    assert shell_words(("a", "${NODE_RANK:-0}")) == 'a "${NODE_RANK:-0}"'


def test_an_engine_on_a_machine_wants_its_name() -> None:
    with pytest.raises(UsageError, match="--on ssh:HOST"):
        engine_of("ssh")


@pytest.mark.parametrize("text", ["ssh:", "slurm:x", "ssh:-oProxyCommand=x", "nowhere", "ssh:a b", ""])
def test_engines_that_there_are_not(text: str) -> None:
    with pytest.raises(UsageError, match="--on"):
        engine_of(text)


@pytest.mark.parametrize(
    ("seconds", "told"), [(1, "0-00:01:00"), (3600, "0-01:00:00"), (3601, "0-01:01:00"), (90_061, "1-01:02:00")]
)
def test_slurms_time(seconds: float, told: str) -> None:
    assert slurm.slurm_time(seconds) == told
