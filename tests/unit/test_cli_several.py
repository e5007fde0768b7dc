"""JSON Lines and sweeps in plan, fit and compare, in the words of predict and launch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunecast.cli import main as cli

pytestmark = pytest.mark.whole

JOB = {"model": "qwen2.5-0.5b", "method": "lora", "hardware": {"gpu": "h100-sxm-80gb"}, "data": {"samples": 500}}
SMALL = ("qwen2.5-0.5b", "--method", "lora", "--gpu", "h100", "--samples", "500")


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def run(*argv: str) -> tuple[int, str, str]:
        code = cli.main(argv)
        out, err = capsys.readouterr()
        return code, out, err

    monkeypatch.chdir(tmp_path)
    lines = [{**JOB, "id": "first"}, {"id": "wrong", "model": "qwen2.5-0.5b", "colour": 1}, {**JOB, "id": "last"}]
    Path("jobs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    Path("one.jsonl").write_text(json.dumps(JOB))
    return run


def lines_of(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_a_sweep_of_plan_is_a_plan_of_each_value(shell: Any) -> None:
    code, out, _ = shell("plan", *SMALL, "--set", "lora.rank=8,64", "--json")
    alone = shell("plan", *SMALL, "--set", "lora.rank=64", "--json")[1]
    first, second = lines_of(out)
    assert code == 0 and [each["job"]["lora"]["rank"] for each in (first, second)] == [8, 64]
    assert [each["id"] for each in (first, second)] == ["qwen2.5-0.5b rank-8", "qwen2.5-0.5b rank-64"]
    assert second["picks"]["cheapest"]["total_usd"] == json.loads(alone)["picks"]["cheapest"]["total_usd"]


@pytest.mark.parametrize("command", ["plan", "fit"])
def test_a_bad_line_does_not_stop_the_others(shell: Any, command: str) -> None:
    code, out, err = shell(command, "jobs.jsonl", "--json")
    first, wrong, last = lines_of(out)
    assert code == 2 and (wrong["id"], wrong["error"]["code"]) == ("wrong", "usage")
    assert "wrong: " in err and "colour" in err
    assert [each["id"] for each in (first, last)] == ["first", "last"]


def test_text_names_each_job(shell: Any) -> None:
    code, out, _ = shell("plan", *SMALL, "--set", "micro_batch=1,2", "--short")
    assert code == 0
    assert [line.partition(": Rent ")[0] for line in out.splitlines()] == [
        "qwen2.5-0.5b micro-batch-1",
        "qwen2.5-0.5b micro-batch-2",
    ]
    code, out, _ = shell("fit", *SMALL, "--set", "micro_batch=1,2")
    assert code == 0 and out.count("qwen2.5-0.5b micro-batch-") == 2 and "\n\nqwen2.5-0.5b micro-batch-2" in out


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("plan", "jobs.jsonl", "--html", "page.html"), "--html: is of one job; got 3"),
        (("fit", "jobs.jsonl", "--write"), "--write: is of one job; got 3"),
        (("fit", "jobs.jsonl", "--patch"), "--patch: is of one job; got 3"),
        (("compare", "one.jsonl"), "got one job"),
        (("compare", *SMALL, "--to", "lora.rank=8,8"), "--to: got 'lora.rank=8,8'"),
        (("predict", "jobs.jsonl", "--html", "page.html"), "--html: is of one job; got 3"),
    ],
)
def test_what_is_of_one_job_is_refused(shell: Any, argv: tuple[str, ...], told: str) -> None:
    code, out, err = shell(*argv)
    assert (code, out) == (2, "") and told in err and "\n" not in err.strip()
    assert not Path("page.html").exists() and not list(Path().glob("*.orig"))


def sides(found: dict[str, Any]) -> tuple[int, int]:
    return found["before"]["memory"]["allocated_bytes"], found["after"]["memory"]["allocated_bytes"]


def test_a_sweep_of_to_compares_one_job_with_each(shell: Any) -> None:
    code, out, _ = shell("compare", *SMALL, "--to", "lora.rank=8,64", "--json")
    eight, sixty_four = map(sides, lines_of(out))
    assert code == 0 and eight[0] == sixty_four[0] and eight[1] < eight[0] < sixty_four[1]
    assert sixty_four == sides(json.loads(shell("compare", *SMALL, "--to", "lora.rank=64", "--json")[1]))


def test_the_first_of_a_sweep_is_compared_with_the_others(shell: Any) -> None:
    found = lines_of(shell("compare", *SMALL, "--set", "lora.rank=8,16,64", "--json")[1])
    assert [(each["before"]["id"], each["after"]["id"]) for each in found] == [
        ("qwen2.5-0.5b rank-8", "qwen2.5-0.5b rank-16"),
        ("qwen2.5-0.5b rank-8", "qwen2.5-0.5b rank-64"),
    ]
    code, out, _ = shell("compare", "jobs.jsonl", "--json")
    wrong, last = lines_of(out)
    assert code == 2 and wrong["id"] == "wrong" and (last["before"]["id"], last["after"]["id"]) == ("first", "last")


def test_a_sweep_of_both_sides_compares_value_by_value(shell: Any) -> None:
    """Two ranks, each with itself at a longer row; and one job with each line of a file."""
    out = shell("compare", *SMALL, "--set", "lora.rank=8,64", "--to", "seq_len=2048", "--json")[1]
    assert [len(each["steps"]) for each in lines_of(out)] == [1, 1]
    assert [each["before"]["id"] for each in lines_of(out)] == ["qwen2.5-0.5b rank-8", "qwen2.5-0.5b rank-64"]
    out = shell("compare", "one.jsonl", "jobs.jsonl", "--json")[1]
    assert [(each.get("after") or each)["id"] for each in lines_of(out)] == ["first", "wrong", "last"]
