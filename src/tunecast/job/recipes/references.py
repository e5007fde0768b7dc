"""Values that name other values of their file, `${output_dir}/logs`, as OmegaConf has them (torchtune, Automodel).

Only names are followed. What calls a function (`${oc.env:HOME}`, `${eval:'1 + 1'}`), what names nothing and what leads
back to itself stays as it is written. A file may come from anyone: see `MOST_STEPS` and `LONGEST`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tunecast.job.recipes.document import Document
from tunecast.records import replace

MOST_STEPS = 8
"""From a name to a name."""
LONGEST = 4096
"""Characters of a value after its names were followed: a name that holds itself twice doubles with each step."""
_NAME = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")


def resolved(document: Document) -> Document:
    """The same file with every name followed."""
    if "${" not in document.text and not document.on_command_line:
        return document
    return replace(document, tree=_followed(document.tree, document))


def _followed(value: Any, document: Document) -> Any:
    if isinstance(value, Mapping):
        return {key: _followed(each, document) for key, each in value.items()}
    if isinstance(value, list):
        return [_followed(each, document) for each in value]
    return _text_followed(value, document, MOST_STEPS) if isinstance(value, str) and "${" in value else value


def _text_followed(text: str, document: Document, steps: int) -> Any:
    """A value that is a name alone keeps that value's type."""
    if not steps:
        return text
    whole = _NAME.fullmatch(text)
    if whole:
        found = document.get(whole[1])
        if isinstance(found, str) and "${" in found:
            return _text_followed(found, document, steps - 1)
        return text if found is None or isinstance(found, (Mapping, list)) else found

    def named(match: re.Match[str]) -> str:
        found = document.get(match[1])
        return match[0] if found is None or isinstance(found, (Mapping, list)) else str(found)

    longer = _NAME.sub(named, text)
    if longer == text or len(longer) > LONGEST:
        return text
    return _text_followed(longer, document, steps - 1) if "${" in longer else longer
