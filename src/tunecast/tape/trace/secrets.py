"""What is not for others, in words that are: pages and answers are sent around."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_NAME = r"([a-z0-9_.-]*[-_.])?(token|secret|password|passwd|credentials?|((api|access|secret|private|wandb)[-_]?)key)"
_FLAG = re.compile(rf"(?i)--?{_NAME}")
_VARIABLE = re.compile(rf"(?i){_NAME}([-_.][a-z0-9_.-]*)?")
SHORTEST = 8
"""Characters of a value that is hidden wherever it stands; a shorter one may be any word."""
HIDDEN = "***"


def without_secrets(words: Sequence[str]) -> list[str]:
    """`--hf-token ***` and `--hf-token=***`."""
    kept: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        if kept and _FLAG.fullmatch(kept[-1]) and not word.startswith("-"):
            kept.append(HIDDEN)
        elif equals and value and (_FLAG.fullmatch(flag) or _VARIABLE.fullmatch(flag)):
            kept.append(f"{flag}={HIDDEN}")
        else:
            kept.append(word)
    return kept


def without_values(text: str, environment: Mapping[str, str]) -> str:
    """`text` without the values of variables such as HF_TOKEN."""
    values = [value for name, value in environment.items() if _VARIABLE.fullmatch(name) and len(value) >= SHORTEST]
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text
