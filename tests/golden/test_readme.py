"""What the README prints of a plan is what the command prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tunecast.cli.plan import answer, parser
from tunecast.report.plan import text
from tunecast.report.text import Terminal

README = Path(__file__).parents[2] / "README.md"


def test_the_plan_of_the_readme_is_what_it_prints(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (block,) = re.findall(r"```\n\$ (tunecast plan .*?)```", README.read_text("utf-8"), re.DOTALL)
    command, _, printed = block.replace("\\\n", " ").partition("\n")
    plan, failed = answer(parser().read([*shlex.split(command)[2:], "--quiet"]))
    assert failed is None
    told = iter(text(plan, Terminal(100)).splitlines())
    for line in (line for line in printed.splitlines() if line.strip() not in ("", "...")):
        assert line in told, line
