"""`tunecast plan`: exit codes, JSON as the contract has it, what is kept and what is chosen."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tunecast.cli import main as cli

pytestmark = pytest.mark.whole

SMALL = ("qwen3-0.6b", "--method", "lora", "--weights-dtype", "bfloat16", "--tokens", "2000000")
ONE = ("--gpu", "l4", "--gpus", "1", "--provider", "aws", "--no-spot")


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def run(capsys, *argv):
    code = cli.main(["plan", *argv])
    told = capsys.readouterr()
    return code, told.out, told.err


def plan(capsys, *argv, code=0):
    got, out, _ = run(capsys, *argv, "--json")
    assert got == code
    return json.loads(out)


def test_json_is_the_contracts(capsys):
    told = plan(capsys, *SMALL, *ONE, "--micro-batch", "2", "--grad-accum", "2")
    assert told["schema"] == "tunecast.plan/1"
    assert list(told["picks"]) == ["cheapest", "fastest", "balanced", "deadline"]
    assert told["picks"]["deadline"] is None
    choice = told["picks"]["cheapest"]
    assert {"hardware", "offer", "job", "prediction", "total_usd", "total_s", "why"} <= set(choice)
    assert choice["hardware"] == "1 x l4"
    assert choice["job"]["micro_batch"] * choice["job"]["grad_accum"] == 4
    assert choice["prediction"]["schema"] == "tunecast.prediction/1"
    assert choice["prediction"]["fits"] is True
    assert sum(line["usd"] for line in choice["cost"]["lines"]) == pytest.approx(choice["total_usd"])
    assert choice["cost"]["usd_per_epoch"] == pytest.approx(choice["total_usd"] / 3)
    assert choice["cost"]["usd_per_million_tokens"] == pytest.approx(choice["total_usd"] / 6, rel=0.01)
    assert choice["cost"]["usd_per_year_weekly"] == pytest.approx(choice["total_usd"] * 52)
    low, high = choice["total_range_s"]
    assert low < choice["total_s"] < high
    searched = told["searched"]
    assert searched["configurations"] == searched["bounded"] + searched["predicted"]
    assert choice["prediction"]["time"]["total_s"] == pytest.approx(choice["total_s"], rel=0.001)
    assert choice["device_bytes"] == choice["prediction"]["memory"]["device_bytes"]


def test_preparing_the_data_is_a_phase_and_a_line(capsys):
    told = plan(capsys, *SMALL, *ONE, "--num-proc", "1")["picks"]["cheapest"]
    assert told["phases_s"]["preparation"] == pytest.approx(2e6 / 330e3 + 2e6 * 4.6 / 300e6, rel=0.001)
    every = plan(capsys, *SMALL, *ONE)["picks"]["cheapest"]
    processes = every["changes"]["data.num_proc"]
    assert processes > 1
    assert every["phases_s"]["preparation"] == pytest.approx(2e6 / 330e3 / processes + 2e6 * 4.6 / 300e6, rel=0.001)
    assert any(line["name"] == "preparation" and line["usd"] > 0 for line in told["cost"]["lines"])
    ready = plan(capsys, *SMALL, *ONE, "--prepared")["picks"]["cheapest"]
    assert all(line["name"] != "preparation" for line in ready["cost"]["lines"])


def test_a_page_has_the_whole_front_in_full(capsys, tmp_path):
    argv = (*SMALL, "--provider", "aws", "--no-spot", "--gpus", "1")
    assert {one["prediction"] is None for one in plan(capsys, *argv)["pareto"]} == {True, False}
    written = plan(capsys, *argv, "--html", str(tmp_path / "plan.html"))
    assert all(one["prediction"]["fits"] for one in written["pareto"])
    named = {one["hardware"] for one in (*written["choices"], *written["refused"])}
    assert written["ruled_out"]
    assert not named & set(written["ruled_out"])


def test_the_same_answer_every_time(capsys):
    """In one process, where the second finds what the first built; and in another, which hashes words otherwise."""
    argv = (*SMALL, *ONE[:2], "--gpus", "1", "--grad-accum", "4", "--keep", "micro_batch")
    first, second = plan(capsys, *argv), plan(capsys, *argv)
    command = [sys.executable, "-m", "tunecast", "plan", *argv, "--json", "--quiet"]
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "7"}, capture_output=True, check=True
    )
    other = json.loads(done.stdout)
    for told in (first, second, other):
        assert told["searched"].pop("seconds") > 0
    assert len({json.dumps(told) for told in (first, second, other)}) == 1


def test_text_page_and_markdown(capsys, tmp_path):
    page, note = tmp_path / "plan.html", tmp_path / "plan.md"
    code, out, err = run(capsys, *SMALL, *ONE, "--html", str(page), "--md", str(note))
    assert (code, err) == (0, "")
    assert "1 x l4" in out
    assert "1 x l4" in page.read_text("utf-8")
    assert "1 x l4" in note.read_text("utf-8")


def test_what_the_file_says_stays(capsys, tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: qwen3-0.6b\nmethod: lora\nweights_dtype: bfloat16\ngradient_checkpointing: true\nkernels: []\n"
        "micro_batch: 4\nhardware: {gpu: h100-sxm-80gb}\ndata: {tokens: 2000000}\n"
    )
    told = plan(capsys, str(path), *ONE)
    for choice in (*told["pareto"], *told["choices"]):
        assert choice["job"]["gradient_checkpointing"] is True
        assert choice["job"]["kernels"] == []
        assert choice["job"]["hardware"]["gpu"] == "l4"
    freed = plan(capsys, str(path), *ONE, "--allow", "gradient_checkpointing")
    assert freed["searched"]["configurations"] == 2 * told["searched"]["configurations"]
    kept = plan(capsys, str(path), *ONE, "--keep", "micro_batch")
    assert {choice["job"]["micro_batch"] for choice in kept["choices"]} == {4}
    assert kept["searched"]["configurations"] < told["searched"]["configurations"]


def test_data_that_is_not_given_is_the_first_assumption(capsys):
    told = plan(capsys, *SMALL[:-2], *ONE)
    assert told["assumptions"][0].startswith("no amount of data given, so 10,000,000 tokens")


def test_vat_and_storage_are_lines(capsys):
    plain = plan(capsys, *SMALL, *ONE)["picks"]["cheapest"]
    taxed = plan(capsys, *SMALL, *ONE, "--vat", "19", "--storage", "100GB")["picks"]["cheapest"]
    lines = {line["name"]: line["usd"] for line in taxed["cost"]["lines"]}
    assert lines["storage"] > 1.0
    assert lines["VAT"] == pytest.approx(0.19 * (taxed["total_usd"] - lines["VAT"]))
    assert taxed["total_usd"] > plain["total_usd"]


def test_a_deadline_is_made_at_the_high_end(capsys):
    told = plan(capsys, *SMALL, *ONE, "--within", "3h")
    assert told["picks"]["deadline"]["total_range_s"][1] <= 3 * 3600
    assert "even in the slow case" in told["picks"]["deadline"]["why"]


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ((*SMALL, *ONE, "--within", "6 weeks"), 2, "--within"),
        ((*SMALL, *ONE, "--allow", "seq_len"), 2, "--allow: got 'seq_len'"),
        ((*SMALL, *ONE, "--keep", "model"), 2, "--keep: got 'model'"),
        ((*SMALL, "--gpu", "l5"), 2, "l5"),
        ((*SMALL, "--gpu", "gaudi3", "--eu"), 3, "no offer is left after --gpu gaudi3, --eu: --gpu leaves none"),
        (("no-such-model", *ONE), 5, "model: got 'no-such-model'"),
    ],
)
def test_exit_codes(capsys, argv, code, words):
    got, _, err = run(capsys, *argv)
    assert got == code
    assert words in err


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (("--max-usd", "0.001"), "Nothing costs at most $0.001: the cheapest, 1 x l4 at aws, costs $"),
        (("--within", "60s"), "Nothing finishes within 1 min: the soonest for sure, 1 x l4"),
    ],
    ids=["budget", "deadline"],
)
def test_a_limit_nothing_keeps_to_is_told_once(capsys, limit, words):
    """On stdout in the text's first line, on stderr beside JSON: in the same words."""
    code, out, err = run(capsys, *SMALL, *ONE, *limit)
    assert (code, err) == (4, "")
    assert out.startswith(words)
    code, _, err = run(capsys, *SMALL, *ONE, *limit, "--json")
    assert code == 4 and " ".join(out.split()).startswith(err.removeprefix("tunecast: error: ").strip())


