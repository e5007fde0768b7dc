"""Programs that are watched: without torch, by a Trainer that calls callbacks as transformers' does."""

from __future__ import annotations

import getpass
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunecast.launching.preflight.machine import memory_limits
from tunecast.learn.inside import outside
from tunecast.learn.inside.host_memory import HostMemory, host_memory, killed_note
from tunecast.learn.inside.outside import Limits
from tunecast.learn.inside.sampler import Sampler
from tunecast.learn.record import run_from
from tunecast.learn.recordable import strings
from tunecast.learn.runs_store.store import open_store

pytestmark = pytest.mark.whole
SOURCE = Path(__file__).parents[2] / "src"
WATCHED = Path(__file__).parent / "watched"
TRAINING = [sys.executable, str(WATCHED / "fake_training.py")]
OUT_OF_MEMORY = [sys.executable, str(WATCHED / "out_of_memory.py")]


def watch(folder: Path, *words: str, run: Any = subprocess.run, **more: Any) -> Any:
    """`tunecast watch`, with its store in `folder`."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SOURCE), str(WATCHED / "stand_in")]),
        "XDG_DATA_HOME": str(folder / "data"),
        "TUNECAST_STORE": str(folder / "runs.db"),
    }
    command = [sys.executable, "-m", "tunecast", "watch", *words]
    if run is subprocess.run:
        more = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, **more}
    return run(command, env=environment, **more)


def records(folder: Path) -> list[dict[str, Any]]:
    with open_store({"TUNECAST_STORE": str(folder / "runs.db")}) as store:
        return [run.to_dict() for run in store.records()]


def test_a_program_s_output_and_exit_code_are_its_own(tmp_path: Path) -> None:
    done = watch(tmp_path, "--", "sh", "-c", "cat; echo out; echo err >&2; exit 7", stdin=None, input="in\n")
    assert (done.returncode, done.stdout) == (7, "in\nout\n")
    assert done.stderr.count("err\n") == 1
    (record,) = records(tmp_path)
    assert (record["state"], record["source"], record["time"]["steps"]) == ("failed", "watch", None)


def test_a_signal_reaches_the_program_once(tmp_path: Path) -> None:
    program = (
        "import signal, sys, time\ngot = []\n"
        "signal.signal(15, lambda *_: (print('told', flush=True), got.append(15)))\n"
        "print('ready', flush=True)\n"
        "while not got: time.sleep(0.01)\n"  # signal.pause() would miss one that comes before it
        "time.sleep(1); sys.exit(3)"
    )
    started = watch(
        tmp_path, "--", sys.executable, "-c", program, run=subprocess.Popen, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    assert started.stdout.readline() == "ready\n"
    os.killpg(started.pid, signal.SIGTERM)
    assert started.stdout.read() == "told\n"
    assert started.wait() == 3


def test_a_program_that_a_signal_ends(tmp_path: Path) -> None:
    assert watch(tmp_path, "--", "sh", "-c", "kill -9 $$").returncode == 128 + 9
    assert records(tmp_path)[0]["state"] == "killed"


def test_a_program_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    done = watch(tmp_path, "--", "no-such-program")
    assert done.returncode == 127 and "no-such-program: No such file" in done.stderr
    assert not records(tmp_path) and not list((tmp_path / "data/tunecast/running").iterdir())


def test_a_full_disk_is_told_where_nothing_of_a_run_is_kept(tmp_path: Path) -> None:
    (tmp_path / outside.RUN).symlink_to("/dev/full")
    told = io.StringIO()
    assert outside.watch(["true"], str(tmp_path), told=told) == outside.Ended(0, None)
    assert f"not kept: {tmp_path} could not be written" in told.getvalue()


def test_a_trainer_is_measured_from_inside(tmp_path: Path) -> None:
    program = "import os, runpy, sys; assert os.environ['USERS_OWN'] == '1'; sys.argv = sys.argv[1:]; "
    program += "runpy.run_path(sys.argv[0], run_name='__main__')"
    done = watch(tmp_path, "--", sys.executable, "-c", program, *TRAINING[1:], "20", "0.02", str(tmp_path / "saved"))
    assert done.returncode == 0, done.stderr
    (record,) = records(tmp_path)
    assert record["state"] == "done" and record["time"]["steps"] == 20
    assert 0.02 <= record["time"]["step_s"] <= record["time"]["step_quantiles_s"][2]
    assert record["loss"][-1] == [20, 0.05]
    assert record["time"]["phases_s"]["training"] >= 0.4
    assert not list((tmp_path / "data/tunecast/running").iterdir()), "what is in the store is no longer beside it"


def test_out_of_memory_leaves_what_would_have_made_it_fit(tmp_path: Path) -> None:
    job = ("qwen2.5-7b", "--method", "lora", "--gpu", "rtx-4090")
    done = watch(tmp_path, *job, "--", *TRAINING, "20", "0.01", str(tmp_path / "saved"), "oom")
    assert done.returncode == 1 and "OutOfMemoryError" in done.stderr, "the program's own traceback"
    (record,) = records(tmp_path)
    assert record["state"] == "oom" and record["time"]["steps"] == 3
    assert record["note"].startswith("would have fit with ")
    assert record["predicted"]["device_bytes"] > record["predicted"]["allocated_bytes"] > 20 << 30
    assert record["job"]["model"] == "qwen2.5-7b"


def test_out_of_memory_of_a_program_without_a_trainer(tmp_path: Path) -> None:
    """Nothing measures it from inside; what it ends with is known all the same."""
    job = ("qwen2.5-7b", "--method", "lora", "--gpu", "rtx-4090")
    done = watch(tmp_path, *job, "--", *OUT_OF_MEMORY, "oom")
    assert (done.returncode, done.stdout) == (1, "caught\n") and done.stderr.count("Traceback") == 1
    (record,) = records(tmp_path)
    assert record["state"] == "oom" and record["note"].startswith("would have fit with ")
    for word, state in (("well", "done"), ("other", "failed")):
        watch(tmp_path / state, "--", *OUT_OF_MEMORY, word)
        assert records(tmp_path / state)[0]["state"] == state


def test_a_kill_leaves_what_was_measured(tmp_path: Path) -> None:
    done = watch(tmp_path, "--", *TRAINING, "20", "0.01", str(tmp_path / "saved"), "killed")
    assert done.returncode == 128 + 9
    (record,) = records(tmp_path)
    assert record["state"] == "killed" and record["time"]["steps"] == 3


@pytest.mark.parametrize(
    ("folder", "counter", "most"),
    [
        ("sys/fs/cgroup/job", "memory.events", "memory.max"),
        ("sys/fs/cgroup/memory/job", "memory.oom_control", "memory.limit_in_bytes"),
    ],
)
def test_a_kill_by_the_kernel_says_what_memory_it_needed(tmp_path: Path, folder: str, counter: str, most: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n" if "events" in counter else "5:cpu:/\n4:memory:/job\n")
    (tmp_path / "proc/vmstat").write_text("oom_kill 70\n")
    group = tmp_path / folder
    group.mkdir(parents=True)
    (group / counter).write_text("oom 1\noom_kill 2\n")
    (group / most).write_text(f"{32 << 30}\n")
    before = host_memory(str(tmp_path), 64 << 30)
    assert before == HostMemory(2, 32 << 30), "the container's, not the machine's"
    assert killed_note(before, before, 40 << 30) is None, "somebody else sent the signal"
    (group / counter).write_text("oom 2\noom_kill 3\n")
    after = host_memory(str(tmp_path), 64 << 30)
    fit = "the kernel ended it, out of host memory of 32.00 GiB: it would have fit with 40.00 GiB"
    assert killed_note(before, after, 40 << 30) == fit
    fewer = "fewer data loader workers or processes on a machine need less"
    assert killed_note(before, after, None) == f"the kernel ended it, out of host memory of 32.00 GiB: {fewer}"
    for unlimited in ("max\n", f"{2**63 - 4096}\n"):
        (group / most).write_text(unlimited)
        assert host_memory(str(tmp_path), 64 << 30).limit_bytes == 64 << 30
    (group / counter).unlink()
    assert host_memory(str(tmp_path)).kills == 70


def test_the_limit_may_stand_above_the_group_of_a_program(tmp_path: Path) -> None:
    """Slurm: of the job and its step, not of the task."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/slurm/job_7/step_0/task_0\n")
    group = tmp_path / "sys/fs/cgroup/slurm/job_7/step_0/task_0"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group.parent.parent / "memory.max").write_text(f"{16 << 30}\n")
    assert host_memory(str(tmp_path), 64 << 30).limit_bytes == 16 << 30
    assert list(memory_limits(tmp_path)) == [16 << 30], "and so the check before a launched job"


