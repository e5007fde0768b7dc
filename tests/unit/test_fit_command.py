"""`tunecast fit` as a shell sees it. A row takes 4 GiB, 1 where it is recomputed; LoRA takes 1 GiB, all weights 8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunecast.cli import fit as command
from tunecast.cli import main as cli
from tunecast.hardware import gpu
from tunecast.job.job import Job
from tunecast.job.model import resolve_model
from tunecast.prediction import engines
from tunecast.prediction.on_card import job_on_card
from tunecast.prediction.prediction import Prediction
from tunecast.prediction.values import Time, Timing
from tunecast.tape.op import Alloc, Role, Tape
from tunecast.units import GIB

pytestmark = pytest.mark.whole

TEXT = """\
model: gpt2   # small
micro_batch: 1
gradient_checkpointing: false
hardware:
  gpu: h200
"""


def predicted(job: Job, **_: Any) -> Prediction:
    need = (8 if job.method == "full" else 1) + job.micro_batch * (1 if job.gradient_checkpointing else 4)
    held = job_on_card(
        job, gpu(job.hardware.gpu), Tape((Alloc(0, need * GIB, Role.WEIGHTS),), versions={"torch": "2.11.0"})
    )
    step_s = 1.25 if job.gradient_checkpointing else 1.0
    time = Time(step_s, step_s, step_s, 1000 / step_s, 1000 / step_s, None, "compute", {})
    return Prediction(job, resolve_model(job.model), held, clock=lambda _: Timing(time))


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    def run(*argv: str) -> tuple[int, str, str]:
        code = cli.main(["fit", *argv])
        out, err = capsys.readouterr()
        return code, out, err

    monkeypatch.setattr(engines, "predict", predicted)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(TEXT, encoding="utf-8")
    return run


def capacity(gib: float) -> tuple[str, str]:
    return "--capacity-bytes", str(int(gib * GIB))


def test_what_to_change_and_the_patch(shell: Any) -> None:
    code, out, err = shell("job.yaml", *capacity(10), "--details")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "gpt2, full fine-tune, 1 x 1,024 tokens on 1 x H200 SXM 141 GB",
        "  does not fit as it is: needs 12.00 of 10.00 GiB (up to 12.01); 1 s per step",
        "",
        "Smallest change that makes it fit (same mathematics)",
        "  gradient_checkpointing: true  frees 3.00 GiB, 25 % more time",
        "  then it fits: needs 9.00 of 10.00 GiB (up to 9.01); 1.25 s per step",
        "",
        "Changes what is trained (not needed; enable with --allow)",
        "  method: lora   frees 7.00 GiB, same time, fits then",
        "  method: qlora  frees 7.00 GiB, same time, fits then",
        "  LoRA at usual ranks learned less than full finetuning in programming and mathematics, and forgot",
        "    less (Biderman et al., LoRA Learns Less and Forgets Less, TMLR 2024, arXiv:2405.09673)",
        "  4-bit weights under adapters kept the results of 16-bit finetuning in its authors' tests (Dettmers",
        "    et al., QLoRA, 2023, arXiv:2305.14314)",
        "",
        "--- job.yaml",
        "+++ job.yaml",
        "@@ -1,5 +1,5 @@",
        " model: gpt2   # small",
        " micro_batch: 1",
        "-gradient_checkpointing: false",
        "+gradient_checkpointing: true",
        " hardware:",
        "   gpu: h200",
    ]


def test_a_model_gets_flags(shell: Any) -> None:
    code, out, _ = shell("gpt2", "--micro-batch", "1", "--no-gradient-checkpointing", "--gpu", "h200", *capacity(10))
    assert code == 0
    assert "per step\n\nAdd\n  --gradient-checkpointing\n\nChanges what is trained" in out


def test_advice_is_in_flags_for_flags_and_in_yaml_for_a_file(shell: Any) -> None:
    by_flags = shell("gpt2", "--micro-batch", "1", "--no-gradient-checkpointing", "--gpu", "h200", *capacity(10))[1]
    assert "  --gradient-checkpointing  frees 3.00 GiB" in by_flags and "  --method lora " in by_flags
    by_file = shell("job.yaml", *capacity(10))[1]
    assert "  gradient_checkpointing: true  frees 3.00 GiB" in by_file and "  method: lora " in by_file


def test_in_one_line(shell: Any) -> None:
    code, out, _ = shell("job.yaml", *capacity(10), "--short")
    assert (code, out.count("\n")) == (0, 1)
    title = "gpt2, full fine-tune, 1 x 1,024 tokens on 1 x H200 SXM 141 GB"
    verdict = f"{title}: does not fit, 12.00 of 10.00 GiB (up to 12.01); "
    assert out == f"{verdict}fits with gradient_checkpointing: true: 9.00 of 10.00 GiB (up to 9.01), 25 % more time\n"
    assert "no change makes it fit" in shell("job.yaml", *capacity(1.5), "--short")[1]


def test_what_was_published_is_a_detail(shell: Any) -> None:
    assert "arXiv" in shell("job.yaml", *capacity(10), "--details")[1]
    assert "arXiv" not in shell("job.yaml", *capacity(10))[1]


def test_only_the_patch(shell: Any) -> None:
    code, out, _ = shell("job.yaml", *capacity(10), "--patch")
    assert code == 0
    assert out.startswith("--- job.yaml\n+++ job.yaml\n@@ ")
    assert Path("job.yaml").read_text("utf-8") == TEXT


def test_the_file_is_changed(shell: Any) -> None:
    code, out, err = shell("job.yaml", *capacity(10), "--write")
    assert code == 0
    assert "+gradient_checkpointing: true" in out
    assert "job.yaml.orig" in err
    assert Path("job.yaml").read_text("utf-8") == TEXT.replace("false", "true")
    assert Path("job.yaml.orig").read_text("utf-8") == TEXT


def test_other_training_is_not_written_unasked(shell: Any) -> None:
    code, _, err = shell("job.yaml", *capacity(6), "--write")
    assert code == 2
    assert "--allow method" in err
    assert "only other training fits: " in shell("job.yaml", *capacity(6), "--patch")[2]
    assert Path("job.yaml").read_text("utf-8") == TEXT
    assert shell("job.yaml", *capacity(6), "--write", "--allow", "method")[0] == 0
    assert "method: lora" in Path("job.yaml").read_text("utf-8")


def test_a_flag_that_would_win_over_the_file(shell: Any) -> None:
    code, out, _ = shell("job.yaml", "--micro-batch", "4", "--gradient-checkpointing", *capacity(10))
    assert code == 0
    assert out.endswith("and leave out --micro-batch, which would win over the file\n")
    assert "+grad_accum: 4" in out


def test_json(shell: Any) -> None:
    code, out, _ = shell("job.yaml", *capacity(10), "--json")
    said = json.loads(out)
    assert code == 0
    assert said["schema"] == "tunecast.fit/1"
    assert (said["fits"], said["question"]) == (True, "fits")
    assert said["before"]["needs_bytes"] == 12 * GIB
    assert said["chosen"]["changes"] == [
        {
            "set": {"gradient_checkpointing": True},
            "harm": "same",
            "frees_bytes": 3 * GIB,
            "more_time_fraction": 0.25,
            "unpriced": None,
            "note": None,
            "quality": [],
        }
    ]
    assert said["chosen"]["prediction"]["schema"] == "tunecast.prediction/1"
    assert said["chosen"]["job"]["gradient_checkpointing"] is True
    assert said["patch"].startswith("--- job.yaml")


def test_one_that_fits_is_made_faster(shell: Any) -> None:
    code, out, _ = shell("job.yaml", "--gradient-checkpointing", *capacity(40))
    assert code == 0
    assert "  fits as it is: needs 9.00 of 40.00 GiB (up to 9.01); 1.25 s per step\n" in out
    assert "What makes it faster (same mathematics)\n" in out
    assert "  gradient_checkpointing: false  takes 3.00 GiB more, 20 % less time\n" in out


def test_nothing_to_change(shell: Any) -> None:
    code, out, err = shell("job.yaml", *capacity(40), "--patch")
    assert (code, out, err) == (0, "", "tunecast: nothing to change\n")
    assert "2 % faster" in shell("job.yaml", *capacity(40))[1]


def test_nothing_fits(shell: Any) -> None:
    code, out, _ = shell("job.yaml", *capacity(1.5))
    assert code == 3
    assert "No change makes it fit this hardware\n" in out
    assert " is the smallest card with the 12.00 GiB it needs as it is\n" in out
    code, out, _ = shell("job.yaml", *capacity(1.5), "--json")
    said = json.loads(out)
    assert (code, said["fits"], said["chosen"]) == (3, False, None)
    assert [each["harm"] for each in said["would_do"]["least_cards"]] == ["same", "rounded", "other"]


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (("gpt2", "--patch"), 2, "--patch: gpt2 is no job file"),
        (("job.yaml", "--allow", "metod"), 2, "nearest: method"),
        (("job.yaml", "--patch", "--write"), 2, "not allowed with"),
        (("missing.yaml",), 5, "no such file"),
        ((), 2, "JOB"),
    ],
)
def test_refusals(shell: Any, argv: tuple[str, ...], code: int, told: str) -> None:
    got, out, err = shell(*argv)
    assert (got, out) == (code, "")
    assert told in err


def test_a_file_that_cannot_be_patched(shell: Any) -> None:
    text = TEXT.replace("checkpointing: false", "checkpointing: &off false") + "compile: *off\n"
    Path("job.yaml").write_text(text, encoding="utf-8")
    code, out, _ = shell("job.yaml", *capacity(10))
    assert code == 0
    assert out.endswith("job.yaml cannot be changed in its place; set there\n  gradient_checkpointing: true\n")
    code, out, err = shell("job.yaml", *capacity(10), "--write")
    assert (code, out) == (5, "")
    assert "set there gradient_checkpointing: true" in err
    assert Path("job.yaml").read_text("utf-8") == text


def test_help_teaches() -> None:
    told = command.parser().format_help()
    assert "patch -p0" in told
    assert "--allow" in told
