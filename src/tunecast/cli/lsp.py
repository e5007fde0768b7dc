"""`tunecast lsp`: the language server, on stdin and stdout."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from tunecast.cli.arguments import Parser
from tunecast.errors import NotResolved

USAGE = "tunecast lsp"
DESCRIPTION = """\
The language server that editors start: in the files of a training whether it fits its card, what each key costs, what
`tunecast fit` would change, a plan. It speaks the Language Server Protocol on stdin and stdout until its editor ends
it, and nothing leaves the machine."""
EPILOG = """\
examples:
  pip install 'tunecast[lsp]'          what it needs
  tunecast lsp                         as an editor starts it; docs/editor.md says how for Neovim, Helix and VS Code

Which card is meant says a comment in the file, # tunecast: gpu=rtx-4090, or the editor's settings (tunecast.gpu).
"""


def parser() -> Parser:
    made = Parser("lsp", USAGE, DESCRIPTION, EPILOG)
    made.add_argument("--stdio", action="store_true", help="as some editors say it; it is all there is")
    return made


def run(argv: Sequence[str]) -> int:
    parser().read(argv)
    if find_spec("pygls") is None:
        raise NotResolved("pygls not installed. To fix: pip install 'tunecast[lsp]'")
    from tunecast.lsp.protocol.server import serve

    serve()
    return 0