def test_what_fails_in_watching_ends_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def sample(*given: Any) -> None:
        raise KeyError("power")

    monkeypatch.setattr(outside, "EVERY_S", 0.05)
    monkeypatch.setattr(Sampler, "sample", sample)
    ended = outside.watch(["sh", "-c", "sleep 0.3; exit 7"], str(tmp_path), told=sys.stderr)
    assert ended.exit_code == 7 and ended.record is not None and ended.record["state"] == "failed"
    assert capsys.readouterr().err.count("not all of it is measured (KeyError: 'power')") == 1
    late = outside.watch(["sleep", "60"], str(tmp_path / "late"), limits=Limits(within_s=0.2))
    assert late.status == -signal.SIGTERM, "a limit is kept all the same"


def test_a_program_that_the_kernel_killed_has_it_in_its_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = iter([HostMemory(0, 8 << 30), HostMemory(1, 8 << 30)])
    monkeypatch.setattr(outside, "host_memory", lambda **_: next(counted))
    ended = outside.watch(["sh", "-c", "kill -9 $$"], str(tmp_path), expected={"ram_bytes": 9 << 30})
    assert ended.record is not None and ended.record["state"] == "killed"
    assert (
        ended.record["note"] == "the kernel ended it, out of host memory of 8.00 GiB: it would have fit with 9.00 GiB"
    )


