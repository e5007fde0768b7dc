"""The bundled models, searched by words and described: what can be named without a network."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from tunecast.errors import UsageError, nearest
from tunecast.job.model import ModelConfig, model_config
from tunecast.job.registry import bundled_config, bundled_models, bundled_name, hub_ids
from tunecast.records import dataclass
from tunecast.result import Result
from tunecast.tables import fields_of

MOST_NEAREST = 5
OF_CONFIG = ("layers", "hidden_size", "heads", "kv_heads", "intermediate_size", "vocab_size", "tied", "dtype")
"""What the config.json itself says."""
CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len")


@dataclass(frozen=True)
class BundledModel(Result):
    """A model whose config.json comes with the package."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("name", "hub", "aliases", "family", "architecture", "parameters", "active_parameters", "parts", "published"),
        *("layers", "hidden_size", "heads", "kv_heads", "intermediate_size", "vocab_size", "tied", "dtype", "context"),
        *("licence", "source"),
    )

    name: str
    hub_id: str
    """The one that was searched for; else `hub`, whose config.json is bundled."""
    hub: str
    family: str
    architecture: str
    parameters: int
    """As transformers builds the model, a tied head once."""
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    intermediate_size: int
    vocab_size: int
    tied: bool
    dtype: str | None
    context: int | None
    """The longest sequence config.json speaks of; None where it sets no limit (ALiBi, Falcon)."""
    source: str
    aliases: tuple[str, ...] = ()
    active_parameters: int | None = None
    """What one token passes through in a mixture of experts."""
    parts: Mapping[str, int] | None = None
    """Of a model that also sees."""
    published: int | None = None
    """The count on the Hub or of the authors."""
    licence: str | None = None


def search(words: Sequence[str], family: str | None = None) -> Iterator[BundledModel]:
    """In the index's order. A word may leave out what joins the parts (`llama3.1`) where nothing has it as it is.
    Raises `UsageError` for a family that is not known."""
    within = _family(family)
    models = {name: entry for name, entry in bundled_models().items() if within in (None, entry["family"])}
    patterns = [_pattern(word) for word in words]
    found = {name: _hub_id(name, entry, patterns, joined=False) for name, entry in models.items()}
    if not any(found.values()):
        found = {name: _hub_id(name, entry, patterns, joined=True) for name, entry in models.items()}
    return (_described(name, hub_id, models[name]) for name, hub_id in found.items() if hub_id is not None)


def _family(given: str | None) -> str | None:
    if given is None:
        return None
    families = dict.fromkeys(entry["family"] for entry in bundled_models().values())
    if given.lower() not in families:
        near = nearest(given, families)
        hint = f"; nearest: {near}" if near else ""
        raise UsageError(f"--family: got {given!r}; allowed: {', '.join(families)}{hint}", field="--family")
    return given.lower()


def _pattern(word: str) -> re.Pattern[str]:
    """`7b` is no part of `1.7b` or `27b`."""
    return re.compile(rf"{'(?<![0-9.])' if word[0].isdecimal() else ''}{re.escape(word)}")


def _hub_id(name: str, entry: Mapping[str, Any], patterns: Sequence[re.Pattern[str]], *, joined: bool) -> str | None:
    """Each Hub id is searched together with the name and the family, so that all words tell of one and the same."""
    for hub_id in hub_ids(entry):
        text = f"{name} {hub_id} {entry['family']}".lower()
        text = re.sub(r"[-_]", "", text) if joined else text
        if all(pattern.search(text) for pattern in patterns):
            return hub_id
    return None


def nothing_found(words: Sequence[str], family: str | None) -> str:
    near = nearest_names("-".join(words))
    hint = f"; nearest: {', '.join(near)}" if near else "; `tunecast models` lists them all"
    within = f" of the family {family}" if family else ""
    return f"no bundled model{within} has {' and '.join(map(repr, words))}{hint}"


def nearest_names(given: str) -> list[str]:
    """By what they are called here or on the Hub, the nearest first."""
    spellings = [spelling for name, entry in bundled_models().items() for spelling in (name, *_last_parts(entry))]
    close = difflib.get_close_matches(given[:64], spellings, n=4 * MOST_NEAREST, cutoff=0.5)
    return list(dict.fromkeys(filter(None, map(bundled_name, close))))[:MOST_NEAREST]


def _last_parts(entry: Mapping[str, Any]) -> Iterator[str]:
    return (hub_id.lower().rpartition("/")[2] for hub_id in hub_ids(entry))


def _described(name: str, hub_id: str, entry: Mapping[str, Any]) -> BundledModel:
    """The bundled one, whatever folder of that name lies about."""
    model = model_config(name, bundled_config(name), f"bundled ({name})")
    return BundledModel(
        name=name,
        hub_id=hub_id,
        architecture=model.raw["model_type"],
        context=_context(model),
        **{field: getattr(model, field) for field in OF_CONFIG},
        **fields_of(BundledModel, entry),
    )


def _context(model: ModelConfig) -> int | None:
    text = model.raw.get("text_config", model.raw)
    found: int | None = next((text[key] for key in CONTEXT if text.get(key)), None)
    return found
