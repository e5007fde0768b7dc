"""What starts a training, and what is ordered for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunecast.job.recipes import find_recipe
from tunecast.job.recipes.commands import commands_of
from tunecast.job.recipes.document import Document, yaml_document
from tunecast.job.recipes.launch.launchers import Started, launched
from tunecast.job.recipes.launch.schedulers import is_task, of_skypilot, of_slurm
from tunecast.job.recipes.request import Launch, ReadRequest


def started(text: str, folder: Path = Path(), around: Launch | None = None) -> Started:
    command = commands_of(text)[-1]
    return launched(command, ReadRequest(Document("t.sh", {}, {}), folder, around or Launch()), "t.sh")


@pytest.mark.parametrize(
    ("text", "words", "gpus", "nodes"),
    [
        ("python train.py --a", ["train.py", "--a"], None, None),
        ("python3.11 -u -m axolotl.cli.train x.yaml", ["axolotl.cli.train", "x.yaml"], None, None),
        ("torchrun --nproc_per_node=8 --nnodes 2 t.py -m 1", ["t.py", "-m", "1"], 8, 2),
        ("torchrun --standalone --nproc-per-node gpu t.py", ["t.py"], None, None),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node=auto t.py", ["t.py"], 2, None),
        ("python -m torch.distributed.run --nproc_per_node 4 -m a.b x", ["a.b", "x"], 4, None),
        ("accelerate launch --num_processes 8 --num_machines 2 -m a x", ["a", "x"], 4, 2),
        ("accelerate launch --multi_gpu --num_processes 4 t.py --lr 3", ["t.py", "--lr", "3"], 4, 1),
        ("deepspeed --num_gpus=4 --num_nodes 2 t.py --deepspeed d.json", ["t.py", "--deepspeed", "d.json"], 4, 2),
        ("deepspeed --include w0:0,1@w1:2,3 t.py", ["t.py"], 2, 2),
        ("srun -N 4 --gpus-per-node=h100:8 -l torchrun t.py", ["t.py"], 8, 4),
        ("mpirun -np 8 -mca btl tcp -x A --allow-run-as-root python t.py", ["t.py"], 8, None),
        ("uv run --with trl --no-sync trl sft --a", ["trl", "sft", "--a"], None, None),
        ("nohup time swift sft --a", ["swift", "sft", "--a"], None, None),
        ("NPROC_PER_NODE=4 NNODES=2 CUDA_VISIBLE_DEVICES=0,1 swift sft", ["swift", "sft"], 4, 2),
        ("singularity exec --nv -B /a:/b i.sif python t.py", ["t.py"], None, None),
        ("tune run --nproc_per_node 2 lora --config x", ["tune", "run", "lora", "--config", "x"], 2, None),
        ("tune ls", ["tune", "ls"], None, None),
        ("timeout 10m swift sft", ["swift", "sft"], None, None),
        ("torchrun --nproc_per_node=$GPUS t.py", ["t.py"], None, None),
        ("CUDA_VISIBLE_DEVICES=$1 swift sft", ["swift", "sft"], None, None),
        ("torchrun", [], None, None),
        ("accelerate", ["accelerate"], None, None),
        ("mpirun -np 0 x", ["x"], None, None),
    ],
)  # fmt: skip
def test_launchers(text: str, words: list[str], gpus: int | None, nodes: int | None) -> None:
    found = started(text)
    assert found.words == words
    assert (found.launch.gpus, found.launch.nodes) == (gpus, nodes)


def test_places() -> None:
    found = started("A=1\ntorchrun \\\n --nproc_per_node=8 \\\n --nnodes 2 t.py")
    assert [str(place) for place in found.launch.places.values()] == ["t.sh:3 --nproc_per_node", "t.sh:4 --nnodes"]


def test_accelerate_flags_win_over_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("num_processes: 8\nmixed_precision: bf16\ndistributed_type: FSDP\n")
    found = started("accelerate launch --config_file a.yaml --num_processes 4 t.py", tmp_path)
    document = found.launch.accelerate
    assert document is not None
    assert (document.get("num_processes"), document.get("mixed_precision"), found.launch.gpus) == (4, "bf16", 4)
    assert str(found.launch.places["hardware.gpus"]) == "t.sh:1 num_processes"
    assert document.place("mixed_precision") == (str(tmp_path / "a.yaml"), 2)


def test_accelerate_flags_alone() -> None:
    found = started("accelerate launch --use_deepspeed --zero_stage 3 --offload_optimizer_device cpu t.py")
    assert found.launch.accelerate is not None
    assert found.launch.accelerate.tree == {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"zero_stage": 3, "offload_optimizer_device": "cpu"},
    }


def test_an_accelerate_file_that_is_not_here_is_left_to_be_reported() -> None:
    found = started("accelerate launch --config_file gone.yaml t.py")
    assert found.launch.accelerate is not None
    assert found.launch.accelerate.tree == {"config_file": "gone.yaml"}


@pytest.mark.parametrize(
    ("lines", "gpu", "gpus", "nodes"),
    [
        ("#SBATCH --nodes=2\n#SBATCH --gres=gpu:h100:8", "h100", 8, 2),
        ("#SBATCH -N 4\n#SBATCH --gpus-per-node=4", None, 4, 4),
        ("#SBATCH --nodes 2\n#SBATCH --gpus=a100:16 # all", "a100", 8, 2),
        ("#SBATCH --gres=gpu:1,tmp:10G", None, 1, None),
        ("#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-task=1", None, 4, None),
        ("#SBATCH --nodes=1-4\n#SBATCH --gres=shard:2", None, None, None),
        ("##SBATCH --nodes=8\n#SBATCH", None, None, None),
    ],
)
def test_slurm(lines: str, gpu: str | None, gpus: int | None, nodes: int | None) -> None:
    ordered = of_slurm(f"#!/bin/bash\n{lines}\nx\n", "j.slurm")
    assert (ordered.launch.gpu, ordered.launch.gpus, ordered.launch.nodes) == (gpu, gpus, nodes)


def test_slurm_sets_variables() -> None:
    ordered = of_slurm("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:8\n", "j.slurm")
    assert ordered.variables == {
        **{"SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "8", "SLURM_GPUS_PER_NODE": "8"},
        **{"SLURM_NTASKS_PER_NODE": "1", "SLURM_NTASKS": "2"},
    }
    assert str(ordered.launch.places["hardware.gpus"]) == "j.slurm:3 --gres"


@pytest.mark.parametrize(
    ("wanted", "gpu", "gpus"),
    [
        ("A100-80GB:8", "A100-80GB", 8),
        ("{H100: 4}", "H100", 4),
        ("[L4, T4]", "L4", 1),
        ("L40S", "L40S", 1),
        ("$GPU", None, None),
        ("[[]]", None, None),
        ("3", None, None),
    ],
)
def test_skypilot(wanted: str, gpu: str | None, gpus: int | None) -> None:
    text = f"resources:\n  accelerators: {wanted}\nnum_nodes: 2\nenvs: {{A: 1}}\nrun: |\n  x $A\n"
    document = yaml_document(text, "s.yaml")
    ordered = of_skypilot(document)
    assert is_task(document)
    assert (ordered.launch.gpu, ordered.launch.gpus, ordered.launch.nodes) == (gpu, gpus, 2)
    (command,) = commands_of(ordered.text, ordered.variables, ordered.first_line)
    assert (command.words, command.words[0].line) == (("x", "1"), 6)


AXOLOTL = "base_model: meta-llama/Llama-3.2-1B\nadapter: lora\nlora_r: {}\nsequence_len: 512\n"


@pytest.mark.parametrize(
    ("before", "rank"),
    [
        ('cd "$(dirname "${BASH_SOURCE[0]}")"', 2),
        ("cd other/configs", 3),
        ("cd other && cd configs", 3),
        ("cd $SOMEWHERE", 1),
        ("cd other; cd -", 1),
        ("cd nowhere", 1),
        ("", 1),
    ],
)
def test_a_script_reads_files_where_it_went(
    before: str, rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it did not go anywhere that is known, those where the command is given come first."""
    script = tmp_path / "scripts" / "run.sh"
    for number, folder in ((1, tmp_path), (2, script.parent), (3, tmp_path / "other" / "configs")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "a.yml").write_text(AXOLOTL.format(number))
    script.write_text(f"{before}\naxolotl train a.yml\n")
    monkeypatch.chdir(tmp_path)
    for path in (script, script.relative_to(tmp_path)):
        found = find_recipe(path)
        assert found is not None and found.job["lora"]["rank"] == rank
