"""Keys and values that a model keeps of tokens it has read (transformers/cache_utils.py of 5.17.0, `DynamicCache`)."""

from __future__ import annotations

from typing import Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.dtypes import FLOAT32, Shape
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.ops.views import narrow
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Role


class Cache:
    """`DynamicCache`: of each layer's attention, by its path, the keys and values of all tokens so far."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.keys: dict[str, Tensor] = {}
        self.values: dict[str, Tensor] = {}
        self.windows: dict[str, int] = {}
        """How far back layers look that do not look at all tokens."""
        self.position_ids: Any = None
        """Of the tokens that are being read."""
        self.logits_shape: Shape = ()
        self.logits_dtype = FLOAT32

    def update(self, key_states: Tensor, value_states: Tensor, window: int | None) -> tuple[Tensor, Tensor]:
        layer = self.machine.module
        if window is not None:
            return self._update_window(layer, key_states, value_states, window)
        self.keys[layer] = self._longer(self.keys.get(layer), key_states)
        self.values[layer] = self._longer(self.values.get(layer), value_states)
        return self.keys[layer], self.values[layer]

    def _update_window(
        self, layer: str, key_states: Tensor, value_states: Tensor, window: int
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """`DynamicSlidingWindowLayer.update`: what is kept is a part of what was made for this token."""
        self.windows[layer] = window
        full_key_states = self._longer(self.keys.get(layer), key_states)
        full_value_states = self._longer(self.values.get(layer), value_states)
        self.keys[layer] = within_window(full_key_states, window)
        self.values[layer] = within_window(full_value_states, window)
        return full_key_states, full_value_states

    def grow(self, layer: str, tokens: int) -> None:
        """Without what is added."""
        for kept in (self.keys, self.values):
            before = kept[layer]
            rows, heads, length, width = before.shape
            window = self.windows.get(layer)
            if window is not None and length + tokens >= window:
                length, tokens = window - 1, 1
            made = self.machine.run("cat", (before,), (rows, heads, length + tokens, width), before.dtype)
            made.as_role(Role.ACTIVATIONS)
            kept[layer] = made if window is None else within_window(made, window)
            del before, made

    def _longer(self, before: Tensor | None, states: Tensor) -> Tensor:
        return F.cat((states,) if before is None else (before, states), -2).as_role(Role.ACTIVATIONS)


def within_window(states: Tensor, window: int) -> Tensor:
    length = states.shape[2]
    return states if length < window else narrow(states, 2, length - window + 1, length)
