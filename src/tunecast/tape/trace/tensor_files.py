"""Files of tensors, read for their shapes and written not at all.

A checkpoint's weights change no allocation, so only the header of a safetensors file is read and each tensor is a
fake one; `torch.load` maps a file and keeps shapes. Integers small enough to steer a program (token ids, packed
quantisation settings) keep their values. Fake tensors have nothing to save: their files hold no more than by what they
are found again (saved.py), and are listed.
"""

from __future__ import annotations

import json
import math
import os
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from tunecast.tape.trace.facts import WeightsFile
from tunecast.tape.trace.overlay import Overlay
from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder
from tunecast.tape.trace.saved import Saved, write
from tunecast.tape.trace.values import INTEGERS, MOST_INTEGERS

DTYPE_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "C64": "complex64",
}  # fmt: skip
MOST_HEADER_BYTES = 100_000_000  # safetensors' own limit
MOST_READ_BYTES = 1 << 20
COMPARES_ADDRESSES = frozenset({
    "torch", "transformers", "accelerate", "peft", "safetensors", "trl", "bitsandbytes", "triton", "unsloth",
    "unsloth_zoo", "stage_1_and_2.py",
})  # fmt: skip
"""Packages that compare addresses, or whose C library is silent here; of DeepSpeed the file that asks where its
partitions begin."""


class Entry:
    """One tensor of a safetensors file; behaves as safetensors' slice object does."""

    def __init__(self, file: SafeOpen, name: str) -> None:
        self._file, self._fields = file, file.header[name]

    def get_shape(self) -> list[int]:
        return list(self._fields["shape"])

    def get_dtype(self) -> str:
        return str(self._fields["dtype"])

    def __getitem__(self, index: Any) -> torch.Tensor:
        part: torch.Tensor = self._whole()[index]
        return part.to(self._file.device)

    def _whole(self) -> torch.Tensor:
        dtype, shape = getattr(torch, DTYPE_NAMES[self.get_dtype()]), self.get_shape()
        start, end = self._fields["data_offsets"]
        if dtype in INTEGERS and 0 < end - start <= MOST_READ_BYTES:
            data = bytearray(self._file.read(start, end))
            if len(data) == end - start:
                with _disable_current_modes():
                    return torch.frombuffer(data, dtype=dtype).reshape(shape)
        return torch.empty(shape, dtype=dtype)


HUB_FOLDER = "models--"
"""How the Hub's cache begins the name of a model's folder (huggingface_hub, `repo_folder_name`)."""
files_read: dict[str, WeightsFile] = {}
"""By its path."""


def note_read(path: str, nbytes: int) -> None:
    folders = Path(path).parts[:-1]
    of_torch = folders[-2:] == ("hub", "checkpoints")
    files_read[path] = WeightsFile(nbytes, of_torch or any(part.startswith(HUB_FOLDER) for part in folders))


class SafeOpen:
    """`safetensors.safe_open` for torch, reading nothing but the header."""

    def __init__(self, filename: Any, framework: str = "pt", device: Any = "cpu", **options: Any) -> None:
        self._path = os.fspath(filename)
        self.device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cpu")
        self.header, self._info, self._data_at = read_header(self._path)
        ends = (fields["data_offsets"][1] for fields in self.header.values())
        note_read(self._path, self._data_at + max(ends, default=0))

    def read(self, start: int, end: int) -> bytes:
        with open(self._path, "rb") as file:
            file.seek(self._data_at + start)
            return file.read(end - start)

    def __enter__(self) -> SafeOpen:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def keys(self) -> list[str]:
        return sorted(self.header)

    def offset_keys(self) -> list[str]:
        return sorted(self.header, key=lambda name: self.header[name]["data_offsets"][0])

    def metadata(self) -> dict[str, str] | None:
        return self._info

    def get_slice(self, name: str) -> Entry:
        return Entry(self, name)

    def get_tensor(self, name: str) -> torch.Tensor:
        return Entry(self, name)[...]

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return {name: self.get_tensor(name) for name in self.keys()}


