"""Random numbers drawn on the host are drawn for real, so that data come in the order they will come in.

A sampler takes its seed from torch's generator, and the generator has moved by everything drawn before: to meet the
same batches, initial weights made on the host must move it too. They are drawn into a buffer and dropped, up to a
budget; beyond it the generator lags behind, and whoever draws an order from it then is told so. Numbers drawn on the
card come from the card's own generator and leave the host's alone.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

WHOLE_NUMBERS = frozenset(
    {"aten::random_", "aten::randint", "aten::randperm", "aten::randint_like", "aten::multinomial"}
)
FRACTIONS = frozenset({
    "aten::rand", "aten::randn", "aten::rand_like", "aten::randn_like", "aten::normal", "aten::normal_",
    "aten::uniform_", "aten::bernoulli", "aten::bernoulli_", "aten::exponential_", "aten::log_normal_",
    "aten::cauchy_", "aten::geometric_",
})  # fmt: skip
DRAWS = WHOLE_NUMBERS | FRACTIONS
MOST_WHOLE_NUMBERS = 1 << 22
BUDGET = 200_000_000
"""Numbers drawn only to move the generator, about a second's worth; a model of a billion weights is beyond it."""


class Chance:
    def __init__(self, assumptions: Counter[str]) -> None:
        self._assumptions = assumptions
        self._left = BUDGET
        self.lags = False
        """True when less was drawn than a real run draws, and no seed was set since."""

    def draw(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
        """Whole numbers, which steer programs, flags of known chances too (a collator that masks tokens indexes by
        them); None for fractions, which only move the generator."""
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        device = first.device if first is not None else torch.device(kwargs.get("device") or "cpu")
        count = first.numel() if first is not None else _count(name, args)
        flags = name == "aten::bernoulli" and device.type == "cpu" and _content(first) is not None
        whole = (flags or name in WHOLE_NUMBERS) and count <= MOST_WHOLE_NUMBERS
        if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not whole):
            return None
        if whole:
            self._note_lag(device, kwargs.get("generator"))
        elif count > self._left:
            self.lags = True
            return None
        else:
            self._left -= count
        drawn = self._draw_on_host(func, args, kwargs, device)
        return drawn if whole and isinstance(drawn, torch.Tensor) else None

    def _note_lag(self, device: torch.device, generator: Any) -> None:
        if self.lags and device.type == "cpu" and generator in (None, torch.default_generator):
            self._assumptions[
                "random numbers drawn after large weights were initialised on the host differ from a real run's; "
                "if they shuffle the data, batches come in another order"
            ] += 1

    def _draw_on_host(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> Any:
        """None where the host cannot draw. What a card draws leaves the host's generator where it was."""
        with _disable_current_modes(), torch.no_grad():
            before = torch.get_rng_state() if device.type == "cuda" else None
            try:
                plain = {name: value for name, value in kwargs.items() if name != "pin_memory"}
                return func(*tree_map(_on_host, args), **tree_map(_on_host, plain))
            except (RuntimeError, TypeError, NotImplementedError):
                self.lags = device.type == "cpu"  # a dtype the host cannot draw, or weights nobody knows
                return None
            finally:
                if before is not None:
                    torch.set_rng_state(before)

    def follow_seeds(self) -> None:
        """A seed set anew ends the lag."""
        for module, name in ((torch, "manual_seed"), (torch.random, "manual_seed"), (torch, "set_rng_state")):
            inner = getattr(module, name)

            def seeded(*args: Any, inner: Any = inner, **kwargs: Any) -> Any:
                self.lags = False
                return inner(*args, **kwargs)

            setattr(module, name, seeded)


def _content(value: Any) -> torch.Tensor | None:
    content = getattr(value, "_tunecast_known", None)
    return getattr(value, "constant", None) if content is None else content


def _on_host(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        content = _content(value)
        return torch.zeros(value.shape, dtype=value.dtype) if content is None else content
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _count(name: str, args: tuple[Any, ...]) -> int:
    if name == "aten::randperm":
        return int(args[0])
    sizes = [a for a in args if isinstance(a, (list, tuple))]
    return int(torch.Size(sizes[-1]).numel()) if sizes else 1
