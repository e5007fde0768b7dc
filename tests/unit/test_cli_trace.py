"""`tunecast trace` around the tracing: what is asked for, and what is said of the answer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tunecast.cli import main as cli
from tunecast.door import trace
from tunecast.errors import NotResolved
from tunecast.records import replace
from tunecast.tape.cards import STREAMS_PER_CARD
from tunecast.tape.op import Alloc, Begin, Op, Phase, Role, Tape, Unit
from tunecast.tape.trace.request import Answer
from tunecast.tape.trace.run import ScriptFailed
from tunecast.units import GIB, MIB

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
def asked() -> dict[str, Any]:
    """What `trace_script` was called with."""
    return {}


@pytest.fixture
def answer() -> dict[str, Any]:
    """Fields of its answer, for a test to change; `raise` is raised instead."""
    return {"steps": 3, "finished": True}


@pytest.fixture
def shell(
    asked: dict[str, Any],
    answer: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Any:
    def trace_script(script: str, args: Any, card: Any, **how: Any) -> tuple[Tape, Answer]:
        asked.update(how, script=script, args=args, card=card)
        if "raise" in answer:
            raise answer["raise"]
        return TAPE, Answer(**answer)

    def run(*argv: str) -> tuple[int, str, str]:
        code = cli.main(("trace", *argv))
        out, err = capsys.readouterr()
        return code, out, err

    monkeypatch.setattr(trace, "trace_script", trace_script)
    monkeypatch.setattr(trace, "tracing_python", lambda given: given or "ours")
    monkeypatch.setattr(trace, "has_torch", lambda python: True)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("raise SystemExit('never run here')\n")
    return run


def test_a_script_and_its_arguments(shell: Any, asked: dict[str, Any]) -> None:
    code, out, err = shell("--gpu", "4090", "--", "train.py", "--gpu", "none", "--", "x")
    assert (code, err) == (0, "")
    assert (asked["script"], asked["args"]) == ("train.py", ("--gpu", "none", "--", "x"))
    assert (asked["whole"], asked["nproc_per_node"], asked["nnodes"], asked["as_module"]) == (True, 1, 1, False)
    assert asked["card"].capability == (8, 9)
    assert out.startswith("train.py --gpu none -- x on 1 x RTX 4090: fits, ")
    assert "How far to trust this: RTX 4090: not measured; like cases: memory " in out
    assert "train.py:7" in out


def test_what_is_asked_for(shell: Any, asked: dict[str, Any]) -> None:
    shell("--steps", "all", "--nproc-per-node", "8", "--nnodes", "2", "--time-limit", "5", "--memory-limit", "2",
          "--python", "theirs", "--", "-m", "pkg.train", "a")  # fmt: skip
    assert (asked["steps"], asked["whole"], asked["nproc_per_node"], asked["nnodes"]) == (0, False, 8, 2)
    assert (asked["script"], asked["as_module"], asked["args"]) == ("pkg.train", True, ("a",))
    assert (asked["limits"].seconds, asked["limits"].memory_bytes) == (5, 2 * GIB)
    assert asked["python"] == "theirs"


def test_the_python_before_the_script_is_taken(shell: Any, asked: dict[str, Any]) -> None:
    shell("--", "/their/python", "train.py")
    assert asked["python"] == "/their/python"


def test_our_flags_win_over_the_launchers(shell: Any, asked: dict[str, Any]) -> None:
    shell("--nproc-per-node", "2", "--", "torchrun", "--nproc-per-node", "8", "--nnodes", "4", "train.py")
    assert (asked["nproc_per_node"], asked["nnodes"]) == (2, 4)


def test_an_accelerate_file(shell: Any, asked: dict[str, Any]) -> None:
    Path("a.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 4\nmixed_precision: fp16\n")
    shell("--accelerate-config", "a.yaml", "--", "train.py")
    assert asked["nproc_per_node"] == 4
    assert asked["environment"]["ACCELERATE_MIXED_PRECISION"] == "fp16", "the traced process inherits it"
    assert "ACCELERATE_MIXED_PRECISION" not in os.environ, "who asks does not keep it"


CATCHING = "try: train(64)\nexcept torch.cuda.OutOfMemoryError: train(32)\n"


@pytest.mark.parametrize(
    ("text", "args", "where"),
    [
        (CATCHING, (), "(train.py:2)"),
        ("if 'out of memory' in str(error):", (), "(train.py:1)"),
        ("", ("--auto_find_batch_size",), "(its arguments)"),
        ("args = TrainingArguments(auto_find_batch_size=False)", (), ""),
    ],
)
def test_what_does_not_fit_may_be_a_first_try(text: str, args: tuple[str, ...], where: str, shell: Any) -> None:
    Path("train.py").write_text(text)
    said = json.loads(shell("--json", "--capacity", "0.1", "--", "train.py", *args)[1])["warnings"]
    assert [where in each for each in said if "goes on with less where memory runs out" in each] == [True] * bool(where)
    assert "goes on with less" not in shell("--json", "--", "train.py", *args)[1], "it fits"


def test_a_number_that_may_end_the_run(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    guess = "a number compared at train.py:9 is not known; taken as 1 (4 times)"
    monkeypatch.setattr(f"{__name__}.TAPE", replace(TAPE, guesses=(guess,)))
    assert "--total-steps N says how long it is" in " ".join(
        json.loads(shell("--json", "--", "train.py")[1])["warnings"]
    )
    told = json.loads(shell("--json", "--total-steps", "9", "--", "train.py")[1])["warnings"]
    assert "--total-steps" not in " ".join(told)


def test_models_are_offered_by_the_names_scripts_use(shell: Any, asked: dict[str, Any]) -> None:
    Path("config.json").write_text(json.dumps(asked_config()))
    shell("--model", "my/model=./config.json", "--model", "other=gpt2", "--", "train.py")
    assert asked["models"]["my/model"]["hidden_size"] == 64
    assert asked["models"]["other"]["model_type"] == "gpt2"
    assert asked["models"]["meta-llama/Llama-3.1-8B"]["model_type"] == "llama", "bundled ones need no flag"


def asked_config() -> dict[str, object]:
    return {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "vocab_size": 100, "intermediate_size": 128,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (["train.py"], 2, "tunecast trace [options] -- train.py"),
        (["--"], 2, "no script to trace"),
        (["--", "tarin.py"], 5, "there is no script 'tarin.py'"),
        (["--steps", "0", "--", "train.py"], 2, "a whole number from 1 to 100000, or all"),
        (["--gpu", "h1000", "--", "train.py"], 2, "nearest: h100"),
        (["--nproc-per-nodes", "4", "--", "train.py"], 2, "nearest: --nproc-per-node"),
        (["--allocator", "other", "--", "train.py"], 2, "expandable_segments"),
        (["--model", "=x", "--", "train.py"], 2, "NAME=CONFIG"),
        (["--model", "x=./none.json", "--", "train.py"], 5, "none.json"),
        (["--capacity", "0", "--", "train.py"], 2, "a number of GiB above 0"),
    ],
)
def test_wrong_usage(shell: Any, asked: dict[str, Any], argv: list[str], code: int, told: str) -> None:
    got, out, err = shell(*argv)
    assert (got, out) == (code, "")
    assert told in err
    assert not asked, "refused before anything is traced"


def test_json_adds_what_a_script_has(shell: Any, answer: dict[str, Any]) -> None:
    answer["untraced"] = ("a kernel without a formula",)
    code, out, err = shell("--json", "--", "train.py")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert (said["schema"], said["engine"], said["id"]) == ("tunecast.prediction/1", "traced", None)
    assert said["warnings"][0] == "guessed: a kernel without a formula"
    details = said["trace"]
    assert (details["word"], details["steps"], details["error"]) == ("estimate", 3, None)
    assert details["untraced"] == ["a kernel without a formula"]
    assert details["modules_bytes"] == {"model": 100 * MIB, "model.layers.0": 30 * MIB}
    assert details["largest"][1]["source"] == "train.py:7"
    assert sum(said["memory"]["breakdown_bytes"].values()) == said["memory"]["device_bytes"]


def test_untraced_parts_make_an_estimate(shell: Any, answer: dict[str, Any]) -> None:
    answer["untraced"] = ("a kernel without a formula",)
    _, out, _ = shell("--", "train.py")
    assert "Warnings\n  • guessed: a kernel without a formula\n" in out


def test_one_line_or_all_of_it(shell: Any) -> None:
    code, out, _ = shell("--gpu", "4090", "--short", "--", "train.py")
    assert code == 0 and out.count("\n") == 1 and out.startswith("train.py on 1 x RTX 4090: fits, ")
    whole = shell("--gpu", "4090", "--details", "--", "train.py")[1]
    for title in ("What the peak is made of", "Peak by module", "Assumed", "Versions"):
        assert title in whole and title not in shell("--gpu", "4090", "--", "train.py")[1]
    assert "  no --gpu was given: H200 SXM 141 GB is taken\n" in shell("--", "train.py")[1]


def test_capacity_decides_the_exit_code(shell: Any) -> None:
    code, out, _ = shell("--capacity", "0.1", "--", "train.py")
    assert code == 3
    assert "does not fit" in out
    assert "train.py:7" in out


def test_what_others_hold_is_taken_off_the_card(shell: Any, asked: dict[str, Any]) -> None:
    capacity = json.loads(shell("--json", "--", "train.py")[1])["capacity_bytes"]
    said = json.loads(shell("--json", "--reserve", "2GiB", "--", "train.py")[1])
    assert said["capacity_bytes"] == capacity - 2 * 2**30
    assert "other processes hold 2.00 GiB of the card (--reserve)" in said["assumptions"]
    asked.clear()
    code, _, err = shell("--reserve", "2GiB", "--capacity", "8", "--", "train.py")
    assert code == 2 and "--reserve: got a size with --capacity" in err
    assert not asked, "refused before anything is traced"
    code, _, err = shell("--reserve", "2G", "--", "train.py")
    assert code == 2 and "allowed: a size such as 2GiB or 2GB" in err


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_the_allocators_configuration_is_taken_from_the_environment(shell: Any, name: str) -> None:
    os.environ[name] = "expandable_segments:True"
    _, out, _ = shell("--json", "--", "train.py")
    said = json.loads(out)
    assert "the allocator is configured by the environment: expandable_segments:True" in said["assumptions"]
    _, out, _ = shell("--json", "--allocator", "native", "--", "train.py")
    assert not [told for told in json.loads(out)["assumptions"] if "environment" in told]


def test_a_wrong_configuration_of_the_allocator_is_refused_first(shell: Any, asked: dict[str, Any]) -> None:
    os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segment:True"
    code, _, err = shell("--", "train.py")
    assert code == 2
    assert "expandable_segments" in err
    assert not asked


def test_a_script_that_fails_at_once_is_told_in_a_line(shell: Any, answer: dict[str, Any]) -> None:
    detail = 'Traceback (most recent call last):\n  File "train.py", line 12, in <module>\nValueError: no data\n'
    answer["raise"] = ScriptFailed(Answer(error="ValueError: no data", detail=detail, place="train.py:12"))
    code, out, err = shell("--", "train.py")
    assert (code, out) == (5, "")
    assert "the script fails before its first step is done: ValueError: no data (train.py:12;" in err
    assert "Traceback" not in err
    os.environ["TUNECAST_DEBUG"] = "1"
    assert "Traceback" in shell("--", "train.py")[2]


def test_other_refusals_pass_as_they_are(shell: Any, answer: dict[str, Any]) -> None:
    answer["raise"] = NotResolved("the tokenizer is not on this machine")
    assert shell("--", "train.py") == (5, "", "tunecast: error: the tokenizer is not on this machine\n")


def test_a_script_that_fails_later_still_has_figures(shell: Any, answer: dict[str, Any]) -> None:
    answer.update(steps=2, error="OSError: no disk", detail="Traceback", place="train.py:9")
    code, out, err = shell("--json", "--", "train.py")
    said = json.loads(out)
    assert code == 5, "what its later steps need is not known"
    assert (said["fits"], said["fits_surely"], said["exactness"]) == (None, False, "estimate")
    assert said["trace"]["error"] == "OSError: no disk"
    assert said["reasons"][0].startswith("the script failed after 2 steps: OSError: no disk (train.py:9;")
    assert "the script failed after 2 steps: OSError: no disk (train.py:9;" in err
    text = shell("--", "train.py")[1]
    assert text.startswith("train.py on 1 x H200 SXM 141 GB: not resolved\n  so far it needs ")


def test_steps_that_do_not_fit_are_a_no_whatever_came_then(shell: Any, answer: dict[str, Any]) -> None:
    answer.update(steps=2, error="OSError: no disk")
    code, out, _ = shell("--json", "--capacity", "0.1", "--", "train.py")
    assert (code, json.loads(out)["fits"]) == (3, False)


@pytest.mark.parametrize(
    ("events", "seen"),
    [
        ((Begin(Phase.LOAD), Alloc(0, MIB)), "it ended without running a model on the GPU"),
        ((Begin(Phase.FORWARD), Alloc(0, MIB)), "it ran a model forward, and never backward"),
        ((Begin(Phase.FORWARD), Alloc(0, MIB), Begin(Phase.BACKWARD), Op("mm")), "it ran backward passes, but called"),
    ],
)
def test_without_an_optimizer_step_nothing_is_resolved(
    shell: Any, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch, events: Any, seen: str
) -> None:
    answer.update(steps=0, finished=True)
    monkeypatch.setitem(globals(), "TAPE", Tape(events, versions={"torch": "2.11.0"}))
    code, out, err = shell("--json", "--gpu", "4090", "--", "train.py")
    said = json.loads(out)
    assert (code, said["fits"], said["exactness"], said["trace"]["word"]) == (5, None, "estimate", "estimate")
    assert said["reasons"][0].startswith(f"the script took no optimizer step: {seen}")
    assert said["memory"]["allocated_bytes"] == MIB, "what was seen is told"
    assert seen in err
    assert "not resolved" in shell("--short", "--", "train.py")[1]


def test_steps_on_the_host_are_no_answer_about_a_gpu(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "TAPE", Tape((), versions={"torch": "2.11.0"}))
    code, out, _ = shell("--json", "--", "train.py")
    assert code == 5
    assert json.loads(out)["reasons"][0].startswith("the script used no GPU: its 3 optimizer steps ran on the host")


def test_steps_on_the_host_of_which_some_were_skipped(
    shell: Any, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was allocated, so there is nothing to put together."""
    seen = [Unit("call", 0, 0, 0, nth < 2, (2, 64), keeps_graph=True) for nth in range(5)]
    steps = [unit for call in seen for unit in (call, *(Unit(n, 0, 0, 0, call.traced) for n in ("backward", "step")))]
    monkeypatch.setitem(globals(), "TAPE", Tape((), versions={"torch": "2.11.0"}, units=tuple(steps)))
    answer.update(steps=5, finished=True, skipped=3)
    code, out, _ = shell("--json", "--", "train.py")
    assert code == 5
    assert json.loads(out)["reasons"][0].startswith("the script used no GPU: its 5 optimizer steps ran on the host")


