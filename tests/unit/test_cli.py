"""The commands as a shell sees them: what goes where, and how it ends. The tracing itself is replaced by a tape."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tunecast.advise import suggestions
from tunecast.cli import main as cli
from tunecast.cli import predict
from tunecast.errors import NotResolved, TunecastError, Unsupported
from tunecast.hardware import gpu
from tunecast.job.job import Job
from tunecast.job.mapping import job_from_dict
from tunecast.job.model import resolve_model
from tunecast.prediction import engines, prediction
from tunecast.prediction.engines import predict as real_predict
from tunecast.prediction.on_card import job_on_card
from tunecast.prediction.prediction import Prediction
from tunecast.report.run.job import title_of
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.op import Alloc, Begin, Op, Phase, Role, Tape
from tunecast.units import MIB

ROOT = Path(__file__).parents[2]
TAPE = Tape(
    (
        Alloc(0, 100 * MIB, Role.WEIGHTS, "model"),
        Begin(Phase.FORWARD, 0),
        Op("mm", source="train.py:7"),
        Alloc(1, 30 * MIB, Role.ACTIVATIONS, "model.layers.0"),
    ),
    versions={"torch": "2.11.0"},
)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Runs a command line in an empty folder: (exit code, stdout, stderr)."""

    def predict_on_tape(job: Job, *, engine: str, **how: Any) -> Prediction:
        model = resolve_model(job.model)
        job = fill_in(job, model.raw, model.dtype)
        if job.id == "breaks":
            raise KeyError("a bug of ours")
        if job.id == "fails":
            raise TunecastError("TypeError: it fails inside\nTraceback (most recent call last):\n  ...")
        held = job_on_card(job, gpu(job.hardware.gpu), TAPE)
        return Prediction(job, model, held, engine=engine)

    def run(*argv: str) -> tuple[int, str, str]:
        code = cli.main(argv)
        out, err = capsys.readouterr()
        return code, out, err

    monkeypatch.setattr(engines, "predict", predict_on_tape)
    monkeypatch.setattr(predict, "python_of", lambda given: "python")
    monkeypatch.chdir(tmp_path)
    return run


def jobs_file(*jobs: object) -> str:
    Path("jobs.jsonl").write_text("\n".join(job if isinstance(job, str) else json.dumps(job) for job in jobs))
    return "jobs.jsonl"


def test_version(shell: Any) -> None:
    assert shell("--version") == (0, f"tunecast {cli.__version__}\n", "")


def test_help_teaches_one_example_a_command(shell: Any) -> None:
    code, out, err = shell("--help")
    assert (code, err) == (0, "")
    for name, command in cli.COMMANDS.items():
        assert f"$ tunecast {name}" in out
        assert command.summary in out


def test_without_a_command_the_help_goes_to_stderr(shell: Any) -> None:
    code, out, err = shell()
    assert (code, out) == (2, "")
    assert "usage: tunecast COMMAND" in err


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_a_commands_help(shell: Any, command: str) -> None:
    code, out, err = shell(command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: tunecast {command}")
    assert "examples:" in out


def test_an_unknown_command_names_the_nearest(shell: Any) -> None:
    code, out, err = shell("predcit")
    assert (code, out) == (2, "")
    assert "nearest: predict" in err


def test_an_unknown_flag_names_the_nearest(shell: Any) -> None:
    code, _, err = shell("predict", "gpt2", "--sequnce-len", "4")
    assert code == 2
    assert "--sequnce-len: unknown flag; nearest: --seq-len" in err


def test_a_flag_is_not_shortened(shell: Any) -> None:
    assert shell("predict", "gpt2", "--meth", "lora")[0] == 2


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["predict"], "JOB"),
        (["predict", "gpt2", "--engine", "trace"], "allowed: analytic, traced; nearest: traced"),
        (["predict", "gpt2", "--time-limit", "soon"], "a number of seconds above 0"),
        (["predict", "gpt2", "--memory-limit", "-1"], "a number of GiB above 0"),
        (["predict", "gpt2", "--method", "lorra"], "nearest: lora"),
        (["predict", "gpt2", "--set", "lora.rnak=4"], "nearest: lora.rank"),
        (["predict", "gpt2", "--html", "."], "--html"),
        (["predict", "gpt2", "qwen2.5-0.5b", "--html", "a.html"], "--html: is of one job; got 2"),
    ],
)
def test_wrong_usage(shell: Any, argv: list[str], told: str) -> None:
    code, out, err = shell(*argv)
    assert (code, out) == (2, "")
    assert told in err
    assert err.startswith("tunecast: error: ")


