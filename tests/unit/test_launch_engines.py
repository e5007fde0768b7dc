"""SkyPilot, dstack and lyceum: the plan's machines in their words, and what they answer as our states.

The answers are in the form that the packages print: `sky jobs queue`, `sky status` and `sky queue` with --output json
(sky/client/cli/command.py of skypilot 0.14.1: ManagedJobRecord and ClusterJobRecord as JSON), `dstack ps --json`
(dstack/_internal/cli/utils/run.py of 0.22.5: PsCommandOutput), `lyceum docker run --detach` and `lyceum jobs --json`
(lyceum/external/compute/execution of lyceum-cli 1.2.2). No account was asked.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from signal import SIGKILL, SIGTERM
from subprocess import Popen
from time import sleep
from typing import Any

import pytest

from tunecast.door import launch as door
from tunecast.door.read import read
from tunecast.errors import NotResolved, UsageError
from tunecast.launching.engines import engine_of, local, rendering_of, ssh
from tunecast.launching.engines.commands import output_of
from tunecast.launching.engines.names import DSTACK_CARDS, SEVERAL_CARDS, SKYPILOT_CARDS, SKYPILOT_CLOUDS
from tunecast.launching.ledger import LedgerEntry
from tunecast.launching.offers import PlannedMachines, most_usd_per_hour, planned_machines, with_offers
from tunecast.launching.rendering import MachineOffer, Order, Rendering, TrainingProgram

yaml = pytest.importorskip("yaml")


def offer(gpu: str, usd: float, hours: float, **fields: Any) -> MachineOffer:
    given = {"provider": "runpod", "kind": "on-demand", "gpus": 1, "nodes": 1, **fields}
    return MachineOffer(gpu=gpu, usd_per_hour=usd, total_s=hours * 3600, **given)


def order(gpu: str = "l4", gpus: int = 1, nodes: int = 1, **fields: Any) -> Order:
    job = read("llama-3.2-1b", None, stack="trl", gpu=gpu, gpus=gpus, nodes=nodes)
    program = TrainingProgram(
        "trl", ("true",), carried={"data/a b.jsonl": "/home/me/a b.jsonl"}, releases={"torch": "2.13.0"}
    )
    return Order("job-1", job, program, 7200.0, 9000.0, 4, 20 * 2**30, 30 * 10**9, **fields)


def rendered(made: Order, on: str, **options: str) -> Rendering:
    return rendering_of(made, engine_of(on), options)


def task(made: Order, on: str = "skypilot", **options: str) -> Any:
    files = rendered(made, on, **options).files
    return yaml.safe_load(files.get("cluster.yaml") or files.get("managed.yaml") or files["task.dstack.yml"])


THREE = (offer("h100-sxm-80gb", 3.0, 2.0), offer("l4", 0.8, 10.0), offer("a40", 0.5, 20.0, provider="vast.ai"))
"""6, 8 and 10 USD."""


def state_of(entry: door.ledger.LedgerEntry) -> str:
    return door.states_of([entry])[entry.id]


def test_the_most_an_hour_may_cost_is_where_the_next_one_costs_as_much() -> None:
    # 8 USD over 2 hours, 10 USD over 10 hours, and the last at its own price
    assert list(most_usd_per_hour(THREE)) == [4.0, 1.0, 0.5]
    # 7 USD at most: 7 / 2, 7 / 10, 7 / 20
    assert list(most_usd_per_hour(THREE, max_usd=7.0)) == [3.5, 0.7, 0.35]
    # of two machines each costs half
    twice = [offer("h100-sxm-80gb", 3.0, 2.0, nodes=2), offer("l4", 0.8, 10.0, nodes=2)]
    assert list(most_usd_per_hour(twice)) == [4.0, 0.8]


def test_skypilots_order_is_the_plans() -> None:
    resources = task(order("h100-sxm-80gb", offers=THREE), bucket="none")["resources"]
    asked = [(each.get("infra"), each["accelerators"], each["max_hourly_cost"]) for each in resources["ordered"]]
    assert asked[:2] == [("runpod", "H100-SXM:1", 4.0), ("runpod", "L4:1", 0.8)]
    # vast has no name for an A40 that is known here; at last the pick's card wherever it is that card, for as much
    assert {price for _, _, price in asked[2:]} == {4.0}
    assert {(cloud, card) for cloud, card, _ in asked[2:]} >= {("aws", "H100:1"), (None, "H100-SXM:1")}
    assert resources["autostop"] == {"idle_minutes": 5, "down": True}
    assert resources["disk_size"] == 256 + 30


def test_skypilot_trains_by_the_python_that_is_predicted_with() -> None:
    """Its images' own is 3.10 on AWS, GCP and RunPod, which torch 2.15 and transformers 5.22 do not install on."""
    made = task(order("h100-sxm-80gb"), bucket="none")
    make, use, *_ = made["setup"].split(" && ")
    assert make.split()[:2] == ['"$HOME/.local/bin/uv"', "venv"] and "--python 3.12" in make
    assert made["run"] == f"{use} && bash start.sh"


