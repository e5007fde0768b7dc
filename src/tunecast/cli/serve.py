"""`tunecast serve`: the page and the HTTP API, on this machine."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib.util import find_spec

from tunecast.cli.arguments import Parser
from tunecast.errors import NotResolved, UsageError

USAGE = (
    "tunecast serve [--port N] [--host H --token-file F] [--hub] [--no-browser] [--framed-by ORIGIN]... "
    "[--ends-with-stdin]"
)
DESCRIPTION = """\
Serves a web page to plan a fine-tune on, and the HTTP API behind it, to this machine alone unless --host says
otherwise. It prints its URL and runs until it is interrupted. No request leaves the machine: models are the bundled
ones, or a config.json dropped on the page; --hub also allows Hub ids."""
EPILOG = """\
examples:
  tunecast serve                                                    at http://127.0.0.1:8765/, and opens a browser
  tunecast serve --port 0 --no-browser                              any free port
  tunecast serve --host 10.0.0.5 --token-file token --no-browser    for a team: requests need the token

Then, from a program: curl -s 127.0.0.1:8765/api/predict -H 'Content-Type: application/json' \\
  -d '{"job": {"model": "llama-3.1-8b", "method": "qlora", "hardware": {"gpu": "rtx-4090"}}}'
"""
PORT = 8765
PACKAGES = ("starlette", "uvicorn")


def parser() -> Parser:
    made = Parser("serve", USAGE, DESCRIPTION, EPILOG)
    made.add_argument(
        "--port", metavar="N", type=int, default=PORT, help=f"port to listen on; 0: any free one (default: {PORT})"
    )
    made.add_argument(
        "--host",
        metavar="H",
        default="127.0.0.1",
        help="address to listen on; any but loopback needs --token-file (default: 127.0.0.1)",
    )
    made.add_argument("--token-file", metavar="F", help="file with the token that every request has to carry")
    made.add_argument("--hub", action="store_true", help="allow Hub ids, which are looked up on the Hub")
    made.add_argument("--no-browser", action="store_true", help="do not open a browser")
    made.add_argument(
        "--framed-by",
        metavar="ORIGIN",
        action="append",
        default=[],
        help="allow this origin, such as an editor's, to show the page in a frame (default: none)",
    )
    made.add_argument(
        "--ends-with-stdin",
        action="store_true",
        help="stop when stdin closes, as when the program that started it ends",
    )
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise NotResolved(f"{' and '.join(missing)} not installed. To fix: pip install 'tunecast[serve]'")
    if not 0 <= arguments.port <= 65535:
        raise UsageError(f"--port: got {arguments.port}; allowed: 0 to 65535", field="--port")
    from tunecast.web.http.server import serve
    from tunecast.web.safety import editor_origins, token_in

    framed_by = editor_origins(arguments.framed_by)
    token = None if arguments.token_file is None else token_in(arguments.token_file)

    def ready(url: str) -> None:
        print(url, flush=True)
        if not arguments.no_browser and token is None:
            open_browser(url)

    if arguments.ends_with_stdin:
        end_with_stdin()
    serve(arguments.host, arguments.port, token, hub=arguments.hub, ready=ready, framed_by=framed_by)
    return 0


def end_with_stdin() -> None:
    """Ends this process, as its interruption does, once standard input has no more: an editor that is killed ends no
    other program."""

    def follow() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=follow, daemon=True).start()


def open_browser(url: str) -> None:
    """Where there is a screen: a browser of the terminal would take that over."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    import webbrowser

    webbrowser.open(url)
