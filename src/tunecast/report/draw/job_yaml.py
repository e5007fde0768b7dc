"""A job as its file would have it, without what is default: for people who want to run it again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tunecast.errors import TunecastError
from tunecast.job.job import Job, nested
from tunecast.job.mapping import job_from_dict
from tunecast.report.draw.figures import shown

ALWAYS = ("model", "method")
"""Defaults of other fields depend on these."""
MOST_VALUES = 64
"""Of a list: a longer one is counted instead."""


def job_in_yaml(job: Job) -> str:
    """`job_from_dict` of it, read as YAML, is the same job, unless one of its lists was too long."""
    return "\n".join(_lines(_short(job)))


def settings_in_yaml(fields: Mapping[str, object]) -> str:
    """Values by dotted name, as they are written into a job's file."""
    return "\n".join(_lines(nested(fields)))


def _short(job: Job) -> Mapping[str, Any]:
    whole = job.to_dict()
    usual = job_from_dict({name: whole[name] for name in ALWAYS}).to_dict()
    made: dict[str, Any] = {name: whole[name] for name in ALWAYS}
    for name, value in whole.items():
        if value == usual[name] or name in ALWAYS:
            continue
        made[name] = _unlike(value, usual[name])
    try:
        return made if job_from_dict(made) == job else whole
    except TunecastError:
        return whole


def _unlike(value: object, usual: object) -> object:
    """Of a section, what is not as usual."""
    if not isinstance(value, dict) or not isinstance(usual, dict):
        return value
    return {leaf: _unlike(each, usual.get(leaf)) for leaf, each in value.items() if each != usual.get(leaf)}


def _lines(content: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for name, value in content.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list) and len(value) > MOST_VALUES:
            yield f"{indent}# {name}: {len(value):,} values, left out here"
        else:
            yield f"{indent}{name}: {_scalar(value)}"


def _scalar(value: object) -> str:
    """JSON is YAML; a name that cannot be taken for anything else needs no quotes."""
    if isinstance(value, list):
        return f"[{', '.join(map(_scalar, value))}]"
    text = json.dumps(value, ensure_ascii=False)
    bare = str(value)
    is_name = isinstance(value, str) and bare[:1].isalpha() and all(c.isalnum() or c in "-_./" for c in bare)
    special = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
    return shown(bare if is_name and bare.lower() not in special else text)
