"""`tunecast explain-oom < log` as a shell sees it. The prediction is a tape of four blocks."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tunecast.advise.changes import with_fields
from tunecast.advise.oom.job import is_same_run
from tunecast.advise.oom.message import parsed
from tunecast.cli import explain_oom
from tunecast.cli import main as cli
from tunecast.door.explain_oom import with_room_of
from tunecast.errors import UsageError
from tunecast.hardware import gpu
from tunecast.job.job import Job
from tunecast.job.model import resolve_model
from tunecast.prediction import engines
from tunecast.prediction.on_card import job_on_card
from tunecast.prediction.prediction import Prediction
from tunecast.tape.op import Alloc, Begin, Free, Op, Phase, Role, Tape
from tunecast.units import GIB, MIB

MESSAGE = (
    "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of "
    "24.00 GiB of which 1.00 GiB is free. Process 999 has 5.00 GiB memory in use. Including non-PyTorch memory, this "
    "process has 18.00 GiB memory in use. Of the allocated memory 16.50 GiB is allocated by PyTorch, and 1.00 GiB is "
    "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting ..."
)
"""24 = 16.5 in use + 1 in pieces + 0.5 outside PyTorch + 5 of another process + 1 free. 3 GiB were missing."""


def needed(job: Job, **_: Any) -> Prediction:
    """8 GiB of weights (qlora: 2), 1 GiB of logits a row, 1.5 GiB of activations a row."""
    if "liger" in job.kernels:
        raise UsageError("kernels: not for this architecture", field="kernels")
    rows = job.micro_batch
    tape = Tape(
        (
            Alloc(0, (2 if job.method == "qlora" else 8) * GIB, Role.WEIGHTS, "model"),
            Begin(Phase.FORWARD, 0),
            Op("mm"),
            Alloc(1, rows * 1536 * MIB, Role.ACTIVATIONS, "model.layers.0"),
            Op("log_softmax"),
            Alloc(2, rows * GIB, Role.LOGITS_AND_LOSS, "model"),
        ),
        versions={"torch": "2.11.0"},
    )
    held = job_on_card(job, gpu(job.hardware.gpu), tape)
    return Prediction(job, resolve_model(job.model), held)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    def run(log: str | bytes, *argv: str) -> tuple[int, str, str]:
        content = log if isinstance(log, bytes) else log.encode()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        code = cli.main(["explain-oom", *argv])
        out, err = capsys.readouterr()
        return code, out, err

    monkeypatch.setattr(engines, "predict", needed)
    monkeypatch.chdir(tmp_path)
    return run


def test_what_filled_the_card_and_what_to_change(shell: Any) -> None:
    code, out, err = shell(f"epoch 1\n{MESSAGE}\n")
    assert (code, err) == (0, "")
    assert out.startswith("4.00 GiB did not fit on GPU 0: 3.00 GiB short\n")
    for line in ("in use by PyTorch", "16.50 GiB", "cached by PyTorch", "512.00 MiB", "= the card", "24.00 GiB"):
        assert line in out
    assert out.index("1. other processes hold 5.00 GiB: 999 (5.00 GiB) (enough by itself)") < out.index(
        "2. the training itself holds 16.50 GiB"
    )
    assert out.index("2. the training") < out.index("3. fragmentation: 1.00 GiB are cached")
    assert "What to change, most effective first" in out
    assert "\x1b" not in out


def test_with_its_job_every_change_is_priced(shell: Any) -> None:
    # 8 + 8 x 2.5 = 28 GiB; PyTorch could have had 24 - 0.5 - 5 = 18.5. Eight rows never ask for 4 GiB
    code, out, err = shell(MESSAGE, "llama-3.1-8b", "--method", "lora", "--micro-batch", "8")
    assert (code, err) == (0, "")
    assert "peak 28.00 GiB in use" in out
    assert "needs at least 28.00 GiB, PyTorch could use 18.50 GiB" in " ".join(out.split())
    assert "stops in forward of step 0: mm asks for 12.00 GiB" in out
    assert "largest part: activations" in out
    lines = [" ".join(line.split()) for line in out.splitlines() if "frees" in line]
    # 4 rows: 8 + 10 = 18 GiB fit; qlora alone: 2 + 20 = 22 do not
    assert lines == [
        "--micro-batch 4 --grad-accum 2 frees 10.00 GiB, fits then",
        "--method qlora frees 6.00 GiB, not enough alone",
    ]
    assert "liger" not in out, "what cannot be predicted is left out"


def log(in_use: float, pieces: float, others: float, requested: float) -> str:
    """Of a card of 24 GiB with 0.5 outside PyTorch, in GiB."""
    own = in_use + pieces + 0.5
    return (
        f"CUDA out of memory. Tried to allocate {requested:.2f} GiB. GPU 0 has a total capacity of 24.00 GiB of which "
        f"{24 - own - others:.2f} GiB is free. Process 999 has {others:.2f} GiB memory in use. Including non-PyTorch "
        f"memory, this process has {own:.2f} GiB memory in use. Of the allocated memory {in_use:.2f} GiB is allocated "
        f"by PyTorch, and {pieces:.2f} GiB is reserved by PyTorch but unallocated."
    )


def test_a_log_of_another_run_is_told_apart(shell: Any) -> None:
    """Four rows: 8 GiB of weights and 6 of activations are in use when 4 of logits are asked for."""
    job = ("llama-3.1-8b", "--method", "lora", "--micro-batch", "4")
    same = log(in_use=14, pieces=1, others=5, requested=4)
    assert "another run" not in shell(same, *job)[1]
    assert json.loads(shell(same, *job, "--json")[1])["same_run"] is True
    for other in (log(in_use=14, pieces=1, others=5, requested=3.6), log(in_use=11, pieces=4, others=5, requested=4)):
        assert "the log is from another run: this job never asks for" in " ".join(shell(other, *job)[1].split())
        assert json.loads(shell(other, *job, "--json")[1])["same_run"] is False
    assert json.loads(shell(same, "--json")[1])["same_run"] is None


def test_a_run_does_not_get_past_what_the_card_cannot_hold() -> None:
    """30 GiB come first, the request of the log after them."""
    events = (Alloc(0, 10 * GIB), Alloc(1, 20 * GIB), Free(1), Alloc(2, 2 * GIB))
    message = parsed(log(in_use=10, pieces=0, others=12, requested=2))
    assert is_same_run(Tape(events), 40 * GIB, message)
    assert is_same_run(Tape(events), 24 * GIB, message) is False
    assert is_same_run(Tape(events), 24 * GIB, parsed("CUDA error: out of memory")) is None


def test_what_is_enough_for_the_request_is_not_said_to_be_enough_for_the_job(shell: Any) -> None:
    """1.5 GiB are free, 2.5 short. The job needs 18: of 24 - 0.5 without the others, but 5.8 less with them."""
    told = log(in_use=13.5, pieces=2.7, others=5.8, requested=4)
    job = ("llama-3.1-8b", "--method", "lora", "--micro-batch", "4")
    code, out, _ = shell(told)
    assert (code, out.count("(enough by itself)")) == (0, 2), "of the log alone"
    advice = json.loads(shell(told, *job, "--json")[1])["advice"]
    assert [(each["gives"], each["enough"], each["enough_for_job"]) for each in advice] == [
        ("room", True, True),
        ("own", False, None),
        ("pieces", True, False),
    ]
    lines = " ".join(shell(told, *job)[1].split())
    assert "1. other processes hold 5.80 GiB: 999 (5.80 GiB) (enough by itself)" in lines
    assert "large enough (enough for this request, not for the job, which needs 18.00 GiB)" in lines
    other = shell(log(in_use=11, pieces=5, others=6, requested=4), *job)[1]
    assert "(enough for this request)" in other and "by itself" not in other, "another run: nothing is said of the job"


def test_a_job_that_should_have_fitted_is_said_to(shell: Any) -> None:
    code, out, _ = shell(MESSAGE, "llama-3.1-8b", "--method", "lora", "--micro-batch", "1")
    assert code == 0
    assert "it is predicted to fit" in out


def test_json(shell: Any) -> None:
    code, out, _ = shell(f"{MESSAGE}\n{MESSAGE}", "llama-3.1-8b", "--method", "lora", "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["schema"], told["messages"]) == ("tunecast.oom/1", 2)
    assert told["message"]["requested_bytes"] == 4 * GIB
    assert told["short_bytes"] == 3 * GIB
    assert sum(told["filled_bytes"].values()) == 24 * GIB
    assert told["filled_bytes"]["other_processes"] == 5 * GIB
    assert told["other_processes"] == [{"pid": 999, "nbytes": 5 * GIB}]
    assert told["advice"][0]["frees_bytes"] == 5 * GIB
    assert told["prediction"]["capacity_bytes"] == int(18.5 * GIB)
    assert told["changes"][0]["set"] == {"micro_batch": 4, "grad_accum": 2}


def test_without_a_message_it_cannot_be_resolved(shell: Any) -> None:
    code, out, err = shell("all went well\n")
    assert (code, out) == (5, "")
    assert "the log holds no out-of-memory message of PyTorch" in err
    assert "2>&1" in err
    assert shell("")[0] == 5


def test_any_bytes_can_be_in_a_log(shell: Any) -> None:
    code, out, _ = shell(b"\xff\xfe\x00" * 1000 + MESSAGE.encode() + b"\x80\x1b[2J")
    assert code == 0
    assert "\x1b" not in out


def test_a_terminal_is_no_log(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(b""))
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    assert cli.main(["explain-oom"]) == 2
    assert "there is no log: neither a file nor stdin" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["train.log", "slurm-4711.out", "train"])
def test_the_log_may_be_a_file(name: str, shell: Any) -> None:
    Path(name).write_text(f"epoch 1\n{MESSAGE}\n")
    Path("job.yaml").write_text("model: llama-3.1-8b\nmethod: lora\n")
    alone = shell(MESSAGE)
    assert alone == shell("nothing here", name) == shell(MESSAGE, "-")
    with_job = shell(MESSAGE, "job.yaml")
    assert with_job[0] == 0 and "The job, predicted" in with_job[1] and "micro_batch: 4, grad_accum: 2" in with_job[1]
    assert with_job == shell("", "job.yaml", name) == shell("", name, "job.yaml") == shell(MESSAGE, "-", "job.yaml")
    assert "--micro-batch 4 --grad-accum 2" in shell("", "llama-3.1-8b", "--method", "lora", name)[1]


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (["missing.log"], 5, "missing.log: No such file"),
        (["a.log", "b.log"], 2, "got 2 logs: a.log, b.log; allowed: one each"),
        (["gpt2", "llama-3.2-1b"], 2, "got 2 jobs: gpt2, llama-3.2-1b; allowed: one each"),
    ],
)
def test_one_job_and_one_log(argv: list[str], code: int, told: str, shell: Any) -> None:
    got, out, err = shell(MESSAGE, *argv)
    assert (got, out) == (code, "")
    assert told in err


def test_a_file_without_a_message_is_named(shell: Any) -> None:
    Path("train.log").write_text("all went well")
    code, _, err = shell(MESSAGE, "train.log")
    assert code == 5 and "train.log holds no out-of-memory message" in err


def test_flags_without_a_job_belong_to_nothing(shell: Any) -> None:
    code, _, err = shell(MESSAGE, "--gpu", "4090")
    assert code == 2
    assert "hardware.gpu: given without a JOB" in err


def test_a_message_without_figures(shell: Any) -> None:
    code, out, _ = shell("RuntimeError: CUDA error: out of memory\n")
    assert code == 0
    assert "the message carries no figures" in out


def test_a_capacity_the_job_names_stands() -> None:
    job = Job("gpt2")
    assert with_room_of(job, parsed(MESSAGE[9:])).hardware.capacity_bytes == int(18.5 * GIB)
    named = with_fields(job, {"hardware.capacity_bytes": GIB})
    assert with_room_of(named, parsed(MESSAGE[9:])) is named


def test_of_a_long_file_the_end_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(explain_oom, "MOST_LOG_BYTES", 4096)
    monkeypatch.setattr(explain_oom, "PIECE_BYTES", 1024)
    (tmp_path / "log").write_text("x" * 10_000 + "\nlast words")
    with open(tmp_path / "log", "rb") as file:
        read = "".join(explain_oom.pieces(file))
    assert len(read) == 4096
    assert read.endswith("last words")


def test_of_an_endless_pipe_only_so_much_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(explain_oom, "MOST_LOG_BYTES", 4096)
    monkeypatch.setattr(explain_oom, "PIECE_BYTES", 1024)
    assert len("".join(explain_oom.pieces(io.BytesIO(b"x" * 10_000)))) == 4096
    assert "only 4.00 KiB of the log were read" in capsys.readouterr().err
