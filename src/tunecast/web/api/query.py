"""The query of a GET as the object that its endpoint takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tunecast.web.api.endpoints import Endpoint

WORDS = {"true": True, "false": False}


def query_values(endpoint: Endpoint, pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Values by their kind; what is none of it stays text, and is refused with the rest (api/schema.py). A name that
    comes twice is a list, which only names may be."""
    given: dict[str, list[Any]] = {}
    known: Mapping[str, Any] = endpoint.takes.get("properties", {})
    for name, text in pairs:
        given.setdefault(name, []).append(_value(text, known.get(name, {}).get("type", "string")))
    return {name: values[0] if len(values) == 1 else values for name, values in given.items()}


def _value(text: str, kinds: str | list[str]) -> Any:
    if "boolean" in kinds and text in WORDS:
        return WORDS[text]
    if "integer" in kinds and len(text) <= 18 and text.lstrip("-").isdecimal() and text.isascii():
        return int(text)
    if "number" in kinds and len(text) <= 40:
        try:
            return float(text)
        except ValueError:
            return text
    return text