def test_when_watch_itself_is_killed_the_next_one_takes_the_record(tmp_path: Path) -> None:
    from tunecast.learn.intake import take_killed

    command = ("--", *TRAINING, "1000", "0.05", str(tmp_path / "saved"))
    started = watch(tmp_path, *command, run=subprocess.Popen, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    running = tmp_path / "data/tunecast/running"
    while not any('"steps":1' in path.read_text() for path in running.glob("*/rank-0-*.jsonl")):
        time.sleep(0.1)
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    environ = {"XDG_DATA_HOME": str(tmp_path / "data"), "TUNECAST_STORE": str(tmp_path / "runs.db")}
    while not (taken := list(take_killed(environ))):  # the program ends with what watched it
        time.sleep(0.1)
    assert [each["state"] for each in taken] == ["killed"] and taken[0]["time"]["steps"] > 0
    assert [each["id"] for each in records(tmp_path)] == [taken[0]["id"]]
    assert not list(running.iterdir())


def test_a_training_that_is_asked_to_stop_saves_first(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    done = watch(tmp_path, "--", *TRAINING, "100000", "0.02", str(saved), "asked")
    assert done.returncode == 0, done.stderr
    (record,) = records(tmp_path)
    assert record["state"] == "stopped" and record["time"]["steps"] == json.loads(saved.read_text())


def test_a_limit_that_is_near_asks_the_training_and_ends_it_where_that_does_not_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(outside, "_send", lambda process, number, group: sent.append(number))
    nobody: Any = SimpleNamespace(pid=0)
    told = outside.Told(None)
    run = outside._WatchedProgram(
        nobody, str(tmp_path), {"save_s": 20.0}, Limits(within_s=600), told, Sampler(None, 0), 0.0
    )
    run.inside = {"step": 7, "recent_s": 5.0}
    run._limit(559, run.live(559))
    assert not (tmp_path / "stop").exists(), "20 s for a checkpoint and four steps of 5 s are left"
    run._limit(561, run.live(561))
    assert (tmp_path / "stop").exists() and not sent
    assert told.texts["stop"] == "the limit of 10 min is near: the training is asked to save and to end"
    run._limit(650, run.live(650))
    assert not sent, "it has a minute to begin"
    run._limit(670, run.live(670))
    run._limit(680, run.live(680))
    assert sent == [signal.SIGTERM]
    run._limit(969, run.live(969))
    assert sent == [signal.SIGTERM], "it may save in its own way"
    run._limit(970, run.live(970))
    run._limit(980, run.live(980))
    assert sent == [signal.SIGTERM, signal.SIGKILL]
    assert told.texts["killed"] == "it goes on 5 min after SIGTERM: SIGKILL is sent"


def test_a_training_that_saves_is_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "_send", lambda *_: pytest.fail("it was ended"))
    nobody: Any = SimpleNamespace(pid=0)
    run = outside._WatchedProgram(
        nobody, str(tmp_path), {}, Limits(within_s=600), outside.Told(None), Sampler(None, 0), 0.0
    )
    run.inside = {"step": 7, "recent_s": 5.0}
    run._limit(590, run.live(590))
    run.stop_acknowledged = True
    run._limit(6000, run.live(6000))


def test_a_budget_is_a_deadline() -> None:
    assert Limits(within_s=7200, budget_usd=5.0, usd_per_hour=2.5).ends_s == 7200
    assert Limits(within_s=7200, budget_usd=1.0, usd_per_hour=2.0).ends_s == 1800
    assert Limits(within_s=7200, budget_usd=1.0, usd_per_hour=2.0).name() == "the budget of $1.00"
    assert Limits(budget_usd=0.001, usd_per_hour=2.0).name() == "the budget of $0.001"
    assert Limits(within_s=90).name() == "the limit of 90 s", "2 min it is not"
    assert Limits().ends_s is None


def test_a_program_that_cannot_be_asked_gets_sigterm(tmp_path: Path) -> None:
    done = watch(tmp_path, "--within", "0.02min", "--", "sleep", "1000")
    assert done.returncode == 128 + signal.SIGTERM
    (record,) = records(tmp_path)
    assert record["state"] == "killed" and record["note"] == "ended at the limit of 1.2 s without a checkpoint"
    assert "is reached, and nothing in it can be asked to save: SIGTERM is sent" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("python", "train.py"), "there is no -- before the script"),
        (("--",), "there is no command after --"),
        (("--budget", "5", "--", "true"), "needs the price of an hour"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    done = watch(tmp_path, *words)
    assert done.returncode in (2, 5) and told in done.stderr
    assert not (tmp_path / "runs.db").exists()


def test_what_cannot_be_predicted_is_run_all_the_same(tmp_path: Path) -> None:
    done = watch(tmp_path, "no-such-model", "--gpu", "h100", "--", "true")
    assert done.returncode == 0 and "not predicted, so nothing is compared: " in done.stderr
    assert records(tmp_path)[0]["predicted"] is None


def test_nothing_private_is_in_a_record(tmp_path: Path) -> None:
    secret = tmp_path / "my-secret-folder"
    secret.mkdir()
    done = watch(tmp_path, "--", *TRAINING, "5", "0.01", str(secret / "saved"), cwd=secret)
    assert done.returncode == 0
    (record,) = records(tmp_path)
    run_from(record)
    private = (str(tmp_path), "my-secret-folder", getpass.getuser(), os.uname().nodename, "fake_training")
    texts = list(strings({**record, "schema": ""}))
    assert len(texts) > 5
    for text in texts:
        assert not any(each in text for each in private if each != "root" or text == each), text
        assert "/" not in text
