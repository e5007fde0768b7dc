"""What a script calls, as documents that readers take keys from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tunecast.errors import UsageError
from tunecast.job.recipes.document import Document
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.scripts.source import statements_of
from tunecast.job.recipes.scripts.statements import Statements
from tunecast.job.recipes.scripts.values import Made, is_known, plain
from tunecast.records import NamedTuple, dataclass

BY_RUNNING = "its value is known when the script runs: tunecast trace -- {}"


class ScriptSource(NamedTuple):
    file: str
    imports: frozenset[str]
    """In full: `unsloth.FastLanguageModel`."""
    calls: tuple[Made, ...]
    """In the order of the text."""
    environment: Mapping[str, tuple[Any, int]]
    given: Mapping[str, Any]
    """What the command line sets."""
    left: Mapping[str, Any]
    """Of that, what no variable or argument is called."""
    places: Mapping[str, tuple[str, int]] = {}
    """File and line of what a script that calls it sets."""

    def of(self, *names: str) -> Iterator[Made]:
        """Calls of these names, the last parts of which are enough."""
        return (call for call in self.calls if call.is_a(*names))

    def last(self, *names: str) -> Made | None:
        return next(iter(list(self.of(*names))[::-1]), None)

    def imports_from(self, package: str) -> bool:
        return any(name == package or name.startswith(f"{package}.") for name in self.imports)

    def called(self, draft: Draft) -> Keys:
        """The calls themselves by title, for fields that they say by being made."""
        elsewhere = {call.title: (call.file, call.line) for call in self.calls if call.file}
        return draft.keys(Document(self.file, {}, {call.title: call.line for call in self.calls}, elsewhere=elsewhere))

    def document(
        self, call: Made, positions: tuple[str, ...] = (), values: Mapping[str, Any] | None = None
    ) -> Document:
        """What a call is given, by name; of what is given by place, `positions` has the names."""
        given = dict(zip(positions, call.positional, strict=False)) | call.arguments
        tree = {name: plain(value) for name, value in given.items() if is_known(value)}
        lines = {name: call.lines.get(name, call.line) for name in given}
        elsewhere = {name: self.places[name] for name, line in lines.items() if not line and name in self.places}
        document = Document(call.file or self.file, tree, lines, elsewhere=elsewhere)
        return document.with_values(
            values or {}, {name: self.places[name] for name in values or {} if name in self.places}
        )

    def keys(
        self, draft: Draft, call: Made, without_effect: tuple[str, ...] = (), positions: tuple[str, ...] = (),
        values: Mapping[str, Any] | None = None,
    ) -> Keys:  # fmt: skip
        """The same for a reader; arguments that only a run would tell are reported."""
        keys = draft.keys(self.document(call, positions, values), without_effect)
        given = dict(zip(positions, call.positional, strict=False)) | call.arguments
        for name, value in given.items():
            if not is_known(value) and not isinstance(value, Made) and not keys.moves_nothing(name):
                draft.not_modelled(keys, name, BY_RUNNING.format(self.file))
        return keys


@dataclass(frozen=True)
class ScriptDocument(Document):
    """A script among the documents that frameworks are asked about."""

    script: ScriptSource | None = None

    def with_values(self, values: Mapping[str, Any], places: Mapping[str, tuple[str, int]] | None = None) -> Document:
        """Read again: a value of a command line takes the place of variables and arguments of its name."""
        if not values:
            return self
        before, known = (self.script.given, self.script.places) if self.script is not None else ({}, {})
        kept = {name: place for name, place in known.items() if name not in values}
        return read_script(Path(self.file), {**before, **values}, {**kept, **(places or {})})


def read_script(
    path: Path, values: Mapping[str, Any] | None = None, places: Mapping[str, tuple[str, int]] | None = None
) -> ScriptDocument:
    """Raises a `TunecastError` where it is no Python, or too much of it."""
    reader = Statements(values, path.parent)
    try:
        reader.run(statements_of(path))
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply to be read without running it") from None
    left = {name: value for name, value in reader.values.items() if name not in reader.used}
    names = frozenset(reader.module.imports.values())
    script = ScriptSource(
        str(path), names, tuple(reader.calls), reader.environment, dict(reader.values), left, places or {}
    )
    return ScriptDocument(str(path), {}, {}, script=script)
