"""The lines of a file of any size, compressed or not: a few MiB at a time, each line with an end.

Text is UTF-8; a file that begins with the mark of UTF-16 or UTF-32 is read as that.
"""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Callable, Iterator
from typing import IO, Any, cast

from tunecast.errors import NotResolved
from tunecast.job.texts.files import TextFile
from tunecast.records import NamedTuple
from tunecast.units import MIB

PIECE_BYTES = 4 * MIB
MOST_LINE_BYTES = 32 * MIB
"""Some ten million tokens of English, as many as a sample may have (`LONGEST` of job/lengths.py)."""
TOO_LONG = f"longer than {MOST_LINE_BYTES // MIB} MiB, the most that is read"
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip

Seen = Callable[[int], None]
"""Told how many bytes of the file itself were read so far."""


class BadLine(NamedTuple):
    """What could not be counted, and why. Of files without lines, the number is that of the row."""

    file: str
    line: int
    reason: str


def pieces_of(file: TextFile, seen: Seen) -> Iterator[bytes]:
    """In UTF-8, without the mark at its beginning."""
    with open_plain(file.path) as raw:
        stream = _opened(raw, file.compression)
        decode: Callable[[bytes], bytes] | None = None
        first = True
        while True:
            try:
                piece = stream.read(PIECE_BYTES)
            except (OSError, EOFError, ValueError) as error:
                raise NotResolved(f"{file.path}: {error or 'cannot be read'}", field="data.path") from None
            except Exception as error:  # zlib.error, lzma.LZMAError, zstd's own
                raise NotResolved(f"{file.path}: damaged {file.compression} file: {error}", field="data.path") from None
            over = not piece
            if first:
                piece, decode = _begun(piece)
                first = False
            elif decode is not None:
                piece = decode(piece)
            seen(raw.tell())
            if piece:
                yield piece
            if over:
                return


def lines_of(file: TextFile, seen: Seen) -> Iterator[tuple[int, bytes | BadLine]]:
    """Each with its number, without its end; one that is too long is told once and passed over."""
    number, rest, too_long = 1, b"", False
    for piece in pieces_of(file, seen):
        lines = piece.split(b"\n")
        lines[0] = rest + lines[0]
        rest = lines.pop()
        for line in lines:
            if too_long or len(line) > MOST_LINE_BYTES:
                yield number, BadLine(file.path, number, TOO_LONG)
                too_long = False
            else:
                yield number, line
            number += 1
        if len(rest) > MOST_LINE_BYTES:
            rest, too_long = b"", True
    if too_long:
        yield number, BadLine(file.path, number, TOO_LONG)
    elif rest:
        yield number, rest


NOT_UTF8 = "not UTF-8: another encoding such as Latin-1 has to be converted first"


def not_utf8(error: UnicodeDecodeError) -> str:
    return NOT_UTF8.replace(":", f" (byte {error.start + 1} of the line):")


def open_plain(path: str) -> IO[bytes]:
    """What is not a plain file is refused, and a pipe is not waited for."""
    try:
        file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115  closed by whoever reads it
    except (OSError, ValueError) as error:
        told = getattr(error, "strerror", None) or "cannot be read"
        raise NotResolved(f"{path}: {told}", field="data.path") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NotResolved(f"{path}: not a plain file", field="data.path")
    return file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _begun(piece: bytes) -> tuple[bytes, Callable[[bytes], bytes] | None]:
    """The first piece, and how to decode those that follow."""
    encoding = next((name for mark, name in _MARKS if piece.startswith(mark)), None)
    if encoding is None:
        return piece.removeprefix(codecs.BOM_UTF8), None
    decoder = codecs.getincrementaldecoder(encoding)("replace")

    def decode(more: bytes) -> bytes:
        return decoder.decode(more, final=not more).encode()

    return decode(piece), decode


def _opened(raw: IO[bytes], compression: str) -> IO[bytes]:
    if compression == ".gz":
        import gzip

        return cast(IO[bytes], gzip.GzipFile(fileobj=raw))
    if compression == ".bz2":
        import bz2

        return cast(IO[bytes], bz2.BZ2File(raw))
    if compression == ".xz":
        import lzma

        return cast(IO[bytes], lzma.LZMAFile(raw))
    return _zstandard(raw) if compression == ".zst" else raw


def _zstandard(raw: IO[bytes]) -> IO[bytes]:
    """Of the standard library from Python 3.14 on, else of the package `zstandard`."""
    from importlib import import_module

    for name, opener in (("compression.zstd", "open"), ("zstandard", "open")):
        try:
            module: Any = import_module(name)
        except ImportError:
            continue
        return cast(IO[bytes], getattr(module, opener)(raw, "rb"))
    raise NotResolved(
        f"{raw.name}: .zst is read with Python 3.14 or the package zstandard; neither is here. To fix: pip install "
        "'tunecast[data]', or unpack it: zstd -d",
        field="data.path",
    )
