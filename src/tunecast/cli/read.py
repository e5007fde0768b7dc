"""`tunecast read PATH [KEY=VALUE ...]`: the job understood from the file somebody trains with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser, add_json_flag
from tunecast.door.read import recipe
from tunecast.errors import UsageError
from tunecast.job.recipes.document import scalar
from tunecast.report.lists.recipe import recipe_text

USAGE = "tunecast read PATH [KEY=VALUE ...] [--json]"
DESCRIPTION = """\
Shows the job in the file you already train with: Axolotl's, LLaMA-Factory's, TRL's, torchtune's and others, recognised
by content. Each field is shown with the line it comes from, or whose default it is; keys that were not
understood are listed. The file is never executed."""
EPILOG = """\
examples:
  tunecast read config.yaml                          what was understood
  tunecast read config.yaml micro_batch_size=4       with another value, by its framework's key
  tunecast read config.yaml --json                   for programs

Then ask about it: tunecast predict config.yaml --gpu rtx-4090, or tunecast plan config.yaml.
"""


def parser() -> Parser:
    made = Parser("read", USAGE, DESCRIPTION, EPILOG)
    made.add_argument("path", metavar="PATH", help="the file you train with")
    made.add_argument("values", metavar="KEY=VALUE", nargs="*", help="keys of its framework, which win over the file's")
    add_json_flag(made)
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    found = recipe(arguments.path, values_from(arguments.values))
    print_answer(found, arguments, lambda terminal: recipe_text(found, arguments.path))
    return 0


def values_from(words: Iterable[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"got {word!r}; allowed: KEY=VALUE, such as micro_batch_size=4", field="values")
        values[name.strip().lstrip("-")] = scalar(value)
    return values