def test_a_page_that_cannot_be_written_is_refused_first(shell: Any) -> None:
    code, out, err = shell("predict", "gpt2", "--html", "nowhere/a.html")
    assert (code, out) == (5, "")
    assert "there is no folder 'nowhere'" in err


def test_a_job_that_fits(shell: Any) -> None:
    code, out, err = shell("predict", "gpt2", "--gpu", "h200")
    assert (code, err) == (0, "")
    assert "130.00 MiB" in out
    assert "fits:" in out
    assert "\x1b" not in out, "no colours into a pipe"


def test_the_page_of_a_job(shell: Any) -> None:
    """Whether it fits, where its memory goes, what the machine must have, how far to trust it: about a screen."""
    code, out, _ = shell("predict", "gpt2", "--gpu", "4090")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "gpt2, full fine-tune, 8 x 1,024 tokens on 1 x RTX 4090: fits, 22.64 GiB to spare"
    assert lines[1] == "  needs 130.00 MiB (0 to 264 MiB) of the 22.77 GiB PyTorch can use"
    assert lines[2].startswith("  smallest GPU that fits: ")
    titles = ("Memory: ", "Host: ", "How far to trust this: ")
    assert [line.partition(": ")[0] + ": " for line in lines if line.startswith(titles)] == list(titles)
    for title in ("Peak by module", "Largest blocks", "What the peak is made of", "Outside the step", "Assumed"):
        assert title not in out
    assert len(lines) < 35


def test_one_line_each(shell: Any) -> None:
    code, out, err = shell("predict", "gpt2", "qwen2.5-0.5b", "--gpu", "4090", "--short")
    assert (code, err) == (0, "")
    first, second = out.splitlines()
    assert first.startswith("gpt2, full fine-tune, 8 x 1,024 tokens on 1 x RTX 4090: fits, 22.64 GiB to spare; needs ")
    assert second.startswith("qwen2.5-0.5b, ")
    assert shell("predict", "gpt2", "--short", "--details")[0] == 2


def test_a_name_of_several_cards_says_which_was_taken(shell: Any) -> None:
    out = shell("predict", "gpt2", "--gpu", "h100")[1]
    assert "on 1 x H100 SXM 80 GB: fits" in out and "  h100 is taken as h100-sxm-80gb; others: h100-pcie-80gb" in out
    for plain in ("4090", "h100-sxm-80gb"):
        assert "is taken as" not in shell("predict", "gpt2", "--gpu", plain)[1]


def test_several_home_cards_say_what_joins_them_and_what_the_host_needs(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "predict", real_predict)
    cards = ("--gpu", "3090", "--gpus", "2", "--parallel-data", "fsdp", "--offload", "parameters")
    code, out, _ = shell("predict", "qwen2.5-0.5b", "--method", "lora", *cards, "--no-advice")
    assert code == 0
    assert out.startswith("qwen2.5-0.5b, LoRA, 8 x 1,024 tokens per GPU on 2 x RTX 3090: fits, ")
    assert " of host RAM per machine (offload: parameters)\n" in out
    told = " ".join(out.split())
    assert "links: RTX 3090s exchange data through host memory, 15 GB/s per GPU; with an NVLink bridge: " in told


def test_a_program_that_reads_the_answer_does_not_wait_for_the_text(tmp_path: Path) -> None:
    loaded = "print(*(name for name in sys.modules if name.startswith(('tunecast.report', 'tunecast.planning'))))"
    code = f"import sys; from tunecast.cli.main import main; main(['predict', 'gpt2', '--json']); {loaded}"
    told = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    answer, modules = told.stdout.splitlines()
    assert json.loads(answer)["fits"] is True and modules == ""


def test_details_are_asked_for(shell: Any) -> None:
    out = shell("predict", "gpt2", "--gpu", "4090", "--details")[1]
    assert "Peak by module" in out and "Largest blocks" in out
    assert "train.py:7" in out


