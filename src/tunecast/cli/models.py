"""`tunecast models [TEXT...]`: what can be named without a network."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tunecast.cli.arguments import Parser
from tunecast.errors import NotResolved, UsageError, nearest
from tunecast.job.model import ModelConfig, model_config
from tunecast.job.registry import bundled_config, bundled_models, bundled_name, hub_ids
from tunecast.units import billions

USAGE = "tunecast models [TEXT...] [--family NAME] [--json]"
DESCRIPTION = """\
The bundled models whose name, Hub ids or family hold every TEXT. A job may name them by what stands first, by a Hub
id, or by the last part of one; with a network, any other model of the Hub as well."""
EPILOG = """\
examples:
  tunecast models                       all of them
  tunecast models llama 8b              what has both in its name or a Hub id
  tunecast models coder                 the Hub id shown is the one that was found
  tunecast models --family gemma --json

Parameters are counted as transformers builds the model, a tied head once; active: what one token passes through in a
mixture of experts. The towers of a model that also sees are counted apart under --json.
"""
MOST_NEAREST = 5
CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len")
HEAD = ("name", "parameters", "active", "layers", "hidden", "context", "Hub id")
LEFT = ("name", "Hub id")


class Found(NamedTuple):
    name: str
    hub_id: str
    """The one that was searched for; else the one whose config.json is bundled."""
    entry: Mapping[str, Any]


def parser() -> Parser:
    made = Parser("models", USAGE, DESCRIPTION, EPILOG)
    made.add_argument("text", metavar="TEXT", nargs="*", help="part of a name, a Hub id or a family; all must be there")
    made.add_argument("--family", metavar="NAME", help="only this family (llama, qwen, gemma, ...)")
    made.add_argument("--json", action="store_true", help="an array of objects instead of a table")
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    words = [word.lower() for text in arguments.text for word in text.split()]
    found = list(search(words, checked_family(arguments.family)))
    if not found:
        raise NotResolved(nothing(words, arguments.family), field="model")
    if arguments.json:
        print(json.dumps([described(one) for one in found]))
    else:
        print("\n".join(table([HEAD, *map(cells, found)])))
    return 0


def checked_family(given: str | None) -> str | None:
    if given is None:
        return None
    families = dict.fromkeys(entry["family"] for entry in bundled_models().values())
    if given.lower() not in families:
        near = nearest(given, families)
        hint = f"; nearest: {near}" if near else ""
        raise UsageError(f"--family: got {given!r}; allowed: {', '.join(families)}{hint}", field="--family")
    return given.lower()


def search(words: Sequence[str], family: str | None = None) -> Iterator[Found]:
    """In the index's order. A word may leave out what joins the parts (`llama3.1`) where nothing has it as it is."""
    models = {name: entry for name, entry in bundled_models().items() if family in (None, entry["family"])}
    patterns = [_pattern(word) for word in words]
    plain = {name: found for name in models if (found := _found(name, models[name], patterns, joined=False))}
    if plain or not words:
        yield from plain.values()
    else:
        loose = (_found(name, entry, patterns, joined=True) for name, entry in models.items())
        yield from filter(None, loose)


def _pattern(word: str) -> re.Pattern[str]:
    """`7b` is no part of `1.7b` or `27b`."""
    return re.compile(rf"{'(?<![0-9.])' if word[0].isdecimal() else ''}{re.escape(word)}")


def _found(name: str, entry: Mapping[str, Any], patterns: Sequence[re.Pattern[str]], *, joined: bool) -> Found | None:
    """Each Hub id is searched together with the name and the family, so that all words tell of one and the same."""
    for hub_id in hub_ids(entry):
        text = f"{name} {hub_id} {entry['family']}".lower()
        text = re.sub(r"[-_]", "", text) if joined else text
        if all(pattern.search(text) for pattern in patterns):
            return Found(name, hub_id, entry)
    return None


def nothing(words: Sequence[str], family: str | None) -> str:
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


def architecture(name: str) -> ModelConfig:
    """The bundled one, whatever folder of that name lies about."""
    return model_config(name, bundled_config(name), f"bundled ({name})")


def described(found: Found) -> dict[str, Any]:
    model, entry = architecture(found.name), found.entry
    return {
        "name": found.name,
        "hub": entry["hub"],
        "aliases": list(entry.get("aliases", ())),
        "family": entry["family"],
        "architecture": model.raw["model_type"],
        "parameters": entry["parameters"],
        "active_parameters": entry.get("active_parameters"),
        "parts": entry.get("parts"),
        "published": entry.get("published"),
        "layers": model.layers,
        "hidden_size": model.hidden_size,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "intermediate_size": model.intermediate_size,
        "vocab_size": model.vocab_size,
        "tied": model.tied,
        "dtype": model.dtype,
        "context": context(model),
        "licence": entry.get("licence"),
        "source": entry["source"],
    }


def cells(found: Found) -> tuple[str, ...]:
    model = architecture(found.name)
    active, most = found.entry.get("active_parameters"), context(model)
    return (
        found.name,
        billions(found.entry["parameters"]),
        billions(active) if active else "",
        str(model.layers),
        str(model.hidden_size),
        str(most or "-"),
        found.hub_id,
    )


def context(model: ModelConfig) -> int | None:
    """The longest sequence config.json speaks of; None where it sets no limit (ALiBi, Falcon)."""
    raw = model.raw
    text = raw.get("text_config", raw)
    found: int | None = next((text[key] for key in CONTEXT if text.get(key)), None)
    return found


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(_aligned(row, widths)).rstrip()


def _aligned(row: Iterable[str], widths: Sequence[int]) -> Iterator[str]:
    for title, cell, width in zip(HEAD, row, widths, strict=True):
        yield cell.ljust(width) if title in LEFT else cell.rjust(width)
