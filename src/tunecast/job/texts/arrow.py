"""The rows of Parquet and Arrow files, a batch at a time, by the package pyarrow.

Of a file only the columns are read that hold text of a known format; `input_ids` are told by their number alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tunecast.errors import NotResolved
from tunecast.job.texts.columns import READ
from tunecast.job.texts.files import TextFile
from tunecast.job.texts.lines import Seen, open_plain
from tunecast.job.texts.rows import Found

BATCH_ROWS = 1024
"""Of a Parquet file; one of Arrow has batches of its own."""


def arrow_rows(file: TextFile, seen: Seen) -> Iterator[Found]:
    if file.compression:
        raise NotResolved(f"{file.path}: {file.format} inside {file.compression} is not read. To fix: unpack it")
    try:
        import pyarrow
    except ImportError:
        raise NotResolved(
            f"{file.path}: Parquet and Arrow files are read by the package pyarrow, which is not here. To fix: pip "
            "install 'tunecast[data]', or give the data as .jsonl",
            field="data.path",
        ) from None
    try:
        with open_plain(file.path) as opened:
            batches = _parquet(opened) if file.format == "parquet" else _arrow(opened)
            number = 0
            for batch in batches:
                names = [name for name in batch.schema.names if name in READ] or batch.schema.names
                for row in batch.select(names).to_pylist():
                    number += 1
                    yield number, row
                seen(opened.tell())
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        told = str(error).splitlines()[0] if str(error) else "cannot be read"
        raise NotResolved(f"{file.path}: not a {file.format} file, or damaged: {told}", field="data.path") from None


def _parquet(opened: Any) -> Iterator[Any]:
    from pyarrow import parquet

    read = parquet.ParquetFile(opened)
    names = [name for name in read.schema_arrow.names if name in READ]
    yield from read.iter_batches(batch_size=BATCH_ROWS, columns=names or None)


def _arrow(opened: Any) -> Iterator[Any]:
    """A file with an index at its end, or a stream, as `datasets` writes."""
    import pyarrow

    try:
        read = pyarrow.ipc.open_file(opened)
    except pyarrow.ArrowInvalid:
        opened.seek(0)
        yield from pyarrow.ipc.open_stream(opened)
        return
    yield from (read.get_batch(number) for number in range(read.num_record_batches))
