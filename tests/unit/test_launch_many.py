"""Several jobs launched together: what a sweep is, which machine each gets, what is rendered, what a rerun starts."""

from __future__ import annotations

import json
import threading
import time
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tunecast.cli import launch as launch_command
from tunecast.cli.main import main
from tunecast.door import launch as door
from tunecast.door import placing
from tunecast.door.launch import launch
from tunecast.door.launch_many import LaunchedTogether, RenderedTogether
from tunecast.door.launched import cancel, jobs
from tunecast.door.placing import NamedJob, place_shared
from tunecast.door.read import read
from tunecast.errors import DoesNotFit, UsageError
from tunecast.job.flags import sweep_from
from tunecast.launching import ledger
from tunecast.launching.engines import slurm
from tunecast.launching.rendering import Rendering
from tunecast.market.offer import Offer
from tunecast.report.lists.launch import THE_SAME

pytestmark = pytest.mark.whole


@pytest.fixture(autouse=True)
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def swept(*words: str) -> list[tuple[str, dict[str, object]]]:
    arguments = launch_command.parser().read(["job", "--on", "slurm", *words])
    return [(each.label, each.overrides) for each in sweep_from(arguments)]


def test_a_comma_separates_values_of_a_sweep_but_not_those_of_a_list() -> None:
    assert swept("--set", "lora.rank=8,16") == [("rank-8", {"lora.rank": "8"}), ("rank-16", {"lora.rank": "16"})]
    assert [label for label, _ in swept("--set", "rank=8,16", "--set", "micro_batch=1,2")] == [
        "rank-8-micro-batch-1", "rank-8-micro-batch-2", "rank-16-micro-batch-1", "rank-16-micro-batch-2",
    ]  # fmt: skip
    assert swept("--set", "kernels=liger,unsloth") == [("", {"kernels": "liger,unsloth"})]
    assert swept("--rank", "4", "--set", "lora.rank=8,16")[0][1] == {"lora.rank": "8"}, "--set comes last"
    with pytest.raises(UsageError, match="each once"):
        swept("--set", "lora.rank=8,8")


def job_of(**fields: Any) -> dict[str, Any]:
    return {"model": "llama-3.2-1b", "method": "lora", "stack": "trl", "hardware": {"gpu": "h200"}, **fields}


def rendered(several: list[Any], **how: Any) -> RenderedTogether:
    found = launch(several, on=how.pop("on", "slurm"), dry_run=True, **how)
    assert isinstance(found, RenderedTogether)
    return found


def test_jobs_that_ask_for_the_same_machines_are_one_array() -> None:
    several = [job_of(id="a"), job_of(id="b"), job_of(id="c", hardware={"gpu": "h200", "gpus": 2})]
    found = rendered(several, at_once=2, options={"time": "60"})
    (array,) = found.arrays
    assert array.jobs == ("a", "b") and array.files["array.txt"] == "../a\n../b\n"
    assert "#SBATCH --array=0-1%2\n" in array.files["job.sbatch"]
    by_name = {each.name: each for each in found.jobs}
    assert "job.sbatch" not in by_name["a"].files and "job.sbatch" in by_name["c"].files
    assert "--array" not in by_name["c"].files["job.sbatch"]
    assert rendered(several, at_once=2, options={"time": "60"}).to_dict() == found.to_dict(), "byte for byte"


def test_one_that_cannot_be_launched_stops_all() -> None:
    with pytest.raises(DoesNotFit, match=r"big: llama-3\.1-70b does not fit"):
        rendered([job_of(id="a"), job_of(id="big", model="llama-3.1-70b", method="full")])


