"""The fields of a job as JSON Schema, from their own declarations (job/knob.py)."""

from __future__ import annotations

from functools import cache
from math import isfinite
from typing import Any

from tunecast.job.job import all_knobs
from tunecast.job.knob import LONGEST_LIST, LONGEST_TEXT, REQUIRED, Knob

TYPES = {
    **{"bool": ["boolean", "string", "integer"], "int": ["integer", "string"], "int or choice": ["integer", "string"]},
    **{"float": ["number", "string"], "text": ["string"], "choice": ["string"], "names": ["array", "string"]},
    **{"ints": ["array", "string"], "ints or text": ["array", "string"], "id": ["string", "integer"]},
    **{"bytes": ["integer", "string"], "release": ["string"]},
}
"""Of each kind of field. Numbers may be written as flags have them: 4k, 2GiB."""


@cache
def job_schema() -> dict[str, Any]:
    whole: dict[str, Any] = _section()
    for dotted, knob in all_knobs().items():
        *outer, leaf = dotted.split(".")
        place = whole
        for name in outer:
            place = place["properties"].setdefault(name, _section(["object", "null"]))
        place["properties"][leaf] = field_schema(knob)
    whole["required"] = ["model"]
    return whole


def field_schema(knob: Knob) -> dict[str, Any]:
    told: dict[str, Any] = {"type": list(TYPES[knob.kind]), "description": knob.help}
    if knob.nullable or knob.null_is is not None:
        told["type"].append("null")
    if knob.default is not REQUIRED:
        told["default"] = list(knob.default) if isinstance(knob.default, tuple) else knob.default
    if knob.kind in ("int", "float", "bytes", "int or choice"):
        told |= {name: bound for name, bound in (("minimum", knob.low), ("maximum", knob.high)) if isfinite(bound)}
    if "array" in told["type"]:
        told |= {"items": {"type": "string"} if knob.kind == "names" else {"type": ["integer", "string"]}}
        told["maxItems"] = LONGEST_LIST
    if knob.choices:
        told["examples"] = list(knob.choices)
    if knob.kind in ("text", "id"):
        told["maxLength"] = LONGEST_TEXT
    return told


def _section(kind: str | list[str] = "object") -> dict[str, Any]:
    return {"type": kind, "properties": {}, "additionalProperties": False}
