"""datasets: maps in this process, and reads back what it wrote.

`num_proc` starts processes that a trace could not follow; one process gives the same rows. Arrow maps its files by
path from C++, which knows nothing of where a traced script's writes went.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tunecast.tape.trace.overlay import Overlay
from tunecast.tape.trace.packages import after_import

MAPPING = ("map", "filter", "to_json", "to_csv", "to_parquet", "save_to_disk")


def install(overlay: Overlay) -> None:
    def work_alone(module: ModuleType) -> None:
        for kind in (getattr(module, name, None) for name in ("Dataset", "DatasetDict")):
            for name in MAPPING:
                if hasattr(kind, name):
                    setattr(kind, name, _alone(getattr(kind, name)))

    def load_alone(module: ModuleType) -> None:
        module.load_dataset = _alone(module.load_dataset)  # type: ignore[attr-defined]

    def read_what_was_written(module: ModuleType) -> None:
        for name in ("memory_map", "OSFile", "input_stream"):
            setattr(module, name, _inside(getattr(module, name), overlay))

    after_import("pyarrow", read_what_was_written)
    after_import("datasets.arrow_dataset", work_alone)
    after_import("datasets.dataset_dict", work_alone)
    after_import("datasets.load", load_alone)


def _alone(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("num_proc", None)
        return function(*args, **kwargs)

    call.__name__, call.__doc__, call.__wrapped__ = function.__name__, function.__doc__, function  # type: ignore[attr-defined]
    return call


def _inside(function: Any, overlay: Overlay) -> Any:
    def call(source: Any, *args: Any, **kwargs: Any) -> Any:
        mode = args[0] if args and isinstance(args[0], str) else kwargs.get("mode", "r")
        if isinstance(source, str):
            path = overlay.absolute(source)
            source = overlay.to_read(path) if mode in ("r", "rb") else overlay.to_write(path, keep=True)
        return function(source, *args, **kwargs)

    return call
