"""The commands for real: a bundled example and a plain script, traced by this interpreter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, torch
from torch import nn

width = int(sys.argv[1])
up, down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
model = nn.Sequential(up, nn.GELU(), down).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    values = torch.randn(64, width, device="cuda")
    model(values).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step)
open("checkpoint.pt", "w").write("never")
"""


Tunecast = Callable[..., tuple[int, str, str]]


def command_and_options(*argv: str, folder: Path) -> tuple[list[str], dict[str, Any]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    return [sys.executable, "-m", "tunecast", *argv], {"cwd": folder, "env": environment}


@pytest.fixture
def tunecast(tmp_path: Path, run_programs: Callable[..., Any]) -> Tunecast:
    """Exit code, stdout and stderr of a command."""

    def run(*argv: str) -> tuple[int, str, str]:
        command, options = command_and_options(*argv, folder=tmp_path)
        (done,) = run_programs(command, **options)
        return done.returncode, done.stdout, done.stderr

    return run


def test_predict_a_bundled_example(tmp_path: Path, tunecast: Tunecast) -> None:
    example = str(ROOT / "examples" / "tiny-lora.yaml")
    code, out, err = tunecast("predict", example, "--json", "--html", "page.html")
    assert (code, err) == (0, "")
    said = json.loads(out)
    memory = said["memory"]
    assert said["id"] == "tiny-lora"
    assert memory["breakdown_bytes"]["adapters"] > 0
    assert memory["model_bytes"] < memory["allocated_bytes"] <= memory["reserved_bytes"] < memory["device_bytes"]
    assert memory["allocated_bytes"] <= said["smallest_capacity_bytes"] <= memory["reserved_bytes"]
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_trace_a_script(tmp_path: Path, tunecast: Tunecast) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    code, out, err = tunecast("trace", "--json", "--gpu", "h200", "--", "python", "train.py", "512")
    assert code == 0, err
    said = json.loads(out)
    breakdown = said["memory"]["breakdown_bytes"]
    assert breakdown["weights"] == 2 * 4 * 512 * 512 * 4, "two matrices of 512 by 2048, in float32"
    assert (said["trace"]["steps"], said["trace"]["replayed_steps"], said["trace"]["finished"]) == (10, 7, True)
    assert [line for line in err.splitlines() if line.startswith("step ")] == [f"step {n}" for n in range(10)]
    lines = {row["source"].rpartition("/")[2] for row in said["trace"]["largest"]}
    assert "train.py:7" in lines, "where the model comes to the card"
    assert os.listdir(tmp_path) == ["train.py"], "nothing is written into the user's folder"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_no_process_behind(
    tmp_path: Path, number: signal.Signals, ends: Callable[[int], bool]
) -> None:
    (tmp_path / "train.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    before = signal.signal(number, signal.SIG_DFL)  # what is ignored, as under nohup, is so by its children
    try:
        command, options = command_and_options("trace", "--", "train.py", folder=tmp_path)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    finally:
        signal.signal(number, before)
    try:
        assert process.stderr is not None
        while "begun" not in (line := process.stderr.readline()):
            assert line, "the script never began"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert children
        process.send_signal(number)
        out, err = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert (out, err) == ("", "tunecast: interrupted\n" if number is signal.SIGINT else "")
    assert all(ends(int(pid)) for pid in children)