def test_a_traced_job_has_its_lines_and_no_changes_tried(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggestions, "changes_tried", lambda *_: pytest.fail("each would be traced"))
    code, out, err = shell("predict", "gpt2", "--gpu", "4090", "--engine", "traced")
    assert (code, err) == (0, "")
    assert "Largest blocks alive at the peak" in out and "frees" not in out


def smaller(job: Job, *, engine: str, **how: Any) -> Prediction:
    """Half the micro-batch holds half the activations; nothing else helps."""
    events = [e._replace(nbytes=e.nbytes * job.micro_batch // 8) if e == TAPE.events[-1] else e for e in TAPE.events]
    model = resolve_model(job.model)
    job = fill_in(job, model.raw, model.dtype)
    held = job_on_card(job, gpu(job.hardware.gpu), TAPE.with_events(events))
    return Prediction(job, model, held, engine=engine)


def test_what_to_change_first(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """30 MiB of activations, then 15 of 16 reserved in segments of 2. As flags where the job was given by flags."""
    monkeypatch.setattr(engines, "predict", smaller)
    argv = ("predict", "gpt2", "--capacity-bytes", str(120 * MIB))
    code, out, err = shell(*argv)
    assert (code, err) == (3, "")
    assert "What to change first\n  --micro-batch 4 --grad-accum 2  frees 14.00 MiB, fits then\n" in out
    assert f"\n    tunecast fit gpt2 --capacity-bytes {120 * MIB}\n" in out
    for quiet in ("--no-advice", "--json", "--short"):
        assert "frees" not in shell(*argv, quiet)[1]


def test_where_no_single_change_is_enough_fit_is_the_next_command(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "predict", smaller)
    Path("my job.yaml").write_text(f"model: gpt2\nhardware: {{capacity_bytes: {90 * MIB}}}\n")
    out = shell("predict", "my job.yaml", "--set", "lora.rank=8", "--method", "lora")[1]
    assert "\n  micro_batch: 4, grad_accum: 2  frees 14.00 MiB, not enough alone\n" in out
    assert (
        "\n  no single change is enough; for the smallest combination that fits:\n"
        "    tunecast fit 'my job.yaml' --method lora --rank 8\n"
    ) in out
    assert "tunecast fit" not in shell("predict", jobs_file({"model": "gpt2"}, {"model": "gpt2"}))[1]


def test_what_lies_outside_the_step(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = json.loads(shell("predict", "gpt2", "--json")[1])["outside"]
    assert outside["disk"]["weights_bytes"] > 4 * 124_000_000, "gpt2 has 124 million parameters of four bytes"
    assert outside["host_bytes"] <= outside["host_resident_bytes"]

    def unsupported(*_: object) -> None:
        raise Unsupported("model: not written down")

    monkeypatch.setattr(prediction, "outside_of", unsupported)
    code, out, err = shell("predict", "gpt2", "--json")
    assert (code, json.loads(out)["outside"], err) == (0, None, "")


def test_a_command_called_in_process_leaves_it_as_it_was(shell: Any) -> None:
    """What the console command sets (signals, the collector's thresholds, streams) is its own process's."""
    before = (signal.getsignal(signal.SIGTERM), gc.get_threshold(), gc.isenabled(), sys.stdout, sys.stderr)
    assert shell("predict", "gpt2", "--json")[0] == 0
    assert shell("predict")[0] == 2
    assert (signal.getsignal(signal.SIGTERM), gc.get_threshold(), gc.isenabled(), sys.stdout, sys.stderr) == before


def test_evaluation_that_does_not_fit_is_told_where_training_does(shell: Any) -> None:
    room = ("--capacity-bytes", str(200 * MIB))
    assert "evaluation is off; if you evaluate, it runs out of memory: " in shell("predict", "gpt2", *room)[1]
    evaluated = shell("predict", "gpt2", *room, "--eval-strategy", "epoch")[1]
    assert " evaluation runs out of memory: 8 x 1,024 tokens take " in evaluated
    assert "evaluat" not in shell("predict", "gpt2", "--capacity-bytes", str(100 * MIB))[1]


def test_a_job_that_does_not_fit(shell: Any) -> None:
    code, out, err = shell("predict", "gpt2", "--capacity-bytes", str(64 * MIB), "--json")
    assert (code, err) == (3, "")
    assert json.loads(out)["fits"] is False


def test_names_and_flags_in_any_order(shell: Any) -> None:
    code, out, _ = shell("predict", "gpt2", "--json", "--gpu", "h200", "qwen2.5-0.5b")
    assert code == 0
    assert len(out.splitlines()) == 2


def test_one_bad_job_does_not_stop_the_rest(shell: Any) -> None:
    wrong = {"id": "b", "model": "gpt2", "seq_length": 4}
    name = jobs_file({"id": "a", "model": "gpt2"}, wrong, "{", {"model": "gpt2"})
    code, out, err = shell("predict", name, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row.get("id") for row in rows] == ["a", "b", None, None]
    assert ["error" in row for row in rows] == [False, True, True, False]
    assert rows[1]["error"]["code"] == "usage"
    assert rows[1]["error"]["field"] == "seq_length"
    assert "nearest: seq_len" in rows[1]["error"]["message"]
    assert code == 2
    assert err.count("tunecast: error: ") == 2


def test_a_model_that_is_not_there(shell: Any) -> None:
    code, out, err = shell("predict", "lama-3.1-8b", "--json")
    assert code == 5
    assert json.loads(out)["error"]["code"] == "not_resolved"
    assert "nearest: llama-3.1-8b" in err


def test_what_is_not_modelled_is_an_answer_about_one_job(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "predict", real_predict)
    code, out, _ = shell("predict", "llama-3.1-8b", "--stack", "unsloth", "--gpus", "2", "--json")
    assert code == 2
    assert "tunecast trace --nproc-per-node 2" in json.loads(out)["error"]["message"]


@pytest.mark.parametrize(("codes", "worst"), [([], 0), ([0, 3], 3), ([3, 2, 0], 2), ([2, 5, 3], 5), ([1, 5], 1)])
def test_the_exit_code_is_the_worst(codes: list[int], worst: int) -> None:
    assert predict.worst(codes) == worst


def test_our_own_bug_is_one_line(shell: Any) -> None:
    name = jobs_file({"id": "breaks", "model": "gpt2"}, {"id": "fine", "model": "gpt2"})
    code, out, err = shell("predict", name, "--json")
    assert code == 1
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["breaks", "fine"]
    assert "internal error: KeyError: 'a bug of ours'. Please report" in err
    assert "Traceback" not in err + out


def test_a_failure_inside_the_traced_process_is_one_line(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = jobs_file({"id": "fails", "model": "gpt2"})
    code, out, err = shell("predict", name, "--json")
    assert code == 1
    assert "Traceback" not in err + out
    assert "TypeError: it fails inside (TUNECAST_DEBUG=1 shows where)" in err
    monkeypatch.setenv("TUNECAST_DEBUG", "1")
    assert "Traceback" in shell("predict", name)[2]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("plain", "plain"),
        ("two\nlines", "two\nlines"),
        (
            "E: x\nTraceback (most recent call last):\n  File a\nE: x\n",
            "E: x (TUNECAST_DEBUG=1 shows where)",
        ),
        (
            "it ended.\nTraceback (most recent call last):\n  File a\nImportError: libcuda\n",
            "it ended.\nImportError: libcuda (TUNECAST_DEBUG=1 shows where)",
        ),
    ],
)
def test_a_traceback_is_told_by_its_last_line(message: str, told: str) -> None:
    assert cli.without_traceback(message) == told


def test_any_other_bug_is_one_line(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(predict, "require_engine", broken)
    code, out, err = shell("predict", "gpt2", "--engine", "analytic")
    assert (code, out) == (1, "")
    assert err == (
        "tunecast: internal error: ZeroDivisionError: division by zero. "
        "Please report this, with the traceback that TUNECAST_DEBUG=1 shows.\n"
    )
    monkeypatch.setenv("TUNECAST_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        cli.main(["predict", "gpt2", "--engine", "analytic"])


def test_ctrl_c_ends_cleanly(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engines, "predict", interrupted)
    assert shell("predict", "gpt2") == (130, "", "tunecast: interrupted\n")


def test_no_interpreter_with_torch_is_said_once(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(given: object) -> str:
        raise NotResolved("no torch. To fix: pip install 'tunecast[trace]'")

    monkeypatch.setattr(predict, "python_of", nowhere)
    code, out, err = shell("predict", "gpt2", "qwen2.5-0.5b", "--json", "--engine", "traced")
    assert (code, out) == (5, "")
    assert err.count("To fix") == 1


def test_files_are_written_where_asked(shell: Any) -> None:
    code, _, err = shell("predict", "gpt2", "--gpu", "h200", "--html", "a.html", "--snapshot", "a.pickle")
    assert (code, err) == (0, "")
    assert Path("a.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert Path("a.pickle").read_bytes()[:1] == b"\x80"
    assert sorted(os.listdir()) == ["a.html", "a.pickle"]


def test_title_says_what_is_predicted() -> None:
    job = Job("gpt2", id="mine", lengths=(64, 128), micro_batch=2)
    assert title_of(job) == "mine: gpt2, full fine-tune, 2 x up to 128 tokens on 1 x H200 SXM 141 GB"
    several = job_from_dict({
        "model": "gpt2", "method": "qlora", "grad_accum": 4, "hardware": {"gpu": "3090", "gpus": 2, "nodes": 2},
    })  # fmt: skip
    assert title_of(several) == ("gpt2, QLoRA, 8 x 1,024 tokens x 4 accumulated per GPU on 4 x RTX 3090 in 2 machines")


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m tunecast predict --help | true; echo ${{PIPESTATUS[0]}}"
    told = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert told.stderr == ""
    assert int(told.stdout) in (0, cli.BROKEN_PIPE), "0 where the pipe took all before it was closed"


def test_a_terminal_without_unicode(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "tunecast", "predict", "--help"], capture_output=True, cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert (told.returncode, told.stderr) == (0, b"")


JOB_COMMANDS = ("plan", "predict", "fit", "largest", "compare", "explain-oom")


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_help_fits_on_a_screen(shell: Any, command: str) -> None:
    _, out, _ = shell(command, "--help")
    assert len(out.splitlines()) <= 45
    assert shell("help", command)[1] == shell(command, "-h")[1] == out


@pytest.mark.parametrize("command", JOB_COMMANDS)
def test_help_all_has_every_flag_in_groups_with_its_default(shell: Any, command: str) -> None:
    from tunecast.job.flags import ORDER

    code, out, err = shell(command, "--help-all")
    assert (code, err) == (0, "")
    for group in ORDER:
        assert f"\njob: {group}:\n".replace("`", "") in out
    assert "(default: 8, transformers)" in out
    short = shell(command, "--help")[1]
    assert "--micro-batch N" in short and "--micro-batch N" in out
    assert "--pue" in out and "--pue" not in short
    assert f"tunecast {command} --help-all" in short


def test_defaults_in_help_are_the_fields_own() -> None:
    """Not typed anywhere: another default in the knob is another default in --help."""
    from tunecast.cli.usage import _default
    from tunecast.job.job import all_knobs

    assert _default("job:micro_batch") == f"{all_knobs()['micro_batch'].default}, transformers"
    assert _default("job:hardware.gpu") == all_knobs()["hardware.gpu"].default
    assert _default("job:model") == _default("json") == _default("job:hardware.capacity_bytes") == ""


def test_the_version_by_any_of_its_flags(shell: Any) -> None:
    assert shell("-v") == shell("-V") == shell("--version") == shell("version")


def test_a_size_says_which_card_it_was_taken_for(shell: Any) -> None:
    code, out, err = shell("predict", "gpt2", "--gpu", "24gb")
    assert (code, err) == (0, "")
    assert " on 1 x RTX 3090" in out
    assert "24gb is taken as rtx-3090 (23.69 GiB); others: rtx-4090" in " ".join(out.split())


def test_a_size_is_told_in_every_answer(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gpt2", "--method", "lora", "--seq-len", "64", "--gpu", "24gb"]
    assert cli.main(["predict", *words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["assumptions"]
    assert any(each.startswith("24gb is taken as rtx-3090 ") for each in told)
    for command, more in (("compare", ["--to", "rank=8"]), ("largest", ["--short"]), ("fit", ["--json"])):
        assert cli.main([command, *words, *more]) == 0
        assert capsys.readouterr().err.startswith("tunecast: 24gb is taken as rtx-3090 ")