def test_a_disk_holds_what_is_downloaded_too() -> None:
    from tunecast.units import GB

    fields: dict[str, Any] = {"stack": "trl", "method": "qlora", "seq_len": 128, "micro_batch": 1, "max_steps": 10}
    job = read("llama-3.1-70b", None, **fields, gpu="h100-sxm-80gb")
    found = door.launch(job, on="dstack", dry_run=True)
    assert isinstance(found, Rendering)
    asked = yaml.safe_load(found.files["task.dstack.yml"])["resources"]["disk"]
    # 70.6e9 parameters of two bytes, beside what dstack asks for by itself
    assert int(asked.removesuffix("GB..")) >= 100 + 2 * 70.6e9 / GB


def test_nothing_is_rented_elsewhere_where_places_were_asked_for() -> None:
    one = offer("l4", 0.7, 3.0, provider="gcp", regions=("europe-west4", "europe-west1"), instance="g2-standard-8")
    resources = task(order(offers=(one,), anywhere=False), bucket="s3://kept")["resources"]
    assert [each["infra"] for each in resources["ordered"]] == ["gcp/europe-west4", "gcp/europe-west1"]
    known = offer("l4", 0.7, 3.0, provider="gcp", source="skypilot/gcp", instance="g2-standard-8")
    assert task(order(offers=(known,), anywhere=False))["resources"]["instance_type"] == "g2-standard-8"


def test_a_spot_machine_makes_a_managed_job() -> None:
    spot = rendered(order(offers=(offer("l4", 0.3, 3.0, kind="spot", provider="gcp"),)), "skypilot", bucket="gs://kept")
    made = yaml.safe_load(spot.files["managed.yaml"])
    assert spot.commands[-1][:3] == ("sky", "jobs", "launch")
    assert made["resources"]["job_recovery"] == "EAGER_NEXT_REGION"
    assert all(each["use_spot"] for each in made["resources"]["ordered"])
    assert made["file_mounts"]["/tunecast"] == {"source": "gs://kept", "mode": "MOUNT_CACHED"}
    assert "ln -sfn /tunecast/job-1 output" in spot.files["start.sh"]


def test_several_are_queued_as_managed_jobs() -> None:
    found = rendered(order("l4", of_several=True), "skypilot", bucket="none")
    assert found.commands[-1][:3] == ("sky", "jobs", "launch") and "cluster.yaml" not in found.files
    assert "autostop" not in yaml.safe_load(found.files["managed.yaml"])["resources"]
    assert any("sky jobs queue" in note for note in found.notes)


def test_a_cloud_that_cannot_keep_results_is_left_out_by_name() -> None:
    made = rendered(
        order("l4", offers=(offer("l4", 0.5, 1.0), offer("l4", 0.7, 1.0, provider="gcp"))), "skypilot", bucket="s3://x"
    )
    asked = yaml.safe_load(made.files["cluster.yaml"])["resources"]["ordered"]
    # the plan's own at Google; then the card at any cloud that can
    assert [(each["infra"], "cpus" in each) for each in asked] == [("gcp", False), ("aws", True), ("gcp", True)]
    assert "1 x l4 at runpod left out: SkyPilot cannot mount a bucket there" in made.notes


def test_a_card_without_a_plan_is_asked_for_where_its_name_means_it() -> None:
    assert task(order("l4"))["resources"]["accelerators"] == "L4:1"
    several = task(order("h100-sxm-80gb", gpus=8))["resources"]["any_of"]
    assert {each["accelerators"] for each in several} == {"H100:8", "H100-SXM:8"}
    assert all("infra" in each for each in several if each["accelerators"] == "H100:8")
    assert "runpod" not in {each.get("infra") for each in several}  # its H100 is the PCIe card


