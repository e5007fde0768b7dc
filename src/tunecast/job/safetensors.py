"""What a safetensors file holds, from its header alone: how many values of which dtype.

Source   safetensors, format description: 8 bytes little-endian length N, then N bytes of JSON that map each
         tensor's name to {"dtype", "shape", "data_offsets"}, then the data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from tunecast.errors import NotResolved, UsageError
from tunecast.job.knob import shown
from tunecast.job.readers.bounds import decoded
from tunecast.job.readers.json import parsed
from tunecast.records import dataclass
from tunecast.units import MIB

MOST_HEADER_BYTES = 32 * MIB
"""A header is about 100 bytes a tensor: 300,000 tensors."""
MOST_SHARDS = 2048
MOST_INDEX_BYTES = 32 * MIB
LENGTH_BYTES = 8
MOST_VALUES = 4_000_000

_DTYPE_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32,
    "U16": 16, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
    "C64": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Weights:
    """What the files store. A quantised checkpoint stores packed values, so these need not be the parameters."""

    values: int
    by_dtype: tuple[tuple[str, int], ...]
    """(safetensors' dtype name, values), the most first."""
    nbytes: int


def weights_of(counts: Iterable[Counter[str]]) -> Weights:
    total: Counter[str] = sum(counts, Counter())
    nbytes = sum(n * _DTYPE_BITS[dtype] for dtype, n in total.items()) // 8
    return Weights(total.total(), tuple(total.most_common()), nbytes)


def header_counts(read: Callable[[int], bytes], where: str) -> Counter[str]:
    """Values by dtype. `read(n)` gives the file's first n bytes (fewer where the file ends)."""
    first = read(LENGTH_BYTES)
    if len(first) < LENGTH_BYTES:
        raise NotResolved(f"{where}: ends before its header's length", field="model")
    size = int.from_bytes(first[:LENGTH_BYTES], "little")
    if size > MOST_HEADER_BYTES:
        raise NotResolved(f"{where}: a header of {size} bytes; at most {MOST_HEADER_BYTES} are read", field="model")
    content = read(LENGTH_BYTES + size)[LENGTH_BYTES : LENGTH_BYTES + size]
    if len(content) < size:
        raise NotResolved(f"{where}: ends inside its header ({len(content)} of {size} bytes)", field="model")
    return _counts(_mapping(content, where), where)


def shards(index: bytes, where: str) -> tuple[str, ...]:
    """The files a `model.safetensors.index.json` names."""
    weight_map = _mapping(index, where).get("weight_map")
    if not isinstance(weight_map, dict):
        raise NotResolved(f"{where}: weight_map: missing or not a mapping", field="model")
    names = tuple(dict.fromkeys(name if isinstance(name, str) else "" for name in weight_map.values()))
    for name in names:
        plain = name.endswith(".safetensors") and len(name) <= 255 and name.isprintable()
        if not plain or "/" in name or "\\" in name or name.startswith("."):
            raise NotResolved(
                f"{where}: weight_map: {shown(name)} is not the name of a safetensors file", field="model"
            )
    if not 0 < len(names) <= MOST_SHARDS:
        raise NotResolved(f"{where}: weight_map: {len(names)} files; allowed: 1 to {MOST_SHARDS}", field="model")
    return names


def _counts(header: dict[str, Any], where: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        match tensor:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [start, end]} if (
                dtype in _DTYPE_BITS and len(shape) <= 16 and _sizes(shape) and _sizes([start, end])
            ):
                values = math.prod(shape)
            case _:
                raise NotResolved(f"{where}: {shown(name)}: not a dtype, a shape and data_offsets", field="model")
        if (end - start) * 8 != values * _DTYPE_BITS[dtype]:
            raise NotResolved(f"{where}: {shown(name)}: its shape and its data_offsets differ", field="model")
        counts[dtype] += values
    return counts


def _sizes(values: list[object]) -> bool:
    """Whole numbers below 2**60: more would be no file."""
    return all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**60 for n in values)


def _mapping(content: bytes, where: str) -> dict[str, Any]:
    try:
        value = parsed(decoded(content, where), where, most_values=MOST_VALUES)
    except UsageError as error:
        raise NotResolved(error.message, field="model") from None
    if not isinstance(value, dict):
        raise NotResolved(f"{where}: not a mapping", field="model")
    return value
