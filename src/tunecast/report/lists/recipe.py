"""What was understood of a trainer's file, as `tunecast read` prints it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from tunecast.errors import printable
from tunecast.job.recipes.cards import CARD_FLAGS, unsaid
from tunecast.job.recipes.recipe import NotUnderstood, Place, Recipe
from tunecast.report.draw.columns import columns

MOST_IGNORED = 12
"""Keys named; the rest is counted."""
LONGEST_VALUE = 60


def recipe_text(recipe: Recipe, path: str) -> str:
    return "\n".join([*_lines(recipe, path), ""])


def _lines(recipe: Recipe, path: str) -> Iterator[str]:
    job = recipe.job
    what = " ".join(str(job[name]) for name in ("method", "task") if job.get(name))
    yield printable(
        f"{recipe.framework} {recipe.release}: {what or 'training'} of {job.get('model', 'a model not named')}", 200
    )
    if recipe.refused:
        yield printable(f"Not predicted: {recipe.refused}", 300)
    yield ""
    values = _flat(job)
    said = [(name, _shown(values[name]), _from(place, path)) for name, place in recipe.places.items() if name in values]
    yield from columns([("field", "value", "from"), *said], (0, 1, 2), indent="  ")
    if recipe.assumed:
        yield from ("", "Assumed, as the file does not say")
        rows = [(name, _shown(each.value), f"default of {each.whose}") for name, each in recipe.assumed.items()]
        yield from columns(rows, (0, 1, 2), indent="  ")
    if recipe.not_understood:
        yield from ("", "Not understood: answers are estimates")
        yield from (f"  {printable(_missed(each, path), 200)}" for each in recipe.not_understood)
    if recipe.ignored:
        more = len(recipe.ignored) - MOST_IGNORED
        told = ", ".join(recipe.ignored[:MOST_IGNORED]) + (f" and {more} more" if more > 0 else "")
        yield from ("", printable(f"Move neither memory nor time: {told}", 2000))
    if recipe.data_sets and not recipe.refused and not {"data.path", "data.lengths"} & set(values):
        named = ", ".join(recipe.data_sets)
        yield ""
        known = "--data-path FILE or --data-lengths says how long they are"
        yield printable(f"Data not read: {named}. Rows count as full; {known}", 300)
    if not recipe.refused:
        model = "" if values.get("model") else " --model NAME"
        cards = "".join(f" {CARD_FLAGS[field]}" for field in unsaid(job, recipe.global_batch))
        yield from ("", f"Next: tunecast predict {path}{model}{cards}, or tunecast plan {path}{model}")


def _from(place: Place, path: str) -> str:
    """Lines of the file that was given go without its name."""
    if not place.line:
        return f"the command, {place.key}"
    if _is_same(place.file, path):
        return f"line {place.line}, {place.key}"
    return f"{os.path.relpath(place.file)}, line {place.line}, {place.key}"


def _missed(missed: NotUnderstood, path: str) -> str:
    return f"{_from(Place(missed.file, missed.line, missed.key), path)}: {missed.why}"


def _is_same(file: str, path: str) -> bool:
    return os.path.abspath(file) == os.path.abspath(path)


def _flat(job: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in job.items():
        if isinstance(value, Mapping):
            flat.update({f"{name}.{leaf}": each for leaf, each in value.items()})
        else:
            flat[name] = value
    return flat


def _shown(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else "null" if value is None else str(value)
    return printable(text.lower() if isinstance(value, bool) else text, LONGEST_VALUE)
