"""What real scripts do beside training, how they are started, and how their failures are told."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tunecast.door.trace import trace
from tunecast.errors import NotResolved, UsageError

SCRIPTS = Path(__file__).parent / "scripts"
PYNVML = """
class NVMLError(Exception): ...
def _missing(*args):
    raise NVMLError("NVML Shared Library Not Found")
nvmlInit = nvmlDeviceGetCount = nvmlDeviceGetHandleByIndex = nvmlDeviceGetName = nvmlDeviceGetMemoryInfo = _missing
"""
LOOP = """
import os, sys, torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(2, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    monkeypatch.chdir(made)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    shutil.copy(SCRIPTS / "real_life.py", made)
    (made / "pynvml.py").write_text(PYNVML)
    modules = tmp_path / "hub" / "modules" / "evaluate_modules"
    modules.mkdir(parents=True)
    (modules / "__init__.py").write_text("")
    (modules / "accuracy.py").write_text("def compute(a, b):\n    return float(a == b)\n")
    return made


def test_what_scripts_do_beside_training(folder: Path) -> None:
    found = trace(["python", "real_life.py"], steps=0, python=sys.executable)
    assert (found.answer.error, found.answer.steps, found.answer.untraced) == (None, 2, ())
    assert found.trace.word == "exact", "what is only printed is no guess"
    assert any("only printed" in text for text in found.assumptions)


IN_BACKWARD = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)).cuda()
def step(each, of={}):
    optimizer = of.setdefault(each, torch.optim.Adam([each]))
    optimizer.step()
    optimizer.zero_grad()
for each in model.parameters():
    each.register_post_accumulate_grad_hook(step)
for _ in range(3):
    model(torch.ones(2, 64, device="cuda")).sum().backward()
