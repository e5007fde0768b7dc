"""What a launched job checks of its machine first: what preflight.json says, and what the checks make of a machine."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tunecast.cli.main import main
from tunecast.door.launch import launch
from tunecast.door.predict import predict
from tunecast.door.read import read
from tunecast.job.job import Job
from tunecast.launching.preflight import data, links, machine
from tunecast.launching.preflight.expected import flags
from tunecast.launching.rendering import Rendering

pytestmark = pytest.mark.whole
SMI = """\
0, NVIDIA H100 80GB HBM3, 81559, 4, 535.161.08, GPU-11111111-aaaa-bbbb-cccc-000000000000
1, NVIDIA H100 80GB HBM3, 81559, 61234, 535.161.08, GPU-22222222-aaaa-bbbb-cccc-000000000000
"""
"""As nvidia-smi prints it, for the query of machine.py."""


def job_of(**fields: Any) -> Job:
    return read("llama-3.2-1b", None, **{"stack": "trl", "gpu": "h100-sxm-80gb", "max_steps": 1200, **fields})


def rendering_of(job: Job, on: str = "local", **how: Any) -> Rendering:
    found = launch(job, on=on, dry_run=True, **how)
    assert isinstance(found, Rendering)
    return found


def expected_of(job: Job, **how: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(rendering_of(job, **how).files["preflight.json"])
    return found


def test_it_says_what_was_predicted() -> None:
    job = job_of()
    said, predicted = expected_of(job), predict(job)
    assert predicted.outside is not None and predicted.memory.range_bytes is not None
    assert said["memory"]["device_bytes"] == predicted.memory.device_bytes
    assert said["memory"]["range_bytes"] == list(predicted.memory.range_bytes.device)
    assert said["disk"]["saved_bytes"] == predicted.outside.disk.peak_bytes
    assert said["cards"] == {"count": 1, "name": "H100 SXM 80 GB", "words": ["h100"]}
    assert said["model"]["name"] == "meta-llama/Llama-3.2-1B" and said["model"]["shape"]["num_hidden_layers"] == 16
    assert said["links"] is None and said["first_steps"]["words"][:2] == ["--max_steps", "2"]


def test_the_smallest_changes_are_known_beforehand() -> None:
    job = job_of(gradient_checkpointing=False)
    said = expected_of(job)
    less = predict(read(job.to_dict(), {"run.save_total_limit": 1})).outside
    assert less is not None and said["disk"]["remedy"].startswith("--set run.save_total_limit=1 needs ")
    saved = (said["disk"]["saved_bytes"] - (less.disk.peak_bytes or 0)) / 1e9
    assert f"needs {saved:.1f} GB less" in said["disk"]["remedy"]
    assert said["memory"]["remedy"].startswith("--set ") and "GB less" in said["memory"]["remedy"]


def test_the_smallest_change_can_be_typed(tmp_path: Path) -> None:
    """In a shell, as it stands there; and it saves something."""
    for fields in ({"micro_batch": 8, "method": "qlora"}, {"micro_batch": 1, "seq_len": 512, "method": "lora"}):
        said = expected_of(job_of(**fields))
        for remedy in (said["memory"]["remedy"], said["disk"]["remedy"]):
            typed, told, _ = remedy.partition(" needs ")
            assert " 0.0 GB" not in remedy
            if told:
                flag, assigned = shlex.split(typed)
                assert flag == "--set" and main(["predict", "llama-3.2-1b", "--gpu", "h100", flag, assigned]) == 0
    assert flags({"kernels": ["liger", "lora_triton"]}) == "--set kernels=liger,lora_triton"
    assert flags({"optimizer": "a; b"}) == "--set 'optimizer=a; b'"


def test_links_are_those_that_the_prediction_assumes() -> None:
    inside = expected_of(job_of(gpus=8))["links"]
    assert inside["name"] == "nvlink4" and 300e9 < inside["bus_bytes_per_s"] < 500e9
    between = expected_of(job_of(gpus=8, nodes=2, inter_node_gbps=400))["links"]
    assert between["field"] == "hardware.inter_node_gbps" and between["bus_bytes_per_s"] < inside["bus_bytes_per_s"]


def test_engines_run_it_before_they_train() -> None:
    files = rendering_of(job_of()).files
    assert "bash resume.sh" in " ".join(rendering_of(job_of()).commands[-1])
    assert "preflight.py || exit 78" in files["resume.sh"] and "preflight" not in files["train.sh"]
    for name, source in (("preflight.py", machine), ("preflight_data.py", data), ("preflight_links.py", links)):
        assert files[name] == Path(source.__file__).read_text(encoding="utf-8")
    without = rendering_of(job_of(), preflight=False)
    assert "preflight" not in without.files["resume.sh"] and not any("preflight" in name for name in without.files)
    assert without.files["train.sh"] == files["train.sh"]


def test_of_several_machines_all_are_checked_at_every_start() -> None:
    assert "preflight.passed" in rendering_of(job_of()).files["resume.sh"]
    assert "preflight.passed" not in rendering_of(job_of(gpus=8, nodes=2)).files["resume.sh"]


def test_frameworks_are_resumed_in_their_own_words() -> None:
    for stack, words in (("llama-factory", "resume_from_checkpoint="), ("axolotl", "--resume_from_checkpoint=")):
        text = rendering_of(job_of(stack=stack, attention="flash_attention_2")).files["resume.sh"]
        assert f'set -- "{words}${{last%/*}}"' in text


@pytest.mark.parametrize("on", ["local", "slurm"])
def test_the_same_job_gives_the_same_bytes(on: str) -> None:
    assert rendering_of(job_of(), on).to_dict() == rendering_of(read(job_of().to_dict()), on).to_dict()


def test_cards_as_nvidia_smi_prints_them() -> None:
    cards = machine.cards_of(SMI)
    assert [card.number for card in cards] == ["0", "1"]
    assert cards[1].used_bytes == 61234 << 20 and cards[0].driver == "535.161.08"


def findings(check: Any, expected: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = check(expected)
    return [(found.verdict, found.line())]


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def child(words: list[str], limit_s: float) -> tuple[int, str]:
        if words[0] == "nvidia-smi":
            others = "GPU-22222222-aaaa-bbbb-cccc-000000000000, 4242, python, 61230\n"
            return 0, SMI if "query-gpu" in words[1] else others
        return 0, "13.0 True 2"

    monkeypatch.setattr(machine, "child", child)


def test_without_cards_a_rehearsal_is_offered_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--cpu` is refused of a file of one's own."""
    monkeypatch.setattr(machine, "child", lambda words, limit_s: (127, "not here"))
    for folder, remedy in (("", "or --cpu, as a rehearsal"), ("/mine", "or --no-preflight, as your file is")):
        ((verdict, line),) = findings(machine.check_cards, {**expected_of(job_of()), "folder": folder})
        assert verdict == machine.STOP and line.endswith(remedy)


