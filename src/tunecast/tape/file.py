"""A tape on disk: gzip-compressed JSON lines, each thing that repeats written once.

A traced script runs in the user's own interpreter, and its tape comes back to ours through such a file. The script
is not ours, so the file may hold anything: it is never unpickled, every bound below is checked before memory is
spent, every value before it is used, and whatever is wrong ends as `NotResolved`.

    {"format": "tunecast.tape/1", "guesses": [...], "assumptions": [...], "versions": {...},
     "managed_bytes": 0}
    ["text", "aten.mm", "model.layers.0", ...]         appended to the table of strings
    ["ops", [name, module, dtype, ...], ...]           appended to the table of operations; a string is its number
    ["blocks", [nbytes, role, module, stream], ...]    appended to the table of what a block can be
    ["events", 0, 17, 1, 4, 2, ...]                    flat: a code (`_OP` and its fellows), then that event's numbers
    ["units", [name, detail, start, end, traced, keeps graph, [sizes], [outputs]], ...]
    ["end", 123456]                                    the count of events; without it the file was cut short

Steps repeat, so millions of events name only thousands of different operations. Flat rows of integers let the C
parser, `min`, `max` and one `set` of types do the checking: half a million events take under a second each way.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from tunecast.errors import NotResolved, TunecastError
from tunecast.records import NamedTuple
from tunecast.tape.op import Alloc, Begin, EmptyCache, Event, Free, Op, Phase, Role, Tape, Unit
from tunecast.units import MIB

FORMAT = "tunecast.tape/1"
MAX_EVENTS = 5_000_000
"""Some 250 bytes each once read: what a hostile file can cost is 1.3 GB."""
MAX_FILE_BYTES = 256 * MIB
MAX_BYTES = 256 * MIB
"""Decompressed."""
MAX_TABLE_BYTES = 64 * MIB
"""Of that, all but the events: strings and shapes can take several times as much once read."""

_MAX_LINE_BYTES = 4 * MIB
_MAX_TABLE = 1_000_000
_MAX_NUMBER = 2**63 - 1
_CHUNK = 16_384

_OP, _ALLOC, _FREE, _BEGIN, _EMPTY_CACHE = range(5)
_Kind = tuple[int, Role, str, int]
"""An `Alloc` without its block number."""


class _Table(dict[Any, int]):
    """Numbers things as they come, and remembers which are not yet written."""

    def __init__(self) -> None:
        self.fresh: list[Any] = []

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        self.fresh.append(key)
        return number

    def take(self) -> list[Any]:
        fresh, self.fresh = self.fresh, []
        return fresh


def write_tape(tape: Tape, path: str | os.PathLike[str]) -> None:
    """Needs the standard library and `op.py` alone: it runs beside whatever the user has installed."""
    with gzip.GzipFile(path, "wb", compresslevel=1, mtime=0) as file:
        try:
            for line in _lines(tape):
                file.write(line)
        except _Damaged as error:
            raise TunecastError(f"the tape cannot be written: {error}") from error


def _lines(tape: Tape) -> Iterator[bytes]:
    header = _encoded(
        {
            "format": FORMAT,
            "guesses": list(tape.guesses),
            "assumptions": list(tape.assumptions),
            "versions": dict(tape.versions),
            "managed_bytes": tape.managed_bytes,
        }
    )
    if len(header) > _MAX_LINE_BYTES:
        raise _Damaged("what was guessed fills more than a line may hold")
    yield header
    text, ops, kinds = _Table(), _Table(), _Table()
    events = iter(tape.events)
    while chunk := list(islice(events, _CHUNK)):
        flat = _numbers(_flat(chunk, ops, kinds, text))
        op_rows = [_op_row(op, text) for op in ops.take()]
        kind_rows = [_kind_row(kind, text) for kind in kinds.take()]
        yield from _split("text", text.take())
        yield from _split("ops", op_rows)
        yield from _split("blocks", kind_rows)
        yield _encoded(["events", *flat])
    rows = [_unit_row(unit, text) for unit in tape.units]
    yield from _split("text", text.take())
    for start in range(0, len(rows), _CHUNK):
        yield from _split("units", rows[start : start + _CHUNK])
    yield _encoded(["end", len(tape.events)])


def _encoded(line: Any) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"


def _split(kind: str, rows: list[Any]) -> Iterator[bytes]:
    """As few lines as stay within the reader's bound, however long the strings."""
    if not rows:
        return
    line = _encoded([kind, *rows])
    if len(line) <= _MAX_LINE_BYTES:
        yield line
    elif len(rows) == 1:
        raise _Damaged(f"one of its {kind} is longer than {_MAX_LINE_BYTES // MIB} MiB")
    else:
        yield from _split(kind, rows[: len(rows) // 2])
        yield from _split(kind, rows[len(rows) // 2 :])


def _flat(events: list[Event], ops: _Table, kinds: _Table, text: _Table) -> list[int]:
    flat: list[int] = []
    for event in events:
        if isinstance(event, Alloc):
            flat += (_ALLOC, event.block, kinds[event[1:]])
        elif isinstance(event, Free):
            flat += (_FREE, event.block)
        elif isinstance(event, Op):
            flat += (_OP, ops[event])
        elif isinstance(event, Begin):
            flat += (_BEGIN, text[event.phase.value], event.step)
        else:
            flat.append(_EMPTY_CACHE)
    return flat


def _op_row(op: Op, text: _Table) -> list[Any]:
    numbers = _numbers((op.flops, op.read_bytes, op.written_bytes, op.kernels, op.stream))
    shapes = [_numbers(shape) for shape in op.shapes]
    engine = [1] if op.by_engine else []
    return [text[op.name], text[op.module], text[op.dtype], text[op.source], *numbers, shapes, text[op.group], *engine]


def _unit_row(unit: Unit, text: _Table) -> list[Any]:
    name, detail, start, end, traced, sizes, keeps_graph, outputs = unit
    head = _numbers((text[name], detail, start, end, int(traced), int(keeps_graph)))
    return [*head, _numbers(sizes), _numbers(outputs)]


def _kind_row(kind: _Kind, text: _Table) -> list[int]:
    nbytes, role, module, stream = kind
    return _numbers((nbytes, text[role.value], text[module], stream))


class _Damaged(ValueError):
    """What is wrong with the file, for `read_tape` to say with its name."""


def _numbers(values: Iterable[Any]) -> list[int]:
    """The same values, all known to be integers a GPU could mean. Both sides use it: what is written can be read."""
    row = list(values)
    if row and (set(map(type, row)) != {int} or min(row) < 0 or max(row) > _MAX_NUMBER):
        raise _Damaged("a number is negative, absurd or no integer")
    return row


def read_tape(path: str | os.PathLike[str], *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> Tape:
    name = Path(path).name
    try:
        with open(path, "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_FILE_BYTES:
                raise _Damaged(f"it is no file, or larger than {MAX_FILE_BYTES // MIB} MiB")
            return _read(_json_lines(file, max_bytes), max_events)
    except (ValueError, LookupError, TypeError, EOFError, RecursionError, zlib.error, gzip.BadGzipFile) as error:
        why = str(error) if isinstance(error, _Damaged) else "it is damaged"
        raise NotResolved(f"{name} is no tape tunecast can read: {why}. Trace the script again.") from error
    except OSError as error:
        raise NotResolved(f"{name} could not be read: {error.strerror or error}.") from error


def _json_lines(file: BinaryIO, max_bytes: int) -> Iterator[Any]:
    with gzip.GzipFile(fileobj=file, mode="rb") as plain:
        spent_bytes = table_bytes = 0
        while line := plain.readline(_MAX_LINE_BYTES + 1):
            spent_bytes += len(line)
            table_bytes += 0 if line.startswith(b'["events",') else len(line)
            if len(line) > _MAX_LINE_BYTES or spent_bytes > max_bytes or table_bytes > MAX_TABLE_BYTES:
                raise _Damaged(f"it unpacks to a line or a whole that is too long (bound: {max_bytes // MIB} MiB)")
            yield json.loads(line)


def _read(lines: Iterator[Any], max_events: int) -> Tape:
    header = next(lines, None)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise _Damaged(f"it does not begin as {FORMAT}")
    guesses = _strings(header["guesses"])
    assumptions = _strings(header["assumptions"])
    versions = dict(header["versions"])
    _strings([*versions, *versions.values()])
    managed_bytes = header.get("managed_bytes", 0)
    if type(managed_bytes) is not int or not 0 <= managed_bytes < 2**63:
        raise _Damaged("its managed memory is no number of bytes")

    text: list[str] = []
    ops: list[Op] = []
    kinds: list[_Kind] = []
    events: list[Event] = []
    units: list[Unit] = []
    lives = _Lives(set(), set())
    for line in lines:
        tag, rows = line[0], line[1:]
        if tag == "events":
            events += _read_events(_numbers(rows), ops, kinds, text, lives)
            _bounded(len(events), max_events, "events")
        elif tag == "text":
            text += _strings(rows)
        elif tag == "ops":
            ops += [_read_op(row, text) for row in rows]
        elif tag == "blocks":
            kinds += [_read_kind(row, text) for row in rows]
        elif tag == "units":
            units += [_read_unit(row, text) for row in rows]
        elif tag == "end":
            _check_units(units, len(events))
            if rows != [len(events)] or next(lines, None) is not None:
                raise _Damaged("the count of its events is wrong")
            return Tape(tuple(events), tuple(guesses), tuple(assumptions), versions, managed_bytes, tuple(units))
        else:
            raise _Damaged("it holds a line of an unknown kind")
        _bounded(max(len(text), len(ops), len(kinds), len(units)), _MAX_TABLE, "table entries")
    raise _Damaged("it was cut short")


class _Lives(NamedTuple):
    """Which blocks were born and which still live: an allocator given a block twice would answer with nonsense."""

    born: set[int]
    live: set[int]


def _read_events(flat: list[int], ops: list[Op], kinds: list[_Kind], text: list[str], lives: _Lives) -> Iterator[Event]:
    """One event a code. A row that ends within an event runs into `nothing`, which is in no table."""
    born, live = lives
    numbers = iter(flat)
    nothing = _MAX_NUMBER + 1
    for code in numbers:
        if code == _ALLOC:
            block, kind = next(numbers, nothing), kinds[next(numbers, nothing)]
            if block in born:
                raise _Damaged(f"block {block} is allocated twice")
            born.add(block)
            live.add(block)
            yield Alloc(block, *kind)
        elif code == _FREE:
            block = next(numbers, nothing)
            if block not in live:
                raise _Damaged(f"block {block} is freed but not allocated")
            live.remove(block)
            yield Free(block)
        elif code == _OP:
            yield ops[next(numbers, nothing)]
        elif code == _BEGIN:
            phase, step = Phase(text[next(numbers, nothing)]), next(numbers, nothing)
            if step == nothing:
                raise _Damaged("it was cut short")
            yield Begin(phase, step)
        elif code == _EMPTY_CACHE:
            yield EmptyCache()
        else:
            raise _Damaged("it holds an event of an unknown kind")


def _read_op(row: Any, text: list[str]) -> Op:
    name, module, dtype, source, flops, read_bytes, written_bytes, kernels, stream, shapes, group, *engine = row
    _numbers([*row[:9], len(shapes), group, *engine])
    return Op(
        name=text[name],
        module=text[module],
        flops=flops,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        kernels=kernels,
        dtype=text[dtype],
        shapes=tuple(tuple(_numbers(shape)) for shape in shapes),
        source=text[source],
        stream=stream,
        group=text[group],
        by_engine=engine == [1],
    )


def _read_unit(row: Any, text: list[str]) -> Unit:
    *head, sizes, outputs = row
    name, detail, start, end, traced, keeps_graph = _numbers(head)
    return Unit(
        text[name],
        detail,
        start,
        end,
        bool(traced),
        tuple(_numbers(sizes)),
        bool(keeps_graph),
        tuple(_numbers(outputs)),
    )


def _check_units(units: list[Unit], events: int) -> None:
    ends = [bound for unit in units for bound in (unit.start, unit.end)]
    if ends != sorted(ends) or (ends and ends[-1] > events):
        raise _Damaged("its units do not follow each other")


def _read_kind(row: Any, text: list[str]) -> _Kind:
    nbytes, role, module, stream = _numbers(row)
    return nbytes, Role(text[role]), text[module], stream


def _strings(values: Any) -> list[str]:
    if not isinstance(values, list) or (values and set(map(type, values)) != {str}):
        raise _Damaged("text was expected where something else stands")
    return values


def _bounded(count: int, bound: int, what: str) -> None:
    if count > bound:
        raise _Damaged(f"it holds more than {bound:,} {what}")
