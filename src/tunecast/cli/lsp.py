"""`tunecast lsp`: the language server, on stdin and stdout."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from tunecast.cli.arguments import Parser
from tunecast.errors import NotResolved

USAGE = "tunecast lsp"
DESCRIPTION = """\
Runs the language server, as editors do. In the files you train with it shows whether the run fits its card, what each
key costs, what `tunecast fit` would change, and a plan. It speaks the Language Server Protocol on stdin and stdout
until its editor stops it, and nothing leaves the machine."""
EPILOG = """\
examples:
  pip install 'tunecast[lsp]'          install what it needs
  tunecast lsp                         as an editor starts it; set-up for Neovim, Helix and VS Code: docs/editor.md

A comment in the file, # tunecast: gpu=rtx-4090, or the editor's settings (tunecast.gpu) name the card.
"""


def parser() -> Parser:
    made = Parser("lsp", USAGE, DESCRIPTION, EPILOG)
    made.add_argument(
        "--stdio", action="store_true", help="accepted because some editors pass it; there is no other transport"
    )
    return made


def run(argv: Sequence[str]) -> int:
    parser().read(argv)
    if find_spec("pygls") is None:
        raise NotResolved("pygls not installed. To fix: pip install 'tunecast[lsp]'")
    from tunecast.lsp.protocol.server import serve

    serve()
    return 0
