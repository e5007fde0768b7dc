"""What images add to a batch: pixels and the like, in the order in which a processor gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunecast.tape.build.dtypes import DTYPES
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.tensor import Tensor


def image_tensors(machine: Machine, rows: int, length: int) -> list[Tensor]:
    """Moved to the card; none where samples have no images."""
    if machine.pictures is None:
        return []
    return [
        machine.run("_to_copy", (), extra.shape(rows, length), DTYPES[extra.dtype]) for extra in machine.pictures.extras
    ]


def images_in(machine: Machine, tensors: Sequence[Tensor]) -> dict[str, Any]:
    """The same, the last of a batch, by the names of the model's arguments."""
    if machine.pictures is None:
        return {}
    tensors = tensors[len(tensors) - len(machine.pictures.extras) :]
    return {extra.name: tensor for extra, tensor in zip(machine.pictures.extras, tensors, strict=True)}
