"""What a type checker knows of the public functions: figures are numbers, all the way down."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from subprocess import run

import pytest

import tunecast

ROOT = Path(__file__).parents[2]
TYPES = {
    "job.hardware.gpus": "int",
    "p.fits": "bool",
    "p.memory.device_bytes": "int",
    "p.time": "tunecast.prediction.values.Time | None",
    "p.time.step_s": "float",
    "p.time.total_s": "float | None",
    "plan.picks['cheapest'].total_usd": "float",
    "plan.picks['cheapest'].total_s": "float",
    "plan.picks['cheapest'].offer.provider": "str",
    "plan.picks['cheapest'].cost.lines[0].usd": "float",
    "plan.picks['deadline']": "tunecast.planning.choice.Choice | None",
    "plan.best": "tunecast.planning.choice.Choice | None",
    "plan.pareto[0].hardware": "str",
    "fit.changes[0].frees_bytes": "int | None",
    "fit.job": "tunecast.job.job.Job",
    "compared.steps[0].costs_bytes['device_bytes']": "int",
    "most.longest_sequence[0].seq_len": "int | None",
    "offers.offers[0].usd_per_gpu_hour": "float",
    "traced.trace.finished": "bool",
    "cards.gpus[0].memory_bytes": "int",
    "runs.runs[0].memory_ratio": "float | None",
    "runs.count": "int",
}
PROGRAM = """\
import tunecast

job = tunecast.read("job.yaml", gpu="rtx-4090")
p = tunecast.predict(job)
plan = tunecast.plan(job, within="6h", eu=True, provider=["verda", "nebius"])
fit = tunecast.fit(job, allow="method")
compared = tunecast.compare(job, "other.yaml")
most = tunecast.largest(job)
offers = tunecast.offers("h100", eu=True)
traced = tunecast.trace(["train.py", "--x"])
cards = tunecast.gpus()
runs = tunecast.runs(gpu="rtx-4090", since="30d", limit=5)
"""


@pytest.mark.skipif(find_spec("mypy") is None, reason="needs mypy")
def test_types_of_the_public_names(tmp_path: Path) -> None:
    asked = [name for name in TYPES if not name.startswith("p.time.")]
    inner = [name for name in TYPES if name.startswith("p.time.")]
    program = tmp_path / "program.py"
    lines = [*(f"reveal_type({name})" for name in asked), "assert p.time is not None"]
    program.write_text("\n".join([PROGRAM, *lines, *(f"reveal_type({name})" for name in inner)]))
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import tunecast\n\ntunecast.plan('gpt2', wihtin='6h')\ntunecast.plan('gpt2', eu='yes')\n")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        f"--cache-dir={tmp_path}",
        "--config-file=",
        "--follow-imports=silent",
    ]
    told = run([*command, str(program), str(wrong)], capture_output=True, text=True, cwd=ROOT / "src", check=False)
    found = re.findall(r'Revealed type is "([^"]+)"', told.stdout)
    known = [each.replace("builtins.", "").replace("Union[", "").rstrip("]?") for each in found]
    assert dict(zip([*asked, *inner], known, strict=True)) == TYPES, told.stdout
    assert len(re.findall(r"wrong\.py:\d+: error", told.stdout)) == 2, told.stdout
    assert told.stdout.count("error") == 3, told.stdout  # those two, and the line that counts them


def test_every_public_name_is_typed_and_there() -> None:
    text = (ROOT / "src" / "tunecast" / "__init__.py").read_text(encoding="utf-8")
    imported = set(re.findall(r"import (\w+) as \1$", text, re.MULTILINE))
    assert imported == set(tunecast.__all__) - {"__version__"}
    assert all(getattr(tunecast, name) is not None for name in tunecast.__all__)
    assert (ROOT / "src" / "tunecast" / "py.typed").exists()