def test_a_card_that_somebody_else_uses(cards: None, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {**expected_of(job_of()), "memory": {"device_bytes": 40e9, "remedy": ""}}
    assert findings(machine.check_cards, expected)[0][0] == "ok"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    ((verdict, line),) = findings(machine.check_cards, expected)
    assert verdict == "stop" and "end what runs there (python (process 4242, 61230 MiB))" in line


def test_other_cards_and_too_few(cards: None) -> None:
    assert "predicted for A100" in findings(machine.check_cards, expected_of(job_of(gpu="a100-sxm-80gb")))[0][1]
    ((verdict, line),) = findings(machine.check_cards, expected_of(job_of(gpus=8)))
    assert verdict == "stop" and "2 of 8" in line and "--gpus 2" in line


def test_a_driver_too_old_for_the_wheel(cards: None) -> None:
    ((verdict, line),) = findings(machine.check_driver, expected_of(job_of()))
    assert verdict == "stop" and "driver 535.161.08 is too old for CUDA 13.0" in line


def test_every_check_of_a_machine_without_cards(tmp_path: Path) -> None:
    rendering_of(job_of(), out=tmp_path)
    words = ["python3", str(tmp_path / "preflight.py"), "--only", "data", "disk", "ram", "cards", "--json"]
    done = subprocess.run(words, capture_output=True, text=True)
    told = json.loads(done.stdout)
    assert done.returncode == 1 and not told["passed"]
    assert told["verdict"].startswith("preflight: stopped by data: PLACEHOLDER_data.path is not there. To fix: ")
    assert {each["check"] for each in told["checks"]} == {"data", "disk", "ram", "cards"}


def test_checkpoints_of_a_spot_machine_are_the_plans(tmp_path: Path) -> None:
    """As many steps apart as the plan chose by Young's formula; the user's own where they are said."""
    import tunecast

    plan = tunecast.plan(
        "llama-3.2-1b", {"stack": "trl", "method": "lora", "data.samples": 40_000}, gpu="h100", gpus=1, spot=True
    )
    assert plan.best is not None and plan.best.fleet.offer.kind == "spot"
    steps = plan.best.changes["run.save_steps"]
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan.to_dict()))
    for source in (plan, str(file)):
        found = launch(source, on="local", dry_run=True)
        assert isinstance(found, Rendering)
        assert f"\nsave_steps: {steps}\n" in found.files["sft.yaml"]
        assert any(f"a checkpoint every {steps:,} steps" in note and "Young" in note for note in found.notes)
    own = launch(plan, {"run.save_steps": 100}, on="local", dry_run=True)
    assert isinstance(own, Rendering) and "\nsave_steps: 100\n" in own.files["sft.yaml"]
    assert not any("Young" in note for note in own.notes)
