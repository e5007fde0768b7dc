"""`tunecast models` as a shell sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunecast.cli import main as cli
from tunecast.cli import models
from tunecast.job.registry import bundled_models


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Runs a command line in an empty folder: (exit code, stdout, stderr)."""

    def run(*argv: str) -> tuple[int, str, str]:
        code = cli.main(("models", *argv))
        out, err = capsys.readouterr()
        return code, out, err

    monkeypatch.chdir(tmp_path)
    return run


def names(out: str) -> list[str]:
    return [line.split()[0] for line in out.splitlines()[1:]]


def test_all_of_them_in_columns(shell: Any) -> None:
    code, out, err = shell()
    assert (code, err) == (0, "")
    assert names(out) == list(bundled_models())
    head, *rows = out.splitlines()
    assert head.split() == ["name", "parameters", "active", "layers", "hidden", "context", "Hub", "id"]
    start = head.index("Hub id")
    assert all(row[start - 1] == " " and row[start] != " " for row in rows)
    assert all(row == row.rstrip() for row in rows)


def test_a_row(shell: Any) -> None:
    _, out, _ = shell("llama-3.1-8b")
    assert out.splitlines()[1].split() == ["llama-3.1-8b", "8.03B", "32", "4096", "131072", "meta-llama/Llama-3.1-8B"]
    _, out, _ = shell("gpt2-medium")
    assert out.splitlines()[1].split()[1] == "354.8M"
    # a mixture says what is active, one without positions no context
    _, out, _ = shell("mixtral-8x7b")
    assert out.splitlines()[1].split()[1:3] == ["46.70B", "12.88B"]
    _, out, _ = shell("bloom-560m")
    assert out.splitlines()[1].split()[4] == "-"


def test_every_word_must_be_there_wherever(shell: Any) -> None:
    _, out, _ = shell("QWEN3", "8b")
    assert names(out) == ["qwen3-8b", "qwen3-vl-8b", "qwen3-reranker-8b"]
    assert shell("qwen3 8B")[1] == out
    # a size is not part of a longer one: neither 1.7b, nor 27b, nor 1.7B of a Hub id
    _, out, _ = shell("7b", "--family", "gemma")
    assert names(out) == ["gemma-7b"]
    assert not shell("smollm", "7b")[1]


def test_by_a_family_that_names_do_not_hold(shell: Any) -> None:
    assert names(shell("cohere")[1]) == ["aya-expanse-8b", "command-r7b", "command-r-35b", "north-micro-vision"]
    _, out, _ = shell("--family", "Cohere", "8b")
    assert names(out) == ["aya-expanse-8b"]


def test_by_an_alias_shows_that_alias(shell: Any) -> None:
    _, out, _ = shell("zephyr", "beta")
    assert names(out) == ["mistral-7b-v0.1"]
    assert out.rstrip().endswith("HuggingFaceH4/zephyr-7b-beta")


def test_words_of_one_hub_id_are_not_mixed_with_those_of_another(shell: Any) -> None:
    # llama-2-7b has NousResearch/Llama-2-7b-hf and meta-llama/Llama-2-7b-chat-hf, but no NousResearch chat
    assert "llama-2-7b" in names(shell("nousresearch", "llama-2")[1])
    assert shell("nousresearch", "chat")[0] == 5


def test_what_joins_the_parts_may_be_left_out(shell: Any) -> None:
    assert names(shell("llama3.1")[1]) == ["llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"]
    assert names(shell("gptoss", "20b")[1]) == ["gpt-oss-20b"]


def test_json(shell: Any) -> None:
    code, out, err = shell("qwen3-30b-a3b", "--json")
    assert (code, err) == (0, "")
    [one] = json.loads(out)
    assert one["name"] == "qwen3-30b-a3b"
    assert one["hub"] == "Qwen/Qwen3-30B-A3B"
    assert "Qwen/Qwen3-Coder-30B-A3B-Instruct" in one["aliases"]
    assert (one["family"], one["architecture"], one["licence"]) == ("qwen", "qwen3_moe", "apache-2.0")
    assert (one["parameters"], one["active_parameters"], one["parts"]) == (30532122624, 3353032704, None)
    assert (one["layers"], one["hidden_size"], one["heads"], one["kv_heads"]) == (48, 2048, 32, 4)
    assert (one["vocab_size"], one["tied"], one["context"], one["dtype"]) == (151936, False, 40960, "bfloat16")
    _, out, _ = shell("--json", "gemma-3-4b")
    [one] = json.loads(out)
    assert one["parts"] == {"text": 3880263168, "vision": 416866032, "projector": 2950272}
    assert (one["architecture"], one["context"], one["active_parameters"]) == ("gemma3", 131072, None)
    assert len(json.loads(shell("--json")[1])) == len(bundled_models())


def test_nothing_found_names_the_nearest(shell: Any) -> None:
    code, out, err = shell("qwen3", "11b")
    assert (code, out) == (5, "")
    assert "no bundled model has 'qwen3' and '11b'; nearest: qwen3-" in err
    assert "nearest: mistral-7b" in shell("mistrel-7b")[2]
    # by what it is called on the Hub
    assert "mistral-7b-v0.1" in shell("zefyr-7b-beta")[2]
    code, out, err = shell("zzzzzzzzzz", "--json")
    assert (code, out) == (5, "")
    assert "`tunecast models` lists them all" in err


def test_a_wrong_family_and_a_wrong_flag(shell: Any) -> None:
    code, out, err = shell("--family", "lama")
    assert (code, out) == (2, "")
    assert "--family: got 'lama'; allowed: llama, tinyllama, qwen," in err and "; nearest: llama" in err
    code, _, err = shell("--famly", "llama")
    assert code == 2 and "nearest: --family" in err


def test_a_folder_of_that_name_changes_nothing(shell: Any) -> None:
    Path("gpt2").mkdir()
    Path("gpt2", "config.json").write_text("{}")
    assert shell("gpt2", "--json")[0] == 0


def test_help_names_what_it_can_be_told(shell: Any) -> None:
    code, out, _ = shell("--help")
    assert code == 0
    assert all(word in out for word in ("TEXT", "--family", "--json", "examples:"))
    assert set(models.parser()._option_string_actions) == {"-h", "--help", "--family", "--json"}
