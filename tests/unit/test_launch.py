"""What a launch renders: settings of the prediction and no others, byte for byte the same, and nothing that a value
could break out of."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tunecast.cli.main import main
from tunecast.door.launch import Launched, launch
from tunecast.door.read import read
from tunecast.errors import DoesNotFit, TunecastError, Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.job.readers import read_job
from tunecast.launching.engines import slurm
from tunecast.launching.pins import unpinned_of
from tunecast.launching.programs import files_of, program_of
from tunecast.launching.referee import differences
from tunecast.launching.rendering import Rendering
from tunecast.report.lists.launch import launched_text

pytestmark = pytest.mark.whole
TRAINING = {"trl": "sft.yaml", "axolotl": "axolotl.yaml"}


def job_of(**fields: Any) -> Job:
    return read("llama-3.2-1b", None, **{"stack": "trl", "gpu": "h100-sxm-80gb", **fields})


def rendered(job: Job, on: str = "local", **how: Any) -> Rendering:
    found = launch(job, on=on, dry_run=True, **how)
    assert isinstance(found, Rendering)
    return found


def values(rendering: Rendering, name: str) -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(rendering.files[name])


def test_settings_of_a_qlora_job() -> None:
    job = job_of(method="qlora", seq_len=2048, micro_batch=2, grad_accum=4, optimizer="paged_adamw_8bit", rank=8)
    said = values(rendered(job), "sft.yaml")
    assert said == {
        "model_name_or_path": "meta-llama/Llama-3.2-1B",
        "dtype": "bfloat16",
        "attn_implementation": "sdpa",
        "use_peft": True,
        "lora_r": 8,
        "lora_alpha": 32,
        "lora_dropout": 0.05,
        "lora_target_modules": ["q_proj", "v_proj"],
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "use_bnb_nested_quant": False,
        "datasets": [{"path": "PLACEHOLDER_data.path"}],
        "max_length": 2048,
        "packing": False,
        "output_dir": "output",
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "num_train_epochs": 3,
        "optim": "paged_adamw_8bit",
        "max_grad_norm": 1,
        "bf16": True,
        "fp16": False,
        "gradient_checkpointing": True,
        "seed": 42,
        "dataloader_num_workers": 0,
        "eval_strategy": "no",
        "save_strategy": "steps",
        "save_steps": 500,
    }


@pytest.mark.parametrize(
    ("stack", "run", "said"),
    [
        ("axolotl", {"saves_per_epoch": 1}, {"saves_per_epoch": 1}),
        ("axolotl", {"saves_per_epoch": 1.5}, {"save_steps": 1 / 4.5}),
        ("axolotl", {"saves_per_epoch": 2, "max_steps": 100}, {"save_steps": 17}),
        ("trl", {"saves_per_epoch": 1.5}, {"save_steps": 1 / 4.5}),
        ("trl", {"saves_per_epoch": 2, "max_steps": 100}, {"save_steps": 17}),
    ],
)
def test_checkpoints_an_epoch_are_said_in_the_trainers_words(
    stack: str, run: Mapping[str, float], said: Mapping[str, float]
) -> None:
    told = values(rendered(job_of(method="lora", stack=stack, run={"save_strategy": "steps", **run})), TRAINING[stack])
    assert {name: told[name] for name in ("save_steps", "saves_per_epoch") if name in told} == said


def test_less_than_one_checkpoint_in_a_run_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"saves_per_epoch: got 0\.3, not one between"):
        rendered(job_of(run={"saves_per_epoch": 0.3}))


@pytest.mark.parametrize(
    ("data", "gpus", "nodes", "kind"),
    [
        ("ddp", 1, 1, "NO"),
        ("ddp", 8, 1, "MULTI_GPU"),
        ("fsdp", 8, 1, "FSDP"),
        ("hsdp", 8, 2, "FSDP"),
        ("zero2", 8, 1, "DEEPSPEED"),
        ("zero3", 8, 2, "DEEPSPEED"),
    ],
)
def test_how_cards_share_a_model(data: str, gpus: int, nodes: int, kind: str) -> None:
    said = values(rendered(job_of(gpus=gpus, nodes=nodes, parallel={"data": data})), "accelerate.yaml")
    assert (said["distributed_type"], said["num_processes"], said["num_machines"]) == (kind, gpus * nodes, nodes)


def test_what_accelerate_has_no_keys_for_goes_to_deepspeeds_file() -> None:
    job = job_of(gpus=8, parallel={"data": "zero3", "sub_group_size": 10**9, "overlap_comm": True})
    files = rendered(job).files
    zero = json.loads(files["deepspeed.json"])["zero_optimization"]
    assert (zero["stage"], zero["sub_group_size"], zero["overlap_comm"]) == (3, 10**9, True)
    assert "deepspeed_config_file: deepspeed.json" in files["accelerate.yaml"]


def test_machines_are_told_which_they_are() -> None:
    files = rendered(job_of(gpus=8, nodes=2)).files
    assert '--machine_rank "${NODE_RANK:-0}" --main_process_ip "${MASTER_ADDR:-localhost}"' in files["train.sh"]
    assert "machine_rank" not in rendered(job_of(gpus=8)).files["train.sh"]


def test_the_allocator_a_plan_counted_on() -> None:
    assert (
        "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        in rendered(job_of(allocator="expandable_segments")).files["train.sh"]
    )
    assert "ALLOC_CONF" not in rendered(job_of()).files["train.sh"]


def test_predicted_releases_are_pinned() -> None:
    job = job_of(method="lora", torch_version="2.13.0", transformers_version="5.17.0", kernels=["liger"])
    pins = rendered(job).files["requirements.txt"].splitlines()
    assert {"torch==2.13.0", "transformers==5.17.0", "trl==1.16.0", "liger-kernel==0.8.5"} <= set(pins)
    assert not any(line.startswith(("bitsandbytes", "deepspeed")) for line in pins), "what the job does not import"
    assert "requirements.txt" in rendered(job).files["Containerfile"]


def test_what_is_built_for_a_torch_is_installed_after_it() -> None:
    """pip builds flash-attn apart from what is installed, where its setup.py finds no torch: nothing was installed."""
    found = rendered(job_of(attention="flash_attention_2"), "skypilot", options={"bucket": "none"})
    assert not any(line.startswith("flash-attn") for line in found.files["requirements.txt"].splitlines())
    *_, first, _, last = values(found, "cluster.yaml")["setup"].split(" && ")
    assert (first, last) == (
        "pip install --requirement requirements.txt",
        "pip install --no-build-isolation flash-attn",
    )
    assert found.files["Containerfile"].count("--no-build-isolation flash-attn") == 1
    assert any("needs nvcc" in note for note in found.notes)


def test_a_kernels_package_is_called_as_it_is_published() -> None:
    assert "flash-linear-attention" in unpinned_of(job_of(kernels=["fla"])), "PyPI has nothing called fla"


def test_the_same_job_gives_the_same_bytes() -> None:
    job = job_of(kernels=["liger"], gpus=4, parallel={"data": "fsdp"})
    assert rendered(job, "slurm").to_dict() == rendered(read(job.to_dict()), "slurm").to_dict()


def test_further_settings_are_taken_unless_the_job_says_them() -> None:
    said = values(rendered(job_of(), extra={"learning_rate": 2e-4}), "sft.yaml")
    assert said["learning_rate"] == 2e-4
    with pytest.raises(Unsupported, match="micro_batch: 8 is read back as 4"):
        rendered(job_of(), extra={"per_device_train_batch_size": 4})
    with pytest.raises(Unsupported, match="label_smoothing_factor"):
        rendered(job_of(), extra={"label_smoothing_factor": 0.1})


def test_files_where_one_stands_are_not_taken_for_the_rendered_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch from the folder that another was written to."""
    monkeypatch.chdir(tmp_path)
    other = {"gpus": 4, "parallel": {"data": "zero3", "reduce_bucket_size": 1000}}
    for job in (job_of(micro_batch=4, **other), job_of(micro_batch=4)):
        rendered(job, out=tmp_path)
        assert rendered(job_of(micro_batch=2, gpus=2, parallel={"data": "zero2", "reduce_bucket_size": 2000}))
        assert rendered(job_of(micro_batch=2, parallel={"data": "fsdp"}, gpus=2))
        with pytest.raises(Unsupported, match="micro_batch: 2 is read back as 4"):
            rendered(job_of(micro_batch=2), extra={"per_device_train_batch_size": 4})


