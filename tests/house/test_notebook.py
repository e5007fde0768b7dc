"""docs/notebook.ipynb prints what its cells print, and is a notebook."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.whole
def test_its_cells_print_what_it_shows() -> None:
    done = subprocess.run(
        [sys.executable, "docs/cells.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nTo fix: python docs/cells.py"


def test_it_is_executed_and_has_no_script() -> None:
    text = (ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8")
    notebook = json.loads(text)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert 6 <= len(cells) <= 10 and all(cell["outputs"] for cell in cells)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert "<script" not in text and "Traceback" not in text