"""


def test_optimizers_that_step_in_the_backward_pass_train(folder: Path) -> None:
    (folder / "train.py").write_text(IN_BACKWARD)
    found = trace(["train.py"], python=sys.executable)
    assert (found.answer.steps, found.on_card.unresolved, found.trace.word) == (3, "", "exact")
    assert found.time is not None and found.time.steps == 3


def line_of(text: str) -> str:
    lines = (SCRIPTS / "real_life.py").read_text().splitlines()
    return f"real_life.py:{next(number for number, line in enumerate(lines, 1) if text in line)}"


@pytest.mark.parametrize(
    ("how", "line", "told"),
    [
        ("exit", "sys.exit(", "is done: the data is missing:\n  run \N{REPLACEMENT CHARACTER}[1mprepare.py"),
        ("download", "urlopen(", "Tracing uses no network (looking up example.org was refused). To fix: run that line"),
        ("fork-on-card", "map(on_card", "a process that the script starts uses the card, and only the script's own"),
    ],
)
def test_failures_name_the_scripts_own_line(how: str, line: str, told: str) -> None:
    with pytest.raises(NotResolved) as failed:
        trace(["real_life.py", how], python=sys.executable)
    message = failed.value.message
    assert told in message and f"({line_of(line)}" in message
    assert len(message) < 900 and not any(ord(c) < 32 and c != "\n" for c in message)


def notebook(*cells: str) -> str:
    made = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": ["# Training"]}, *made]})


def test_a_notebook_runs_cell_by_cell(folder: Path) -> None:
    text = notebook("%matplotlib inline\n!pip install torch\nwidth = 64", LOOP, "a = 1\n\nassert width != 64")
    (folder / "train.ipynb").write_text(text)
    found = trace(["train.ipynb"], steps=0, python=sys.executable)
    assert found.answer.steps == 2
    assert found.stop is not None and "AssertionError" in found.stop and "train.ipynb, cell 3, line 3" in found.stop
    assert any("left out: !pip install torch" in text for text in found.assumptions)


def test_a_notebook_that_starts_its_training_elsewhere_is_refused(folder: Path) -> None:
    (folder / "train.ipynb").write_text(notebook("import torch", "# so\n!accelerate launch --num_processes 8 train.py"))
    with pytest.raises(UsageError, match=r"cell 2, line 2: .* To fix: tunecast trace -- accelerate launch --num_pr"):
        trace(["train.ipynb"], python=sys.executable)


def test_a_shell_script_is_followed_into_its_folder(folder: Path) -> None:
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text(
        f"{LOOP}\nassert os.environ['A'] == '1' and os.environ['WORLD_SIZE'] == '4' and sys.argv[1:] == ['x y']\n"
        "assert torch.cuda.device_count() == 4 and os.path.basename(os.getcwd()) == 'code'\n"
    )
    (folder / "run.sh").write_text('export A=1\ncd code\ntorchrun --nproc-per-node $GPUS train.py "$@" | tee log\n')
    found = trace(["GPUS=4", "bash", "run.sh", "x y"], steps=0, python=sys.executable)
    assert (found.answer.error, found.launch.nproc_per_node) == (None, 4)


PROGRAM = """#!{python}
import subprocess, sys, os
os.environ["FROM_CLI"] = "yes"
subprocess.run(["torchrun", "--nproc_per_node", "2", "train.py", *sys.argv[2:]], check=True)
"""


def test_a_launcher_that_a_program_starts_is_traced_in_its_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "train.py").write_text(
        f"{LOOP}\nassert os.environ['FROM_CLI'] == 'yes' and os.environ['WORLD_SIZE'] == '2'\n"
        "assert sys.argv[1:] == ['a']\n"
    )
    (folder / "my-trainer").write_text(PROGRAM.format(python=sys.executable))
    (folder / "my-trainer").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    found = trace(["my-trainer", "train", "a"], steps=0, python=sys.executable)
    assert (found.answer.error, found.answer.steps, found.launch.nproc_per_node) == (None, 2, 2)
    assert any("my-trainer starts this itself: torchrun" in text for text in found.assumptions)


def test_trl_is_followed_through_accelerate(folder: Path) -> None:
    """Up to its own script, with accelerate's flags taken off; the data set it wants is not here."""
    pytest.importorskip("trl")
    if not (Path(sys.executable).parent / "trl").exists():
        pytest.skip("trl's program is not installed beside this interpreter")
    (folder / "sft.yaml").write_text("model_name_or_path: a/b\ndataset_name: nobody/nothing\noutput_dir: out\n")
    with pytest.raises(NotResolved, match=r"[Tt]racing uses no network.*trl/scripts/sft\.py:\d+"):
        trace(["trl", "sft", "--config", "sft.yaml", "--num_processes", "2"], python=sys.executable)


def test_deepspeed_trains_with_its_own_optimizer(folder: Path) -> None:
    if find_spec("deepspeed") is None:  # imported here, it would set variables that the script then finds
        pytest.skip("needs deepspeed")
    (folder / "train.py").write_text(DEEPSPEED)
    found = trace(["deepspeed", "--num_gpus", "2", "train.py"], steps=0, python=sys.executable)
    assert (found.answer.error, found.answer.steps) == (None, 2)
    assert not found.answer.untraced, "where its partitions begin is asked by DeepSpeed itself, and by no C code"
    # 1024 x 1024 parameters, of whose two states in fp32 each of two ranks keeps half
    assert found.figures.breakdown_bytes["optimizer"] == 2 * 1024 * 1024 * 4 // 2
    with pytest.raises(NotResolved, match=r"tunecast trace -- deepspeed --num_gpus N train\.py"):
        trace(["train.py", "--local_rank=0"], python=sys.executable)


DEEPSPEED = """
import sys
assert sys.argv[1:] == ["--local_rank=0"]
import deepspeed, torch
model = torch.nn.Linear(1024, 1024, bias=False)
config = {
    "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 1000},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for _ in range(2):
    loss = engine(torch.ones(4, 1024, device="cuda", dtype=torch.bfloat16)).float().mean()
    engine.backward(loss)
    engine.step()
"""