@pytest.mark.parametrize(
    ("name", "told"),
    [("output_dir", "results go to output"), ("checkpointer.output_dir", "results go"), ("hub_token", "no secret")],
)
def test_further_settings_name_no_place_and_no_secret(name: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        rendered(job_of(), extra={name: "x"})


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"stack": "transformers"}, "stack: got transformers; .* nearest: trl"),
        ({"task": "grpo"}, "task: got grpo"),
        ({"trained": ["layers.3"]}, "trained: .* is read back as null"),
        ({"optimizer": "muon"}, "optimizer: got muon"),
        ({"trl_version": "0.24"}, "trl_version: got 0.24"),
        ({"max_tokens_per_batch": 4096}, "data.max_tokens_per_batch"),
    ],
)
def test_what_cannot_be_said_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(TunecastError, match=told):
        rendered(job_of(**fields))


def test_a_job_that_names_no_stack_is_trained_by_trl() -> None:
    found = rendered(read("llama-3.2-1b", gpu="h100-sxm-80gb"))
    assert found.framework == "trl" and any("names no stack" in note for note in found.notes)


def test_no_machine_is_rented_whose_cards_torch_would_not_see() -> None:
    """What is installed, asked for and checked is CUDA's: an MI300X was rented, and its job ended by nvidia-smi."""
    job = job_of(gpu="mi300x")
    for on in ("skypilot", "dstack", "lyceum", "kubernetes", "slurm"):
        with pytest.raises(UsageError, match="NVIDIA's cards"):
            rendered(job, on)
    with pytest.raises(UsageError, match="NVIDIA's cards"):
        rendered(job, "kubernetes", preflight=False)
    assert rendered(job, "slurm", preflight=False).files, "where a torch for it is installed"


