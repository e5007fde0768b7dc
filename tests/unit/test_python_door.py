"""What Python gets is what the commands print: `to_dict()` is the JSON, and every attribute has the JSON's name."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import tunecast
from tunecast.cli import main as cli
from tunecast.door import trace as tracing
from tunecast.job.knob import Section
from tunecast.result import json_value
from tunecast.tape.op import Alloc, Begin, Op, Phase, Role, Tape
from tunecast.tape.trace.request import Answer
from tunecast.units import GIB, MIB

pytestmark = pytest.mark.whole


JOB = {"model": "qwen2.5-0.5b", "method": "lora", "seq_len": 256, "micro_batch": 2, "hardware": {"gpu": "t4"}}
JOB_FILE = """\
model: qwen2.5-0.5b
method: lora
seq_len: 256
micro_batch: 2
hardware:
  gpu: t4
"""
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.56 GiB "
    "of which 1.00 GiB is free. Process 7 has 1.00 GiB memory in use. Including non-PyTorch memory, this process has "
    "12.56 GiB memory in use. Of the allocated memory 10.00 GiB is allocated by PyTorch, and 2.00 GiB is reserved by "
    "PyTorch but unallocated.\n"
)
TAPE = Tape(
    (
        Op("empty", "model", "train.py:1", 0, 0),
        Alloc(0, GIB, Role.WEIGHTS, "model"),
        Begin(Phase.FORWARD, 0),
        Alloc(1, 64 * MIB, Role.ACTIVATIONS, "model.layers.0"),
        Begin(Phase.OPTIMIZER, 0),
        Begin(Phase.FORWARD, 1),
        Begin(Phase.OPTIMIZER, 1),
    ),
    versions={"torch": "2.11.0"},
)
LESS = ("best", "compute_capability")
"""Keys of which JSON has less than the attribute: the pick's name, the capability as text."""
CLOCKED = ("seconds", "searched")
"""That differs from call to call."""


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    cli.main(list(argv))
    return json.loads(capsys.readouterr().out)


def require_attributes(value: Any, told: Any, at: str) -> None:
    """Each key of the JSON is an attribute of the value, all the way down; what is keyed by data is a mapping. A job's
    section that belongs to another task or method is null in the JSON."""
    if isinstance(told, Mapping) and isinstance(value, Mapping):
        for name, inner in told.items():
            require_attributes(value[name], inner, f"{at}[{name!r}]")
    elif isinstance(told, Mapping):
        for name, inner in told.items():
            assert hasattr(value, name), f"{at} has no {name}"
            if name not in LESS:
                require_attributes(getattr(value, name), inner, f"{at}.{name}")
    elif isinstance(told, list):
        assert len(value) == len(told), at
        for index, (each, inner) in enumerate(zip(value, told, strict=True)):
            require_attributes(each, inner, f"{at}[{index}]")
    elif told is None and isinstance(value, Section):
        assert value == type(value)(), f"{at} is left out, and something was said there"
    else:
        assert json_value(value) == told, at


def without_clock(told: Any) -> Any:
    return {**told, "searched": {**told["searched"], "seconds": 0}} if "searched" in told else told


def require_same(value: Any, told: Any) -> None:
    made = json.loads(json.dumps(value.to_dict()))
    if isinstance(told, list):
        assert made == told
    else:
        assert without_clock(made) == without_clock(told)
    require_attributes(value, made, value.__class__.__name__)
    html = value._repr_html_()
    assert html.startswith("<div") and "<script" not in html and len(html) < 20_000


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    Path("job.yaml").write_text(JOB_FILE)
    return "job.yaml"


