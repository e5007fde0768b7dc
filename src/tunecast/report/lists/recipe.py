"""What was understood of a trainer's file, as `tunecast read` prints it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tunecast.errors import printable
from tunecast.job.recipes.recipe import Recipe
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
    said = [(name, _shown(values[name]), str(place)) for name, place in recipe.places.items() if name in values]
    yield from columns([("field", "value", "from"), *said], (0, 1, 2), indent="  ")
    if recipe.assumed:
        yield from ("", "Assumed, as the file does not say")
        rows = [(name, _shown(each.value), f"default of {each.whose}") for name, each in recipe.assumed.items()]
        yield from columns(rows, (0, 1, 2), indent="  ")
    if recipe.not_understood:
        yield from ("", "Not understood: answers are estimates")
        yield from (f"  {printable(str(each), 200)}" for each in recipe.not_understood)
    if recipe.ignored:
        more = len(recipe.ignored) - MOST_IGNORED
        told = ", ".join(recipe.ignored[:MOST_IGNORED]) + (f" and {more} more" if more > 0 else "")
        yield from ("", printable(f"Move neither memory nor time: {told}", 2000))
    if not recipe.refused:
        model = "" if values.get("model") else " --model NAME"
        card = "" if values.get("hardware.gpu") else " --gpu NAME"
        yield from ("", f"Next: tunecast predict {path}{model}{card}, or tunecast plan {path}{model}")


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
