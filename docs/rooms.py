"""The list of files in every package's docstring: one line per file, with what it holds.

    python docs/rooms.py            add files that are missing, take out those that are gone
    python docs/rooms.py --check    name the packages whose list is not true

A file that is new gets the first sentence of its own docstring; words that somebody wrote in a list stay.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "tunecast"
ENTRY = re.compile(r"^(?: {4})?([a-z_]\w*(?:\.py|/))\s+\S")
WIDTH = 118


def packages() -> list[Path]:
    return sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)


def members(package: Path) -> list[str]:
    """Its files and the packages in it, as a list names them."""
    files = [path.name for path in package.glob("*.py") if path.name != "__init__.py"]
    return sorted(files) + sorted(f"{path.parent.name}/" for path in package.glob("*/__init__.py"))


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False) or ""


def entries(text: str) -> dict[str, str]:
    """What a docstring says of each file, by its name."""
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        entry = ENTRY.match(line)
        if entry:
            name = entry[1]
            found[name] = line.split(None, 1)[1]
        elif name and re.match(r"^ {8,}\S", line):
            found[name] += " " + line.strip()
        else:
            name = ""
    return found


def first_sentence(path: Path) -> str:
    opening = " ".join(docstring(path).split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", opening)[0].rstrip(".")


def listing(package: Path, said: dict[str, str]) -> str:
    names = members(package)
    width = max(map(len, names), default=0) + 2
    lines = []
    for name in names:
        words = said.get(name) or first_sentence(package / (name + "__init__.py" if name.endswith("/") else name))
        lines += textwrap.wrap(
            words, WIDTH, initial_indent=f"{name:{width}}", subsequent_indent=" " * width
        ) or [name]  # fmt: skip
    return "\n".join(lines)


def with_listing(package: Path) -> str:
    """The package's docstring with a true list: in place of the one it has, else at its end."""
    text = docstring(package / "__init__.py")
    said = entries(text)
    if set(said) == set(members(package)):
        return text
    lines, kept, inside = text.rstrip().splitlines(), [], False
    place = None
    for line in lines:
        inside = bool(ENTRY.match(line)) or (inside and bool(re.match(r"^ {8,}\S", line)))
        if inside:
            place = len(kept) if place is None else place
        else:
            kept.append(line)
    if place is None:
        kept, place = [*kept, ""], len(kept) + 1
    kept[place:place] = listing(package, said).splitlines()
    return "\n".join(kept) + "\n"


def main() -> int:
    wrong = 0
    for package in packages():
        path = package / "__init__.py"
        if not members(package):
            continue
        old, new = docstring(path), with_listing(package)
        if old == new:
            continue
        wrong += 1
        print(path.relative_to(PACKAGE.parent))
        if "--check" not in sys.argv:
            source = path.read_text(encoding="utf-8")
            path.write_text(
                source.replace(f'"""{old}"""', f'"""{new}"""', 1) if old else f'"""{new}"""\n{source}', "utf-8"
            )
    return 1 if wrong and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
