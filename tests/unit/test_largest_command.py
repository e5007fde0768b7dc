"""`tunecast largest` as a shell sees it. The prediction is a line: so much for the model, so much a token."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunecast.advise.largest import (
    Boundary,
    Reach,
    SizedItem,
    largest_fitting,
    largest_item,
    of_model,
    positions_of,
    reach,
)
from tunecast.cli import asking
from tunecast.cli import main as cli
from tunecast.door import largest as door
from tunecast.door.read import read
from tunecast.errors import UsageError
from tunecast.hardware import gpu
from tunecast.job.job import Job
from tunecast.job.model import bundled_models, resolve_model
from tunecast.prediction import engines
from tunecast.prediction.on_card import job_on_card
from tunecast.prediction.prediction import Prediction
from tunecast.records import replace
from tunecast.tape.op import Alloc, Begin, Phase, Role, Tape
from tunecast.units import GIB, MIB

BYTES_A_PARAMETER = {"full": 16, "lora": 4, "qlora": 1}
ASKED: list[Job] = []
CARD = ("--gpu", "rtx-4090", "--capacity-bytes", str(20 * GIB))


def needed(job: Job, **_: Any) -> Prediction:
    """16, 4 or 1 bytes a parameter, and 2 MiB a token."""
    ASKED.append(job)
    if job.model == "phi-3-mini":
        raise UsageError("model: an architecture without an answer", field="model")
    parameters = bundled_models()[job.model]["parameters"]
    tape = Tape(
        (
            Alloc(0, parameters * BYTES_A_PARAMETER[job.method], Role.WEIGHTS, "model"),
            Begin(Phase.FORWARD, 0),
            Alloc(1, job.micro_batch * job.seq_len * 2 * MIB, Role.ACTIVATIONS, "model"),
        ),
        versions={"torch": "2.11.0"},
    )
    held = job_on_card(job, gpu(job.hardware.gpu), tape)
    return Prediction(job, resolve_model(job.model), held)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    def run(*argv: str) -> tuple[int, str, str]:
        ASKED.clear()
        code = cli.main(["largest", *argv])
        out, err = capsys.readouterr()
        return code, out, err

    monkeypatch.setattr(engines, "predict", needed)
    monkeypatch.chdir(tmp_path)
    return run


def test_the_longest_sequence_and_the_largest_batch(shell: Any) -> None:
    # gpt2 with LoRA: 0.4636 GiB of weights leave 20,005 MiB: 10,002 tokens; it has positions for 1,024
    code, out, err = shell("gpt2", "--method", "lora", *CARD, "--json")
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert told["schema"] == "tunecast.largest/1"
    (length,) = told["longest_sequence"]
    assert (length["seq_len"], length["beyond_seq_len"], length["micro_batch"]) == (1024, None, 1)
    assert length["surely"]["seq_len"] == 1024
    assert length["surely"]["range_bytes"][1] <= 20 * GIB
    (batch,) = told["largest_batch"]
    assert (batch["micro_batch"], batch["beyond_micro_batch"], batch["seq_len"]) == (9, 10, 1024)
    assert told["positions"] == 1024
    assert told["predictions"] == len(ASKED) == len(set(ASKED)), "nothing is asked twice"


def test_a_length_is_verified_on_both_sides(shell: Any) -> None:
    # llama-3.2-1b with LoRA: 4.604 GiB of weights; 15,765 MiB are 7,882 tokens, 123 x 64 = 7,872
    code, out, _ = shell("llama-3.2-1b", "--method", "lora", *CARD, "--json")
    (length,) = json.loads(out)["longest_sequence"]
    assert (code, length["seq_len"], length["beyond_seq_len"]) == (0, 7872, 7936)
    assert {7872, 7936} <= {job.seq_len for job in ASKED if job.micro_batch == 1}


def test_what_fits_for_sure_comes_first(shell: Any) -> None:
    """No run on a 4090 was measured, so its range is wider than the figure: the last lengths may not fit."""
    told = json.loads(shell("llama-3.2-1b", "--method", "lora", *CARD, "--json")[1])
    (length,), (batch,) = told["longest_sequence"], told["largest_batch"]
    sure = length["surely"]
    assert sure["seq_len"] < length["seq_len"] and sure["range_bytes"][1] <= 20 * GIB < length["range_bytes"][1]
    longer = needed(replace(ASKED[0], seq_len=sure["seq_len"] + 64, micro_batch=1))
    assert longer.on_card.fits and not longer.on_card.room.surely, "the next step up is not sure any more"
    assert batch["surely"]["micro_batch"] <= batch["micro_batch"]
    assert told["measured_runs"] == 0
    _, out, _ = shell("llama-3.2-1b", "--method", "lora", *CARD)
    words = " ".join(out.split())
    assert f"lora {sure['seq_len']:,} tokens fit for sure (" in words
    assert "up to 7,872 may fit, 7,936 do not" in words
    assert "RTX 4090 was not measured" in words
    assert "adapters of rank 16 on q_proj, v_proj" in words


def test_a_safe_length_has_safe_lengths_below_it() -> None:
    """Sizes that are cut up well may fit where smaller ones do not."""
    fine = {1, 2, 3, 4, 5, 8, 16}

    def question(value: int) -> Any:
        room = SimpleNamespace(surely=value in fine)
        return SimpleNamespace(on_card=SimpleNamespace(fits=value in fine, room=room))

    found = reach(question, 100, unbroken=3)
    assert (found.likely.most, found.surely, found.jagged) == (16, 5, True)
    assert reach(question, 100).surely == 16
    assert reach(question, 4, unbroken=8) == Reach(4, Boundary(4, None, 3)), "all there are"


def test_in_a_line_for_each_method(shell: Any) -> None:
    code, out, _ = shell("llama-3.2-1b", *CARD, "--short")
    assert code == 0
    full, lora, qlora = out.splitlines()
    assert full.startswith("llama-3.2-1b on RTX 4090, full: ")
    assert "tokens at micro-batch 1 for sure, perhaps 7,872" in lora
    assert "rows of 1,024 tokens for sure" in qlora
    models = shell(*CARD, "--seq-len", "128", "--short")[1].splitlines()
    assert len(models) == 3 and all("fits for sure" in line for line in models)


def test_all_methods_unless_one_is_named(shell: Any) -> None:
    code, out, err = shell("llama-3.2-1b", *CARD)
    assert (code, err) == (0, "")
    assert out.startswith("llama-3.2-1b on RTX 4090: PyTorch can use 20.00 GiB\n")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "Longest sequence" in out and "Largest micro-batch" in out
    # 16 x 1.2358e9 bytes are 18.415 GiB: 1,622 MiB are 811 tokens
    assert any(line.startswith("full ") and "up to 768 may fit, 832 do not" in line for line in lines)
    assert "full none fits" in lines
    assert [line.split()[0] for line in lines if " rows " in line] == ["lora", "qlora"]


def test_the_largest_bundled_model_by_method(shell: Any) -> None:
    code, out, err = shell(*CARD, "--seq-len", "128", "--json")
    told = json.loads(out)
    assert (code, err) == (0, "")
    room = 20 * GIB - 256 * MIB
    for row in told["models"]:
        able = {
            name: entry["parameters"]
            for name, entry in bundled_models().items()
            if entry["parameters"] * BYTES_A_PARAMETER[row["method"]] <= room and name != "phi-3-mini"
        }
        assert row["parameters"] == max(able.values())
        assert bundled_models()[row["model"]]["parameters"] == row["parameters"]
    assert [row["method"] for row in told["models"]] == ["full", "lora", "qlora"]
    assert told["micro_batch"] == 1
    assert all(job.gradient_checkpointing for job in ASKED)


def test_a_model_without_an_answer_is_told_not_passed_over(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: bundled_models()[name] for name in ("gpt2", "phi-3-mini", "llama-3.2-1b", "llama-3.1-8b")}
    monkeypatch.setattr(door, "bundled_models", lambda: few)
    _, out, _ = shell(*CARD, "--method", "lora", "--weights-dtype", "float32", "--seq-len", "64", "--json")
    (row,) = json.loads(out)["models"]
    assert row["model"] == "llama-3.2-1b"
    assert row["surely"]["model"] == "llama-3.2-1b"
    assert row["beyond"] is None, "32 GB of weights need no prediction"
    assert row["unanswered"] == [{"model": "phi-3-mini", "message": "model: an architecture without an answer"}]
    _, out, _ = shell(*CARD, "--method", "lora", "--seq-len", "64")
    assert "no answer for phi-3-mini, which may be larger" in " ".join(out.split())


def test_what_others_hold_counts(shell: Any) -> None:
    whole = json.loads(shell("gpt2", "--gpu", "rtx-4090", "--method", "lora", "--json")[1])
    less = json.loads(shell("gpt2", "--gpu", "rtx-4090", "--method", "lora", "--reserve", "4GiB", "--json")[1])
    assert whole["capacity_bytes"] - less["capacity_bytes"] == 4 * GIB
    assert whole["largest_batch"][0]["micro_batch"] - less["largest_batch"][0]["micro_batch"] == 2  # 2 GiB a row


def test_nothing_fits(shell: Any) -> None:
    code, out, _ = shell("llama-3.1-70b", "--method", "full", *CARD)
    assert code == 3
    assert out.count("none") == 2


def test_a_job_file_keeps_what_it_says(shell: Any) -> None:
    Path("job.json").write_text(
        json.dumps({"model": "llama-3.2-1b", "method": "qlora", "micro_batch": 4, "lora": {"rank": 8}, "seq_len": 512})
    )
    told = json.loads(shell("job.json", *CARD, "--json")[1])
    (length,), (batch,) = told["longest_sequence"], told["largest_batch"]
    assert (length["method"], length["micro_batch"], batch["seq_len"]) == ("qlora", 4, 512)
    assert {job.lora.rank for job in ASKED} == {8}


def test_flags_of_one_method_do_not_disturb_the_others(shell: Any) -> None:
    code, _, err = shell("gpt2", *CARD, "--rank", "8", "--double-quant")
    assert (code, err) == (0, "")
    assert {(job.method, job.lora.rank) for job in ASKED} == {("full", 16), ("lora", 8), ("qlora", 8)}
    assert shell("gpt2", *CARD, "--rank", "8", "--method", "full")[0] == 2


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (["lama-3.1-8b"], 5, "nearest: llama-3.1-8b"),
        (["gpt2", "--gpu", "rtx-4081"], 2, "nearest: rtx-4080"),
        (["gpt2", "--gpu", "gaudi2"], 2, "only NVIDIA and AMD cards are modelled yet"),
        (["gpt2", "--engine", "guess"], 2, "--engine"),
        (["gpt2", "--micro-batch", "none"], 2, "micro_batch"),
    ],
)
def test_wrong_usage(shell: Any, argv: list[str], code: int, told: str) -> None:
    got, out, err = shell(*argv)
    assert (got, out) == (code, "")
    assert told in err


def test_an_engine_that_answers_nothing_is_not_a_card_too_small(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(job: Job, **_: Any) -> Prediction:
        raise UsageError("stack: not modelled", field="stack")

    monkeypatch.setattr(engines, "predict", refuses)
    code, out, err = shell(*CARD)
    assert (code, out) == (5, "")
    assert "no bundled model could be predicted: stack: not modelled" in err


def test_seconds_are_counted_past_the_first(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(100_000))
    shown: list[float] = []
    monkeypatch.setattr(asking.time, "monotonic", lambda: next(times) / 4)
    monkeypatch.setattr(asking.Progress, "__call__", lambda self, passed_s: shown.append(passed_s))
    assert shell("gpt2", "--method", "lora", *CARD)[0] == 0
    assert shown and min(shown) >= 1


# the search itself


def test_doubling_and_bisection_on_paper() -> None:
    asked: list[int] = []

    def fits(value: int) -> bool:
        asked.append(value)
        return value <= 11

    found = largest_fitting(fits, 100)
    assert asked == [1, 2, 4, 8, 16, 12, 10, 11]
    assert (found.most, found.beyond, found.asked) == (11, 12, 8)


def test_less_than_one_step_is_searched_one_by_one() -> None:
    assert largest_fitting(lambda value: value <= 40, 1000, 64).most == 40
    assert largest_fitting(lambda value: False, 1000, 64).most is None
    assert largest_fitting(lambda value: True, 1000, 64).most == 1000  # no multiple of 64, but the limit


def test_the_largest_item_is_asked_from_above() -> None:
    asked = []

    def fits(name: str) -> bool:
        asked.append(name)
        return name in ("b", "d")

    items = [SizedItem(name, size, size) for name, size in (("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5), ("f", 9))]
    found = largest_item(items, fits, capacity_bytes=5)
    assert (found.item, found.beyond, asked) == ("d", "e", ["e", "d"])  # f cannot fit by what it weighs


@pytest.mark.parametrize(
    ("fields", "parameters", "all_used", "least"),
    [
        ({"method": "full", "weights_dtype": "float32"}, 10, True, 160),  # float32: weights, gradients, two moments
        ({"method": "full", "weights_dtype": "bfloat16"}, 10, True, 80),
        ({"method": "full", "weights_dtype": "float32"}, 10, False, 40),
        ({"method": "full", "optimizer": "adamw_8bit", "weights_dtype": "float32"}, 10, True, 40),
        ({"method": "lora", "weights_dtype": "float32"}, 10, True, 40),
        ({"method": "lora"}, 10, True, 20),  # the checkpoint's dtype: 16 bits at least
        ({"method": "qlora"}, 10, True, 5),
    ],
)
def test_the_least_a_model_holds(fields: dict[str, Any], parameters: int, all_used: bool, least: int) -> None:
    assert of_model(Job("gpt2", **fields), parameters, all_used=all_used).least_bytes == least


def test_where_a_configuration_keeps_its_positions() -> None:
    assert positions_of({"max_position_embeddings": 8192}) == 8192
    assert positions_of({"n_positions": 1024}) == 1024
    assert positions_of({"text_config": {"max_position_embeddings": 4096}, "max_position_embeddings": 77}) == 4096
    assert positions_of({"max_position_embeddings": None, "text_config": "?"}) is None


def test_a_bundled_model_has_what_the_search_needs() -> None:
    for name, entry in bundled_models().items():
        assert entry["parameters"] > 0
        assert read({"model": name}, method="lora").model == name


def test_a_reserve_larger_than_the_card_is_refused_once(shell: Any) -> None:
    """For all three methods alike: no table of a card with a negative capacity."""
    code, out, err = shell("llama-3.1-8b", "--gpu", "rtx-4090", "--reserve", "900GiB")
    assert (code, out) == (2, "") and err.count("hardware.reserve_bytes") == 1