def test_several_machines_are_told_which_they_are() -> None:
    two = rendered(order("h100-sxm-80gb", gpus=8, nodes=2), "skypilot").files
    assert yaml.safe_load(two["cluster.yaml"])["num_nodes"] == 2
    assert "export NODE_RANK=$SKYPILOT_NODE_RANK" in two["start.sh"]
    assert task(order("h100-sxm-80gb", gpus=8, nodes=2), "dstack")["nodes"] == 2
    assert "$DSTACK_MASTER_NODE_IP" in rendered(order("h100-sxm-80gb", gpus=8, nodes=2), "dstack").files["start.sh"]
    with pytest.raises(UsageError, match="one machine"):
        rendered(order("h100-sxm-80gb", gpus=8, nodes=2), "lyceum")


def test_dstacks_task() -> None:
    made = task(order("h100-sxm-80gb", offers=THREE), "dstack", volume="kept")
    assert made["resources"] == {
        "gpu": {"name": ["H100"], "memory": "80GB", "count": 1},
        "cpu": "4..",
        "memory": "22GB..",
        "disk": "130GB..",
    }
    assert (made["max_price"], made["max_duration"], made["spot_policy"]) == (4.0, "180m", "on-demand")
    assert {"local_path": "/home/me/a b.jsonl", "path": "data/a b.jsonl"} in made["files"]
    places = offer("l4", 0.3, 3.0, kind="spot", provider="oracle", regions=("eu-frankfurt-1",))
    spot = task(order(offers=(places,), anywhere=False), "dstack")
    assert (spot["backends"], spot["regions"], spot["spot_policy"]) == (["oci"], ["eu-frankfurt-1"], "spot")
    assert spot["retry"] == {"on_events": ["no-capacity", "interruption"]}


@pytest.mark.parametrize(("card", "arm"), [("gh200-96gb", True), ("gb200-186gb", True), ("l4", False)])
def test_dstacks_own_image_is_not_for_arm(card: str, arm: bool) -> None:
    """Without an image dstack looks for x86 machines alone, of which none has such a card."""
    made = task(order(card), "dstack")
    assert ("image" in made, "python" in made) == (arm, not arm)


def test_lyceums_commands() -> None:
    folder, data, run = rendered(order(), "lyceum", machine="gpu.l40s").commands
    assert folder == ("lyceum", "storage", "upload", ".", "--recursive", "--force", "--key", "tunecast/job-1")
    assert data[3] == "/home/me/a b.jsonl"
    assert run[run.index("--timeout") + 1] == str(9000 + 1800)
    assert shlex.split(run[-1])[:2] == ["bash", "-c"]