def read_header(path: str) -> tuple[dict[str, Any], dict[str, str] | None, int]:
    """Tensors by name, the metadata, and where the data begins (8 bytes of length, then JSON)."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= MOST_HEADER_BYTES:
            raise OSError(f"{path} is not a safetensors file")
        header = json.loads(file.read(length))
    return header, header.pop("__metadata__", None), 8 + length


def write_header(path: Path, tensors: Mapping[str, torch.Tensor], contents: Mapping[str, bytes] | None = None) -> None:
    """A safetensors file of which only the header exists, and what of it steers a program (`contents`, by name): a
    checkpoint's shapes without its weights."""
    contents = contents or {}
    names = {getattr(torch, torch_name): name for name, torch_name in DTYPE_NAMES.items() if hasattr(torch, torch_name)}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, tensor in sorted(tensors.items(), key=lambda entry: (entry[0] not in contents, entry[0])):
        end = place + math.prod(tensor.shape) * tensor.element_size()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    data = b"".join(contents[name] for name in sorted(contents))
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def install(
    recorder: Recorder, overlay: Overlay, before_save: Callable[[], None], on_save: Callable[[int], None]
) -> None:
    """`on_save` is told how many bytes of tensors a file would have."""

    saved = Saved(recorder)

    def leave_out(file: Any, nbytes: int, line: bytes = b"") -> None:
        recorder.assumptions["saving tensors was skipped: they have shapes here but no contents"] += 1
        on_save(nbytes)
        write(file, line)

    def keep_outline(value: Any, file: Any) -> None:
        leave_out(file, nbytes_in(value), saved.keep(value))

    def read_shapes_only(module: ModuleType) -> None:
        opened = module.safe_open

        def safe_open(filename: Any, framework: str = "pt", *args: Any, **kwargs: Any) -> Any:
            kind = SafeOpen if framework in ("pt", "torch", "pytorch") else opened
            return kind(filename, framework, *args, **kwargs)

        def serialize_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> None:
            leave_out(filename, 0)

        module.safe_open = safe_open  # type: ignore[attr-defined]
        module.serialize_file = serialize_file  # type: ignore[attr-defined]

    def save_only_a_name(module: ModuleType) -> None:
        def save_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> None:
            before_save()
            leave_out(filename, nbytes_in(tensors))
            write_header(Path(filename), tensors)  # what loads it again finds the shapes

        module.save_file = save_file  # type: ignore[attr-defined]

    torch.save = saving(torch_save(), overlay, before_save, keep_outline)
    torch.load = loading(torch.load, overlay, saved)
    give_addresses(recorder)
    after_import("safetensors", read_shapes_only)
    after_import("safetensors.torch", save_only_a_name)
    for name in ("lightning.fabric.utilities.load", "lightning_fabric.utilities.load"):
        after_import(name, load_at_once)
    after_import("tokenizers", lambda module: write_tokenizers_inside(module, overlay))


def torch_save() -> Callable[..., None]:
    """The tracer has put a function that does nothing in its place; what holds no tensors is worth saving."""
    return torch.serialization.save


