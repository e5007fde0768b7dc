"""Which columns of the training data hold what: frameworks that want to be told are told what the first row shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.errors import TunecastError, UsageError
from tunecast.job.texts.columns import ANSWERS, CHATS, format_of
from tunecast.job.texts.files import files_of
from tunecast.job.texts.rows import rows_of
from tunecast.records import NamedTuple

BUILDERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".txt": "text", ".parquet": "parquet", ".arrow": "arrow"}
"""The `datasets` library's builder of a file, by its ending (datasets/packaged_modules/__init__.py)."""


class Columns(NamedTuple):
    format: str
    """As job/texts/columns.py has them."""
    names: Mapping[str, str]
    """By what they hold: prompt, query, response, messages, text, chosen, rejected."""
    speaker: str = "role"
    """Of a chat: the key that says who speaks, `role` or `from`."""


UNKNOWN = Columns("messages", {"messages": "messages"})
"""Of a job without data: what the placeholder is written for."""


def columns_of(path: str | None) -> Columns:
    """Of the first row. Raises `UsageError` where its columns are not known."""
    if path is None:
        return UNKNOWN
    row = _first_row(path)
    format = format_of(row)
    answer = next((name for name in ANSWERS if name in row), "")
    if format == "messages":
        name = next(each for each in CHATS if isinstance(row.get(each), list))
        turns = [each for each in row[name] if isinstance(each, Mapping)]
        return Columns(format, {"messages": name}, "from" if turns and "from" in turns[0] else "role")
    if format in ("prompt", "instruction", "question"):
        query = {"query": "input"} if "input" in row else {}
        return Columns(format, {"prompt": format, **query, "response": answer})
    if format == "preference":
        prompt = {"prompt": "prompt"} if "prompt" in row else {}
        return Columns(format, {**prompt, "chosen": "chosen", "rejected": "rejected"})
    if format == "text":
        return Columns(format, {"text": next(name for name, value in row.items() if isinstance(value, str))})
    raise UsageError.at(
        "data.path", f"got rows with the columns {', '.join(map(str, list(row)[:8]))}, which are not known"
    )


def _first_row(path: str) -> Mapping[str, Any]:
    try:
        for file in files_of(path).files:
            for _, row in rows_of(file, lambda nbytes: None):
                if isinstance(row, Mapping):
                    return row
    except TunecastError as error:
        raise UsageError.at("data.path", error.message) from None
    raise UsageError.at("data.path", f"{path} has no row")
