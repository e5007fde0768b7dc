"""Jobs on a real Slurm: trained on one node and on two, cancelled, past their limit, asking for too much, several as an
array, and with the controller restarted in between. Where it does not matter what is trained, nothing is."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from slurm_cluster import SlurmCluster, missing
from tiny_training import job_of, make

from tunecast.door.launch import launch
from tunecast.door.launch_many import LaunchedTogether
from tunecast.door.launched import Launched, LaunchedJobs, cancel, jobs
from tunecast.errors import NotResolved
from tunecast.launching import ledger

pytest.importorskip("trl")
if int(version("transformers").partition(".")[0]) < 5:
    pytest.skip("what is rendered is for TRL from 1.0 on", allow_module_level=True)
pytestmark = [
    pytest.mark.slow,
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


@pytest.fixture(scope="module", autouse=True)
def own_places(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        patch.setenv("HF_HOME", str(folder / "hub"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("SLURM_CONF", str(cluster.config))
        patch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
        yield


class Limited(NamedTuple):
    launched: Launched
    saved_at: float
    """When the first checkpoint was."""
    steps: int
    """That it has from then on, so that the second attempt comes to an end."""


@pytest.fixture(scope="module", autouse=True)
def limited(made: Path, own_places: None, cluster: SlurmCluster) -> Limited:
    """One that is paused once it has saved what it is to go on from, however long that took. Then it gets its limit,
    which comes while the other tests run."""
    began = time.monotonic()
    found = started(made, {"time": "60"}, max_steps=1_000_000, save_steps=5)
    once(found.id, lambda each: steps_of(each) >= 5)
    pause(found.folder)
    config, steps = found.folder / "sft.yaml", steps_of(found) + 20
    config.write_text(config.read_text().replace("max_steps: 1000000", f"max_steps: {steps}"))
    minutes = int((time.monotonic() - began) / 60) + 2
    cluster.told("scontrol", "update", f"JobId={found.number}", f"TimeLimit={minutes}")
    return Limited(found, saved(found).stat().st_mtime, steps)


@pytest.fixture
def asleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of the training."""
    stub = tmp_path / "stub" / "torchrun"
    stub.parent.mkdir()
    stub.write_text("#!/bin/sh\nexec sleep \"$(sed -n 's/^max_steps: //p' sft.yaml)\"\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", str(stub.parent), prepend=os.pathsep)


def started(made: Path, options: dict[str, str] | None = None, **fields: Any) -> Launched:
    job = job_of(made, method="lora", **fields)
    found = launch(job, on="slurm", cpu=True, options={"mem": "100", **(options or {})}, again=True)
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


def has_step(launched: Launched, cluster: SlurmCluster) -> bool:
    """Whether `srun` has begun it, which needs the controller."""
    return f"{launched.number}.0 " in cluster.told("squeue", "--noheader", "--steps", "--jobs", launched.number)


def steps_of(launched: Launched) -> int:
    states = [json.loads(path.read_text()) for path in launched.folder.glob("output/checkpoint-*/trainer_state.json")]
    return max((state["global_step"] for state in states), default=0)


def pause(folder: Path) -> None:
    """The processes of a training: until its limit it would keep a core busy."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = os.path.samefile(process / "cwd", folder) and b"trl.scripts" in (process / "cmdline").read_bytes()
        except OSError:
            continue
        if ours:
            os.kill(int(process.name), signal.SIGSTOP)


def test_it_trains_on_two_nodes(made: Path) -> None:
    first = started(made, nodes=2, max_steps=2)
    assert first.state in ("queued", "running") and first.number
    assert any(note.startswith("Slurm would begin it at 20") for note in first.notes)
    assert steps_of(once(first.id, lambda each: each.state == "done")) == 2


@pytest.mark.usefixtures("asleep")
def test_one_that_is_cancelled_while_the_controller_is_restarted(made: Path, cluster: SlurmCluster) -> None:
    first = started(made, max_steps=1_000_000)
    once(first.id, lambda each: each.state == "running" and has_step(each, cluster))
    cluster.stop_controller()
    assert standing(first.id).state == "unknown"
    cluster.start_controller()
    once(first.id, lambda each: each.state == "running")
    stopped = cancel(first.id)
    assert isinstance(stopped, Launched) and stopped.state in ("cancelled", "running")
    assert once(first.id, lambda each: each.state == "cancelled").number == first.number


@pytest.mark.usefixtures("asleep")
def test_one_that_was_killed_before_it_wrote_its_number_is_found_again(made: Path) -> None:
    first = started(made, max_steps=1_000_000)
    ledger.with_number(ledger.entry_of(first.id), "")
    assert standing(first.id).state in ("queued", "running")
    cancel(first.id)
    once(first.id, lambda each: each.state == "cancelled")


@pytest.mark.usefixtures("asleep")
def test_several_are_an_array(made: Path, cluster: SlurmCluster) -> None:
    """One is cancelled and the others are not; the same command starts it again, and none of the others."""
    several = [job_of(made, method="lora", rank=rank, max_steps=2) for rank in (8, 16, 32)]
    how: dict[str, Any] = {"on": "slurm", "cpu": True, "options": {"mem": "100"}, "at_once": 2}
    found = launch(several, **how)
    assert isinstance(found, LaunchedTogether)
    numbers = [each.number for each in found.jobs]
    assert numbers == [f"{numbers[0].partition('_')[0]}_{n}" for n in range(3)]
    last = found.jobs[2]
    assert last.state == "queued", "two run at a time"
    cancel(last.id)
    for each in found.jobs[:2]:
        once(each.id, lambda each: each.state == "done")
    assert once(last.id, lambda each: each.state == "cancelled").group == found.group
    again = launch(several, **how)
    assert isinstance(again, LaunchedTogether)
    assert again.there_before == tuple(each.id for each in found.jobs[:2]) and len(again.jobs) == 3
    stopped = cancel(found.group)
    assert isinstance(stopped, LaunchedJobs) and len(stopped.jobs) == 4
    once(again.jobs[-1].id, lambda each: each.state == "cancelled")


def test_one_that_asks_for_more_than_there_is(made: Path) -> None:
    before = jobs()
    with pytest.raises(NotResolved, match=r"sbatch: .*not available"):
        started(made, {"gres": "gpu:99"})
    assert {each.id for each in jobs().jobs} == {each.id for each in before.jobs}, "nothing is left of it"


def test_one_past_its_limit_goes_on_from_its_checkpoint(limited: Limited, cluster: SlurmCluster) -> None:
    """On one node, to its end."""
    first, saved_at, steps = limited
    once(first.id, lambda each: "Restarts=1" in cluster.told("scontrol", "show", "job", each.number))
    assert steps_of(once(first.id, lambda each: each.state == "done")) == steps
    assert saved(first).stat().st_mtime == saved_at, "the second attempt did not begin anew"


def saved(launched: Launched, steps: int = 5) -> Path:
    return launched.folder / "output" / f"checkpoint-{steps}" / "trainer_state.json"
