"""How a change to a job is said: as flags, as fields of its file, or in the words of the trainer whose file it is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tunecast.job.flags import job_flags
from tunecast.job.readers import is_job_file
from tunecast.records import NamedTuple
from tunecast.report.draw.figures import shown

_FIELD = re.compile(r"\b([a-z]+\.[a-z_0-9]+)((?:: (?=[\w-]))?)")
"""A field of a section, with the colon before its value."""


class Wording(NamedTuple):
    change: Callable[[Mapping[str, object]], str]
    by_flags: bool
    """What else is asked for is typed as flags."""

    @property
    def is_typed(self) -> bool:
        return self.change is as_flags

    def sentence(self, text: str) -> str:
        return with_flags(text) if self.by_flags else text


def in_yaml(overrides: Mapping[str, object]) -> str:
    return ", ".join(f"{shown(field)}: {value_in_yaml(value)}" for field, value in overrides.items())


def as_flags(overrides: Mapping[str, object]) -> str:
    """`--gradient-checkpointing --kernels liger`: what the command line takes for the same."""
    flags = {flag.field: flag for flag in job_flags()}
    words = []
    for field, value in overrides.items():
        if field not in flags:  # a whole section
            words.append(f"--set {field}=null")
            continue
        flag = flags[field].flag
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words.append(f"{flag} {shlex.quote(text)}")
    return " ".join(words)


FIELDS = Wording(in_yaml, by_flags=False)
FLAGS = Wording(as_flags, by_flags=True)


def wording_of(source: str | None) -> Wording:
    """For a job that was given so. `source`: the model or file that holds it alone; nothing: one of several."""
    if not source:
        return FIELDS
    if not is_job_file(source):
        return FLAGS
    from tunecast.errors import TunecastError
    from tunecast.job.recipes import find_recipe

    try:
        recipe = find_recipe(Path(source))
    except TunecastError:
        recipe = None
    if recipe is None:
        return FIELDS
    from tunecast.job.recipes.own_words import own_words

    return Wording(partial(_in_own_words, partial(own_words, Path(source), recipe)), by_flags=True)


def _in_own_words(
    words: Callable[[Mapping[str, object]], Mapping[str, object] | None], overrides: Mapping[str, object]
) -> str:
    """As flags where its file has no words for it."""
    said = words(overrides)
    return as_flags(overrides) if said is None else in_yaml(said)


def with_flags(sentence: str) -> str:
    """`hardware.interconnect: nvlink4` is `--interconnect nvlink4` to somebody who types."""
    flags = {flag.field: flag.flag for flag in job_flags()}
    return _FIELD.sub(lambda found: f"{flags[found[1]]}{found[2] and ' '}" if found[1] in flags else found[0], sentence)


def value_in_yaml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return shown(f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value))