def test_machines_without_a_queue_run_one_after_another(tmp_path: Path) -> None:
    """Really: of two jobs the second begins when the first is over."""
    data = tmp_path / "train.jsonl"
    data.write_text('{"text": "a b c"}\n')
    stub = tmp_path / "bin" / "torchrun"
    stub.parent.mkdir()
    stub.write_text(f"#!/bin/sh\necho begins >>{tmp_path}/order\nsleep 0.3\necho ends >>{tmp_path}/order\n")
    stub.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(stub.parent), prepend=":")
        several = [job_of(id=name, data={"path": str(data)}) for name in ("one", "two")]
        found = launch(several, on="local", cpu=True, preflight=False)
        assert isinstance(found, LaunchedTogether)
        while {each.state for each in jobs().jobs} != {"done"}:
            assert "failed" not in {each.state for each in jobs().jobs}
        again = launch(several, on="local", cpu=True, preflight=False)
    assert (tmp_path / "order").read_text().split() == ["begins", "ends", "begins", "ends"]
    assert isinstance(again, LaunchedTogether)
    assert again.there_before == ("one", "two") and again.group == found.group


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A Slurm that takes everything: what it was given, and what it says of it."""
    given: dict[str, Any] = {"arrays": [], "state": "PENDING", "cancelled": []}

    def run(command: Any, entry: Any, environment: Any = None) -> str:
        if command[0] == "sbatch":
            given["arrays"].append(entry.folder)
            if given.get("kill"):
                raise KeyboardInterrupt
            return f"{100 + len(given['arrays'])}\n"
        if command[0] == "scancel":
            given["cancelled"] += command[2:]
            return ""
        rows = []
        for n, place in enumerate(given["arrays"], start=1):
            indexes = [str(k) for k, _ in enumerate((place / "array.txt").read_text().splitlines())]
            rows += [f"{100 + n}|{index}|{given['state']}|{place}" for index in indexes]
        return "\n".join(rows)

    monkeypatch.setattr(slurm, "_run", run)
    return given


def with_data(tmp_path: Path, *names: str) -> list[Any]:
    data = tmp_path / "train.jsonl"
    data.write_text('{"text": "a b c"}\n')
    return [job_of(id=name, data={"path": str(data)}) for name in names]


def test_a_launch_that_was_killed_is_gone_on_with(tmp_path: Path, engine: dict[str, Any]) -> None:
    """Killed after the engine took the array and before its number was written down: nothing is started twice."""
    several = with_data(tmp_path, "a", "b", "c")
    engine["kill"] = True
    with pytest.raises(KeyboardInterrupt):
        launch(several, on="slurm")
    assert [(each.id, each.state, each.number) for each in jobs().jobs] == [
        ("a", "queued", ""), ("b", "queued", ""), ("c", "queued", ""),
    ]  # fmt: skip
    engine["kill"] = False
    again = launch(several, on="slurm")
    assert isinstance(again, LaunchedTogether)
    assert len(engine["arrays"]) == 1 and again.there_before == ("a", "b", "c")
    more = launch([*several, *with_data(tmp_path, "d", "e")], on="slurm")
    assert isinstance(more, LaunchedTogether)
    assert [each.id for each in more.jobs] == ["a", "b", "c", "d", "e"] and len(engine["arrays"]) == 2
    cancel(more.group)
    assert engine["cancelled"] == ["102_0", "102_1"]


def test_what_was_never_taken_is_cleared_away(tmp_path: Path, engine: dict[str, Any]) -> None:
    """Killed before the engine was asked."""
    several = with_data(tmp_path, "a", "b")
    engine["kill"] = True
    with pytest.raises(KeyboardInterrupt):
        launch(several, on="slurm")
    engine["arrays"].clear()
    assert {each.state for each in jobs().jobs} == {"not started"}
    engine["kill"] = False
    launch(several, on="slurm")
    assert [(each.id, each.number) for each in jobs().jobs] == [("a", "101_0"), ("b", "101_1")]


def test_what_another_process_submits_right_now_is_not_taken_for_lost(engine: dict[str, Any]) -> None:
    entry = ledger.reserve(Rendering("a", "slurm", "trl", {}, ()), "2026-11-18T00:00:00")
    with ledger.submission(entry):
        assert jobs().jobs[0].state == "queued"
    assert jobs().jobs[0].state == "not started"


def test_the_same_launched_by_two_at_once_is_started_once(
    tmp_path: Path, engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second comes when the first has taken its names, and its engine was not asked yet."""
    several, render_many, seconds = with_data(tmp_path, "a", "b"), slurm.render_many, list[Any]()
    monkeypatch.setattr(slurm, "begins", lambda *given: "")

    def render(*given: Any) -> Any:
        if not seconds and list(ledger.entries()):
            seconds.append(None)
            seconds[0] = launch(several, on="slurm")
        return render_many(*given)

    monkeypatch.setattr(slurm, "render_many", render)
    launch(several, on="slurm")
    assert seconds[0].there_before == ("a", "b") and len(engine["arrays"]) == 1
    assert [(each.id, each.number) for each in jobs().jobs] == [("a", "101_0"), ("b", "101_1")]


def test_one_launched_by_two_at_once_is_started_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (one,), asked, rendering_of = with_data(tmp_path, "a"), list[str](), door.rendering_of

    def run(command: Any, *given: Any) -> str:
        asked.append(command[0])
        return "101\n" if command[0] == "sbatch" else ""

    def render(*given: Any) -> Any:
        if list(ledger.entries()) and "second" not in asked:
            asked.append("second")
            with pytest.raises(door.RunsAlready, match="the same is queued already, as a"):
                launch(one, on="slurm")
        return rendering_of(*given)

    monkeypatch.setattr(slurm, "_run", run)
    monkeypatch.setattr(slurm, "begins", lambda *given: "")
    monkeypatch.setattr(door, "rendering_of", render)
    launch(one, on="slurm")
    assert asked.count("sbatch") == 1 and "second" in asked


