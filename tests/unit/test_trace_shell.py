"""Shell scripts before which `tunecast trace --` is put: what of them is taken over, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunecast.cli.trace import in_brief
from tunecast.door.launchers import launch_from
from tunecast.door.programs import interpreter_of, program_path
from tunecast.errors import NotResolved, UsageError

SLURM = """#!/bin/bash
#SBATCH --job-name=tune
#SBATCH --nodes=2
#SBATCH --gres=gpu:h100:4
set -euo pipefail
module load cuda
source envs/ml/bin/activate
export HF_HOME=/data/hf
MODEL=${1:?model}
LR=${LR:-1e-4}
python prepare.py --model $MODEL   # not the training
cd code && mkdir -p logs
shift
srun torchrun --nnodes "$SLURM_NNODES" --nproc_per_node ${SLURM_GPUS_ON_NODE} \\
    --rdzv_endpoint "$(scontrol show hostnames | head -1):29500" \\
    train.py --model "$MODEL" --lr $LR "$@" 2>&1 | tee "logs/$SLURM_JOB_ID.txt"
echo done
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LR", raising=False)
    return tmp_path


def write(folder: Path, text: str, name: str = "run.sh") -> None:
    (folder / name).write_text(text)


@pytest.mark.parametrize("before", ["bash", "sbatch", "sh -e", "nohup ./"])
def test_a_slurm_script_ends_in_its_training(before: str, folder: Path) -> None:
    write(folder, SLURM)
    first = [f"{before.split()[-1]}run.sh"] if before.endswith("/") else [*before.split()[1:], "run.sh"]
    launch = launch_from([before.split()[0], *first, "my model", "--epochs", "2"])
    assert (launch.script, launch.args) == ("train.py", ("--model", "my model", "--lr", "1e-4", "--epochs", "2"))
    assert (launch.nproc_per_node, launch.nnodes, launch.rank_variables) == (4, 2, True)
    assert (launch.folder, launch.python) == (str(folder / "code"), "envs/ml/bin/python")
    assert launch.environment["HF_HOME"] == "/data/hf"
    assert [note.replace("./", "") for note in launch.notes] == [
        "not run: run.sh:11: python prepare.py --model my model"
    ]


def test_variables_of_the_environment_are_known(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "LR=${LR:-1e-4}\npython train.py --lr $LR --data $DATA/train\n")
    with pytest.raises(UsageError, match=r"run\.sh:2: the value of DATA is not known.*DATA=VALUE tunecast trace"):
        launch_from(["bash", "run.sh"])
    monkeypatch.setenv("DATA", "/data")
    assert launch_from(["LR=3e-4", "bash", "run.sh"]).args == ("--lr", "3e-4", "--data", "/data/train")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("for lr in 1 2; do\n  python train.py --lr $lr\ndone", "run.sh:2: python hangs on a for loop (line 1)"),
        ("if [ -n $A ]; then\npython train.py\nfi", "an if (line 1); the script is read, not run. To fix: tunecast tr"),
        ("yes | python train.py", "a pipe into it"),
        ("[ -f x ] && python train.py", "the test before its &&"),
        ("test -f x || python train.py", "what stands before its ||"),
        ("main() {\n  torchrun train.py\n}\nmain", "a function or group (line 1)"),
        ("if [ $1 ]; then A=2; fi\npython train.py $A", "the value of A is not known"),
        ("python train.py --port $(free_port)", "what another program prints"),
        ("echo hello\npip install torch\npython -m pip list\npython -c 1", "no command in it starts a training"),
    ],
)
def test_what_is_not_simple_is_refused_by_name(text: str, told: str, folder: Path) -> None:
    write(folder, text)
    with pytest.raises(UsageError) as refused:
        launch_from(["bash", "run.sh"])
    assert told in refused.value.message


def test_scripts_call_scripts_up_to_a_depth(folder: Path) -> None:
    write(folder, "bash inner.sh a $1\n", "outer.sh")
    write(folder, 'exec python train.py "$@"\n', "inner.sh")
    assert launch_from(["./outer.sh", "b"]).args == ("a", "b")
    write(folder, "bash run.sh\n")
    with pytest.raises(UsageError, match="call each other"):
        launch_from(["bash", "run.sh"])
    with pytest.raises(NotResolved, match=r"no script 'none\.sh'"):
        launch_from(["bash", "none.sh"])


def test_an_installed_program_is_found_beside_its_interpreter(folder: Path) -> None:
    write(folder, "#!/env/bin/python3\nimport sys\n", "trl")
    assert program_path("trl", str(folder / "python")) == (str(folder / "trl"), "/env/bin/python3")
    write(folder, "#!/bin/sh\n'''exec' \"/a long path/bin/python3.12\" \"$0\" \"$@\"\n' '''\n", "axolotl")
    assert interpreter_of(str(folder / "axolotl")) == "/a long path/bin/python3.12"
    assert launch_from(["./axolotl", "train"]).script == "./axolotl", "no shell script"
    write(folder, "\x7fELF", "ninja")
    with pytest.raises(NotResolved, match="no Python program"):
        program_path("ninja", str(folder / "python"))
    with pytest.raises(NotResolved, match="no program of that name"):
        program_path("no-such-program", str(folder / "python"))


def test_a_headline_has_whole_words() -> None:
    assert in_brief("train.py", ["--lr", "1e-4"]) == "train.py --lr 1e-4"
    long = in_brief("/a/very/long/path/that/nobody/wants/to/read/twice/train.py", [f"--flag{n}=1" for n in range(30)])
    assert (
        long.startswith("…/train.py --flag0=1 ") and long.endswith(" --flag6=1 … (+23 arguments)") and len(long) < 110
    )
