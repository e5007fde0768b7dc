"""Where the program meets what is not its own: full disks, closed streams, odd files, words from anywhere."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tunecast import predict
from tunecast.cli.arguments import positive
from tunecast.cli.main import main
from tunecast.errors import LONGEST_LINE, NotResolved, TunecastError, UsageError, printable
from tunecast.job import writer
from tunecast.job.mapping import job_from_dict
from tunecast.job.writer import write_file
from tunecast.learn import store as calibrations
from tunecast.market import store
from tunecast.market.own import own_offers
from tunecast.market.table import COLUMNS, offers_from, text_from
from tunecast.prediction.time.calibration import SCHEMA, calibration_from

OWN = '[[offer]]\nprovider = "lab"\ngpu = "rtx-4090"\ngpus = 2\nusd_per_hour = 1.5\n'


def spoken(words: list[str], shell: str, tmp_path: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """`tunecast WORDS` in a shell, with redirections."""
    line = f'"{sys.executable}" -m tunecast {" ".join(words)} {shell}'
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "XDG_DATA_HOME": str(tmp_path), **environ}
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, cwd=tmp_path, env=environment)


class NoRoom:
    """A disk that takes nothing more: what was opened stays open, what is written fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fsync(handle: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(writer.os, "fsync", fsync)


def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    NoRoom(monkeypatch)
    with pytest.raises(NotResolved, match=r"--html: .*page\.html could not be written: No space left on device"):
        write_file(path, "new", flag="--html")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_new_file_has_the_permissions_open_would_give(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "new", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o600)
    (tmp_path / "link").symlink_to("real")
    write_file(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o600
    write_file(Path("/dev/null"), "gone")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("place", ["/dev/null", "/proc/nothing", "a" * 300])
def test_a_data_folder_that_cannot_be_written(place: str) -> None:
    environ = {"XDG_DATA_HOME": place}
    with pytest.raises(NotResolved, match="could not be written: "):
        store.keep(store.OWN, (), environ)
    with pytest.raises(NotResolved, match="could not be written: "):
        calibrations.keep("rtx-4090", {}, environ)


def test_adding_offers_to_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.toml").write_text(OWN)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    NoRoom(monkeypatch)
    assert main(["offers", "add", str(tmp_path / "own.toml")]) == 5
    assert "own.csv could not be written: No space left on device" in capsys.readouterr().err
    assert os.listdir(tmp_path / "data" / "tunecast" / "market") == []


# streams


def test_a_full_device_as_stdout(tmp_path: Path) -> None:
    for words in (["models", "gpt2"], ["predict", "gpt2", "--json"], ["predict", "gpt2", "--no-advice"], ["--version"]):
        said = spoken(words, "> /dev/full", tmp_path)
        assert (said.returncode, said.stderr) == (
            5,
            "tunecast: error: could not write the answer: No space left on device\n",
        )


def test_closed_streams(tmp_path: Path) -> None:
    said = spoken(["models", "gpt2"], ">&-", tmp_path)
    assert said.returncode == 5
    assert said.stderr == "tunecast: error: could not write the answer: stdout is closed\n"
    said = spoken(["models", "gpt2"], "2>&-", tmp_path)
    assert said.returncode == 0 and "gpt2" in said.stdout
    assert spoken(["models", "no-such-model"], "2>&-", tmp_path).returncode == 5
    assert spoken(["models", "gpt2"], "2>/dev/full", tmp_path).returncode == 0


def test_the_help_names_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    codes = {kind.exit_code for kind in (TunecastError, *TunecastError.__subclasses__())} | {0, 130, 141, 143}
    told = said.partition("Exit codes: ")[2].partition("Results go")[0]
    assert all(f"{code} " in told for code in codes)
    assert "could not be written" in told


# pages


@pytest.mark.parametrize("flag", ["--html", "--snapshot"])
def test_a_name_too_long_is_refused_before_anything_is_predicted(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "gpt2", flag, str(tmp_path / ("a" * 300))]) == 5
    assert "cannot be written: File name too long" in capsys.readouterr().err


def test_a_page_on_a_full_disk_is_not_left_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    NoRoom(monkeypatch)
    assert main(["predict", "gpt2", "--json", "--html", str(tmp_path / "page.html")]) == 5
    assert "page.html could not be written: No space left on device" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


# calibrations


def calibration_at(tmp_path: Path) -> Path:
    path = calibrations.path_of("rtx-4090", {"XDG_DATA_HOME": str(tmp_path)})
    path.parent.mkdir(parents=True)
    return path


def test_a_calibration_nested_deep(tmp_path: Path) -> None:
    calibration_at(tmp_path).write_text("[" * 100_000)
    with pytest.raises(NotResolved, match=r"nested too deep\. To fix: tunecast calibrate, or delete it"):
        calibrations.own_calibration("rtx-4090", {"XDG_DATA_HOME": str(tmp_path)})


def test_a_pipe_in_the_place_of_a_calibration_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(calibration_at(tmp_path))
    with pytest.raises(NotResolved, match="not a plain file"):
        calibrations.own_calibration("rtx-4090", {"XDG_DATA_HOME": str(tmp_path)})


# numbers


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000, "1e400", "-1"], ids=lambda text: text[:4])
@pytest.mark.parametrize("field", ["gpus", "usd_per_hour", "vcpus", "provider", "dated"])
def test_own_offers_with_numbers_that_cannot_be(tmp_path: Path, field: str, number: str) -> None:
    path = tmp_path / "own.toml"
    rows = [line for line in OWN.splitlines() if not line.startswith(f"{field} ")]
    path.write_text("\n".join([*rows, f"{field} = {number}"]))
    with pytest.raises(UsageError) as told:
        own_offers(path, Any, Any)
    assert len(str(told.value)) < 500


