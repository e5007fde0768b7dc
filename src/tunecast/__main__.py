"""`python -m tunecast`, and the `tunecast` command."""

from __future__ import annotations

from tunecast.cli.main import command

if __name__ == "__main__":
    command()
