"""Jobs on a real Slurm: trained on one node and on two, cancelled, past their limit, asking for too much, and with the
controller restarted in between."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster, missing
from tiny_training import job_of, make

from tunecast.door.launch import Launched, cancel, jobs, launch
from tunecast.errors import NotResolved
from tunecast.launching import ledger

pytest.importorskip("trl")
if int(version("transformers").partition(".")[0]) < 5:
    pytest.skip("what is rendered is for TRL from 1.0 on", allow_module_level=True)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    made = SlurmCluster(tmp_path_factory.mktemp("slurm"))
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("launch"))


@pytest.fixture(autouse=True)
def own_places(cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("SLURM_CONF", str(cluster.config))
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)


def started(made: Path, options: dict[str, str] | None = None, **fields: Any) -> Launched:
    job = job_of(made, method="lora", **fields)
    found = launch(job, on="slurm", cpu=True, options={"mem": "100", **(options or {})})
    assert isinstance(found, Launched)
    return found


def standing(name: str) -> Launched:
    return next(each for each in jobs().jobs if each.id == name)


def once(name: str, holds: Callable[[Launched], bool]) -> Launched:
    """However long it takes: the cluster and the training have work to do."""
    while not holds(found := standing(name)):
        assert found.state not in ("failed", "ended"), (found.folder / "train.log").read_text(errors="replace")[-3000:]
        time.sleep(0.5)
    return found


def steps_of(launched: Launched) -> int:
    states = [json.loads(path.read_text()) for path in launched.folder.glob("output/checkpoint-*/trainer_state.json")]
    return max((state["global_step"] for state in states), default=0)


@pytest.mark.parametrize("nodes", [1, 2])
def test_it_trains(made: Path, nodes: int) -> None:
    first = started(made, nodes=nodes, max_steps=2)
    assert first.state in ("queued", "running") and first.number
    assert steps_of(once(first.id, lambda each: each.state == "done")) == 2


def test_one_that_is_cancelled_while_the_controller_is_restarted(made: Path, cluster: SlurmCluster) -> None:
    first = started(made, max_steps=1_000_000, save_steps=5)
    once(first.id, lambda each: each.state == "running")
    cluster.stop_controller()
    cluster.start_controller()
    once(first.id, lambda each: steps_of(each) > 0)
    assert standing(first.id).state == "running"
    assert cancel(first.id).state in ("cancelled", "running")
    assert once(first.id, lambda each: each.state == "cancelled").number == first.number


def test_one_that_was_killed_before_it_wrote_its_number_is_found_again(made: Path) -> None:
    first = started(made, max_steps=1_000_000)
    ledger.with_number(ledger.entry_of(first.id), "")
    assert standing(first.id).state in ("queued", "running")
    cancel(first.id)
    once(first.id, lambda each: each.state == "cancelled")


def test_one_that_asks_for_more_than_there_is(made: Path) -> None:
    with pytest.raises(NotResolved, match=r"sbatch: .*not available"):
        started(made, {"gres": "gpu:99"})
    assert jobs().jobs == (), "nothing was started, and nothing is left"


def test_one_past_its_limit_goes_on_from_its_checkpoint(made: Path, cluster: SlurmCluster) -> None:
    first = started(made, {"time": "1"}, max_steps=1_000_000, save_steps=5)
    once(first.id, lambda each: "Restarts=1" in cluster.told("scontrol", "show", "job", each.number))
    before = steps_of(first)
    assert before >= 5
    once(first.id, lambda each: steps_of(each) > before)
    saved, again = first.folder / "output" / "checkpoint-5" / "trainer_state.json", first.folder / "attempt"
    assert saved.stat().st_mtime < again.stat().st_mtime, "the second attempt did not begin anew"
    cancel(first.id)
    once(first.id, lambda each: each.state == "cancelled")