@pytest.mark.parametrize(
    "field", ["compile", "seq_len", "model", "method", "kernels", "id", "lengths", "max_grad_norm"]
)
def test_a_job_with_a_number_of_thousands_of_digits(field: str) -> None:
    for number in (10**5000, -(10**5000), "9" * 5000):
        with pytest.raises(UsageError) as told:
            job_from_dict({"model": "gpt2", field: number})
        assert len(str(told.value)) < 1000


@pytest.mark.parametrize(
    ("given", "number"),
    [("8", 8), (8, 8), ("0", None), ("-1", None), ("9" * 5000, None), (10**5000, None), (True, None), (None, None)],
    ids=range(8),
)
def test_whole_numbers_of_launchers(given: object, number: int | None) -> None:
    assert positive(given) == number


# words


@pytest.mark.parametrize(
    "text", ["\x1b[31mred", "\x9b2J", "a\rb", "\u202egnp", "\x00", "\ud800", "x" * 100_000], ids=range(7)
)
def test_words_of_others_are_shown_without_what_a_terminal_would_act_on(text: str) -> None:
    for said in (printable(text), TunecastError(f"got {text}").message):
        assert said.isprintable()
        assert len(said) <= LONGEST_LINE
    assert printable("naïve 🙂 " + chr(0xA0)) == "naïve 🙂 " + chr(0xA0)


def test_a_message_keeps_its_lines() -> None:
    assert TunecastError("a\nb\x1bc").message == "a\nb\ufffdc"


HOSTILE = "\x1b[31mred"


@pytest.mark.parametrize(
    "words",
    [
        ["offers", "add", f"{HOSTILE}.toml"],
        ["offers", HOSTILE],
        ["predict", f"{HOSTILE}.yaml"],
        ["predict", HOSTILE],
        ["predict", "gpt2", "--html", f"{HOSTILE}/x"],
        ["predict", "gpt2", f"--{HOSTILE}"],
        ["compare", f"{HOSTILE}.json", "gpt2"],
        ["trace", "--", HOSTILE],
        ["models", HOSTILE],
        ["gpus", HOSTILE],
        ["nodes", HOSTILE],
        [HOSTILE],
    ],
    ids=lambda words: words[0][:10],
)
def test_no_word_of_a_command_line_reaches_the_terminal_raw(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "trace" in words:
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    assert main(words) in (2, 3, 5)
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err and "red" in said.out + said.err


@pytest.mark.parametrize("name", ["TUNECAST_SKYPILOT_CATALOG", "TUNECAST_GPUHUNT_CATALOG"])
def test_no_word_of_the_environment_reaches_the_terminal_raw(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, f"http://127.0.0.1:9/{HOSTILE}")
    monkeypatch.setenv("TUNECAST_SKYPILOT_CATALOG", "http://127.0.0.1:9/\x1b[31m")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / HOSTILE))
    assert main(["offers", "update"]) == 5
    (tmp_path / "own.toml").write_text(OWN)
    assert main(["offers", "add", str(tmp_path / "own.toml")]) == 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err


