"""How the compiler is changed, and what to do when it is not what we knew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

missing: list[str] = []
"""What this torch lacks of what is replaced: then compiled code is traced as if it were not compiled, and told so."""


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """`owner.name` becomes `make(what it was)`."""
    if hasattr(owner, name):
        setattr(owner, name, make(getattr(owner, name)))
    else:
        missing.append(f"{getattr(owner, '__name__', owner)} has no {name}")


def constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value
