"""The models tunecast knows without a network: models.toml tells of them, models/<name>.json is each one's config.json.

A name is answered from the folder alone: the index takes ten times as long to read as everything else a prediction
needs of a model, and only searches and Hub ids need it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from tunecast.job.spellings import Spelling, SpellingRules
from tunecast.tables import Tables, text_beside

_MODELS = os.path.join(os.path.dirname(__file__), "models")


@cache
def bundled_names() -> frozenset[str]:
    return frozenset(name.removesuffix(".json") for name in os.listdir(_MODELS))


@cache
def bundled_models() -> Mapping[str, Mapping[str, Any]]:
    """The index, in its own order: by family, line and size. Its head says what the keys mean."""
    return Tables(text_beside(__file__, "models.toml"))


def bundled_config(name: str) -> dict[str, Any]:
    """The config.json of one of `bundled_names`; a fresh copy each time."""
    content: dict[str, Any] = json.loads(text_beside(__file__, "models", f"{name}.json"))
    return content


def bundled_name(given: str) -> str | None:
    """The bundled model that goes by this name, Hub id, or last part of a Hub id (`llama-3.1-8b-instruct`)."""
    found = bundled_spelling(given)
    return found.name if found else None


def bundled_spelling(given: str) -> Spelling | None:
    """The same, with the rule by which a name that is not listed is understood."""
    key = given.lower()
    listed = key if key in bundled_names() else _spellings().get(key)
    return Spelling(listed, "") if listed else None if given.count("/") > 1 else _rules().match(given)


def hub_ids(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """The repository an entry's config.json is of, then those of the same shape."""
    return entry["hub"], *entry.get("aliases", ())


@cache
def _rules() -> SpellingRules:
    return SpellingRules((hub_id, name) for name, entry in bundled_models().items() for hub_id in hub_ids(entry))


@cache
def _spellings() -> Mapping[str, str]:
    return {spelling: name for name, entry in bundled_models().items() for spelling in _spelled(entry)}


def _spelled(entry: Mapping[str, Any]) -> Iterator[str]:
    for hub_id in hub_ids(entry):
        yield hub_id.lower()
        yield hub_id.lower().rpartition("/")[2]
