"""What may be written in a file: its framework's keys, and values of those whose values are known.

Keys are those its reader asks for; values those of the job's field that a key says, where the trainer spells them the
same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tunecast.errors import TunecastError
from tunecast.hardware.catalog import gpus
from tunecast.job.foreign import MEANINGS, called
from tunecast.job.job import all_knobs
from tunecast.job.readers.bounds import unsaved
from tunecast.job.recipes import FRAMEWORKS, SPELL_AS_ARGUMENTS, keys_looked_at, load_framework
from tunecast.job.recipes.recipe import Recipe
from tunecast.job.registry import bundled_models, bundled_names
from tunecast.lsp.reading import OWN, recipe_at
from tunecast.records import NamedTuple, dataclass
from tunecast.result import Result


class Writable(NamedTuple):
    """A key, and what it may hold where that is known."""

    key: str
    help: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Writing(Result):
    KEYS: ClassVar[tuple[str, ...]] = ("framework", "keys")

    framework: str
    keys: tuple[Writable, ...]


NOTHING = Writing("", ())


def writing(path: Path, text: str) -> Writing:
    with unsaved(path, text):
        try:
            recipe = recipe_at(path, sure=True)
            if recipe is None:
                return NOTHING
            names = set(all_knobs()) if recipe.framework == OWN else keys_looked_at(path)
        except TunecastError:
            return NOTHING
    fields = {place.key: field for field, place in recipe.places.items()} | own_words(recipe)
    return Writing(recipe.framework, tuple(_writable(recipe, name, fields) for name in sorted(names)))


def own_words(recipe: Recipe) -> dict[str, str]:
    """Field by key, as the framework's own table has it."""
    framework = next((each for each in map(load_framework, FRAMEWORKS) if recipe.framework == each.NAME), None)
    words: Mapping[str, Any] = getattr(framework, "WORDS", {})
    return {key: field for field, key in words.items() if isinstance(key, str)}


def _writable(recipe: Recipe, name: str, fields: Mapping[str, str]) -> Writable:
    leaf = name.rpartition(".")[2]
    field = name if recipe.framework == OWN else fields.get(name) or called().get(leaf, "")
    knob = all_knobs().get(field)
    help = "" if knob is None else knob.help
    if field == "model":
        return Writable(name, help, tuple(models(recipe)))
    if field == "hardware.gpu":
        return Writable(name, help, tuple(cards()))
    if recipe.framework not in (OWN, *SPELL_AS_ARGUMENTS):
        return Writable(name, help, ())
    if knob is not None and knob.kind == "bool":
        return Writable(name, help, ("true", "false"))
    if knob is not None and knob.choices:
        return Writable(name, help, knob.choices)
    if recipe.framework != OWN and leaf in MEANINGS:
        return Writable(name, help, tuple(MEANINGS[leaf]))
    return Writable(name, help, ())


def models(recipe: Recipe) -> list[str]:
    """As trainers name them: by their Hub ids; in a job of ours the short names."""
    if recipe.framework == OWN:
        return sorted(bundled_names())
    return sorted(entry["hub"] for entry in bundled_models().values())


def cards() -> list[str]:
    return list(gpus())