def saving(
    save: Callable[..., None],
    overlay: Overlay,
    before_save: Callable[[], None],
    keep_outline: Callable[[Any, Any], None],
) -> Callable[..., None]:
    def save_or_list(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        before_save()
        if any(isinstance(leaf, (FakeTensor, torch.nn.Module)) for leaf in tree_flatten(obj)[0]):
            return keep_outline(obj, f)
        if isinstance(f, (str, os.PathLike)):
            f = overlay.to_write(overlay.absolute(f), keep=False)
        with _disable_current_modes():
            save(obj, f, *args, **kwargs)
        return None

    return save_or_list


def nbytes_in(value: Any) -> int:
    """Of the tensors in it, those that share memory once."""
    leaves = tree_flatten(value)[0]
    modules = [leaf for leaf in leaves if isinstance(leaf, torch.nn.Module)]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    tensors += [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    storages = {each._cdata: each.nbytes() for each in (tensor.untyped_storage() for tensor in tensors)}
    return sum(storages.values())


def loading(load: Callable[..., Any], overlay: Overlay, saved: Saved) -> Callable[..., Any]:
    def load_shapes(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        places: dict[int, str] = {}

        def stay_on_the_host(storage: Any, place: str) -> Any:
            places[storage.data_ptr()] = place
            return storage

        def place_from(place: str) -> torch.device:
            if isinstance(map_location, (str, torch.device)):
                return torch.device(map_location)
            return torch.device(map_location.get(place, place) if isinstance(map_location, dict)
                                else place if map_location is None else "cpu")  # fmt: skip

        contents = saved.find(f)
        if contents is not None:
            return saved.load(contents, place_from)
        if isinstance(f, (str, os.PathLike)):
            f = overlay.to_read(overlay.absolute(f))
            kwargs["mmap"] = zipfile.is_zipfile(f)
            note_read(os.fspath(f), os.path.getsize(f))
        with _disable_current_modes():
            loaded = load(f, stay_on_the_host, *args, **kwargs)

        def convert(value: Any) -> Any:
            if isinstance(value, torch.nn.Module):
                return value._apply(lambda t: shape_of(t, place_of(t)))
            return shape_of(value, place_of(value)) if isinstance(value, torch.Tensor) else value

        def place_of(tensor: torch.Tensor) -> torch.device:
            with _disable_current_modes():
                return place_from(places.get(tensor.untyped_storage().data_ptr(), "cpu"))

        return tree_map(convert, loaded)

    return load_shapes


def load_at_once(module: ModuleType) -> None:
    """Lightning's `_lazy_load` (fabric/utilities/load.py) reads each tensor from the file when it is used, by
    functions of torch's C++; a tensor without contents costs nothing to have earlier."""

    def _lazy_load(filename: Any) -> Any:
        return torch.load(filename, weights_only=False)

    module._lazy_load = _lazy_load  # type: ignore[attr-defined]


def shape_of(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
    if tensor.dtype in INTEGERS and tensor.numel() <= MOST_INTEGERS:
        return tensor.to(place)
    fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=place)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(fake, tensor.requires_grad)
    return fake.requires_grad_(tensor.requires_grad)


def give_addresses(recorder: Recorder) -> None:
    """Programs compare addresses to find tied weights; a fake tensor's is its storage's identity. Whoever else asks
    hands the address to C code, whose work is not seen."""
    address = torch.UntypedStorage.data_ptr

    def of_storage(self: Any) -> int:
        return int(self._cdata) if self.device.type == "meta" else int(address(self))

    def of_tensor(self: Any) -> int:
        caller = sys._getframe(1)
        if not COMPARES_ADDRESSES & set(Path(caller.f_code.co_filename).parts):
            place = f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"
            recorder.untraced[f"{place} hands a tensor's address to C code; what that allocates is not seen"] += 1
        return int(self.untyped_storage()._cdata) + int(self.storage_offset()) * int(self.element_size())

    torch.UntypedStorage.data_ptr = of_storage  # type: ignore[method-assign]
    FakeTensor.data_ptr = of_tensor  # type: ignore[method-assign]


def write_tokenizers_inside(module: ModuleType, overlay: Overlay) -> None:
    """Rust opens files itself: give it the place where the script's files are."""
    save, from_file = module.Tokenizer.save, module.Tokenizer.from_file

    def save_inside(self: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        return save(self, overlay.to_write(overlay.absolute(path), keep=False), *args, **kwargs)

    def read_inside(path: Any) -> Any:
        return from_file(overlay.to_read(overlay.absolute(path)))

    module.Tokenizer.save, module.Tokenizer.from_file = save_inside, staticmethod(read_inside)
