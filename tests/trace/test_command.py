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

from tunecast.tape.trace.guard import descendants

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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_interrupted_it_leaves_no_process_behind(
    tmp_path: Path, number: signal.Signals, ends: Callable[[int], bool]
) -> None:
    (tmp_path / "train.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    # what is ignored, as under nohup, is so by its children
    before = None if number is signal.SIGKILL else signal.signal(number, signal.SIG_DFL)
    try:
        command, options = command_and_options("trace", "--", "train.py", folder=tmp_path)
        (tmp_path / "temporary").mkdir()
        options["env"]["TMPDIR"] = str(tmp_path / "temporary")
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    finally:
        if before is not None:
            signal.signal(number, before)
    try:
        assert process.stderr is not None
        while "begun" not in (line := process.stderr.readline()):
            assert line, "the script never began"
        children = descendants(process.pid)
        assert len(children) == 2, "the guard and the script"
        process.send_signal(number)
        out, err = process.communicate()
    finally:
        process.kill()
    assert process.returncode == (128 + number if number in (signal.SIGINT, signal.SIGTERM) else -number)
    assert (out, err) == ("", "tunecast: interrupted\n" if number is signal.SIGINT else "")
    assert all(ends(pid) for pid in children)
    assert not list((tmp_path / "temporary").iterdir()), "nor files"


MISMATCH = """
try:
    torch.bmm(values[None], values[None, :3])
except RuntimeError:
    os._exit(3)
"""
ENDS = {
    "os._exit(0)": (0, ""),
    MISMATCH: (5, "the script failed after 2 steps: the script ended with os._exit(3)"),
    "model(values); ctypes.string_at(0)": (5, "crashed with SIGSEGV (Segmentation fault) after 2 optimizer steps"),
    "model(values); os.kill(os.getpid(), 9)": (5, "most likely by the kernel for want of memory, after 2 optimizer"),
}
END_AFTER_TWO = """
import ctypes, os, threading, torch

values = torch.randn(64, 64, device="cuda")

def train(steps=2):
    global model
    model = mine = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
    for step in range(steps):
        mine(values).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

"""


def test_however_a_script_ends_it_is_told(tmp_path: Path, run_programs: Callable[..., Any]) -> None:
    """What was traced is kept where Python code ends the process; a crash says how far it came."""
    commands = []
    for number, end in enumerate(ENDS):
        (tmp_path / f"end{number}.py").write_text(f"{END_AFTER_TWO}train()\n{end}\n")
        commands.append(command_and_options("trace", "--json", "--", f"end{number}.py", folder=tmp_path)[0])
    _, options = command_and_options(folder=tmp_path)
    for done, (code, told) in zip(run_programs(*commands, **options), ENDS.values(), strict=True):
        assert done.returncode == code, done.stderr
        assert told in done.stderr and "tunecast.tape.trace" not in done.stderr
        assert "fake_tensor.py" not in done.stderr, "torch's own traceback of an error that the script catches"
        if "stopped" in told or not told:
            assert json.loads(done.stdout)["trace"]["steps"] == 2


@pytest.mark.newer
def test_a_script_may_train_in_threads(tmp_path: Path, run_programs: Callable[..., Any]) -> None:
    """Each step of each thread counts; which of them waits for which nobody knows, so it is an estimate.

    Of torch 2.8 fake tensors in several threads end the process now and then.
    """
    threads = "threads = [threading.Thread(target=train, args=(9,)) for _ in range(4)]"
    (tmp_path / "threads.py").write_text(
        f"{END_AFTER_TWO}{threads}\nfor t in threads: t.start()\nfor t in threads: t.join()\n"
    )
    command, options = command_and_options("trace", "--json", "--", "threads.py", folder=tmp_path)
    (inside,) = run_programs(command, **options)
    assert (inside.returncode, inside.stderr) == (0, ""), "no traceback"
    answer = json.loads(inside.stdout)
    assert (answer["trace"]["steps"], answer["exactness"]) == (4 * 9, "estimate")
    assert any("trains in several threads" in reason for reason in answer["reasons"])


def test_a_script_may_do_nothing_at_all(tmp_path: Path, run_programs: Callable[..., Any]) -> None:
    (tmp_path / "nothing.py").write_text("print('usage: nothing.py --data FILE')\n")
    command, options = command_and_options("trace", "--json", "--", "nothing.py", folder=tmp_path)
    (nothing,) = run_programs(command, **options)
    assert nothing.returncode == 5 and "took no optimizer step" in nothing.stderr
