"""Make docs/img/memory_page.png anew: the page of a job's memory, as a browser without a window draws it.

    python docs/picture.py [CHROMIUM]

The job is an example of this repository. Needs Chromium (or Chrome) and nothing else; no network is used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "img" / "memory_page.png"
JOB = ["examples/llama-3.2-1b-full.yaml", "--gpu", "l40s", "--no-advice"]
WIDTH, HEIGHT = 1200, 1012
"""Pixels: from the verdict to the end of the chart."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def main() -> None:
    given = sys.argv[1:] or [found for found in map(shutil.which, BROWSERS) if found]
    if not given:
        sys.exit(f"no browser was found. To fix: install one of {', '.join(BROWSERS)}, or name it")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "memory.html")
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, "-m", "tunecast", "predict", *JOB, "--html", str(page)]
        subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
        how = [f"--user-data-dir={folder}/browser", f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={PICTURE}"]
        subprocess.run([given[0], *QUIET, *how, page.as_uri()], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
