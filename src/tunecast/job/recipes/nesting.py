"""What decides whether, how often or on what a command of a shell script runs: `if`, loops, functions, pipes, `||`."""

from __future__ import annotations

OPENING = {
    "if": "an if", "for": "a for loop", "while": "a while loop", "until": "an until loop", "case": "a case",
    "select": "a select", "{": "a function or group",
}  # fmt: skip
CLOSING = frozenset({"fi", "done", "esac", "}"})
TESTS = frozenset({"[", "[[", "test", "!"})


class Nesting:
    """Follows a script word by word. `around` names what the present command hangs on; '': it simply runs."""

    def __init__(self, around: str = "") -> None:
        self._outer = around
        self._open: list[str] = []
        self._after = ""

    @property
    def around(self) -> str:
        return self._outer or (self._open[0] if self._open else self._after)

    def begin(self, word: str, line: int) -> None:
        """The first word of a command, or one behind which a command begins."""
        if word in OPENING:
            self._open.append(f"{OPENING[word]} (line {line})")
        elif word in CLOSING and self._open:
            self._open.pop()

    def join(self, operator: str, first_word: str) -> None:
        """`;`, `&&`, `||`, `|` or a new line behind a command that begins with this word; '': behind none."""
        if operator == "|":
            self._after = "a pipe into it"
        elif operator == "||":
            self._after = "what stands before its ||"
        elif operator == "&&" and first_word in TESTS:
            self._after = "the test before its &&"
        elif first_word:
            self._after = ""
