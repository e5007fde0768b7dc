"""The part of JSON Schema that the API's declarations use, and what of a value breaks one.

The same declaration is checked here and published in /api/openapi.json, so the two cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tunecast.job.knob import shown

Schema = Mapping[str, Any]
"""`type`, `properties`, `required`, `additionalProperties`, `items`, `enum`, `minimum`, `maximum`, `minLength`,
`maxLength`, `maxItems`; what else stands there (`description`, `format`) is for people."""
KINDS: Mapping[str, tuple[type, ...]] = {
    **{"object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,), "integer": (int,)},
    **{"number": (int, float), "null": (type(None),)},
}


def problems(schema: Schema, value: object, where: str = "") -> Iterator[tuple[str, str]]:
    """The place and what is wrong there; nothing where the value is as declared."""
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    if kinds and not any(_is(kind, value) for kind in kinds):
        yield where, f"got {shown(value)}; allowed: {' or '.join(kinds)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield where, f"got {shown(value)}; allowed: {', '.join(map(str, schema['enum']))}"
    if isinstance(value, dict):
        yield from _object_problems(schema, value, where)
    elif isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            yield where, f"got {len(value)} items; allowed: at most {schema['maxItems']}"
            return
        for number, each in enumerate(value):
            yield from problems(schema.get("items", {}), each, f"{where}[{number}]")
    elif isinstance(value, str):
        least, most = schema.get("minLength", 0), schema.get("maxLength", len(value))
        if not least <= len(value) <= most:
            yield where, f"got {len(value)} characters; allowed: {least} to {most}"
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        within = schema.get("minimum", value) <= value <= schema.get("maximum", value)
        if not within:
            yield where, f"got {shown(value)}; allowed: {schema.get('minimum', '')} to {schema.get('maximum', '')}"


def _object_problems(schema: Schema, value: Mapping[str, object], where: str) -> Iterator[tuple[str, str]]:
    inner = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield _below(where, name), "missing"
    for name, each in value.items():
        if name in inner:
            yield from problems(inner[name], each, _below(where, name))
        elif schema.get("additionalProperties") is False:
            yield _below(where, name[:64]), f"unknown; allowed: {', '.join(inner)}"


def _is(kind: str, value: object) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, KINDS[kind])


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def text(longest: int, description: str = "", **more: Any) -> dict[str, Any]:
    return {"type": "string", "maxLength": longest, **({"description": description} if description else {}), **more}


def body(properties: Mapping[str, Schema], *required: str) -> dict[str, Any]:
    """An object with these and no others."""
    return {"type": "object", "properties": dict(properties), "required": list(required), "additionalProperties": False}
