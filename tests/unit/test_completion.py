"""The scripts that complete, in the shells themselves where they are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tunecast.cli import completion, main
from tunecast.cli.main import COMMANDS
from tunecast.hardware.catalog import gpus
from tunecast.job.flags import job_flags

needs = {name: pytest.mark.skipif(shutil.which(name) is None, reason=f"no {name} here") for name in completion.SCRIPTS}

CASES = [
    (["tunecast", ""], set(COMMANDS)),
    (["tunecast", "pre"], {"predict"}),
    (["tunecast", "predict", "llama-3.1-8"], {"llama-3.1-8b"}),
    (["tunecast", "predict", "--meth"], {"--method"}),
    (["tunecast", "predict", "--method", ""], {"full", "lora", "qlora"}),
    (["tunecast", "predict", "gpt2", "--gpu", "rtx-409"], {"rtx-4090"}),
    (["tunecast", "plan", "gpt2", "--no-clou"], {"--no-cloud-act"}),
    (["tunecast", "compare", "gpt2", "--to", "lora.ran"], {"lora.rank="}),
    (["tunecast", "gpus", "--v"], {"--vendor"}),
    (["tunecast", "completion", ""], set(completion.SCRIPTS)),
]


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main.main(["completion", shell]) == 0
    return capsys.readouterr().out


@needs["bash"]
@pytest.mark.parametrize(("words", "found"), CASES)
def test_bash(words: list[str], found: set[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "empty" / "tunecast.bash"
    file.parent.mkdir()
    file.write_text(script("bash", capsys))
    ask = (
        f'source "{file}"; complete -p tunecast >&2; COMP_WORDS=({" ".join(repr(word) for word in words)}); '
        f"COMP_CWORD={len(words) - 1}; _tunecast; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-uc", ask], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "-F _tunecast tunecast" in done.stderr
    assert "line" not in done.stderr
    assert found <= set(done.stdout.split())
    typed = words[-1]
    assert all(word.startswith(typed) or not typed for word in done.stdout.split())


@needs["bash"]
def test_bash_completes_what_follows_an_equals_sign(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "tunecast.bash"
    file.write_text(script("bash", capsys))
    for words in ("tunecast predict --method = q", "tunecast predict --method ="):
        last = len(words.split()) - 1
        ask = f'source {file}; COMP_WORDS=({words}); COMP_CWORD={last}; _tunecast; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
        assert "qlora" in done.stdout


@needs["zsh"]
def test_zsh(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """compadd is replaced by one that prints; the rest is the shell's own."""
    (tmp_path / "_tunecast").write_text(script("zsh", capsys))
    for words, found in CASES:
        ask = (
            f"fpath=({tmp_path} $fpath); compdef() {{ : }}; _files() {{ : }}; "
            'compadd() { while [[ $1 != -- ]]; do shift; done; shift; print -rl -- "${@}" }; '
            f"source {tmp_path}/_tunecast; words=({' '.join(repr(word) for word in words)}); "
            f"CURRENT={len(words)}; PREFIX={words[-1]!r}; _tunecast"
        )
        done = subprocess.run(["zsh", "-fc", ask], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.stderr == ""
        assert found <= set(done.stdout.split())


@needs["fish"]
def test_fish(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "tunecast.fish"
    file.write_text(script("fish", capsys))
    for words, found in CASES:
        typed = " ".join(words)
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source {file}; complete -C {typed!r}"],
            capture_output=True, text=True, cwd=tmp_path, check=False,
        )  # fmt: skip
        assert done.stderr == ""
        assert found <= {line.split("\t")[0] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("shell", list(completion.SCRIPTS))
def test_every_flag_and_card_is_in_it(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    for flag in job_flags():
        assert flag.flag.removeprefix("--") in text
    for name in (*COMMANDS, *gpus()):
        assert name in text


def test_an_unknown_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["completion", "tcsh"]) == 2
    assert main.main(["completion"]) == 2
    assert "bash" in capsys.readouterr().err
