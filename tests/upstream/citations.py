"""Which upstream files and functions our source says it follows, read off its docstrings and comments.

A citation is a file's name or path (`modeling_llama.py`, `peft/tuners/lora/layer.py`), and behind it, in backquotes,
the functions or classes that are meant; with none the whole file is. `transformers/models/{olmo,olmo2}` are the
modeling files of those folders. A name that several packages have is the one that defines the functions cited, or else
of the package the same text speaks of last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FILE = re.compile(r"(?<![\w/.-])((?:[\w.-]+/)*[\w-]+\.py)\b")
FOLDER = re.compile(r"transformers/models/(\w+|\{[\w,\s]+\})(?:/modeling_\*\.py)?(?![\w/])")
NAMES = re.compile(r"(?:`?,?\s*(?:and|:|\()?\s*`([A-Za-z_][\w.]*)`)")
WRITTEN_BY_US = ("src", "tests", "benchmarks", "docs", "examples")


class Citation(NamedTuple):
    ours: str
    """The file that says it, from the root of the repository."""
    cited: str
    """A file's name, with as much of its path as is said."""
    names: tuple[str, ...]
    """Functions or classes; none: all of the file."""
    before: str
    """The text up to the citation."""


class Upstream(NamedTuple):
    package: str
    file: str
    """Within the package."""


def citations(root: Path = ROOT) -> Iterator[Citation]:
    for path in sorted((root / "src").rglob("*.py")):
        text = path.read_text("utf-8")
        for found in FILE.finditer(text):
            yield Citation(
                str(path.relative_to(root)), found[1], tuple(_names_behind(text[found.end() :])), text[: found.start()]
            )
        for found in FOLDER.finditer(text):
            for name in re.findall(r"\w+", found[1]):
                yield Citation(str(path.relative_to(root)), f"models/{name}/modeling_{name}.py", (), "")


def _names_behind(text: str) -> Iterator[str]:
    place = 0
    while match := NAMES.match(text, place):
        yield match[1]
        place = match.end()


def our_own_names(root: Path = ROOT) -> set[str]:
    return {path.name for folder in WRITTEN_BY_US for path in (root / folder).rglob("*.py")}


def resolved(citation: Citation, files: Mapping[Upstream, Mapping[str, str]], ours: Iterable[str]) -> Upstream | None:
    """The upstream file that is meant; None: one of ours, or of a package that is not looked at."""
    whole = f"/{citation.cited}"
    fits = [each for each in files if f"/{each.package}/{each.file}".endswith(whole)]
    naming = [each for each in fits if any(_defined(name, files[each]) for name in citation.names)]
    if len(naming) == 1:
        return naming[0]
    if citation.cited in ours:  # a bare name that is also one of ours
        return None
    fits = naming or fits
    if len(fits) > 1:
        spoken_of = {each: citation.before.rfind(each.package) for each in fits}
        latest = max(spoken_of.values())
        fits = [each for each in fits if spoken_of[each] == latest and latest >= 0]
    return fits[0] if len(fits) == 1 else None


def _defined(name: str, functions: Mapping[str, str]) -> bool:
    return any(each == name or each.endswith(f".{name}") for each in functions)


def meant(names: tuple[str, ...], functions: Mapping[str, str]) -> dict[str, str]:
    """The functions a citation covers: of a class all of its methods, of no name the whole file."""
    covered = {
        name: code
        for name, code in functions.items()
        if any(name == each or name.endswith(f".{each}") or f".{name}.".startswith(f".{each}.") for each in names)
    }
    return covered or dict(functions)