def test_a_provider_on_whose_machines_nothing_runs_has_no_price(capsys):
    """Their own memory is too small for the samples: the least they cost was Infinity, which is no JSON."""
    job = ("llama-3.2-1b", "--method", "full", "--seq-len", "2", "--micro-batch", "4", "--tokens", "100000000", "--eu")
    told = plan(capsys, *job, "--provider", "acecloud", "--provider", "seeweb")
    assert told["picks"]["cheapest"] is not None and told["dearer"] == {}


def test_a_job_nothing_runs_says_what_would(capsys):
    job = ("llama-3.1-8b", "--method", "full", "--tokens", "1000000", "--micro-batch", "1")
    code, out, err = run(capsys, *job, *ONE, "--nodes-up-to", "1")
    assert (code, out) == (3, "")
    assert "1 x l4: weights, gradients and optimizer state alone take" in err
    assert "what would: without --gpu l4, --gpus 1, --provider aws, --no-spot: " in err


def test_kernels_that_no_card_helps_are_refused_before_any_search(capsys, monkeypatch):
    monkeypatch.setattr("tunecast.planning.plan.Search", None)
    code, out, err = run(capsys, "bloom-560m", "--kernels", "liger,foak")
    assert (code, out) == (5, "") and err.startswith("tunecast: error: kernels: the closed form does not know foak's")


def test_refused_hardware_is_in_the_plan_with_a_remedy(capsys):
    told = plan(capsys, *SMALL, "--gpu", "t4", "--gpus", "1", code=3)
    (card, *_) = told["refused"]
    assert card == {
        "hardware": "1 x t4",
        "reason": "the card has no bfloat16",
        "remedy": "autocast: float16, with weights_dtype float16 or float32",
    }


def test_an_owned_machine_costs_its_electricity(capsys, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[[offer]]\nprovider = "lab"\ngpu = "rtx-4090"\ngpus = 2\neur_per_kwh = 0.3\n')
    assert cli.main(["offers", "add", str(path)]) == 0
    capsys.readouterr()
    told = plan(capsys, *SMALL, "--provider", "lab")
    choice = told["picks"]["cheapest"]
    assert choice["offer"]["kind"] == "owned"
    assert choice["phases_s"]["provisioning"] == 0
    assert choice["total_usd"] < 0.5