def test_what_does_not_fit_is_not_launched() -> None:
    with pytest.raises(DoesNotFit, match="tunecast fit"):
        rendered(read("llama-3.1-70b", stack="trl", gpu="rtx-4090"))


HOSTILE = ["$(touch pwned)", "`touch pwned`", "a; touch pwned", "'\"; touch pwned #", "--help", "${HOME}"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_path_stays_a_path(name: str, tmp_path: Path) -> None:
    """In YAML as in a shell. The folder is the model's, its data and what is rendered."""
    from tunecast.job.registry import bundled_config

    model = tmp_path / name
    model.mkdir()
    (model / "config.json").write_text(json.dumps(bundled_config("llama-3.2-1b")))
    data = model / "train.jsonl"
    data.write_text('{"text": "a b c"}\n')
    job = read(
        {"model": str(model), "stack": "trl", "id": name, "data": {"path": str(data)}, "hardware": {"gpu": "h200"}}
    )
    out = tmp_path / "out"
    found = rendered(job, "slurm", out=out)
    said = values(found, "sft.yaml")
    assert (said["model_name_or_path"], said["datasets"]) == (str(model), [{"path": "json", "data_files": str(data)}])
    for script in ("train.sh", "resume.sh", "job.sbatch"):
        done = subprocess.run(
            ["bash", script], cwd=out, env={"PATH": "/usr/bin:/bin"}, capture_output=True, check=False
        )
        assert done.returncode
    assert not list(tmp_path.rglob("pwned"))
    assert set(found.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


@pytest.mark.parametrize("option", [{"partition": "a\n#SBATCH --uid=0"}, {"partition": "$(id)"}, {"wrap": "x"}])
def test_options_of_an_engine_are_its_own(option: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="--option"):
        rendered(job_of(), "slurm", options=option)


def test_slurms_order() -> None:
    job = job_of(gpus=8, nodes=2, samples=100_000)
    text = rendered(job, "slurm", options={"partition": "gpu", "gres": "gpu:h100:8"}).files["job.sbatch"]
    for line in ("--nodes=2", "--gres=gpu:h100:8", "--partition=gpu", "--requeue", "--ntasks-per-node=1"):
        assert f"#SBATCH {line}\n" in text
    assert 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK"' in text, "srun takes one core where it is not told (srun(1))"
    assert "#SBATCH --time=" in text and "#SBATCH --mem=" in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_slurm_gives_the_cores_that_tokenize() -> None:
    job = job_of(samples=1000, data={"num_proc": 16, "workers": 2})
    found = rendered(job, "slurm")
    assert "#SBATCH --cpus-per-task=16\n" in found.files["job.sbatch"]
    assert any("--set data.num_proc=8" in note for note in found.notes)
    given = rendered(job, "slurm", options={"cpus-per-task": "4"}).files["job.sbatch"]
    assert "#SBATCH --cpus-per-task=4\n" in given and "cpus-per-task=16" not in given


SBATCH = """#!/bin/sh
case "$*" in
*--test-only*) {} ;;
*--parsable*) echo 7 ;;
esac
"""
AT = "sbatch: Job 5 to start at 2026-11-19T15:30:00 using 1 processors on nodes n1 in partition main"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (f"echo {AT} >&2", True),
        (f"echo {AT} >&2; exit 1", False),
        ("echo 'allocation failure: to start at $(id)' >&2", False),
        ("sleep 9", False),
    ],
)
def test_slurm_says_when_it_would_begin(
    answer: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it does not say, or not in time, stops nothing."""
    for name, text in {"sbatch": SBATCH.format(answer), "squeue": "#!/bin/sh\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(slurm, "ESTIMATE_LIMIT_S", 0.5)
    data = tmp_path / "train.jsonl"
    data.write_text('{"text": "a b c"}\n')
    started = launch(job_of(data={"path": str(data)}), on="slurm", options={"gres": "gpu:h100:1"})
    assert isinstance(started, Launched) and started.number == "7"
    assert any("would begin it at 2026-11-19T15:30:00" in note for note in started.notes) is told


def test_a_rehearsal_has_no_cards() -> None:
    found = rendered(job_of(gpus=2, parallel={"data": "fsdp"}), cpu=True)
    assert "torchrun --nproc_per_node 2 -m trl.scripts.sft" in found.files["train.sh"]
    assert values(found, "sft.yaml")["use_cpu"] is True and "accelerate.yaml" not in found.files


def test_held_back_data_is_read_back(tmp_path: Path) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text('{"text": "a b c"}\n' * 50)
    job = job_of(data={"path": str(data), "held_back": 0.1}, run={"eval_strategy": "epoch"})
    program = program_of(job)
    for name, text in files_of(program, job).items():
        (tmp_path / name).write_text(text)
    again = read_job(str(tmp_path / "train.sh"), {"hardware.gpu": "h100-sxm-80gb"})
    assert (again.data.path, again.data.held_back, differences(job, again)) == (str(data), 0.1, [])
    with pytest.raises(UsageError, match=r"data\.held_back"):
        rendered(job_of(run={"eval_strategy": "epoch"}))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    words = ["launch", "llama-3.2-1b", "--stack", "trl", "--gpu", "h100-sxm-80gb", "--on", "slurm"]
    assert main([*words, "--dry-run", "--json", "--out", str(tmp_path / "out")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "tunecast.launch/1" and told["placeholders"] == ["data.path"]
    assert told["commands"][-1] == ["sbatch", "--parsable", "job.sbatch"]
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == told["files"]
    assert main([*words, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert all(f"==> {name} <==" in text for name in told["files"])
    assert all(shlex.join(command) in text for command in told["commands"])
    assert "==> record_sources.txt <==\nWhat record.py puts in their place.\n# " in text
    assert main(words) == UsageError.exit_code
    assert "data.path" in capsys.readouterr().err
    assert main([*words, "--dry-run", "--out", ""]) == UsageError.exit_code
    assert "--out: got ''" in capsys.readouterr().err
    assert main(["jobs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == [], "nothing was started, and nothing is left"
    assert main(["logs", "nothing"]) == main(["cancel", "nothing"]) == UsageError.exit_code


@pytest.mark.parametrize(
    ("state", "offered"), [("running", True), ("queued", True), ("done", False), ("failed", False)]
)
def test_what_is_over_is_not_offered_to_be_stopped(state: str, offered: bool) -> None:
    text = launched_text(Launched("a", "local", "trl", state, "1", Path("a"), "2026-11-15T00:00:00+00:00"))
    assert "tunecast logs a" in text and ("tunecast cancel a" in text) is offered


@pytest.mark.parametrize(
    "values",
    [
        {"best": ["a"], "picks": {"a": {"changes": {}}}},
        {"best": "a", "picks": [1]},
        {"best": "a", "picks": {"a": 3}},
        {"best": "a", "picks": {"a": {"changes": [1]}}},
        {"best": None, "picks": None},
    ],
)
def test_what_is_no_plan_says_so(values: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"schema": "tunecast.plan/1", "job": {"model": "llama-3.2-1b"}, **values}))
    with pytest.raises(DoesNotFit, match="the plan has no pick"):
        launch(file, on="slurm", dry_run=True)


def test_a_plan_as_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan llama-3.2-1b --stack trl --method lora --samples 1000 --as-of 2026-11-15 --json"
    assert main(words.split()) == 0
    text = capsys.readouterr().out
    (tmp_path / "plan.json").write_text(text)
    plan = json.loads(text)
    settings = plan["picks"][plan["best"]]["job"]
    assert main(["launch", str(tmp_path / "plan.json"), "--on", "slurm", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert f"on {settings['hardware']['gpus']} x {settings['hardware']['gpu']}" in told["files"]["train.sh"]
    assert f"per_device_train_batch_size: {settings['micro_batch']}\n" in told["files"]["sft.yaml"]
    (tmp_path / "plan.json").write_text(json.dumps({**plan, "best": None}))
    assert main(["launch", str(tmp_path / "plan.json"), "--on", "slurm", "--dry-run"]) == DoesNotFit.exit_code


@pytest.mark.parametrize("stack", ["llama-factory", "axolotl"])
@pytest.mark.parametrize("method", ["lora", "qlora"])
@pytest.mark.parametrize(
    "cards", [{}, {"gpus": 2}, {"gpus": 8, "data": "zero3"}, {"gpus": 8, "nodes": 2, "data": "zero2"}]
)
def test_other_trainers_are_told_the_job(stack: str, method: str, cards: dict[str, Any]) -> None:
    """Launching reads it back; what nobody said is as the trainer does, and is told."""
    parallel = {"data": cards.get("data", "ddp")}
    how = {"gpus": cards.get("gpus", 1), "nodes": cards.get("nodes", 1), "parallel": parallel, "rank": 8}
    found = rendered(job_of(stack=stack, method=method, **how))
    (note,) = found.notes
    assert note.startswith(f"as {stack} does: ") and "data.pad_to_multiple_of" in note
    assert found.files == rendered(job_of(stack=stack, method=method, **how)).files
    pins = found.files["requirements.txt"].splitlines()
    assert any(line.startswith(stack.replace("-", "")) for line in pins)


def test_what_a_trainer_cannot_do_is_refused() -> None:
    with pytest.raises(Unsupported, match="norms, embedding and head are trained in float32"):
        rendered(job_of(stack="axolotl", method="full"))
    with pytest.raises(TunecastError, match="allocator"):
        rendered(job_of(stack="axolotl", method="lora", allocator="native"))


ROWS = {
    "messages": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    "conversations": {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    "prompt": {"prompt": "a", "completion": "b"},
    "instruction": {"instruction": "a", "input": "", "output": "b"},
}


@pytest.mark.parametrize(
    ("row", "columns", "kind"),
    [
        ("messages", {"messages": "messages"}, "chat_template"),
        ("conversations", {"messages": "conversations"}, "chat_template"),
        ("prompt", {"prompt": "prompt", "response": "completion"}, None),
        ("instruction", {"prompt": "instruction", "query": "input", "response": "output"}, None),
    ],
)
def test_columns_are_those_of_the_data(row: str, columns: dict[str, str], kind: str | None, tmp_path: Path) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text(json.dumps(ROWS[row]) + "\n")
    given = {"method": "lora", "data": {"path": str(data)}}
    told = json.loads(rendered(job_of(stack="llama-factory", **given)).files["dataset_info.json"])["train"]
    assert (told["file_name"], told["columns"]) == (str(data), columns)
    (said,) = values(rendered(job_of(stack="axolotl", **given)), "axolotl.yaml")["datasets"]
    assert said["path"] == str(data)
    assert said["type"] == kind if kind else said["type"]["field_instruction"] == columns["prompt"]


OWN = {
    "trl": "model_name_or_path: meta-llama/Llama-3.2-1B\nuse_peft: true\nmax_length: 512\ndataset_name: a/b\n",
    "llama-factory": (
        "model_name_or_path: meta-llama/Llama-3.2-1B\nstage: sft\nfinetuning_type: lora\ndataset: a\ncutoff_len: 512\n"
    ),
    "axolotl": "base_model: meta-llama/Llama-3.2-1B\nadapter: lora\nlora_r: 8\nlora_alpha: 16\nsequence_len: 512\n"
    "lora_target_linear: true\ndatasets: [{path: a/b, type: alpaca}]\n",
}


@pytest.mark.parametrize(
    ("framework", "told"),
    [
        ("trl", "-m trl.scripts.sft --config {} --per_device_train_batch_size 1"),
        ("llama-factory", "llamafactory-cli train {} per_device_train_batch_size=1"),
        ("axolotl", "-m axolotl.cli.train {} --micro_batch_size=1"),
    ],
)
def test_a_file_of_ones_own_is_started_as_it_is(framework: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "my train; file.yaml"
    file.write_text(OWN[framework])
    found = launch(str(file), {"hardware.gpu": "h200", "hardware.gpus": 1, "micro_batch": 1}, on="local", dry_run=True)
    assert isinstance(found, Rendering) and found.framework == framework
    script = found.files["train.sh"]
    assert told.format(shlex.quote(str(file))) in script and f"cd {shlex.quote(str(tmp_path))}\n" in script
    assert file.read_text() == OWN[framework] and [path.name for path in tmp_path.iterdir()] == [file.name]
    with pytest.raises(Unsupported, match=r"is not told lora\.adapter_dtype"):
        launch(
            str(file),
            {"hardware.gpu": "h200", "hardware.gpus": 1, "lora.adapter_dtype": "bfloat16"},
            on="local",
            dry_run=True,
        )


def test_how_cards_share_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "sft.yaml"
    file.write_text(OWN["trl"])
    fields = {"hardware.gpu": "h200", "hardware.gpus": 4, "parallel.data": "fsdp"}
    found = launch(str(file), fields, on="slurm", dry_run=True)
    assert isinstance(found, Rendering)
    assert "--num_processes 4 --mixed_precision bf16 --use_fsdp --fsdp_version 2" in found.files["train.sh"]
