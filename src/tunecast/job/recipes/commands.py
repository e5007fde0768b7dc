"""The commands of a shell script, as far as its text tells them. Nothing is executed, `$(...)` is never run.

Variables are those the script itself assigns; what it takes from elsewhere (`$WORLD_SIZE`, `$1`, `$(nvidia-smi)`)
stays as it is written. Of programs in `$(...)` those are understood that need not run: arithmetic, and the folder a
script stands in. Bodies of `if`, `for` and `while` are taken as they stand, a loop with the first of its values;
`ShellCommand.around` says so. Heredocs are skipped.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from tunecast.errors import UsageError
from tunecast.job.recipes.nesting import Nesting
from tunecast.job.recipes.words import Word, is_open
from tunecast.records import NamedTuple

MOST_EXPANDED = 4_000_000
"""Characters of all variables together: a file may come from anyone, and one may double itself line by line."""
MOST_NESTED = 8
"""Of ${A:-${B:-...}} and of `bash -c`; what lies deeper stays as it is written."""
MOST_ARITHMETIC = 200
"""Characters of one $((...))."""

LEADING = frozenset({"if", "then", "else", "elif", "while", "until", "do", "!", "{", "}", "fi", "done", "time"})
"""Words behind which a command begins."""
DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})
SHELLS = frozenset({"bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/usr/bin/bash"})
ENDS = frozenset(" \t\r\n;&|<>()")
CONTINUED = ("\\\n", "\\\r\n")
NO_WORDS = ('$@"', '${@}"')
"""Arguments of the script, which are words of their own."""
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
NAME = re.compile(r"[A-Za-z_]\w*|[0-9#?*@!-]")
ENTERED = re.compile(r"cd\s+([^;&|]+?)(?:\s*&?>\s*/dev/null)?(?:\s+2>&1)?\s*(?:&&|;)\s*pwd(?:\s+-[PL])?")
"""`cd FOLDER && pwd`."""
BRACED = re.compile(r"([A-Za-z_]\w*|[0-9@*#])(\[[^\]]*\])?(?:(:?[-=+?])(.*))?", re.DOTALL)


class ShellCommand(NamedTuple):
    words: tuple[Word, ...]
    environment: Mapping[str, Word]
    """What the script exports or puts before the command."""
    around: str = ""
    """What decides whether it runs: `an if (line 3)`."""


def commands_of(
    text: str,
    variables: Mapping[str, Any] | None = None,
    first_line: int = 1,
    *,
    arguments: Sequence[str] = (),
    certain: bool = False,
) -> list[ShellCommand]:
    """Every simple command of a script in its order. `variables`: what is set around it; `arguments`: of the script.

    With `certain` a variable that is assigned under a condition stays as it is written: `${LR}`.
    Raises `UsageError` where its variables grow beyond all bounds.
    """
    shell = _Shell(text, dict(variables or {}), {}, MOST_NESTED, first_line)
    shell.certain = certain
    shell.set_arguments(arguments)
    return shell.commands()


class _Shell:
    """Reads a script from its beginning to its end, with the variables as they are at each place."""

    def __init__(
        self, text: str, variables: dict[str, Any], exported: dict[str, Word], nested: int, line: int = 1
    ) -> None:
        self.text, self.at, self.line = text, 0, line
        self.variables, self.exported, self.nested = variables, exported, nested
        self.budget = [MOST_EXPANDED]
        self.found: list[ShellCommand] = []
        self.words: list[Word] = []
        self.before: dict[str, Any] = {}
        self.heredocs: list[str] = []
        self.nesting = Nesting()
        self.certain = False

    def set_arguments(self, arguments: Sequence[str]) -> None:
        """`$1`, `$#`; "$@" is kept as a list."""
        self.variables["@"] = list(arguments)
        if arguments:
            self.variables.update({str(n): word for n, word in enumerate(arguments, 1)}, **{"#": str(len(arguments))})

    def commands(self) -> list[ShellCommand]:
        while self.at < len(self.text):
            self._step()
        self._finish()
        return self.found

    def _step(self) -> None:
        char = self.text[self.at]
        if char in " \t\r" or self.text.startswith(CONTINUED, self.at):
            self._pass_blank()
        elif char == "\n":
            self.at, self.line = self.at + 1, self.line + 1
            self._finish("\n")
            self._skip_heredocs()
        elif char == "#":
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        elif self.text.startswith(("<", ">", "&>"), self.at):
            self._redirect()
        elif char in ";&|()":
            operator = char * 2 if self.text.startswith(char * 2, self.at) else char
            self.at += len(operator)
            self._finish(operator)
        elif (assigned := self._assignment()) is not None:
            self._assign(*assigned)
        else:
            self._take_word()

    def _pass_blank(self) -> None:
        if self.text[self.at] == "\\":
            self.at += 3 if self.text.startswith("\\\r", self.at) else 2
            self.line += 1
        else:
            self.line += self.text[self.at] == "\n"
            self.at += 1

    def _take_word(self) -> None:
        line = self.line
        fields = self._word(splits=True)
        if self.text[self.at : self.at + 1] in ("<", ">") and fields and fields[-1].isdecimal():
            fields = fields[:-1]  # 2>&1
        for field in fields:
            if not self.words:
                self.nesting.begin(field, line)
            if self.words or field not in LEADING:
                self.words.append(Word(field, line))

    # commands

    def _finish(self, operator: str = "") -> None:
        words, before = self.words, self.before
        self.words, self.before = [], {}
        around = self.nesting.around
        self.nesting.join(operator, words[0] if words else next(iter(before), ""))
        if not words:
            self.variables.update(before)
            return
        environment = self.exported | {name: value for name, value in before.items() if isinstance(value, Word)}
        if words[0] in DECLARING:
            self._declare(words)
        elif words[0] == "for" and len(words) > 3 and words[2] == "in":
            self.variables[words[1]] = str(words[3])
        elif (inner := _inner_script(words)) is not None and self.nested:
            self._run_inner(words, inner, environment, around)
        elif words[0] == "shift":
            self.set_arguments(self.variables["@"][int(words[1]) if words[1:] and words[1].isdecimal() else 1 :])
        else:
            self.found.append(ShellCommand(tuple(words), environment, around))

    def _run_inner(self, words: list[Word], at: int, environment: dict[str, Word], around: str) -> None:
        text = " ".join(words[at:]) if words[0] == "eval" else words[at]
        shell = _Shell(text, self.variables, environment, self.nested - 1, words[at].line)
        shell.budget, shell.certain, shell.nesting = self.budget, self.certain, Nesting(around)
        outer = () if words[0] == "eval" else tuple(words[: at - 2])
        for command in shell.commands():
            on_its_line = tuple(Word(word, words[at].line) for word in command.words)
            self.found.append(ShellCommand(outer + on_its_line, command.environment, command.around))

    def _declare(self, words: list[Word]) -> None:
        exports = words[0] == "export" or "-x" in words
        for word in words[1:]:
            value = self.variables.get(word)
            if exports and isinstance(value, str):
                self.exported[str(word)] = value if isinstance(value, Word) else Word(value, word.line)

    # assignments

    def _assignment(self) -> tuple[str, bool] | None:
        if self.words and self.words[0] not in DECLARING and self.words[0] != "env":
            return None
        match = ASSIGNMENT.match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        return match[1], bool(match[2])

    def _assign(self, name: str, adds: bool) -> None:
        line, value = self.line, self._array() if self.text.startswith("(", self.at) else "".join(self._word(False))
        declares = bool(self.words) and self.words[0] in DECLARING
        store = self.variables if declares else self.before
        if self.certain and self.nesting.around:
            value = f"${{{name}}}"
        held = self.before.get(name, self.variables.get(name)) if adds else None
        if isinstance(held, list):
            value = [*held, *(value if isinstance(value, list) else [value])]
        elif isinstance(held, str) and isinstance(value, str):
            value = held + value
        self._spend(len(value))
        store[name] = value if isinstance(value, list) else Word(value, line)
        if declares:
            self.words.append(Word(name, line))

    def _array(self) -> list[str]:
        self.at += 1
        items: list[str] = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            char = self.text[self.at]
            if char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in ENDS or self.text.startswith(CONTINUED, self.at):
                self._pass_blank()
            else:
                items += self._word(splits=True)
        self.at += 1
        return items

    # words

    def _word(self, splits: bool) -> list[str]:
        """From here to what ends it; several where an unquoted variable holds several, none where it is empty."""
        made = _Fields(splits)
        while self.at < len(self.text) and (char := self.text[self.at]) not in ENDS:
            if char == "\\":
                self._escape(made)
            elif char == "'":
                made.add(self._until("'"))
            elif char == '"':
                self._double_quoted(made)
            elif char == "$":
                self._dollar(made, quoted=False)
            elif char == "`":
                made.add(f"`{self._until('`')}`")
            else:
                made.add(char)
                self.at += 1
        return made.fields()

    def _escape(self, made: _Fields) -> None:
        if self.text.startswith(CONTINUED, self.at):
            self._pass_blank()
        else:
            made.add(self.text[self.at + 1 : self.at + 2])
            self.at += 2

    def _until(self, quote: str) -> str:
        """The text in these quotes, which are passed."""
        end = self.text.find(quote, self.at + 1)
        end = len(self.text) if end < 0 else end
        inside = self.text[self.at + 1 : end]
        self.line += inside.count("\n")
        self.at = end + 1
        return inside

    def _double_quoted(self, made: _Fields) -> None:
        self.at += 1
        if not self.text.startswith(NO_WORDS, self.at):
            made.add("")
        while self.at < len(self.text) and (char := self.text[self.at]) != '"':
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in tuple('$`"\\\n'):
                after = self.text[self.at + 1]
                self.line += after == "\n"
                made.add("" if after == "\n" else after)
                self.at += 2
            elif char == "$":
                self._dollar(made, quoted=True)
            else:
                self.line += char == "\n"
                made.add(char)
                self.at += 1
        self.at += 1

    # variables

    def _dollar(self, made: _Fields, quoted: bool) -> None:
        start = self.at
        if self.text.startswith("$((", start):
            inside = self._enclosed("(", ")", 2)
            value: Any = self._arithmetic(inside.removesuffix(")"))
        elif self.text.startswith("$(", start):
            value = self._of_program(self._enclosed("(", ")", 2))
        elif self.text.startswith("${", start):
            value = self._braced(self._enclosed("{", "}", 2))
        elif not quoted and self.text.startswith("$'", start):
            self.at += 1
            value = self._until("'")
        elif (match := NAME.match(self.text, start + 1)) is not None:
            self.at = match.end()
            value = self.variables.get("@", []) if match[0] in "@*" else self._value_of(match[0])
        else:
            self.at += 1
            value = "$"
        if value is None:  # it is said elsewhere
            made.add(self.text[start : self.at])
            return
        self._spend(len(value) if isinstance(value, str) else sum(map(len, value)))
        made.expand(value, quoted)

    def _value_of(self, name: str) -> str | None:
        value = self.before.get(name, self.variables.get(name)) if not self.words else self.variables.get(name)
        return (value[0] if value else "") if isinstance(value, list) else value

    def _braced(self, inside: str) -> Any:
        match = BRACED.fullmatch(inside)
        if match is None:
            return None
        name, index, sign, alternative = match.groups()
        if name in ("@", "*"):
            return self.variables.get("@", [])
        held = self.variables.get(name)
        if index in ("[@]", "[*]"):
            value: Any = [held] if isinstance(held, str) else held
        else:
            value = self._value_of(name)
        is_set = value is not None and not (value == "" and sign and sign.startswith(":"))
        if sign is None or sign.endswith("?"):
            return value
        if sign.endswith("+"):
            return self._text_of(alternative) if is_set else ""
        if is_set:
            return value
        value = self._text_of(alternative)
        if sign.endswith("="):
            self.variables[name] = value
        return value

    def _text_of(self, text: str) -> str:
        """With its own variables; where it is nested too deep, as it stands."""
        if not self.nested:
            return text
        shell = _Shell(text, self.variables, {}, self.nested - 1, self.line)
        shell.budget = self.budget
        made = _Fields(splits=False)
        while shell.at < len(text):
            if text[shell.at] in ENDS:
                made.add(text[shell.at])
                shell.at += 1
            made.add("".join(shell._word(splits=False)))
        return "".join(made.fields())

    def _enclosed(self, opening: str, closing: str, skipped: int) -> str:
        """What stands between these, which are passed; brackets inside come in pairs."""
        self.at += skipped
        start, depth = self.at, 1
        while self.at < len(self.text) and depth:
            char = self.text[self.at]
            depth += (char == opening) - (char == closing)
            self.line += char == "\n"
            self.at += 1
        return self.text[start : self.at - 1] if not depth else self.text[start:]

    def _arithmetic(self, text: str) -> str | None:
        if len(text) > MOST_ARITHMETIC:
            return None
        text = self._text_of(text).lstrip("(").strip() if text.count("(") != text.count(")") else self._text_of(text)
        return computed(text.strip(), self._value_of)

    def _of_program(self, text: str) -> str | None:
        """`$(expr 16 / $n)`, which is arithmetic too, and `$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)`; any other
        program is not run."""
        text = text.strip()
        if len(text) > MOST_ARITHMETIC:
            return None
        if (inside := ENTERED.fullmatch(text)) is not None:
            return self._path(inside[1])
        program, _, rest = text.partition(" ")
        if program == "expr":
            return computed(self._text_of(rest).replace("\\*", "*"), self._value_of)
        if program == "dirname":
            path = self._path(rest)
            return None if path is None else str(PurePath(path).parent)
        if program == "realpath" or text.startswith("readlink -f "):
            return self._path(rest.removeprefix("-f "))
        return None

    def _path(self, text: str) -> str | None:
        """Of one word; None where it hangs on what the script does not say."""
        path = self._text_of(text.strip().removeprefix("-- ").strip())
        return path if path and not is_open(path) else None

    def _skip_heredocs(self) -> None:
        for end in self.heredocs:
            while self.at < len(self.text):
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.at : stop]
                self.at, self.line = stop + 1, self.line + 1
                if line.strip() == end:
                    break
        self.heredocs = []

    def _redirect(self) -> None:
        heredoc = self.text.startswith("<<", self.at) and not self.text.startswith("<<<", self.at)
        while self.at < len(self.text) and self.text[self.at] in "<>&|" + ("-" if heredoc else ""):
            self.at += 1
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        if self.text.startswith("(", self.at):  # <(...)
            self._enclosed("(", ")", 1)
            return
        target = "".join(self._word(splits=False))
        if heredoc and target:
            self.heredocs.append(target)

    def _spend(self, characters: int) -> None:
        self.budget[0] -= characters
        if self.budget[0] < 0:
            raise UsageError(f"line {self.line}: variables of more than {MOST_EXPANDED} characters")


class _Fields:
    """The words that one becomes: an unquoted variable is split where it holds blanks."""

    def __init__(self, splits: bool) -> None:
        self.splits = splits
        self.done: list[str] = []
        self.parts: list[str] | None = None

    def add(self, text: str) -> None:
        if self.parts is None:
            self.parts = []
        self.parts.append(text)

    def expand(self, value: str | list[str], quoted: bool) -> None:
        if isinstance(value, list):
            for number, each in enumerate(value):
                if number:
                    self._close()
                self.add(each)
        elif quoted or not self.splits:
            self.add(value)
        else:
            self._add_split(value)

    def fields(self) -> list[str]:
        self._close()
        return self.done if self.splits else [" ".join(self.done)]

    def _add_split(self, value: str) -> None:
        pieces = value.split()
        if value[:1].isspace():
            self._close()
        for number, piece in enumerate(pieces):
            if number:
                self._close()
            self.add(piece)
        if value[-1:].isspace():
            self._close()

    def _close(self) -> None:
        if self.parts is not None:
            self.done.append("".join(self.parts))
            self.parts = None


def _inner_script(words: list[Word]) -> int | None:
    """Where the text of `bash -c TEXT` or `eval TEXT` stands."""
    if words[0] == "eval" and len(words) > 1:
        return 1
    for at, (shell, option) in enumerate(pairwise(words)):
        if shell in SHELLS and option.startswith("-") and option.endswith("c") and at + 2 < len(words):
            return at + 2
    return None


OPERATIONS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def computed(text: str, value_of: Callable[[str], str | None]) -> str | None:
    """Whole numbers and variables with + - * / %; None for anything else."""
    if len(text) > MOST_ARITHMETIC:
        return None
    try:
        return str(_number(ast.parse(text, mode="eval").body, value_of))
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _number(node: ast.AST, value_of: Callable[[str], str | None]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return int(value_of(node.id) or "")
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](_number(node.left, value_of), _number(node.right, value_of))
    raise ValueError("not arithmetic")
