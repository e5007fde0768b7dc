"""What a script saves with `torch.save` and loads again: its best checkpoint for a last test, an epoch to go on from.

Tensors have no contents to write. The file gets a line by which what was saved is found again, wherever the script
copies, renames or packs it; of a tensor its shape, its place and what of its values is known are kept, and none of its
memory.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from tunecast.records import dataclass
from tunecast.tape.trace.recorder import Recorder
from tunecast.tape.trace.values import known, set_known

LINE = b"tunecast: tensors without contents, saved as number "
LONGEST_LINE = len(LINE) + 20

Place = Callable[[str], torch.device]
"""Where a tensor goes that was saved from there (`cuda:0`)."""


@dataclass(frozen=True)
class SavedTensor:
    """No tuple: those are taken apart where tensors are looked for."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    storage: int
    """Its number among those saved together: tensors of one storage share one again."""
    storage_bytes: int
    place: str
    trained: bool
    is_parameter: bool
    values: torch.Tensor | None


class Saved:
    """All that the script has saved, by number."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._contents: list[Any] = []

    def keep(self, value: Any) -> bytes:
        """What goes into the file in its place."""
        storages: dict[int, int] = {}

        def outline(leaf: Any) -> Any:
            if isinstance(leaf, torch.nn.Module):
                return self._unseen_copy(leaf)
            return outline_of(leaf, storages) if isinstance(leaf, torch.Tensor) else leaf

        self._contents.append(tree_map(outline, value))
        return LINE + str(len(self._contents) - 1).encode()

    def load(self, contents: Any, place: Place) -> Any:
        """Each storage goes where it belongs as a whole; tensors are views of it (torch/serialization.py, `_load`)."""
        storages: dict[int, torch.Tensor] = {}

        def again(leaf: Any) -> Any:
            if isinstance(leaf, torch.nn.Module):
                return self._unseen_copy(leaf)._apply(lambda t: torch.empty_like(t, device=place(str(t.device))))
            return tensor_of(leaf, storages, place) if isinstance(leaf, SavedTensor) else leaf

        return tree_map(again, contents)

    def _unseen_copy(self, module: torch.nn.Module) -> torch.nn.Module:
        self._recorder.paused += 1
        try:
            return copy.deepcopy(module)
        finally:
            self._recorder.paused -= 1

    def find(self, file: Any) -> Any:
        """What was saved there; None where that is something else."""
        head = _head(file)
        number = head.removeprefix(LINE)
        if number == head or not number.isdigit() or int(number) >= len(self._contents):
            return None
        return self._contents[int(number)]


def outline_of(tensor: torch.Tensor, storages: dict[int, int]) -> SavedTensor:
    storage = tensor.untyped_storage()
    values = known(tensor) if isinstance(tensor, FakeTensor) else tensor.detach()
    with _disable_current_modes():
        values = None if values is None else values.clone()
    return SavedTensor(
        tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()), tensor.dtype,
        storages.setdefault(storage._cdata, len(storages)), storage.nbytes(), str(tensor.device), tensor.requires_grad,
        isinstance(tensor, torch.nn.Parameter), values,
    )  # fmt: skip


def tensor_of(saved: SavedTensor, storages: dict[int, torch.Tensor], place: Place) -> torch.Tensor:
    base = storages.get(saved.storage)
    if base is None or base.dtype is not saved.dtype:
        size = saved.storage_bytes // saved.dtype.itemsize
        base = storages[saved.storage] = torch.empty(size, dtype=saved.dtype, device=place(saved.place))
    made = base.as_strided(saved.shape, saved.stride, saved.offset)
    if saved.values is not None and isinstance(made, FakeTensor):
        set_known(made, saved.values)
    return torch.nn.Parameter(made, saved.trained) if saved.is_parameter else made.requires_grad_(saved.trained)


def write(file: Any, line: bytes) -> None:
    if isinstance(file, (str, os.PathLike)):
        with open(file, "wb") as opened:
            opened.write(line)
    else:
        file.write(line)


def _head(file: Any) -> bytes:
    if isinstance(file, (str, os.PathLike)):
        with open(file, "rb") as opened:
            return opened.read(LONGEST_LINE)
    try:
        at = file.tell()
        head = file.read(LONGEST_LINE)
        file.seek(at)
    except (AttributeError, OSError):
        return b""
    return bytes(head)
