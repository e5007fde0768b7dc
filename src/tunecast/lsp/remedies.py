"""What `tunecast fit` would change, as the text the file would have: read back, it is the job that was predicted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tunecast.advise.ladder import Harm
from tunecast.door.fit import fit
from tunecast.job.readers.bounds import unsaved
from tunecast.job.recipes.recipe import Recipe
from tunecast.lsp.costs import setting_words
from tunecast.planning.fit.patch import patch_of
from tunecast.planning.fit.solution import Fit, Solution
from tunecast.records import NamedTuple
from tunecast.report.lists.fit import HARM, time_words
from tunecast.units import GIB

MOST = 6


class Remedy(NamedTuple):
    title: str
    text: str
    """Of the whole file."""
    chosen: bool
    """What `fit` would take."""
    field: str
    """Of the job, that it changes first."""


def remedies(path: Path, text: str, overrides: Mapping[str, object], recipe: Recipe) -> tuple[Fit, list[Remedy]]:
    """Only those that can be made in this file."""
    with unsaved(path, text):
        found = fit(str(path), overrides)
        return found, list(_remedies(path, found, overrides, recipe))[:MOST]


def _remedies(path: Path, found: Fit, overrides: Mapping[str, object], recipe: Recipe) -> Iterator[Remedy]:
    sets = [] if found.chosen is None else [found.chosen]
    for solution in (*sets, *found.others, *found.quicker, *found.offered):
        if not found.before.fits and not solution.fits:
            continue
        patch = patch_of(path, solution.overrides, solution.job, overrides)
        if patch is not None and patch.after != patch.before:
            is_chosen = solution is found.chosen and not found.forced
            yield Remedy(title(solution, recipe), patch.after, is_chosen, next(iter(solution.overrides)))


def title(solution: Solution, recipe: Recipe) -> str:
    """`sequence_len: 2048 (18.2 of 22.8 GiB, 12 % more time; changes what is trained)`."""
    what = setting_words(recipe, "", solution.overrides)
    figures = [f"{solution.needs_bytes / GIB:.1f} of {solution.capacity_bytes / GIB:.1f} GiB"]
    if solution.room.verdict != "fits":
        figures[0] = f"{solution.room.verdict}, {figures[0]}"
    if solution.more_time_fraction is not None:
        figures.append(time_words(solution.more_time_fraction))
    if solution.harm is not Harm.SAME:
        figures.append(HARM[solution.harm])
    return f"{what} ({', '.join(figures)})"
