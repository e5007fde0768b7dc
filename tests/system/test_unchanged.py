"""One recorded job in twelve, each time: `./dev system unchanged` asks for all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import unchanged


def test_no_answer_moved(capsys: pytest.CaptureFixture[str]) -> None:
    code = unchanged.main(["--every", "12"])
    assert code == 0, capsys.readouterr().out
