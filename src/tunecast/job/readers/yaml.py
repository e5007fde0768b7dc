"""A job in YAML: one mapping a file, read by PyYAML's safe loader.

Aliases are counted as often as they are used before anything is built, so that a few lines which expand to
millions are refused; a key given twice is refused, where PyYAML would silently take the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tunecast.errors import UsageError
from tunecast.job.knob import shown
from tunecast.job.readers.bounds import MOST_DEPTH, MOST_NODES, MOST_YAML_BYTES, bounded_text, check_shape
from tunecast.job.readers.json import Found

if TYPE_CHECKING:
    from pathlib import Path


def documents(path: Path) -> Iterator[Found]:
    yield Found(str(path), parsed(bounded_text(path, MOST_YAML_BYTES), str(path)))


def parsed(text: str, where: str) -> Any:
    return with_lines(text, where)[0]


def with_lines(text: str, where: str) -> tuple[Any, dict[str, int]]:
    """The value a YAML text holds, and the line of every key in it by its dotted name: `datasets.0.path`."""
    yaml = import_module("yaml")  # here, as most commands read no YAML; by name, as PyYAML brings no types

    loader = None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None, {}
        _check_nodes(node, where)
        lines = dict(_lines(node))
        value = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = _mark_of(error)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise UsageError(f"{where}: {place}not YAML: {_reason(error)}") from None
    except yaml.YAMLError:
        raise UsageError(f"{where}: not YAML: a character that YAML does not allow") from None
    except RecursionError:
        raise UsageError(f"{where}: nested too deep") from None
    except (ValueError, OverflowError, TypeError, KeyError, AttributeError, IndexError):
        # what PyYAML's own constructors raise for a date, number or tag that only looks like one
        raise UsageError(f"{where}: holds a number or a date that cannot be") from None
    finally:
        if loader is not None:
            loader.dispose()
    check_shape(value, where)
    return value, lines


def _mark_of(error: Any) -> Any:
    """Where to look: of a quote that is never closed where it opens, not the end of the file."""
    unclosed = error.problem == "found unexpected end of stream"
    return (unclosed and error.context_mark) or error.problem_mark or error.context_mark


def _reason(error: Any) -> str:
    """PyYAML's own words; its words for several documents do not say what to do."""
    if error.context == "expected a single document in the stream":
        return "several documents; allowed: one job a file, or many in JSON Lines"
    return f"{error.context}: {error.problem}" if error.context else str(error.problem)


def _check_nodes(root: Any, where: str) -> None:
    """Counts what the tree would hold with every alias written out, and looks for keys given twice."""
    yaml = import_module("yaml")
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: Any, depth: int) -> int:
        if id(node) in sizes:
            return sizes[id(node)]
        if id(node) in open_nodes:
            raise UsageError(f"{where}: line {_line(node)}: an alias to what it is part of")
        if depth > MOST_DEPTH:
            raise UsageError(f"{where}: nested more than {MOST_DEPTH} deep, the most that is read")
        open_nodes.add(id(node))
        total = 1
        for inner in _inner(node, where):
            total += size(inner, depth + 1)
            if total > MOST_NODES:
                raise UsageError(f"{where}: more than {MOST_NODES} values, the most that is read")
        open_nodes.remove(id(node))
        sizes[id(node)] = total
        return total

    def _inner(node: Any, where: str) -> Iterator[Any]:
        if isinstance(node, yaml.SequenceNode):
            yield from node.value
        elif isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        told = f"{where}: line {_line(key)}: {shown(key.value)} is given twice; allowed: once"
                        raise UsageError(told, field=str(key.value)[:64])
                    seen.add(key.value)
                yield key
                yield value

    size(root, 0)


def _lines(node: Any, before: str = "") -> Iterator[tuple[str, int]]:
    """Of each key and item, outer ones first."""
    yaml = import_module("yaml")
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = f"{before}{key.value}" if isinstance(key, yaml.ScalarNode) else before
            yield name, _line(key)
            yield from _lines(value, f"{name}.")
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield f"{before}{number}", _line(value)
            yield from _lines(value, f"{before}{number}.")


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1