@pytest.mark.parametrize(
    ("on", "options", "told"),
    [
        ("skypilot", {}, "bucket=s3://NAME"),
        ("dstack", {}, "volume=NAME"),
        ("lyceum", {}, "machine=TYPE"),
    ],
)
def test_what_an_engine_needs_is_asked_for_before_anything_starts(on: str, options: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        engine_of(on).require(order(), options)


@pytest.mark.parametrize(
    ("on", "name", "value"),
    [
        ("skypilot", "bucket", "kept"),
        ("skypilot", "disk_size", "big"),
        ("skypilot", "disk_size", "9" * 30),
        *(("skypilot", "max_hourly_cost", value) for value in ("cheap", "nan", "inf", "0", "-1")),
        *(("dstack", "max_price", value) for value in ("cheap", "nan", "-3")),
        ("lyceum", "timeout", "6h"),
        ("lyceum", "image", "--force"),
        ("slurm", "partition", ""),
        ("kubernetes", "restarts", "often"),
        ("kubernetes", "restarts", "-1"),
        ("kubernetes", "node_selector", "h100"),
    ],
)
def test_options_are_checked(on: str, name: str, value: str) -> None:
    cluster = {"data_claim": "data"} if on == "kubernetes" else {}
    with pytest.raises(UsageError, match=f"--option {name}: got"):
        rendered(order(offers=THREE), on, **cluster, **{name: value})


SSH = """#!/bin/sh
for word; do :; done
cd "$THERE" && eval "$word"
"""


def test_a_number_that_another_process_has_now_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the other machine was restarted: it is not taken for running, and not killed."""
    there = tmp_path / "there" / "tunecast" / "job-1"
    there.mkdir(parents=True)
    script = tmp_path / "ssh"
    script.write_text(SSH)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("THERE", str(tmp_path / "there"))
    entry = LedgerEntry("job-1", tmp_path, "ssh:box", "trl", "", "")
    foreign, ours = (Popen(["sleep", "1000"], cwd=place, start_new_session=True) for place in (tmp_path, there))
    try:
        (there / "process").write_text(f"{foreign.pid}\n")
        assert state_of(entry) == "failed"
        ssh.cancel(entry)
        assert foreign.poll() is None
        (there / "process").write_text(f"{ours.pid}\n")
        assert state_of(entry) == "running"
        ssh.cancel(entry)
        assert ours.wait() == -SIGTERM
        assert state_of(entry) == "failed"
    finally:
        foreign.kill()
        ours.kill()


def choice(gpu: str, provider: str = "runpod", gpus: int = 1, **told: Any) -> dict[str, Any]:
    machine = {
        "provider": provider,
        "kind": "on-demand",
        "gpu": gpu,
        "gpus": gpus,
        "usd_per_hour": 1.0,
        "regions": ["x"],
    }
    return {"offer": machine | told, "job": {"hardware": {"nodes": 1}}, "total_s": 100.0}


def test_a_training_that_does_not_end_when_asked_is_made_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = door.ledger.folder() / "job"
    folder.mkdir(parents=True)
    (folder / "resume.sh").write_text("trap '' TERM; set -m; sleep 60 & touch deaf; wait; sleep 60\n")
    entry = LedgerEntry("job", folder, "local", "trl", "", "")
    door.ledger.keep(entry)
    patience = f"sleep {local.END_S};"
    assert patience in local.START and patience in local.START_IN_TURN
    job = Popen(["bash", "-c", local.START.replace(patience, "sleep 1;")], cwd=folder, start_new_session=True)
    while not (folder / "deaf").exists():
        sleep(0.01)
    asked = door.cancel("job")
    assert isinstance(asked, door.Launched) and asked.state == "running", "it still has its cards"
    assert asked.notes == ("asked to end, and not over yet",)
    assert job.wait() == 0 and entry.status == 128 + SIGKILL, "a process group of its own is no way out"
    assert door.jobs().jobs[0].state == "cancelled"


def test_machines_of_a_plan() -> None:
    plan = {
        "best": "cheapest",
        "picks": {"cheapest": choice("l4")},
        "choices": [choice("l4"), choice("a40"), choice("a40", gpus=2), choice("l4", "gcp")],
        "asked": ["--within 6h", "--eu"],
        "limits": {"max_usd": 12},
    }
    found = planned_machines(plan, "plan.json")
    assert [(each.gpu, each.provider) for each in found.offers] == [("l4", "runpod"), ("a40", "runpod"), ("l4", "gcp")]
    assert (found.anywhere, found.max_usd) == (False, 12.0)
    assert planned_machines({**plan, "asked": ["--within 6h"]}, "plan.json").anywhere


def test_a_machine_of_ones_own_is_called_as_its_owner_likes() -> None:
    """What `tunecast offers add` makes of a price per kWh: it was taken for no plan's machine."""
    told = {"source": "own; 0.31 EUR/kWh, 1350 W: 2 x 450 W and half of that besides", "regions": ["Köln, Keller"]}
    pick = choice("rtx-4090", "uni köln", gpus=2, kind="owned", **told)
    (found,) = planned_machines({"best": "cheapest", "picks": {"cheapest": pick}}, "plan.json").offers
    assert (found.kind, found.gpu, found.gpus, found.usd_per_hour) == ("owned", "rtx-4090", 2, 1.0)


@pytest.mark.parametrize("bad", [{"gpu": "l4\nrun: x"}, {"gpus": 0}, {"usd_per_hour": "much"}, {"regions": ["$(id)"]}])
def test_a_file_that_is_no_plan_is_refused(bad: dict[str, Any]) -> None:
    given: dict[str, Any] = {"gpu": "l4", **bad}
    with pytest.raises(UsageError, match="plan again"):
        planned_machines({"best": "only", "picks": {"only": choice(**given)}}, "plan.json")


def test_alternatives_are_predicted_with_the_settings_that_are_launched() -> None:
    planned = PlannedMachines(
        (
            *(offer("l4", 1.0, 1.0), offer("t4", 0.1, 1.0), offer("a40", 2.0, 1.0), offer("l40s", 1.5, 1.0)),
            offer("mi300x", 0.1, 1.0),  # the torch that is installed would not see it
        )
    )

    class Time:
        total_s = 1800.0

    class Found:
        time = Time()
        fits_surely = True

    def predicted(job: Any) -> Any:
        if job.hardware.gpu == "t4":
            raise NotResolved("nothing is known of it")
        return Found()

    made = with_offers(order("l4"), planned, predicted)
    assert [(each.gpu, each.total_s) for each in made.offers] == [("l4", 7200.0), ("l40s", 1800.0), ("a40", 1800.0)]
    assert made.usd_per_hour == 1.0
    # launched on another card than was planned: the plan's prices say nothing
    assert with_offers(order("a40"), planned, predicted).offers == ()


def test_names_are_one_cards_each() -> None:
    from tunecast.hardware.catalog import gpus

    assert set(SKYPILOT_CARDS) | set(DSTACK_CARDS) <= set(gpus())
    means: dict[tuple[str, str], str] = {}
    for card, names in SKYPILOT_CARDS.items():
        for name, clouds in names.items():
            for cloud in clouds:
                assert means.setdefault((name, cloud), card) == card
    for name in {name for name, _ in means} - SEVERAL_CARDS:
        assert len({card for (other, _), card in means.items() if other == name}) == 1, name
    assert all(cloud == cloud.lower() for cloud in SKYPILOT_CLOUDS.values())


SKY_JOB = {"job_id": 7, "job_name": "ID", "task_id": 0, "status": "RUNNING", "recovery_count": 1, "infra": "aws"}
SKY_ON_CLUSTER = {"job_id": 1, "job_name": "ID", "username": "me", "user_hash": "0", "submitted_at": 1.0,
                  "resources": "1x[L4:1]", "status": "SETTING_UP", "log_path": "x", "metadata": {}}  # fmt: skip
DSTACK_RUN = {"id": "0", "project_name": "main", "user": "me", "submitted_at": "2026-11-18T03:00:00",
              "status": "running", "termination_reason": None, "run_spec": {"run_name": "ID"}}  # fmt: skip


def stand_in(folder: Path, name: str, answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that answers by its first words, fails at others, and writes down how it was called."""
    cases = "".join(
        f"{shlex.quote(words)}*) cat <<'END'\n{text if isinstance(text, str) else json.dumps(text)}\nEND\n;;\n"
        for words, text in answers.items()
    )
    calls = shlex.quote(str(folder / "calls"))
    script = f'#!/bin/sh\necho "$*" >>{calls}\ncase "$*" in\n{cases}*) echo no >&2; exit 1;;\nesac\n'
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "home"))
    return folder / "calls"


def start(on: str, tmp_path: Path, **options: str) -> Any:
    data = tmp_path / "train.jsonl"
    data.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n')
    job = read("llama-3.2-1b", {"data.path": str(data)}, stack="trl", method="lora", gpu="l4", seq_len=512, id="ID")
    return door.launch(job, on=on, options=options)


def named(answers: Any) -> Any:
    return json.loads(json.dumps(answers).replace("ID", "id"))


@pytest.mark.parametrize(
    ("status", "state"),
    [("STARTING", "queued"), ("RECOVERING", "queued"), ("SUCCEEDED", "done"), ("FAILED_SETUP", "failed")],
)
def test_states_of_a_managed_job(status: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = {**SKY_JOB, "job_id": 3, "status": "FAILED"}
    text = "Some line before\n" + json.dumps(
        named([{**SKY_JOB, "status": status}, older, {**SKY_JOB, "job_name": "other"}]), indent=2
    )
    calls = stand_in(tmp_path / "bin", "sky", {"jobs queue": text, "jobs cancel": ""}, monkeypatch)
    entry = door.ledger.reserve(Rendering("id", "skypilot", "trl", {}, ()), "2026-11-18")
    (entry.folder / "managed.yaml").write_text("")
    assert state_of(entry) == state
    engine_of("skypilot").module.cancel(entry)
    assert calls.read_text().splitlines()[-1] == "jobs cancel --yes --name id"
    assert door.log_command("id", follow=True) == ("sky", "jobs", "logs", "--name", "id", "--follow")


def test_a_launch_by_skypilot_is_found_and_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "launch": "",
        "status": [{"name": "id", "status": "UP"}],
        "queue": named({"id": [SKY_ON_CLUSTER]}),
        "down": "",
    }
    calls = stand_in(tmp_path / "bin", "sky", answers, monkeypatch)
    launched = start("skypilot", tmp_path, bucket="s3://kept")
    assert (launched.id, launched.state, launched.number) == ("id", "queued", "id")
    assert calls.read_text().splitlines()[0] == "launch --cluster id --name id --yes --detach-run cluster.yaml"
    assert yaml.safe_load((launched.folder / "cluster.yaml").read_text())["workdir"] == "."
    with pytest.raises(UsageError, match="the same is queued already"):
        start("skypilot", tmp_path, bucket="s3://kept")
    # killed before it could write down the name: found by it all the same
    assert state_of(door.ledger.with_number(door.ledger.entry_of("id"), "")) == "queued"
    stand_in(tmp_path / "bin", "sky", {**answers, "status": []}, monkeypatch)
    assert door.jobs().jobs[0].state == "not started"
    stand_in(tmp_path / "bin", "sky", answers, monkeypatch)
    door.cancel("id")
    assert "down --yes id" in calls.read_text().splitlines()


def test_a_refused_launch_leaves_nothing_and_half_a_launch_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path / "bin", "sky", {"status": []}, monkeypatch)
    with pytest.raises(NotResolved, match="sky: no"):
        start("skypilot", tmp_path, bucket="s3://kept")
    assert door.jobs().jobs == ()
    stand_in(tmp_path / "bin", "sky", {"status": [{"name": "id"}], "queue": {"id": []}}, monkeypatch)
    assert start("skypilot", tmp_path, bucket="s3://kept").state == "queued"


def test_a_launch_whose_engine_does_not_answer_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path / "bin", "dstack", {}, monkeypatch)
    with pytest.raises(NotResolved, match="not known until dstack answers"):
        start("dstack", tmp_path, volume="none")
    assert [each.state for each in door.jobs().jobs] == ["unknown"]


def test_a_launch_by_a_program_that_is_not_installed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path / "bin", "other", {}, monkeypatch)
    with pytest.raises(NotResolved, match="dstack is not on the PATH"):
        start("dstack", tmp_path, volume="none")
    assert door.jobs().jobs == ()


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ({"status": "provisioning"}, "queued"),
        ({"status": "terminating"}, "running"),
        ({"status": "terminated", "termination_reason": "stopped_by_user"}, "cancelled"),
        ({"status": "terminated", "termination_reason": "server_error"}, "failed"),
    ],
)
def test_states_of_a_dstack_run(
    told: dict[str, str], state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {**DSTACK_RUN, "submitted_at": "2026-11-17T03:00:00", "status": "done"}
    answers = {"apply": "", "ps": named({"project": "main", "runs": [old, {**DSTACK_RUN, **told}]}), "stop": ""}
    calls = stand_in(tmp_path / "bin", "dstack", answers, monkeypatch)
    launched = start("dstack", tmp_path, volume="kept")
    assert launched.state == state
    door.cancel("id")
    assert calls.read_text().splitlines()[0] == "apply -y -d -f task.dstack.yml"
    assert ("stop -y id" in calls.read_text().splitlines()) == (state in ("queued", "running"))


def test_a_launch_by_lyceum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "storage upload": "",
        "docker run": "Image: python\nMachine: gpu.l4\nExecution ID: 9d73-31\n",
        "jobs status 9d73-31 --json": {"execution_id": "9d73-31", "status": "running"},
        "jobs list": [{"execution_id": "9d73-31", "file_name": "id", "status": "running"}],
        "jobs abort": "",
    }
    calls = stand_in(tmp_path / "bin", "lyceum", answers, monkeypatch)
    launched = start("lyceum", tmp_path, machine="gpu.l4", timeout="7200")
    assert (launched.state, launched.number) == ("running", "9d73-31")
    # killed before it could write down the number: found by its name
    assert state_of(door.ledger.with_number(door.ledger.entry_of("id"), "")) == "running"
    door.cancel("id")
    assert "jobs abort 9d73-31" in calls.read_text().splitlines()


def test_what_an_engine_prints_may_be_any_bytes_and_what_does_not_start_is_told(tmp_path: Path) -> None:
    told = output_of(("printf", "caf\\351 1"), tmp_path, named="printf")
    assert told == "caf\ufffd 1"
    file = tmp_path / "tool"
    file.write_text("#!/bin/sh\n")
    with pytest.raises(NotResolved, match=f"{file} does not start: Permission denied"):
        output_of((str(file),), tmp_path, named="tool")
    with pytest.raises(NotResolved, match=f"^{tmp_path}/gone: No such file"):
        output_of(("true",), tmp_path / "gone", named="true")


def test_a_launch_whose_record_is_no_text_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for name in ("a", "b"):
        door.ledger.reserve(Rendering(name, "local", "trl", {}, ()), "2026-11-18T00:00:00")
    (door.ledger.folder() / "a" / door.ledger.RECORD).write_bytes(b"\xff")
    assert [each.id for each in door.jobs().jobs] == ["b"]
