"""What may stand before a script, and what of it is taken over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunecast.door.accelerate import accelerate_config
from tunecast.door.launchers import ScriptLaunch, launch_from
from tunecast.errors import TunecastError, UsageError
from tunecast.tape.trace.launch import rank_zero


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
    ],
)
def test_launches(command: str, launch: ScriptLaunch) -> None:
    assert launch_from(command.split()) == launch


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
        ("accelerate launch --use_deepspeed train.py", "--use_deepspeed is not traced"),
        ("deepspeed train.py", "launcher deepspeed is not understood"),
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
        ("distributed_type: DEEPSPEED", "allowed: NO, MULTI_GPU, FSDP"),
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