def test_too_few_steps_are_told(shell: Any, answer: dict[str, Any]) -> None:
    answer.update(steps=1, finished=True)
    _, out, _ = shell("--json", "--", "train.py")
    said = json.loads(out)
    assert "all 1 optimizer steps of the script, every one traced" in said["assumptions"]
    assert any("took one optimizer step" in warning for warning in said["warnings"])


def test_cards_of_one_process_are_told_apart(
    shell: Any, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    events = (*TAPE.events, Alloc(2, 500 * MIB, Role.WEIGHTS, "head", STREAMS_PER_CARD))
    monkeypatch.setitem(globals(), "TAPE", Tape(events, versions={"torch": "2.11.0"}))
    code, out, _ = shell("--gpus", "2", "--json", "--", "train.py")
    said = json.loads(out)
    assert (code, asked["gpus"], said["time"]) == (0, 2, None)
    assert [(card["card"], card["allocated_bytes"]) for card in said["trace"]["cards"]] == [
        (0, 130 * MIB),
        (1, 500 * MIB),
    ]
    assert said["memory"]["allocated_bytes"] == 500 * MIB, "the fullest"
    text = shell("--gpus", "2", "--", "train.py")[1]
    assert text.startswith("train.py on 2 x H200 SXM 141 GB: fits, ")
    assert "cuda:0 fits: 130.00 MiB in use at its peak" in text and "all that follows is of cuda:1" in text
    assert "no time is predicted for several cards in one process" in text and "--gpus" not in text
    unasked = shell("--", "train.py")[1]
    assert "no --gpus was given: the script uses 2 cards, so as many are taken" in unasked
    code, out, _ = shell("--gpus", "2", "--capacity", "0.3", "--json", "--", "train.py")
    assert (code, [card["fits"] for card in json.loads(out)["trace"]["cards"]]) == (3, [True, False])


def test_one_card_a_process_or_several_cards_in_one(shell: Any, asked: dict[str, Any]) -> None:
    code, _, err = shell("--gpus", "2", "--nproc-per-node", "2", "--", "train.py")
    assert code == 2 and not asked
    assert "--gpus: got 2 with 2 processes on each machine" in err


def test_ranks_are_told(shell: Any) -> None:
    _, out, _ = shell("--json", "--nproc-per-node", "8", "--nnodes", "2", "--", "train.py")
    assert "rank 0 of 16 processes, 8 on each machine" in json.loads(out)["assumptions"]


def test_links_are_told_without_the_fields_that_only_a_job_has(shell: Any) -> None:
    text = " ".join(shell("--gpu", "rtx-4090", "--nproc-per-node", "2", "--nnodes", "2", "--", "train.py")[1].split())
    assert "links: RTX 4090s exchange data through host memory" in text and "links: between machines" in text
    assert "hardware." not in text


@pytest.mark.parametrize(
    ("flags", "given", "reason"),
    [
        (("--steps", "3"), {}, "the first 3 steps of the script, as --steps asked"),
        ((), {"too_long": True}, "the first 3 steps of the script, which was stopped since it took too long"),
    ],
)
def test_a_script_that_had_not_ended_is_an_estimate(
    shell: Any, answer: dict[str, Any], flags: tuple[str, ...], given: dict[str, Any], reason: str
) -> None:
    answer.update(given, finished=False)
    said = json.loads(shell("--json", *flags, "--", "train.py")[1])
    assert (said["trace"]["word"], said["exactness"]) == ("estimate", "estimate")
    assert any(each.startswith(reason) for each in said["reasons"])
