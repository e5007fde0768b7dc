"""What a script calls, as documents that readers take keys from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tunecast.errors import TunecastError
from tunecast.job.recipes.document import Document
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.scripts.source import statements_of
from tunecast.job.recipes.scripts.statements import Statements
from tunecast.job.recipes.scripts.values import Made, is_known, plain
from tunecast.records import NamedTuple, dataclass

BY_RUNNING = "its value is known when the script runs: tunecast trace -- {}"


class Script(NamedTuple):
    file: str
    imports: frozenset[str]
    """In full: `unsloth.FastLanguageModel`."""
    calls: tuple[Made, ...]
    """In the order of the text."""
    environment: Mapping[str, tuple[Any, int]]
    values: Mapping[str, Any] = {}
    """What the command line sets and no variable or argument is called."""

    def of(self, *names: str) -> Iterator[Made]:
        """Calls of these names, the last parts of which are enough."""
        return (call for call in self.calls if call.is_a(*names))

    def last(self, *names: str) -> Made | None:
        return next(iter(list(self.of(*names))[::-1]), None)

    def imports_from(self, package: str) -> bool:
        return any(name == package or name.startswith(f"{package}.") for name in self.imports)

    def document(
        self, call: Made, positions: tuple[str, ...] = (), values: Mapping[str, Any] | None = None
    ) -> Document:
        """What a call is given, by name; of what is given by place, `positions` has the names."""
        given = dict(zip(positions, call.positional, strict=False)) | call.arguments
        tree = {name: plain(value) for name, value in given.items() if is_known(value)}
        lines = {name: call.lines.get(name, call.line) for name in given}
        return Document(self.file, tree, lines).with_values(values or {})

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

    script: Script | None = None


def read_script(path: Path, values: Mapping[str, Any] | None = None) -> ScriptDocument:
    """Raises a `TunecastError` where it is no Python, or too much of it."""
    reader = Statements(values)
    try:
        reader.run(statements_of(path))
    except RecursionError:
        raise TunecastError(f"{path}: nested too deeply to be read without running it") from None
    left = {name: value for name, value in reader.values.items() if name not in reader.used}
    script = Script(str(path), frozenset(reader.imports.values()), tuple(reader.calls), reader.environment, left)
    return ScriptDocument(str(path), {}, {}, script=script)