@pytest.mark.parametrize(
    "words", [["predict", "jobs.jsonl"], ["predict", "jobs.jsonl", "--json"]], ids=["text", "json"]
)
def test_an_id_is_shown_short_and_plain(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"id": HOSTILE, "model": 5}, {"id": "x" * 4000, "model": 5}]
    Path("jobs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main(words) == 2
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert max(map(len, said.err.splitlines())) < 500


# fields that belong to others


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ({"run": {"eval_steps": 5}}, {"run": {"eval_steps": 5, "eval_strategy": "steps"}}),
        ({"run": {"evals_per_epoch": 5}}, {"run": {"evals_per_epoch": 5, "eval_strategy": "steps"}}),
        ({"parallel": {"virtual_stages": 7}}, {"parallel": {"virtual_stages": 7, "pipeline": 2}}),
        ({"parallel": {"context_kind": "ulysses"}}, {"parallel": {"context_kind": "ulysses", "context": 2}}),
    ],
    ids=["eval_steps", "evals_per_epoch", "virtual_stages", "context_kind"],
)
def test_a_field_without_what_it_belongs_to_is_refused(wrong: dict[str, Any], right: dict[str, Any]) -> None:
    section, fields = next(iter(wrong.items()))
    with pytest.raises(UsageError, match="; allowed: ") as told:
        job_from_dict({"model": "gpt2", **wrong})
    assert told.value.field == f"{section}.{next(iter(fields))}"
    job_from_dict({"model": "gpt2", "hardware": {"gpus": 2}, **right})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"hardware": {"inter_node_gbps": 400}}, "inter_node_gbps 400.0 changes nothing, as hardware.nodes is 1"),
        ({"parallel": {"fsdp_version": 1}}, "fsdp_version 1 changes nothing, as parallel.data is 'ddp'"),
        ({"data": {"packing_strategy": "wrapped"}}, "'wrapped' changes nothing, as data.packing is false"),
        ({"vision": {"pixels": 4096}}, "pixels 4096 changes nothing, as vision.images is 0"),
        ({"vision": {"trained": ["tower"]}}, "changes nothing, as gpt2 has no vision tower"),
    ],
    ids=["inter_node_gbps", "fsdp_version", "packing_strategy", "pixels", "trained"],
)
def test_a_field_that_may_come_to_count_is_warned_of(given: dict[str, Any], told: str) -> None:
    assert any(text.endswith(told) for text in predict({"model": "gpt2", **given}).warnings)
    assert not [text for text in predict({"model": "gpt2"}).warnings if "changes nothing" in text]


def test_a_country_that_is_none_is_refused_without_data_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "gpt2", "--country", "Atlantis", "--json"]) == 2
    assert "hardware.country: got 'Atlantis'" in capsys.readouterr().err
    assert main(["predict", "gpt2", "--country", "Germany", "--json"]) == 0


def test_a_list_where_a_calibration_has_a_number() -> None:
    row = {"dtype": "bfloat16", "m": [0] * 1000, "n": 10**6, "k": 10**6, "seconds": 1.0}
    with pytest.raises(NotResolved, match="list, where a number is needed"):
        calibration_from({"schema": SCHEMA, "device": "x", "products": [row]}, "")


def test_an_offer_with_more_memory_than_there_is() -> None:
    row = text_from(store.bundled()[:1]).splitlines()
    cells = row[1].split(",")
    cells[COLUMNS.index("ram_gib")] = "1e308"
    with pytest.raises(NotResolved, match="ram_gib: got '1e308'; allowed: a number above 0, at most 1e"):
        offers_from("\n".join([row[0], ",".join(cells)]) + "\n", "own.csv")
