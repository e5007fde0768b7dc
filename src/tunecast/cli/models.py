"""`tunecast models [TEXT...]`: what can be named without a network."""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser
from tunecast.door.catalogue import models
from tunecast.job.catalogue import BundledModel
from tunecast.report.draw.columns import columns
from tunecast.units import billions

USAGE = "tunecast models [TEXT...] [--family NAME] [--json]"
DESCRIPTION = """\
Lists the bundled models whose name, Hub ids or family contain every TEXT. A job may name them by the first column, by a
Hub id, or by the last part of one; with a network, also any other model on the Hub."""
EPILOG = """\
examples:
  tunecast models                       all of them
  tunecast models llama 8b              both words in the name or a Hub id
  tunecast models coder                 shows the Hub id that matched
  tunecast models --family gemma --json

Parameters are counted as transformers builds the model, a tied head once; active: those that one token uses in a
mixture of experts. --json counts the towers of vision models separately.
"""
HEAD = ("name", "parameters", "active", "layers", "hidden", "context", "Hub id")
LEFT = (0, 6)
"""The columns of names."""


def parser() -> Parser:
    made = Parser("models", USAGE, DESCRIPTION, EPILOG)
    made.add_argument("text", metavar="TEXT", nargs="*", help="part of a name, a Hub id or a family; all have to match")
    made.add_argument("--family", metavar="NAME", help="only this family (llama, qwen, gemma, ...)")
    made.add_argument("--json", action="store_true", help="a JSON array instead of a table")
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    found = models(*arguments.text, family=arguments.family)
    print_answer(found, arguments, lambda _: "\n".join([*columns([HEAD, *map(cells, found)], LEFT, indent=""), ""]))
    return 0


def cells(model: BundledModel) -> tuple[str, ...]:
    return (
        model.name,
        billions(model.parameters),
        billions(model.active_parameters) if model.active_parameters else "",
        str(model.layers),
        str(model.hidden_size),
        str(model.context or "-"),
        model.hub_id,
    )
