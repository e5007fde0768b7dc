"""The parts of a watched run: cards by a library that answers as NVML does, journals, records of several ranks, and the
rules by which a run is told to leave its range."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from math import log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunecast.door.predict import predict
from tunecast.door.read import read
from tunecast.errors import NotResolved, UsageError
from tunecast.learn.expected import largest_steps, predicted_of
from tunecast.learn.inside import export, process
from tunecast.learn.inside.batches import CountedBatches, count_batches
from tunecast.learn.inside.journal import Follower, Journal, lines
from tunecast.learn.inside.live import Live, line, warnings
from tunecast.learn.inside.measure import Thinned
from tunecast.learn.inside.merge import bound_by, merge, state_of
from tunecast.learn.inside.nvml import PATH, load, visible
from tunecast.learn.inside.outside import Told, lay_out
from tunecast.learn.inside.process import WatchedProcess
from tunecast.learn.inside.sampler import Sampler
from tunecast.learn.intake import complete, goes_on, host_of, take_killed
from tunecast.learn.journal import last_line, record_of
from tunecast.learn.record import run_from, salvaged
from tunecast.prediction.lessons.correction import Correction

GIB = 1 << 30
WATCHED = Path(__file__).parent / "watched"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    made = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made), str(WATCHED / "fake_nvml.c")], check=True)
    return str(made)


def test_cards_are_read_from_outside(library: str, tmp_path: Path) -> None:
    program = tmp_path / "sample.py"
    program.write_text(
        "import json, os, sys\n"
        "os.environ['FAKE_NVML_PID'] = str(os.getpid())\n"
        "from tunecast.learn.inside.nvml import load\n"
        "from tunecast.learn.inside.sampler import Sampler\n"
        "nvml, why = load()\n"
        "sampler = Sampler(nvml, os.getpid())\n"
        "sampler.sample('load'); sampler.sample('training'); sampler.sample('training')\n"
        "print(json.dumps(sampler.summary()))\n"
    )
    environment = {**os.environ, PATH: library, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert told["device"] == "NVIDIA H200" and told["driver"] == "580.95.05" and told["memory_bytes"] == 141 * GIB
    assert told["device_bytes"] == 18 * GIB, "of this process alone; another one's card does not count"
    assert told["by_phase_bytes"] == {"load": 18 * GIB, "training": 18 * GIB}
    assert told["cards"] == 1 and told["busy_fraction"] == 0.9
    assert told["power_w"] == 500.0 and told["power_limit_w"] == 700.0 and told["hottest_c"] == 83
    assert told["throttled_fraction"] == 1.0 and told["throttled_by"] == "its temperature"
    assert told["energy_j"] is not None and told["energy_j"] > 0


def test_where_the_driver_names_no_process_all_that_came_counts(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATH, library)
    monkeypatch.delenv("FAKE_NVML_PID", raising=False)
    nvml, _ = load()
    sampler = Sampler(nvml, os.getpid())
    sampler.sample("training")
    sampler.sample("training")
    assert sampler.summary()["device_bytes"] == 19 * GIB, "20 now, 1 before the run began"


def test_without_the_library_it_is_said(tmp_path: Path) -> None:
    assert load({PATH: str(tmp_path / "none.so")}) == (
        None,
        "no libnvidia-ml.so.1 on this machine: nothing is measured of the card from outside",
    )
    assert Sampler(None, 1).summary() == {}


def test_a_library_that_does_not_start(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML_BROKEN", "1")
    assert load({PATH: library})[1].startswith("libnvidia-ml.so.1 does not start (error 9)")


@pytest.mark.parametrize(
    ("given", "cards"), [(None, [0, 1, 2, 3]), ("1,3", [1, 3]), ("", []), ("GPU-12ab", [0, 1, 2, 3]), ("2,9", [2])]
)
def test_cards_that_a_program_may_use(given: str | None, cards: list[int]) -> None:
    assert visible(4, {} if given is None else {"CUDA_VISIBLE_DEVICES": given}) == cards


def inside(rank: int, reserved: int, **more: Any) -> dict[str, Any]:
    return {
        "rank": rank,
        "memory": {"allocated_bytes": reserved - GIB, "reserved_bytes": reserved, "capacity_bytes": 80 * GIB},
        "time": {"steps": 10, "step_s": 1.0 + rank, "phases_s": {"training": 8.0, "data": 2.0}},
        "tokens": {"trained": 100, "padding": 7},
        **more,
    }


def test_of_several_ranks_memory_is_the_fullest_one_s() -> None:
    ranks = [inside(1, 30 * GIB), inside(0, 20 * GIB), inside(2, 25 * GIB)]
    found = merge({"hardware": {}}, ranks, {"busy_fraction": 0.99, "device_bytes": 31 * GIB}, "done", 0.0)
    assert found["memory"]["reserved_bytes"] == 30 * GIB and found["memory"]["device_bytes"] == 31 * GIB
    assert found["time"]["step_s"] == 1.0 and found["tokens"] == {"trained": 300, "padding": 21}
    assert found["utilization"]["bound_by"] == "data", "two of ten seconds"
    assert found["ended"] == "1970-01-01T00:00:00Z"


def test_what_bounds_a_step() -> None:
    assert bound_by(0.0, 0.99, 0.9, 1) == "card"
    assert bound_by(0.2, 0.99, 0.9, 1) == "data"
    assert bound_by(0.0, 0.5, 0.9, 1) == "host"
    assert bound_by(0.0, 0.99, 0.3, 8) == "link" and bound_by(0.0, 0.99, 0.3, 1) == "card"
    assert bound_by(None, None, None, 1) is None


def test_how_a_run_ended() -> None:
    ended, cut = {"state": "done"}, {"state": None}
    assert [state_of([ended], status) for status in (0, 1, -9, 143, None)] == [
        "done", "failed", "killed", "killed", "done",
    ]  # fmt: skip
    assert state_of([ended, cut], None) == "killed" and state_of([], None) == "killed"
    assert state_of([{"state": "oom"}, cut], 1) == "oom"
    assert state_of([{"state": "done", "stopped": True}], 0) == "stopped"


def journal_of(folder: Path, *appended: dict[str, Any]) -> Path:
    place = folder / "run.jsonl"
    place.write_text("".join(json.dumps(each) + "\n" for each in appended))
    return place


HEAD = {"event": "begin", "at": 10.0, "record": {"id": "0" * 32, "state": "running", "hardware": {}}}


def test_a_journal_without_its_last_line_was_killed(tmp_path: Path) -> None:
    step = {"event": "steps", "at": 12.0, **inside(0, GIB), "loss": [3, 0.5]}
    place = journal_of(tmp_path, {**HEAD, "rank": 0}, step)
    place.write_bytes(place.read_bytes() + b'{"event": "end", "record": {"sta')
    found = record_of(place)
    assert found["state"] == "killed" and found["ended"] == "1970-01-01T00:00:12Z"
    assert found["time"]["steps"] == 10 and found["loss"] == [[3, 0.5]]


def test_a_journal_with_its_last_line_is_that(tmp_path: Path) -> None:
    place = journal_of(tmp_path, HEAD, {"event": "end", "record": {"id": "1", "state": "done"}})
    assert record_of(place) == record_of(tmp_path) == {"id": "1", "state": "done"}


def test_garbage_in_a_journal_is_passed_over(tmp_path: Path) -> None:
    place = journal_of(tmp_path, HEAD, {"event": "seen", "line": "step 3", "at": 11.0})
    place.write_bytes(b"\xff\xfe\n[1]\n" + b"[" * 100_000 + b"\n" + place.read_bytes())
    assert len(list(lines(str(place)))) == 2
    assert last_line(tmp_path) == "step 3"


def test_a_journal_never_fails_a_training(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "missing" / "run.jsonl"), lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    journal.begin({"event": "begin"})
    journal.end({"event": "end", "value": float("nan")})
    kept = Journal(str(tmp_path / "run.jsonl"))
    kept.begin({"event": "begin"})
    kept.end({"event": "end", "value": float("nan"), "other": [float("inf"), 1.5]})
    assert list(lines(str(tmp_path / "run.jsonl")))[-1] == {"event": "end", "value": None, "other": [None, 1.5]}


def test_a_follower_gives_each_line_once(tmp_path: Path) -> None:
    place = journal_of(tmp_path, {"a": 1})
    follower = Follower(str(place))
    assert list(follower.new_lines()) == [{"a": 1}]
    with place.open("a") as file:
        file.write('{"a": 2}\n{"a"')
    assert list(follower.new_lines()) == [{"a": 2}] and list(follower.new_lines()) == []


def test_ranks_stop_after_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        made = WatchedProcess(str(tmp_path), "watch", alone=False)
        monkeypatch.setattr(made, "_is_asked", lambda: (tmp_path / process.STOP).exists())
        ranks.append(made)
    assert not any(each.stops(1) for each in ranks)
    (tmp_path / process.STOP).write_text("stop")
    assert not ranks[1].stops(2), "it sees nothing of the request itself"
    stopped = [[step for step in range(2, 9) if each.stops(step)][:1] for each in ranks]
    assert stopped == [[2 + process.AHEAD]] * 2
    for each in ranks:
        each.end(None)
    sys.excepthook = sys.__excepthook__


PREDICTED = {
    "step_s": 1.6, "low_s": 1.4, "high_s": 1.8, "device_bytes": 18 * GIB, "device_range_bytes": [17 * GIB, 19 * GIB],
}  # fmt: skip


def live(step_s: float = 1.6, device: float = 18, *, data: float = 0.0, **more: Any) -> Live:
    expected = {"predicted": PREDICTED, **more.pop("expected", {})}
    spans = {"training": 160.0 - 160 * data, "data": 160 * data}
    measured = {
        "step": 100, "of": 1000, "phase": "training", "recent_s": step_s, "memory": more.pop("memory", {}),
        "time": {"steps": 100, "phases_s": spans},
    }  # fmt: skip
    return Live(expected, measured, {"device_bytes": int(device * GIB), **more}, 170.0, 2.5)


def test_one_line_compares() -> None:
    assert line(live()) == (
        "step 100 of 1,000; 1.60 s per step (predicted 1.60 s); 18.00 GiB (predicted 18.00 GiB); "
        "24 min left, $1.00 more"
    )
    assert line(Live({}, {}, {}, 75.0)) == "runs for 1 min"
    assert not warnings(live())


@pytest.mark.parametrize(
    ("run", "about", "told"),
    [
        (
            live(2.0, throttled_fraction=0.4, throttled_by="its power limit"),
            "slower",
            "lowers its clock 40% of the time",
        ),
        (live(2.0, data=0.35), "slower", "It waits for its data 35% of the time"),
        (live(2.0, busy_fraction=0.5), "slower", "idle 50% of the time and does not wait for data: the host is slow"),
        (live(2.0, busy_fraction=0.99, power_w=200, power_limit_w=700, cards=8), "slower", "a slow link"),
        (live(2.0, busy_fraction=0.99, power_w=650, power_limit_w=700, cards=8), "slower", "cause is not seen here"),
        (live(1.0), "faster", "1.00 s per step, predicted 1.40 s to 1.80 s"),
        (live(device=21), "memory", "more memory than predicted: 21.00 GiB, predicted 17.00 GiB to 19.00 GiB"),
        (
            Live(
                {"card": {"name": "H100 SXM 80 GB", "words": ["h100"]}, "predicted": PREDICTED},
                live(2.0).inside,
                {"device": "NVIDIA A100-SXM4-80GB"},
                1.0,
            ),
            "slower",
            "It runs on another card than planned: NVIDIA A100-SXM4-80GB, not H100 SXM 80 GB",
        ),
    ],
)
def test_a_run_that_leaves_its_range_says_why(run: Live, about: str, told: str) -> None:
    assert told in warnings(run)[about]


def test_out_of_memory_is_said_before_it_comes() -> None:
    """12 GiB were predicted for the batches so far and 13 are measured; step 412 is predicted to hold 22.5 of 23."""
    records = [
        {"step": 1, "rows": 4, "length": 500, "allocated_bytes": 10 * GIB},
        {"step": 60, "rows": 4, "length": 700, "allocated_bytes": 12 * GIB},
        {"step": 412, "rows": 4, "length": 1900, "allocated_bytes": int(22.5 * GIB)},
    ]
    expected = {"records": records, "capacity_bytes": 23 * GIB}
    run = live(expected=expected, memory={"allocated_bytes": 13 * GIB})
    assert warnings(run)["ahead"] == (
        "this run will run out of memory at step 412: the longest batch comes then "
        "(4 x 1,900 tokens, 23.50 GiB of 23.00 GiB)"
    )
    assert "ahead" not in warnings(live(expected=expected, memory={"allocated_bytes": 12 * GIB}))


def test_before_anything_is_measured_the_prediction_says_what_runs_out_of_memory() -> None:
    records = [{"step": step, "rows": 4, "length": 500 * step, "allocated_bytes": step * GIB} for step in (1, 12, 24)]
    expected = {"records": records, "capacity_bytes": 23 * GIB, "predicted": {"allocated_bytes": 24 * GIB}}
    told = "this run is predicted to run out of memory at step 24: the longest batch comes then "
    for step in (0, 3):
        assert warnings(Live(expected, {"step": step}, {}, 9.0)) == {
            "expected": f"{told}(4 x 12,000 tokens, 24.00 GiB of 23.00 GiB)"
        }
    assert not warnings(Live(expected, {"step": 24}, {}, 9.0)), "it has passed"
    assert warnings(Live({**expected, "records": []}, {}, {}, 9.0)) == {
        "expected": "this run is predicted to run out of memory: 24.00 GiB of 23.00 GiB"
    }


def test_the_longest_batches_are_found_in_the_data_s_order() -> None:
    lengths = [900] + [100] * 63
    job = read(
        "llama-3.2-1b", None, method="lora", gpu="rtx-4090", micro_batch=4, seq_len=1024, data={"lengths": lengths}
    )
    found = largest_steps(job)
    assert [each["length"] for each in found] == [100, 900] and [each["rows"] for each in found] == [4, 4]
    assert found[0]["step"] == 1 and 1 < found[1]["step"] <= 16
    assert found[1]["allocated_bytes"] > 1.1 * found[0]["allocated_bytes"]


def test_lines_are_rare_where_nobody_sits() -> None:
    said: list[str] = []
    stream: Any = SimpleNamespace(write=said.append, flush=lambda: None, isatty=lambda: False)
    now = [0.0]
    told = Told(stream, lambda: now[0])
    for second in range(1200):
        now[0] = float(second)
        told.now(f"second {second}")
    told.once("a", "warned")
    told.once("a", "warned")
    assert said == ["tunecast: second 0\n", "tunecast: second 600\n", "tunecast: warned\n"]


def test_thinned_values_are_spread_over_all_that_came() -> None:
    kept = Thinned(8)
    for value in range(1000):
        kept.append(value)
    assert len(kept.values) < 8 and kept.values == sorted(kept.values)
    assert kept.values[0] == 0 and kept.values[-1] >= 600


class Tensor(list[int]):
    device = SimpleNamespace(type="cpu")

    @property
    def shape(self) -> int:
        return len(self)

    def numel(self) -> int:
        return len(self)

    def sum(self) -> int:
        return sum(self[:])  # of a plain list


def test_batches_are_counted_and_stay_what_they_are() -> None:
    counted: list[tuple[int, int] | None] = []
    batches: list[Any] = [
        {"input_ids": Tensor([5, 6, 0, 0]), "attention_mask": Tensor([1, 1, 0, 0])},
        {"input_ids": Tensor([5, 6, 7])},
        {"chosen_input_ids": Tensor([5, 6, 7]), "rejected_input_ids": Tensor([1])},
        ["a prompt"],
    ]
    found = list(CountedBatches(iter(batches), lambda waited, tokens: counted.append(tokens)))
    assert found == batches and all(a is b for a, b in zip(found, batches, strict=True))
    assert counted == [(2, 2), (3, 0), (4, 0), None]


def test_a_loader_that_cannot_be_followed_is_left_alone() -> None:
    assert not count_batches(None, lambda waited, tokens: None) and not count_batches([1], lambda waited, tokens: None)


def test_only_trackers_that_are_on_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    record = {"memory": {"reserved_bytes": 5, "by_phase_bytes": {"load": 1}}, "time": {"step_s": 1.5}, "energy_j": 7.0}
    for name in ("wandb", "mlflow", "trackio"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert export.export(record) == []
    summary: dict[str, float] = {}
    logged: dict[str, float] = {}
    run = SimpleNamespace(get=lambda: None)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=SimpleNamespace(summary=summary)))
    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(context_vars=SimpleNamespace(current_run=run)))
    mlflow = SimpleNamespace(active_run=lambda: object(), log_metrics=logged.update)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    assert export.export(record) == ["wandb", "mlflow"]
    assert summary == {"tunecast/reserved_bytes": 5, "tunecast/step_s": 1.5, "tunecast/energy_j": 7.0}
    assert logged["tunecast.step_s"] == 1.5


def test_what_being_measured_costs() -> None:
    """The committed result of benchmarks/watch_overhead.py."""
    found = json.loads((Path(__file__).parents[2] / "benchmarks/results/watch_overhead.json").read_text())
    assert 0.05 <= found["step_s"] <= 0.1 and found["fraction"] < 0.005
    parts = found["callback_us"] / 1e6 / found["step_s"] + found["thread_us_per_s"] / 1e6
    assert found["fraction"] == pytest.approx(parts)
    assert abs(found["of_steps"] - 1) < 0.02, "what is left is noise"


def test_what_is_shipped_needs_no_tunecast(tmp_path: Path) -> None:
    place = lay_out(str(tmp_path))
    imported = "import tunecast_run.callback, tunecast_run.loop, tunecast_run.outside, sys; "
    imported += "print(sorted(name for name in sys.modules if name.split('.')[0] in ('tunecast', 'torch')))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", imported], env={"PYTHONPATH": place}, capture_output=True, text=True
    )
    assert done.stdout == "[]\n", done.stderr


def test_what_was_learned_is_written_beside_the_prediction() -> None:
    """Or the next run would be learned from twice."""
    found = predict(read("qwen2.5-0.5b", {"method": "lora", "hardware.gpu": "rtx-4090"}))
    assert predicted_of(found)["learned"] is None
    learned = SimpleNamespace(
        memory=found.memory, time=found.time, exactness=found.exactness,
        timing=found.timing._replace(learned=Correction(log_ratio=log(1.25))),
    )  # fmt: skip
    assert predicted_of(learned)["learned"] == pytest.approx(1.25)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "line",
    [
        {"event": "seen", "at": 1e300},
        {"event": "seen", "at": 10**400},
        {"event": "seen", "outside": [1]},
        {"event": "steps", "time": {"phases_s": {"data": 10**400, "training": 10**400}}},
        {"event": "end", "state": {}, "losses": 5},
    ],
)
def test_figures_that_nobody_measures_are_refused_by_name(tmp_path: Path, line: dict[str, Any]) -> None:
    place = journal_of(tmp_path, {**HEAD, "rank": 0}, line)
    with pytest.raises((NotResolved, UsageError)):
        run_from(record_of(place))


def test_a_loss_that_is_no_number_is_said_and_the_rest_of_the_run_is_kept(tmp_path: Path) -> None:
    process = WatchedProcess(str(tmp_path), "loop", alone=True, finished=lambda record: found.append(record))
    found: list[dict[str, Any]] = []
    for step, loss in ((1, 2.5), (2, float("nan")), (3, float("inf")), (4, 1e300), (5, 2.0)):
        process.loss = (step, loss)
        process.read_loss()
    process.trained()
    (record,) = found
    assert record["loss"] == [[1, 2.5], [5, 2.0]] and record["note"] == "the loss was no finite number by step 2"
    assert run_from(complete(record)).to_dict()["state"] == "done"
    assert record_of(tmp_path)["loss"] == [[1, 2.5], [5, 2.0]], "in the journal too"


def test_what_no_record_takes_is_left_out_and_the_rest_is_kept() -> None:
    record = {
        "schema": "tunecast.run/1", "id": "0" * 32, "source": "loop", "state": "done", "began": "2026-11-18T07:00:00Z",
        "ended": "2026-11-18T06:59:59Z", "hardware": {"cpu": "/etc/passwd", "cpu_cores": 4}, "note": "a\nb",
        "software": {"torch": "2.13.0 (ours)"}, "time": {"steps": 3, "step_s": float("nan")},
    }  # fmt: skip
    found, left_out = salvaged(record)
    run = run_from(found)
    assert sorted(left_out) == ["ended", "hardware.cpu", "note", "software", "time.step_s"]
    assert run.hardware is not None and run.hardware.cpu_cores == 4 and run.time is not None and run.time.steps == 3
    assert salvaged(found) == (found, ())


def test_one_journal_that_is_no_record_does_not_keep_others_from_the_store(tmp_path: Path) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path), "TUNECAST_STORE": str(tmp_path / "runs.db")}
    good = {"schema": "tunecast.run/1", "id": "a" * 32, "source": "watch", "state": "done"}
    running = tmp_path / "tunecast" / "running"
    for name, record in (("4194305-a", {"id": 1}), ("4194305-b", {**good, "began": "2026-11-18T07:00:00Z"})):
        (running / name).mkdir(parents=True)
        journal_of(running / name, {"event": "begin", "record": record}, {"event": "end", "record": record})
    assert [each["id"] for each in take_killed(environ)] == ["a" * 32]
    assert [path.name for path in running.iterdir()] == ["bad-4194305-a"], "kept, and not looked at again"
    assert not list(take_killed(environ))


def test_a_process_with_the_number_of_one_that_is_gone_is_another(tmp_path: Path) -> None:
    place = tmp_path / f"{os.getpid()}-a"
    place.mkdir()
    assert goes_on(place), "it has written nothing yet"
    journal = journal_of(place, HEAD)
    assert goes_on(place)
    for path in (journal, place):
        os.utime(path, (1.0, 1.0))
    assert not goes_on(place), "this process began after the last line"


def test_the_key_of_a_machine_is_written_whole_by_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while it is written, it would stay empty, and no run of this machine would be known to be of it."""
    environ, link = {"XDG_DATA_HOME": str(tmp_path)}, os.link

    def first(beside: str, path: Path) -> None:
        path.write_text("b" * 64)
        link(beside, path)

    monkeypatch.setattr(os, "link", first)
    host = host_of(environ)
    assert host is not None and host == host_of(environ)
    key = tmp_path / "tunecast" / "host_key"
    assert key.read_text() == "b" * 64 and list(key.parent.iterdir()) == [key]
    key.unlink()
    monkeypatch.setattr(os, "link", lambda *given: (_ for _ in ()).throw(PermissionError()))
    assert host_of(environ) == host_of(environ) != host and list(key.parent.iterdir()) == [key]


def test_ranks_may_write_the_same_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, whole = os.replace, tmp_path / "oom.txt"

    def replace_later(beside: str, path: str) -> None:
        monkeypatch.setattr(os, "replace", replace)
        process.write_whole(str(whole), "of another rank")
        replace(beside, path)

    monkeypatch.setattr(os, "replace", replace_later)
    process.write_whole(str(whole), "of this one")
    assert whole.read_text() == "of this one" and list(tmp_path.iterdir()) == [whole]
