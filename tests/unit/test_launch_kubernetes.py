"""What goes to a cluster, and how a job there is found again: kubectl is a script here that writes down what it is
asked."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tunecast.door.launch import Launched, cancel, jobs, launch, log_command
from tunecast.door.read import read
from tunecast.errors import NotResolved, UsageError
from tunecast.launching.engines.kubernetes import block, state_in
from tunecast.launching.engines.start import letter_first
from tunecast.launching.rendering import Rendering

pytestmark = pytest.mark.whole
yaml = pytest.importorskip("yaml")
IMAGE = {"image": "registry.example/me/job:1"}
KUBECTL = """#!/bin/sh
echo "$@" >>"$ASKED"
case "$*" in
"config current-context") echo arn:aws:eks/cluster ;;
*" get "*) cat "$ANSWER" 2>/dev/null || true ;;
esac
"""


def rendered(options: dict[str, str] | None = None, **fields: Any) -> Rendering:
    job = read("llama-3.2-1b", None, **{"stack": "trl", "gpu": "h100-sxm-80gb", **fields})
    found = launch(job, on="kubernetes", dry_run=True, options=options or IMAGE)
    assert isinstance(found, Rendering)
    return found


def test_cards_memory_and_limit_of_the_prediction() -> None:
    found = rendered({**IMAGE, "queue": "team-a", "claim": "out"}, gpus=8, nodes=2, samples=20000, method="lora")
    job = yaml.safe_load(found.files["trainjob.yaml"])
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 8)
    assert trainer["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": 8}
    assert trainer["resourcesPerNode"]["requests"]["memory"].endswith("Mi")
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    config, runtime = yaml.safe_load_all(found.files["files.yaml"])
    assert config["data"]["train.sh"] == found.files["train.sh"], "as it is, byte for byte"
    pod = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert "activeDeadlineSeconds" not in job["spec"], "it would count while the pods wait for cards"
    assert pod["activeDeadlineSeconds"] > 60 + 30 * 60, "an image with torch is pulled first"
    assert {"name": "job", "persistentVolumeClaim": {"claimName": "out"}} in pod["volumes"]
    assert runtime["spec"]["template"]["spec"]["failurePolicy"] == {"maxRestarts": 3}
    mounts = {each["name"]: each for each in pod["containers"][0]["volumeMounts"]}
    assert mounts["job"]["subPath"] == f"tunecast/{found.name}", "two launches with one claim do not share a folder"


def test_without_a_claim_nothing_is_left_to_go_on_from() -> None:
    found = rendered()
    assert "maxRestarts: 0" in found.files["files.yaml"]
    assert any("--option claim=NAME" in note for note in found.notes)


def test_data_that_the_cluster_does_not_see_wants_a_claim(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text('{"text": "a"}\n')
    assert "claimName: PLACEHOLDER_data_claim" in rendered(IMAGE, data_path=str(file)).files["files.yaml"]
    with pytest.raises(UsageError, match="--option data_claim=NAME"):
        launch(
            read("llama-3.2-1b", None, stack="trl", gpu="h100-sxm-80gb", data_path=str(file)),
            on="kubernetes",
            options=IMAGE,
        )
    found = rendered({**IMAGE, "data_claim": "sets"}, data_path=str(file))
    assert "data/train.jsonl" in found.files["sft.yaml"]
    assert "mountPath: /job/data" in found.files["files.yaml"]


def test_a_runtime_of_the_cluster_is_patched() -> None:
    found = rendered({**IMAGE, "runtime": "torch-distributed"}, samples=100)
    assert any("also while it waits for cards" in note for note in found.notes)
    job = yaml.safe_load(found.files["trainjob.yaml"])
    assert job["spec"]["runtimeRef"]["kind"] == "ClusterTrainingRuntime"
    assert len(list(yaml.safe_load_all(found.files["files.yaml"]))) == 1
    assert job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]
    assert job["spec"]["activeDeadlineSeconds"] > 60 + 30 * 60


def test_text_is_read_back_as_it_is() -> None:
    for text in ("a: b\n", "a\n\n  b # c\n", " first\n", "no end", "two\n\n", "\x07bell\n", "", "|\n", "---\nx\n"):
        assert yaml.safe_load(f"data:\n  f: {block(text)}\n")["data"]["f"] == text


def test_names_begin_with_a_letter() -> None:
    assert (letter_first("llama"), letter_first("70b-lora")) == ("llama", "job-70b-lora")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (None, "queued"),
        ({"conditions": [{"type": "Suspended", "status": "True"}]}, "queued"),
        ({"conditions": [{"type": "Suspended", "status": "False"}], "jobsStatus": [{"active": 1}]}, "running"),
        ({"conditions": [{"type": "Complete", "status": "True"}]}, "done"),
        ({"conditions": [{"type": "Failed", "status": "True"}]}, "failed"),
    ],
)
def test_states_of_a_train_job(status: Any, expected: str) -> None:
    assert state_in({"status": status}) == expected


def test_it_is_started_found_and_stopped_by_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, asked, answer = tmp_path / "bin" / "kubectl", tmp_path / "asked", tmp_path / "answer"
    tool.parent.mkdir()
    tool.write_text(KUBECTL)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)
    for name, value in {"ASKED": asked, "ANSWER": answer, "XDG_DATA_HOME": tmp_path / "data"}.items():
        monkeypatch.setenv(name, str(value))
    file = tmp_path / "train.jsonl"
    file.write_text('{"text": "a"}\n')
    job = read("llama-3.2-1b", None, stack="trl", gpu="h100-sxm-80gb", data_path=str(file))
    with pytest.raises(UsageError, match="--option image=NAME"):
        launch(job, on="kubernetes", options={"data_claim": "sets"})
    assert jobs().jobs == (), "nothing of it is left"
    answer.write_text(json.dumps({"status": {"jobsStatus": [{"active": 1}]}}))
    started = launch(job, on="kubernetes", options={**IMAGE, "data_claim": "sets", "namespace": "training"})
    assert isinstance(started, Launched)
    assert (started.state, started.number) == ("running", f"arn:aws:eks/cluster/{started.id}")
    lines = asked.read_text().splitlines()
    assert lines[1:3] == [f"--context arn:aws:eks/cluster apply -f {name}" for name in ("files.yaml", "trainjob.yaml")]
    assert log_command(started.id)[1:5] == ("--context", "arn:aws:eks/cluster", "--namespace", "training")
    cancel(started.id)
    assert "delete --ignore-not-found --wait=false -f trainjob.yaml -f files.yaml" in asked.read_text()
    answer.write_text("")
    assert jobs().jobs[0].state == "cancelled"


FAILING = """#!/bin/sh
echo "$@" >>"$ASKED"
case "$*" in
"config current-context") echo here ;;
*"apply -f trainjob.yaml") echo "unexpected EOF" >&2; exit 1 ;;
*" get "*|"get "*) cat "$ANSWER" ;;
esac
"""


@pytest.mark.parametrize(
    ("answer", "states", "told"),
    [
        pytest.param("", [], "unexpected EOF", id="refused"),
        pytest.param(None, ["unknown"], "not known until kubectl answers", id="no answer"),
        pytest.param('{"status": {"jobsStatus": [{"active": 1}]}}', ["running"], None, id="taken all the same"),
    ],
)
def test_a_cluster_that_fails_half_way(
    answer: str | None, states: list[str], told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is gone with all that was made for it, or it is found again."""
    tool, asked, answered = tmp_path / "bin" / "kubectl", tmp_path / "asked", tmp_path / "answer"
    tool.parent.mkdir()
    tool.write_text(FAILING)
    tool.chmod(0o755)
    if answer is not None:
        answered.write_text(answer)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)
    for name, value in {"ASKED": asked, "ANSWER": answered, "XDG_DATA_HOME": tmp_path / "data"}.items():
        monkeypatch.setenv(name, str(value))
    file = tmp_path / "train.jsonl"
    file.write_text('{"text": "a"}\n')
    job = read("llama-3.2-1b", None, stack="trl", gpu="h100-sxm-80gb", data_path=str(file))
    options = {**IMAGE, "data_claim": "sets"}
    if told is None:
        launch(job, on="kubernetes", options=options)
    else:
        with pytest.raises(NotResolved, match=told):
            launch(job, on="kubernetes", options=options)
    assert [each.state for each in jobs().jobs] == states
    deleted = [line for line in asked.read_text().splitlines() if " delete " in line]
    assert bool(deleted) == (not states)
    assert not deleted or any("files.yaml" in line for line in deleted)
