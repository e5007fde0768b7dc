"""A card may be named in any of its spellings, in every command: the answer is that of its own name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tunecast.cli import main as cli

pytestmark = pytest.mark.whole

JOB = ("qwen2.5-0.5b", "--method", "lora", "--micro-batch", "2", "--samples", "2000")
HEAVY = ("qwen2.5-3b", "--method", "lora", "--weights-dtype", "float32", "--micro-batch", "16")
COMMANDS = {
    "predict": ("predict", *JOB),
    "fit": ("fit", *HEAVY),
    "largest": ("largest", "qwen2.5-0.5b", "--method", "qlora"),
    "compare": ("compare", *JOB, "--to", "rank=32"),
    "plan": ("plan", *JOB, "--gpus", "1", "--quiet"),
    "offers": ("offers",),
}


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> object:
    assert cli.main([*argv, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    return without_names(told)


def without_names(told: object) -> object:
    """What was typed is repeated in places, and seconds differ from run to run."""
    if isinstance(told, dict):
        skipped = ("gpu", "asked", "hardware.gpu", "seconds", "changes")
        return {name: without_names(each) for name, each in told.items() if name not in skipped}
    return [without_names(each) for each in told] if isinstance(told, list) else told


@pytest.mark.parametrize("name", COMMANDS)
def test_an_alias_means_the_card(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert answer(capsys, *COMMANDS[name], "--gpu", "4090") == answer(capsys, *COMMANDS[name], "--gpu", "rtx-4090")


def test_explain_oom_takes_an_alias_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.52 "
        "GiB of which 1.00 GiB is free. Of the allocated memory 21.00 GiB is allocated by PyTorch, and 500.00 MiB is "
        "reserved by PyTorch but unallocated."
    )
    argv = ("explain-oom", *HEAVY, str(log))
    assert answer(capsys, *argv, "--gpu", "4090") == answer(capsys, *argv, "--gpu", "rtx-4090")


def test_gpus_and_nodes_find_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["gpus", "4090"]) == 0
    assert "rtx-4090" in capsys.readouterr().out
    assert cli.main(["nodes", "h100"]) == 0
    assert "h100-sxm-80gb" in capsys.readouterr().out