def test_one_that_is_submitted_right_now_is_stopped_once_its_engine_has_it(engine: dict[str, Any]) -> None:
    entry, began = ledger.reserve(Rendering("a", "slurm", "trl", {}, ()), "2026-11-18T00:00:00"), threading.Event()

    def submit() -> None:
        with ledger.submission(entry) as held:
            began.set()
            time.sleep(0.2)
            ledger.with_number(held, "101_0")

    other = threading.Thread(target=submit)
    other.start()
    began.wait()
    (entry.folder / "array.txt").write_text("../a\n")
    engine["arrays"].append(entry.folder)
    cancel("a")
    other.join()
    assert engine["cancelled"] == ["101_0"] and ledger.entry_of("a").cancelled and ledger.has_number(entry)


def test_the_engine_is_asked_once_for_all_its_jobs(engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(slurm, "_run", lambda *words: asked.append(words) or "")
    for n in range(20):
        ledger.reserve(Rendering("a", "slurm", "trl", {}, ()), f"2026-11-18T00:00:{n:02d}")
    assert len(jobs().jobs) == 20 and len(asked) == 1


def test_json_lines_and_groups(tmp_path: Path, engine: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "My jobs.jsonl"
    file.write_text("\n".join(map(json.dumps, with_data(tmp_path, "a", "b"))))
    assert main(["launch", str(file), "--on", "slurm", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "tunecast.launched-many/1" and told["group"].startswith("my-jobs-")
    assert main(["jobs"]) == 0
    assert f"{told['group']}  2 jobs: 2 queued\n" in capsys.readouterr().out
    assert main(["cancel", told["group"]]) == 0
    assert engine["cancelled"] == ["101_0", "101_1"]
    file.write_text('{"model": "llama-3.2-1b", "method": "nothing"}\n')
    assert main(["launch", str(file), "--on", "slurm"]) == UsageError.exit_code
    told = capsys.readouterr().err
    assert told.count(str(file)) == 1 and f"{file} line 1: method: " in told
    file.write_text("{}\nno JSON\n")
    assert main(["launch", str(file), "--on", "slurm"]) == UsageError.exit_code
    told = capsys.readouterr().err
    assert told.count(str(file)) == 2 and f"{file} line 2" in told


def test_files_that_are_the_same_in_every_job_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["launch", "llama-3.2-1b", "--method", "lora", "--gpu", "h100", "--set", "lora.rank=8,16", "--dry-run"]
    assert main([*asked, "--on", "skypilot"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("lines, the same for every job: --out DIR writes them") == 2 * len(THE_SAME)
    assert shown.count("$ sky jobs launch") == 2


def test_a_launch_by_an_engine_that_is_not_known_hides_no_other() -> None:
    for name, on in (("a", "another"), ("b", "local")):
        ledger.reserve(Rendering(name, on, "trl", {}, ()), "2026-11-18T00:00:00")
    assert [(each.id, each.state) for each in jobs().jobs] == [("a", "unknown"), ("b", "not started")]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"share": True, "on": "local"}, "--share"),
        ({"at_once": 2, "on": "local"}, "--at-once: on local one job runs after another"),
        ({"share": True}, "no machine of your own"),
    ],
)
def test_what_makes_no_sense_is_refused(how: dict[str, Any], told: str) -> None:
    without = {key: value for key, value in job_of().items() if key != "hardware"}
    with pytest.raises(UsageError, match=told):
        rendered([without, without], **how)


def own(gpu: str, usd_per_hour: float, machines: int = 1) -> Offer:
    return Offer("lab", "owned", gpu, 1, usd_per_hour, date(2026, 11, 1), "own", max_nodes=machines)


def test_jobs_share_machines_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three alike on two alike: two begin at once, one after the first of them."""
    machines = [own("rtx-4090", 0.2, 2)]
    monkeypatch.setattr(placing.store, "kept", lambda name: tuple(machines) if name == placing.store.OWN else ())
    monkeypatch.setattr(placing.store, "offers", lambda: tuple(machines))
    job = read("llama-3.2-1b", method="lora", stack="trl", samples=1000)
    three = [NamedJob(name, job) for name in ("a", "b", "c")]
    found = place_shared(three, {})
    each_s = found.jobs[0].total_s
    assert sorted(each.starts_s for each in found.jobs) in ([0, 0, each_s], [0, each_s, 2 * each_s])
    in_time = place_shared(three, {"within": 2.1 * each_s})
    assert in_time.longest_s == pytest.approx(2 * each_s) and in_time.least_s == pytest.approx(1.5 * each_s)
    assert in_time.longest_range_s[0] < in_time.longest_s < in_time.longest_range_s[1]
    with pytest.raises(DoesNotFit, match="No way to share them is sooner"):
        place_shared(three, {"within": 1.4 * each_s})
