"""Where the cursor stands in a half-written file, and what may come there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tunecast.job.comment import COMMENT, NAMES
from tunecast.lsp.positions import Position, Span, Text
from tunecast.records import NamedTuple

_LINE = re.compile(
    r"(?P<indent>[ \t]*(?:- )?[ \t]*)(?P<quote>[\"']?)(?P<key>[\w./-]*)(?P=quote)?(?P<gap>[ \t]*[:=][ \t]*)?"
)
_WORD = re.compile(r"[^\s,=]*$")


class Cursor(NamedTuple):
    """What is being written."""

    kind: str
    """"key", "value", "comment" or ""."""
    key: str
    """Of a value the dotted key, of a comment the word before `=`, of a key the mapping it stands in."""
    span: Span
    """What is written of it, which a completion replaces."""
    quoted: bool = False


class Completion(NamedTuple):
    label: str
    text: str
    detail: str
    is_value: bool


def cursor_at(text: Text, position: Position, ending: str) -> Cursor:
    line = text.line(position.line)
    start, at = text.starts[min(position.line, len(text.starts) - 1)], text.offset(position)
    before = line[: at - start]
    here = text.span(at, at)
    if COMMENT.match(line):
        word = _WORD.search(before)
        name = re.search(r"(\w+)=$", before[: word.start()] if word else before)
        begin = at - len(word[0]) if word else at
        return Cursor("comment", name[1] if name else "", text.span(begin, at))
    found = _LINE.match(before)
    if before.lstrip().startswith("#") or found is None:
        return Cursor("", "", here)
    parents = mapping_at(text, position.line, len(found["indent"]), ending)
    if found["gap"] is None:
        begin = start + found.start("key") - len(found["quote"])
        complete = found.end() >= len(before)
        return Cursor("key" if complete else "", parents, text.span(begin, at), bool(found["quote"]))
    begin = start + found.end()
    key = f"{parents}.{found['key']}" if parents else found["key"]
    return Cursor("value", key, text.span(begin, at), before[found.end() :].startswith(('"', "'")))


def mapping_at(text: Text, number: int, indent: int, ending: str) -> str:
    """The dotted name of the mapping a line stands in, by what is indented less before it; of TOML by its section."""
    names: list[str] = []
    for above in range(number - 1, -1, -1):
        line = text.line(above)
        if ending == ".toml":
            section = re.match(r"[ \t]*\[([\w. -]+)\]", line)
            if section:
                return section[1].replace(" ", "")
            continue
        found = re.match(r"([ \t]*)[\"']?([\w.-]+)[\"']?[ \t]*:[ \t]*({?)[ \t]*(#.*)?$", line)
        if found and len(found[1]) < indent:
            names.append(found[2])
            indent = len(found[1])
        elif re.match(r"[ \t]*[\w\"']", line) and len(line) - len(line.lstrip()) < indent:
            indent = len(line) - len(line.lstrip())
    return ".".join(reversed(names))


def without_value(text: Text, number: int, cursor: Cursor, ending: str) -> str:
    """With something in the place of a value that is being written: `base_model:` alone says no framework."""
    start, end = text.offset(cursor.span.start), text.offset(Position(number, 2**31))
    return text.text[:start] + ('"x"' if ending in (".json", ".toml") else "x") + text.text[end:]


def without_line(text: Text, number: int, ending: str) -> str:
    """The text as it can be read while a line of it is written."""
    lines = ["" if each == number else text.line(each) for each in range(len(text.starts))]
    joined = "\n".join(lines)
    return re.sub(r",(\s*})", r"\1", joined) if ending == ".json" else joined


def completions(
    cursor: Cursor, keys: Sequence[Mapping[str, Any]], cards: Sequence[str], written: str, ending: str
) -> Iterator[Completion]:
    if cursor.kind == "comment":
        yield from _in_comment(cursor, cards)
    elif cursor.kind == "value":
        found = next((each for each in keys if each["key"] == cursor.key), None)
        for value in found["values"] if found else ():
            yield Completion(value, _quoted(value, ending, cursor), cursor.key, True)
    elif cursor.kind == "key":
        yield from _keys(cursor, keys, written, ending)


def _in_comment(cursor: Cursor, cards: Sequence[str]) -> Iterator[Completion]:
    if cursor.key == "gpu":
        yield from (Completion(card, card, "card", True) for card in cards)
    elif not cursor.key:
        yield from (Completion(name, name if name == "eu" else f"{name}=", "tunecast", False) for name in NAMES)


def _keys(cursor: Cursor, keys: Sequence[Mapping[str, Any]], written: str, ending: str) -> Iterator[Completion]:
    before = f"{cursor.key}." if cursor.key else ""
    seen: set[str] = set()
    for each in keys:
        name = each["key"].removeprefix(before)
        if not each["key"].startswith(before) or not name:
            continue
        leaf, _, inside = name.partition(".")
        if leaf in seen or leaf.isdecimal() or (not before and _is_written(leaf, written, ending)):
            continue
        seen.add(leaf)
        yield Completion(leaf, _key(leaf, ending, section=bool(inside)), "" if inside else each["help"], False)


def _is_written(leaf: str, written: str, ending: str) -> bool:
    indent = r"\s*[{,]?\s*" if ending == ".json" else ""
    return re.search(rf"^{indent}[\"']?{re.escape(leaf)}[\"']?[ \t]*[:=]", written, re.MULTILINE) is not None


def _key(leaf: str, ending: str, *, section: bool) -> str:
    if ending == ".json":
        return f'"{leaf}": '
    if ending == ".toml":
        return f"{leaf} = "
    return f"{leaf}:" if section else f"{leaf}: "


def _quoted(value: str, ending: str, cursor: Cursor) -> str:
    if value in ("true", "false", "null"):
        return value
    return f'"{value}"' if ending in (".json", ".toml") or cursor.quoted else value
