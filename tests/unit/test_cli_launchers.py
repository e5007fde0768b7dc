"""What may stand before a script, and what of it is taken over."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tunecast.door.accelerate import accelerate_config
from tunecast.door.launchers import ScriptLaunch, launch_from
from tunecast.errors import TunecastError, UsageError
from tunecast.tape.trace.launch import deepspeed_rank_zero, mpi_rank_zero, rank_zero, slurm_rank_zero


@pytest.mark.parametrize(
    ("command", "launch"),
    [
        ("train.py --lr 1e-4", ScriptLaunch("train.py", ("--lr", "1e-4"))),
        ("-m pkg.train --lr 1e-4", ScriptLaunch("pkg.train", ("--lr", "1e-4"), as_module=True)),
        ("python train.py -m x", ScriptLaunch("train.py", ("-m", "x"), python="python")),
        ("/env/bin/python3.12 -u -X dev -m pkg", ScriptLaunch("pkg", (), True, python="/env/bin/python3.12")),
        ("python -W ignore train.py", ScriptLaunch("train.py", python="python")),
        ("torchrun train.py", ScriptLaunch("train.py", nproc_per_node=1, nnodes=1, environment=rank_zero(1))),
        (
            "torchrun --nproc-per-node 8 train.py --nnodes 3",
            ScriptLaunch("train.py", ("--nnodes", "3"), False, None, 8, 1),
        ),
        (
            "torchrun --standalone --nproc_per_node=4 --nnodes=2 train.py",
            ScriptLaunch("train.py", (), False, None, 4, 2),
        ),
        ("torchrun --nnodes 1:4 --nproc-per-node 2 -m pkg a", ScriptLaunch("pkg", ("a",), True, None, 2, 4)),
        (
            "torchrun --rdzv-backend c10d --rdzv_endpoint=h:1 train.py",
            ScriptLaunch("train.py", (), False, None, 1, 1, rank_zero(1)),
        ),
        ("python -m torch.distributed.run --nproc-per-node 2 t.py", ScriptLaunch("t.py", (), False, "python", 2, 1)),
        ("python -Wignore -uB train.py", ScriptLaunch("train.py", python="python")),
        (
            "A=1 B= python train.py C=2",
            ScriptLaunch("train.py", ("C=2",), python="python", environment={"A": "1", "B": ""}),
        ),
        ("env -u X A=1 train.py", ScriptLaunch("train.py", environment={"A": "1"})),
        ("nohup nice -n 10 train.py", ScriptLaunch("train.py")),
        ("nice -10 time -p train.py", ScriptLaunch("train.py")),
        ("timeout 3600 stdbuf -oL train.py", ScriptLaunch("train.py")),
        ("uv run --with torch==2.8 train.py --with x", ScriptLaunch("train.py", ("--with", "x"))),
        ("uv run -m pkg.train a", ScriptLaunch("pkg.train", ("a",), as_module=True)),
        ("poetry run python -m pkg", ScriptLaunch("pkg", as_module=True, python="python")),
        ("conda run -p /envs/ml --no-capture-output python t.py", ScriptLaunch("t.py", python="/envs/ml/bin/python")),
        (
            "deepspeed --num_gpus 4 --num_nodes 2 train.py --deepspeed ds.json",
            ScriptLaunch(
                "train.py",
                ("--local_rank=0", "--deepspeed", "ds.json"),
                nproc_per_node=4,
                nnodes=2,
                environment=deepspeed_rank_zero(4, 2),
            ),
        ),
        (
            "deepspeed --include localhost:0,3 --no_local_rank --module pkg",
            ScriptLaunch("pkg", (), True, None, 2, 1, deepspeed_rank_zero(2)),
        ),
        (
            "srun -N 2 --ntasks-per-node=4 python train.py",
            ScriptLaunch("train.py", (), False, "python", 4, 2, slurm_rank_zero(4, 2), rank_variables=False),
        ),
        (
            "srun --nodes 2 torchrun --nnodes 2 --nproc-per-node 8 train.py",
            ScriptLaunch("train.py", (), False, None, 8, 2, slurm_rank_zero(1, 2)),
        ),
        (
            "mpirun -np 8 -H a:4,b:4 --allow-run-as-root python train.py",
            ScriptLaunch("train.py", (), False, "python", 4, 2, mpi_rank_zero(4, 2), rank_variables=False),
        ),
        ("composer -n 8 train.py", ScriptLaunch("train.py", (), False, None, 8, 1)),
        ("trl sft --config x.yaml", ScriptLaunch("trl", ("sft", "--config", "x.yaml"))),
        ("bash -lc 'A=1\u00a0train.py'", ScriptLaunch("train.py", environment={"A": "1"})),
    ],
)
def test_launches(command: str, launch: ScriptLaunch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert launch_from([word.replace("\u00a0", " ") for word in shlex.split(command)]) == launch


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("", "no script to trace"),
        ("python", "where the script should be"),
        ("python -c print(1)", "gives no script"),
        ("torchrun --nproc-per-node gpu train.py", "tunecast trace --nproc-per-node N"),
        ("torchrun --nproc-per-node", "has no value"),
        ("torchrun --nnodes x train.py", "MIN:MAX"),
        ("torchrun --no-python ./program", "no script"),
        ("accelerate config", "accelerate launch"),
        ("accelerate launch --use_megatron_lm train.py", "--use_megatron_lm is not traced"),
        ("deepspeed train.py", "a process for each GPU it finds, and there is no GPU here to count"),
        ("docker run --gpus all image python train.py", "run tunecast there"),
        ("ssh host python train.py", "on that machine"),
        ("uv pip install torch", "only `uv run`"),
        ("conda run -n ml python train.py", "--python PREFIX/envs/ml/bin/python"),
        ("A=1", "nothing is left"),
        ("bash -x", "no script"),
        ("--lr 3", "where the script should be"),
    ],
)
def test_what_cannot_be_launched(command: str, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        launch_from(command.split())
    assert told in refused.value.message


def test_accelerate_launch_with_flags() -> None:
    command = "accelerate launch --num_processes 8 --num_machines 2 --mixed_precision bf16 t.py -x"
    launch = launch_from(command.split())
    assert (launch.script, launch.args) == ("t.py", ("-x",))
    assert (launch.nproc_per_node, launch.nnodes) == (4, 2)
    assert launch.environment == {"ACCELERATE_MIXED_PRECISION": "bf16"}


def test_accelerate_launch_with_fsdp_flags() -> None:
    command = "accelerate launch --use_fsdp --fsdp_version 2 --fsdp-offload-params true --num_processes=4 -m pkg"
    launch = launch_from(command.split())
    assert (launch.script, launch.as_module, launch.nproc_per_node) == ("pkg", True, 4)
    environment = launch.environment
    assert environment["ACCELERATE_USE_FSDP"] == "true"
    assert (environment["FSDP_VERSION"], environment["FSDP_OFFLOAD_PARAMS"]) == ("2", "true")
    assert environment["FSDP_SHARDING_STRATEGY"] == "FULL_SHARD", "accelerate's default"
    assert "FSDP_AUTO_WRAP_POLICY" not in environment


FSDP = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_reshard_after_forward: true
  fsdp_cpu_ram_efficient_loading: false
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""


def test_an_accelerate_file(tmp_path: Path) -> None:
    path = tmp_path / "fsdp.yaml"
    path.write_text(FSDP)
    told = accelerate_config(str(path))
    assert (told.nproc_per_node, told.nnodes) == (8, 2)
    wanted = {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "LlamaDecoderLayer",
        "FSDP_RESHARD_AFTER_FORWARD": "true",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
    }
    assert wanted.items() <= told.environment.items()


def test_flags_win_over_an_accelerate_file(tmp_path: Path) -> None:
    path = tmp_path / "fsdp.yaml"
    path.write_text(FSDP)
    launch = launch_from(["accelerate", "launch", "--config_file", str(path), "--num_processes", "4", "train.py"])
    assert (launch.nproc_per_node, launch.nnodes) == (2, 2)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("distributed_type: MEGATRON_LM", "allowed: NO, MULTI_GPU, FSDP, DEEPSPEED"),
        ("num_processes: many", "allowed: a whole number"),
        ("num_processes: 3\nnum_machines: 2", "no multiple of"),
        ("- a list", "a mapping is needed"),
        ("a: [", "not YAML"),
    ],
)
def test_an_accelerate_file_that_is_wrong(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(TunecastError) as refused:
        accelerate_config(str(path))
    assert told in refused.value.message


def test_an_accelerate_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TunecastError) as refused:
        accelerate_config(str(tmp_path / "none.yaml"))
    assert refused.value.exit_code == 5


def test_no_means_one_process(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("distributed_type: NO\nuse_cpu: false\n")
    assert accelerate_config(str(path)).nproc_per_node == 1


def test_what_is_given_replaces_what_a_launcher_would_count() -> None:
    for command in ("torchrun --nproc-per-node gpu t.py", "deepspeed t.py", "composer t.py", "srun t.py"):
        assert launch_from(command.split(), nproc_per_node=8).nproc_per_node == 8


DEEPSPEED = """
distributed_type: DEEPSPEED
deepspeed_config:
  deepspeed_config_file: Zero3.json
  zero3_init_flag: true
  offload_optimizer_device: CPU
mixed_precision: bf16
num_processes: 1
"""


def test_an_accelerate_file_for_deepspeed(tmp_path: Path) -> None:
    """The variables of accelerate's `prepare_deepspeed_cmd_env`; one process, too, is started by torchrun."""
    path = tmp_path / "ds.yaml"
    path.write_text(DEEPSPEED)
    told = accelerate_config(str(path)).environment
    assert told == rank_zero(1) | {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": "Zero3.json",
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": "true",
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu",
        "ACCELERATE_CONFIG_DS_FIELDS": "deepspeed_config_file,zero3_init_flag,offload_optimizer_device,mixed_precision",
    }


def test_a_project_has_its_own_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("")
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path / "src")
    for command in ("uv run train.py", "uv run python train.py", "poetry run python3 train.py"):
        assert launch_from(command.split()).python == str(python)
    assert launch_from(["uv", "run", "/other/python", "train.py"]).python == "/other/python"
