"""A rule of what cannot be together in a job: the fields it is about, and what it says against their values."""

from __future__ import annotations

from collections.abc import Callable

from tunecast.job.knob import Problem
from tunecast.records import NamedTuple

Objection = Callable[..., str | Problem | None]


class Rule(NamedTuple):
    fields: tuple[str, ...]
    objection: Objection


def adding_to(rules: list[Rule]) -> Callable[..., Callable[[Objection], Objection]]:
    """A decorator that adds its function to these rules: `@rule("method", "stack")`."""

    def rule(*fields: str) -> Callable[[Objection], Objection]:
        def add(objection: Objection) -> Objection:
            rules.append(Rule(fields, objection))
            return objection

        return add

    return rule