def test_predict(job_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    require_same(tunecast.predict(job_file), printed(capsys, "predict", job_file, "--json"))


def test_plan(job_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--gpu", "l4", "--within", "6h", "--eu", "--as-of", "2026-11-15", "--samples", "2000", "--spot")
    told = printed(capsys, "plan", job_file, *words, "--exclude-provider", "gcp", "--json")
    plan = tunecast.plan(
        job_file, {"samples": 2000}, gpu="l4", within="6h", eu=True, as_of="2026-11-15", spot=True,
        exclude_provider="gcp",
    )  # fmt: skip
    require_same(plan, told)
    best = plan.best
    assert best is not None and best is plan.picks["deadline"] is plan.pareto[0]
    assert told["best"] == "deadline" and told["picks"]["deadline"]["total_usd"] == best.total_usd
    assert best.hardware == "1 x l4" and best.offer.provider != "gcp" and plan.failure is None


def test_plan_that_keeps_to_no_limit(job_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = printed(capsys, "plan", job_file, "--gpu", "l4", "--max-usd", "0.001", "--samples", "2000", "--json")
    plan = tunecast.plan(tunecast.read(job_file, samples=2000), gpu="l4", max_usd=0.001)
    require_same(plan, told)
    assert plan.best is None and isinstance(plan.failure, tunecast.OverBudget) and plan.choices
    with pytest.raises(tunecast.DoesNotFit):
        tunecast.plan(job_file, provider="verda", gpu="t4")
    with pytest.raises(tunecast.UsageError, match="nearest: within"):
        tunecast.plan(job_file, wihtin="6h")  # type: ignore[call-arg]
    with pytest.raises(tunecast.UsageError, match="6h, 90min or 2d"):
        tunecast.plan(job_file, within="soon")


def test_fit(job_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = printed(capsys, "fit", job_file, "--capacity-bytes", "1500MiB", "--json")
    fit = tunecast.fit(job_file, {"capacity_bytes": "1500MiB"})
    require_same(fit, told)
    assert [dict(each.set) for each in fit.changes] == [{"loss": "chunked"}] and fit.job.loss == "chunked"
    assert tunecast.predict(fit.job).fits


def test_compare(job_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = printed(capsys, "compare", job_file, "--to", "rank=64", "--to", "method=qlora", "--json")
    require_same(tunecast.compare(job_file, rank=64, method="qlora"), told)
    told = printed(capsys, "compare", job_file, "gpt2", "--gpu", "l4", "--json")
    require_same(tunecast.compare(job_file, "gpt2", {"gpu": "l4"}), told)


def test_largest(job_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--gpu", "t4", "--capacity-bytes", "3GiB")
    told = printed(capsys, "largest", "gpt2", *words, "--method", "lora", "--json")
    require_same(tunecast.largest("gpt2", gpu="t4", capacity_bytes="3GiB", method="lora"), told)
    require_same(tunecast.largest(job_file, gpu="t4"), printed(capsys, "largest", job_file, "--gpu", "t4", "--json"))


def test_explain_oom(job_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.log").write_text(OOM)
    require_same(tunecast.explain_oom(OOM), printed(capsys, "explain-oom", "train.log", "--json"))
    told = printed(capsys, "explain-oom", job_file, "train.log", "--json")
    require_same(tunecast.explain_oom(OOM, job_file), told)


@pytest.mark.parametrize(
    ("argv", "call"),
    [
        (["offers", "h100", "--eu", "--provider", "verda"], lambda: tunecast.offers("h100", eu=True, provider="verda")),
        (["gpus", "hopper"], lambda: tunecast.gpus("hopper")),
        (["models", "llama", "8b"], lambda: tunecast.models("llama", "8b")),
        (["nodes", "aws"], lambda: tunecast.nodes("aws")),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_lists(argv: list[str], call: Any, capsys: pytest.CaptureFixture[str]) -> None:
    require_same(call(), printed(capsys, *argv, "--json"))


def test_trace(job_file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "trace_script", lambda *_, **__: (TAPE, Answer(steps=2)))
    monkeypatch.setattr(tracing, "tracing_python", lambda given: given or "ours")
    Path("train.py").write_text("raise SystemExit('never run here')\n")
    before = dict(os.environ)
    told = printed(capsys, "trace", "--gpu", "l4", "--json", "--", "torchrun", "train.py", "--x")
    require_same(tunecast.trace(["torchrun", "train.py", "--x"], gpu="l4"), told)
    assert dict(os.environ) == before, "what a launcher sets is the script's"


def test_every_command_with_json_has_its_function() -> None:
    """But for what acts (calibrate, serve, lsp; `watch` is `Callback` and `watching` there) or is none."""
    commands = {name.replace("-", "_") for name in cli.COMMANDS}
    functions = {name for name in tunecast.__all__ if name in commands}
    assert commands - functions <= {"calibrate", "completion", "lsp", "serve", "watch"}


def test_read(job_file: str) -> None:
    job = tunecast.read(job_file, gpu="rtx-4090", rank=8)
    assert (job.hardware.gpu, job.lora.rank, job.model) == ("rtx-4090", 8, "qwen2.5-0.5b")
    assert tunecast.read(JOB, {"lora.rank": 8, "hardware.gpu": "rtx-4090"}) == job
    assert tunecast.read(tunecast.read(Path(job_file)), lora={"rank": 8}, gpu="rtx-4090") == job
    assert tunecast.read("gpt2", load_in_4bit=True).method == "qlora"
    assert "qwen2.5-0.5b" in job._repr_html_()
    Path("jobs.jsonl").write_text(f"{json.dumps(JOB)}\n{json.dumps(JOB)}\n")
    with pytest.raises(tunecast.UsageError, match="read_jobs"):
        tunecast.read("jobs.jsonl")
    with pytest.raises(tunecast.UsageError, match="nearest: micro_batch"):
        tunecast.read("gpt2", micro_bath=3)
