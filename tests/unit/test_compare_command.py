"""`tunecast compare A B` as a shell sees it. What a job needs is counted in GiB that can be added up on paper."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tunecast.advise.compare import differences, steps_between
from tunecast.cli import main as cli
from tunecast.errors import UsageError
from tunecast.hardware import gpu
from tunecast.job import job_from_dict
from tunecast.job.job import Job
from tunecast.job.model import resolve_model
from tunecast.prediction import engines
from tunecast.prediction.on_card import job_on_card
from tunecast.prediction.prediction import Prediction
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.op import Alloc, Begin, Phase, Role, Tape
from tunecast.units import GIB


def needed(job: Job, **_: Any) -> Prediction:
    """Weights 8 GiB (qlora 2), adapters rank / 16 GiB, activations 1 GiB a row, none of these shared."""
    model = resolve_model(job.model)
    job = fill_in(job, model.raw, model.dtype)
    if job.method != "full" and job.lora.adapter_dtype != "float32" and job.weights_dtype == "float32":
        raise UsageError("lora.adapter_dtype: not with these weights", field="lora.adapter_dtype")
    blocks = [
        ((2 if job.method == "qlora" else 8) * GIB, Role.WEIGHTS),
        (0 if job.method == "full" else job.lora.rank * GIB // 16, Role.ADAPTERS),
        (job.micro_batch * GIB, Role.ACTIVATIONS),
        (8 * GIB if job.method == "full" else 0, Role.GRADIENTS),
    ]
    events = [Alloc(index, nbytes, role, "model") for index, (nbytes, role) in enumerate(blocks) if nbytes]
    tape = Tape((events[0], Begin(Phase.FORWARD, 0), *events[1:]), versions={"torch": "2.11.0"})
    held = job_on_card(job, gpu(job.hardware.gpu), tape)
    return Prediction(job, model, held)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    def run(*argv: str) -> tuple[int, str, str]:
        code = cli.main(["compare", *argv])
        out, err = capsys.readouterr()
        return code, out, err

    monkeypatch.setattr(engines, "predict", needed)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return run


def job_file(name: str, **fields: Any) -> str:
    Path(name).write_text(json.dumps({"model": "gpt2", **fields}))
    return name


def steps(told: dict[str, Any]) -> list[tuple[list[str], int]]:
    return [
        ([each["field"] for each in step["fields"]], step["costs_bytes"]["device_bytes"] // GIB)
        for step in told["steps"]
    ]


def test_each_difference_costs_what_it_adds(shell: Any) -> None:
    a = job_file("a.json", method="lora", micro_batch=2, id="a")
    b = job_file("b.json", method="qlora", lora={"rank": 64}, micro_batch=8, id="b")
    code, out, err = shell(a, b, "--json")
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert told["schema"] == "tunecast.compare/1"
    # 8 + 1 + 2 becomes 2 + 4 + 8; qlora also quantises to nf4
    assert steps(told) == [(["method", "quantization.format"], -6), (["lora.rank"], 3), (["micro_batch"], 6)]
    assert told["difference_bytes"]["device_bytes"] == 3 * GIB
    assert told["after"]["memory"]["breakdown_bytes"]["activations"] == 8 * GIB
    assert told["steps"][1]["breakdown_bytes"]["adapters"] == 3 * GIB
    assert told["before"]["id"] == "a"


def test_the_steps_sum_to_the_difference(shell: Any) -> None:
    a = job_file("a.json", method="full", micro_batch=2)
    b = job_file("b.json", method="qlora", micro_batch=1, hardware={"gpu": "rtx-4090"}, optimizer="adamw_8bit")
    told = json.loads(shell(a, b, "--json")[1])
    for measure, whole in told["difference_bytes"].items():
        assert sum(step["costs_bytes"][measure] for step in told["steps"]) == whole
    for step in told["steps"]:
        assert sum(step["breakdown_bytes"].values()) == step["costs_bytes"]["device_bytes"]


def test_for_a_person(shell: Any) -> None:
    code, out, err = shell("gpt2", "--method", "lora", "--to", "micro_batch=4", "--to", "lora.rank=32", "--gpu", "h200")
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "gpt2, LoRA, 8 x 1,024 tokens on 1 x H200 SXM 141 GB → with micro_batch=4, lora.rank=32"
    assert lines[1] == "both fit; needs 3.00 GiB less"
    assert "+1.00 GiB lora.rank: 16 → 32 mostly adapters (+1.00 GiB)" in lines
    assert "-4.00 GiB micro_batch: 8 → 4 mostly activations (-4.00 GiB)" in lines
    assert "-3.00 GiB all together" in lines
    assert "on the card 17.75 GiB 14.75 GiB -3.00 GiB" in lines
    assert "adapters 1.00 GiB 2.00 GiB +1.00 GiB" in lines


def test_two_models_with_shared_flags(shell: Any) -> None:
    code, out, _ = shell("gpt2", "qwen2.5-0.5b", "--method", "lora", "--json")
    assert code == 0
    assert steps(json.loads(out)) == [(["model"], 0)]


def test_fields_that_only_make_a_job_together_change_together(shell: Any) -> None:
    a = job_file("a.json", method="qlora", lora={"rank": 32})
    b = job_file("b.json", method="full")
    # full with an adapter's rank, or quantised, would be refused
    assert steps(json.loads(shell(a, b, "--json")[1])) == [(["method", "lora.rank", "quantization.format"], 12)]


def test_what_cannot_be_predicted_on_the_way_is_stepped_over(shell: Any) -> None:
    a = job_file("a.json", method="lora", weights_dtype="float32")
    b = job_file("b.json", method="lora", weights_dtype="bfloat16", lora={"adapter_dtype": "bfloat16"}, micro_batch=1)
    told = json.loads(shell(a, b, "--json")[1])
    assert steps(told) == [(["lora.adapter_dtype", "weights_dtype"], 0), (["micro_batch"], -7)]


@pytest.fixture
def real(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """With the closed form, and the bundled offers."""

    def run(*argv: str) -> str:
        assert cli.main(["compare", *argv]) == 0
        return capsys.readouterr().out

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return run


LORA = ("llama-3.2-1b", "--method", "lora", "--micro-batch", "2", "--gpu", "h100", "--samples", "5000")


def test_time_and_money_beside_memory(real: Any) -> None:
    told = json.loads(real(*LORA, "--to", "rank=128", "--to", "seq-len=2048", "--json"))
    before, after = told["before"]["time"], told["after"]["time"]
    assert [[each["field"] for each in step["fields"]] for step in told["steps"]] == [["lora.rank"], ["seq_len"]]
    assert told["difference_time"]["total_s"] == pytest.approx(after["total_s"] - before["total_s"])
    assert sum(step["more_s"] for step in told["steps"]) == pytest.approx(told["difference_time"]["total_s"])
    product = math.prod(1 + step["more_time_fraction"] for step in told["steps"])
    assert product == pytest.approx(1 + told["difference_time"]["more_time_fraction"])
    assert product == pytest.approx(before["tokens_per_s"] / after["tokens_per_s"])
    cost = told["cost"]
    assert cost["before"]["offer"]["gpu"] == cost["after"]["offer"]["gpu"] == "h100-sxm-80gb"
    assert told["difference_usd"] == pytest.approx(cost["after"]["total_usd"] - cost["before"]["total_usd"]) != 0


def test_time_and_money_for_a_person(real: Any) -> None:
    out = real(*LORA, "--to", "gpus=8")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "times as fast" in lines[1] and "; needs " in lines[1]
    for name in ("time per step", "tokens per second", "whole run", "80 % range", "cost of the run", "price per hour"):
        assert any(line.startswith(name) for line in lines), name
    assert any(line.startswith("a step trains 2 rows before and 16 after") for line in lines)
    assert any(line.startswith("cost after: 8 x h100-sxm-80gb at ") for line in lines)


def test_without_data_a_million_tokens(real: Any) -> None:
    out = real(*LORA[:-2], "--to", "gpus=8")
    assert "cost per million tokens" in out and "--samples or --tokens" in out
    assert "whole run   " not in out


def test_in_one_line(real: Any) -> None:
    out = real(*LORA, "--to", "rank=64", "--short")
    assert out.count("\n") == 1
    assert "→ with rank=64: both fit; " in out


def test_two_names_of_one_card_are_no_difference(real: Any) -> None:
    out = real("gpt2", "--gpu", "h100", "--to", "gpu=h100-sxm-80gb")
    assert "the jobs do not differ" in out


def test_equal_jobs(shell: Any) -> None:
    code, out, _ = shell("gpt2", "gpt2")
    assert code == 0
    assert "the jobs do not differ" in out


def test_a_job_that_does_not_fit_is_said_and_is_no_failure(shell: Any) -> None:
    code, out, _ = shell("gpt2", "--method", "lora", "--gpu", "rtx-4090", "--to", "micro_batch=32")
    assert code == 0
    assert "does not fit" in out


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (["gpt2"], 2, "allowed: two jobs, or one with --to"),
        (["gpt2", "gpt2", "gpt2"], 2, "got 3 jobs"),
        (["gpt2", "lama-3.1-8b"], 5, "nearest: llama-3.1-8b"),
        (["gpt2", "--to", "micro_batch"], 2, "FIELD=VALUE"),
        (["gpt2", "--to", "micro_bach=2"], 2, "nearest: micro_batch"),
        (["nothing.json", "gpt2"], 5, "no such file"),
    ],
)
def test_wrong_usage(shell: Any, argv: list[str], code: int, told: str) -> None:
    got, out, err = shell(*argv)
    assert (got, out) == (code, "")
    assert told in err


def test_differences_are_in_the_contracts_order() -> None:
    a, b = Job("gpt2", id=1), job_from_dict({"model": "gpt2", "id": 2, "hardware": {"gpu": "l4"}, "seq_len": 64})
    assert [each.field for each in differences(a, b)] == ["seq_len", "hardware.gpu"], "an id is no difference"


def test_an_end_that_cannot_be_predicted_is_an_error() -> None:
    lora = {"adapter_dtype": "bfloat16"}
    bad = job_from_dict({"model": "gpt2", "method": "lora", "weights_dtype": "float32", "lora": lora})
    with pytest.raises(UsageError):
        list(steps_between(Job("gpt2"), bad, needed))
