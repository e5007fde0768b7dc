"""`python -m tunecast`, and the `tunecast` command."""

from __future__ import annotations

import sys

from tunecast.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
