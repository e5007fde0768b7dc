"""The data a script trains on: which call loads it, and how long its tokenizer lets a row be."""

from __future__ import annotations

from typing import Any

from tunecast.job.recipes.scripts.script import ScriptSource
from tunecast.job.recipes.scripts.values import LOADS, Made
from tunecast.records import NamedTuple

BUILDERS = ("json", "csv", "parquet", "arrow", "text")
"""Names that `load_dataset` takes for kinds of files."""


class LoadedData(NamedTuple):
    call: Made
    source: str
    """A data set's name, or a file or folder."""
    held_back: int | float | None
    """Rows to evaluate on, or their share: `train_test_split`."""


def training_data(script: ScriptSource, trainer: Made) -> LoadedData | None:
    """What the trainer is given as `train_dataset`; where the text does not lead there, the one source that the script
    loads at all."""
    held_back = None
    value = trainer.get("train_dataset")
    for link in value.links() if isinstance(value, Made) else ():
        if link.is_a("train_test_split"):
            share = link.get("test_size", 0)
            held_back = share if isinstance(share, (int, float)) and not isinstance(share, bool) else None
        if link.is_a(*LOADS):
            source = source_of(link)
            return None if source is None else LoadedData(link, source, held_back)
    loaded = list(script.of(*LOADS))
    sources = {source_of(call) for call in loaded}
    only = sources.pop() if len(sources) == 1 else None
    return None if only is None else LoadedData(loaded[0], only, None)


def source_of(call: Made) -> str | None:
    named = {"load_from_disk": "dataset_path", "load_dataset": "path"}.get(
        call.name.rpartition(".")[2], "path_or_paths"
    )
    source = call.get(named, 0)
    if call.is_a("load_dataset") and source in BUILDERS:
        source = _train_files(call.get("data_files", 2))
    return source if isinstance(source, str) else None


def _train_files(files: Any) -> Any:
    """Of files by split those of `train`; of a list of one, that one."""
    if isinstance(files, dict):
        files = files.get("train")
    return files[0] if isinstance(files, (list, tuple)) and len(files) == 1 else files


def longest_row(script: ScriptSource) -> tuple[Made, int] | None:
    """What a tokenizer cuts rows to, where the script asks it to: `tokenizer(text, truncation=True, max_length=512)`;
    and the call."""
    for call in script.calls[::-1]:
        longest = call.get("max_length")
        if call.get("truncation") not in (None, False, "do_not_truncate") and type(longest) is int and longest > 0:
            return call, longest
    return None
