"""What a name may stand for: a plain value, something made by a call, or nothing that is known."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

LOADS = ("load_dataset", "load_from_disk", "from_json", "from_csv", "from_parquet", "from_text")
"""Calls of the `datasets` library that make a data set."""
MOST_LINKS = 50


class Unknown:
    """What hangs on more than the script's text."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = Unknown()


class DottedName(str):
    """A dotted name that stands for itself: `torch.bfloat16`."""


FOLLOWS_CARD = DottedName("auto")
"""Whether the card computes in bfloat16."""


class Made:
    """What a call makes: its name in full, and what it was given. Attributes that are set later count as given."""

    def __init__(self, name: str, line: int, receiver: Made | None = None) -> None:
        self.name, self.line, self.receiver = name, line, receiver
        self.positional: list[Any] = []
        self.arguments: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self.is_open = False
        """Whether it was given more than the text tells: `**kwargs`."""
        self.file = ""
        """Of the module that makes it; '': the script itself."""

    @property
    def title(self) -> str:
        """As a script writes it: `SFTTrainer`, `FastLanguageModel.from_pretrained`."""
        parts = self.name.split(".")
        return ".".join(parts[-2:] if len(parts) > 1 and parts[-1][:1].islower() else parts[-1:])

    def is_a(self, *names: str) -> bool:
        """By the last parts of its name."""
        return any(self.name == name or self.name.endswith(f".{name}") for name in names)

    @property
    def is_data(self) -> bool:
        """Whether it is a data set, or made of one: what is taken out of it is data too."""
        return any(link.is_a(*LOADS) for link in self.links())

    def links(self) -> Iterator[Made]:
        """Itself, what it was called on, and so on."""
        made: Made | None = self
        for _ in range(MOST_LINKS):
            if made is None:
                return
            yield made
            made = made.receiver

    def give(self, name: str, value: Any, line: int) -> None:
        self.arguments[name] = value
        self.lines[name] = line

    def get(self, name: str, position: int | None = None) -> Any:
        """An argument by its name or place; None where it was not given."""
        if name in self.arguments:
            return self.arguments[name]
        if position is not None and position < len(self.positional):
            return self.positional[position]
        return None

    def without(self, names: Container[str]) -> Made:
        """The same call less these arguments."""
        made = Made(self.name, self.line, self.receiver)
        made.positional, made.lines, made.is_open, made.file = self.positional, self.lines, self.is_open, self.file
        made.arguments = {name: value for name, value in self.arguments.items() if name not in names}
        return made

    def only(self, names: Container[str]) -> Made:
        made = Made(self.name, self.line, self.receiver)
        made.lines, made.file = self.lines, self.file
        made.arguments = {name: value for name, value in self.arguments.items() if name in names}
        return made


def is_known(value: Any) -> bool:
    """Whether it is a plain value through and through."""
    if isinstance(value, (Made, Unknown)):
        return False
    if isinstance(value, Mapping):
        return all(map(is_known, value.values()))
    return all(map(is_known, value)) if isinstance(value, (list, tuple)) else True


def plain(value: Any) -> Any:
    """As a file would hold it: symbols are text, tuples lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, DottedName) else value
