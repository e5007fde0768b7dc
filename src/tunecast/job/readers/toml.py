"""A job in TOML: one file, its sections the mappings of the job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tunecast.job.readers.bounds import MOST_YAML_BYTES, bounded_text
from tunecast.job.readers.json import Found

if TYPE_CHECKING:
    from pathlib import Path


def documents(path: Path) -> Iterator[Found]:
    from tunecast.job.recipes.document import toml_document

    yield Found(str(path), toml_document(bounded_text(path, MOST_YAML_BYTES), str(path)).tree)
