"""Texts of rendered files: YAML and shell. Whatever a value holds, it is read back as that value and nothing else."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from tunecast.launching.rendering import Command

PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
"""Text that YAML needs no quotes for, unless it is one of `SPECIAL`."""
SPECIAL = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null", "none"})
"""Words that YAML 1.1, or a trainer's own reader, takes for something else than text."""
VARIABLE = re.compile(r"\$\{[A-Z_]+:-[\w.]+\}")
"""A word of ours that the shell is to fill in: `${MASTER_ADDR:-localhost}`. Never made of a value that was given."""


def yaml_text(values: Mapping[str, object], heading: Sequence[str] = ()) -> str:
    """A mapping as block YAML in its own order, after comments."""
    return "\n".join([*(f"# {comment(line)}" for line in heading), *_lines(values, ""), ""])


def _lines(values: Mapping[str, object], indent: str) -> Iterator[str]:
    for name, value in values.items():
        key = f"{indent}{scalar(name)}:"
        if isinstance(value, Mapping) and value:
            yield key
            yield from _lines(value, indent + "  ")
        elif isinstance(value, (list, tuple)) and value:
            yield key
            for each in value:
                yield from _entry(each, indent + "  ")
        else:
            yield f"{key} {scalar(value)}"


def _entry(value: object, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        first, *rest = _lines(value, indent + "  ")
        yield f"{indent}- {first.lstrip()}"
        yield from rest
    else:
        yield f"{indent}- {scalar(value)}"


def scalar(value: object) -> str:
    """As PyYAML and OmegaConf read it back; text that could be anything else is quoted."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(scalar, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{scalar(name)}: {scalar(each)}' for name, each in value.items())}}}"
    text = str(value)
    return text if PLAIN.fullmatch(text) and text.lower() not in SPECIAL else f'"{"".join(map(_escaped, text))}"'


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _float(value: float) -> str:
    """YAML 1.1 takes 1e-05 for text: it wants a point."""
    if not math.isfinite(value):
        raise ValueError(f"{value} is no number that a setting has")
    text = repr(value)
    return text if "." in text or "e" not in text else text.replace("e", ".0e")


def comment(text: str) -> str:
    """On one line, whatever it holds."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


def shell_words(command: Command) -> str:
    """Each word quoted, but those of ours that the shell fills in."""
    return " ".join(map(shell_word, command))


def shell_word(word: str) -> str:
    return f'"{word}"' if VARIABLE.fullmatch(word) else shlex.quote(word)


def shell_script(
    command: Command,
    environment: Mapping[str, str],
    heading: Sequence[str],
    folder: str = "",
    before: Sequence[Command] = (),
) -> str:
    """Run from anywhere, it works in `folder`, which may be one beside it, or in its own; its process becomes the
    training's, so that signals reach it. `before`: what has to be done first."""
    lines = ["#!/usr/bin/env bash", *(f"# {comment(line)}" for line in heading), "set -euo pipefail"]
    if not os.path.isabs(folder):
        lines.append('cd "$(dirname "${BASH_SOURCE[0]}")"')
    if folder:
        lines.append(f"cd {shlex.quote(folder)}")
    lines += [f"export {name}={shell_word(value)}" for name, value in environment.items()]
    return "\n".join([*lines, *map(shell_words, before), f'exec {shell_words(command)} "$@"', ""])
