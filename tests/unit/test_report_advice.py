"""Changes that were tried, as lines a job's file could hold."""

from __future__ import annotations

from tunecast.advise.changes import Change
from tunecast.advise.suggestions import best_of
from tunecast.job.job import Job
from tunecast.prediction.verdict import Verdict
from tunecast.report.draw.text import Terminal
from tunecast.report.run.advice import advice_text
from tunecast.report.run.wording import FLAGS, as_flags, with_flags
from tunecast.units import GIB, MIB

JOB = Job("gpt2")


def change(saves_bytes: int, verdict: Verdict = "fits", **overrides: object) -> Change:
    return Change(overrides, JOB, saves_bytes, verdict)


CHANGES = [
    change(12 * GIB + 300 * MIB, gradient_checkpointing=True),
    change(0, kernels=["liger"]),
    change(2 * GIB, "may not fit", seq_len=512),
    change(GIB, "does not fit", micro_batch=4, grad_accum=2),
]


def test_a_line_a_change() -> None:
    """Of a job's file its fields, of a job given by flags its flags."""
    assert advice_text(CHANGES, verdict="does not fit").splitlines() == [
        "What to change first",
        "  gradient_checkpointing: true   frees 12.29 GiB, fits then",
        "  kernels: [liger]               fragments memory less, fits then",
        "  seq_len: 512                   frees 2.00 GiB, may fit then",
        "  micro_batch: 4, grad_accum: 2  frees 1.00 GiB, not enough alone",
    ]
    assert advice_text(CHANGES, verdict="does not fit", wording=FLAGS).splitlines()[1:] == [
        "  --gradient-checkpointing        frees 12.29 GiB, fits then",
        "  --kernels liger                 fragments memory less, fits then",
        "  --seq-len 512                   frees 2.00 GiB, may fit then",
        "  --micro-batch 4 --grad-accum 2  frees 1.00 GiB, not enough alone",
    ]


def test_where_no_change_is_enough_the_next_command_is_printed() -> None:
    command = "tunecast fit gpt2 --gpu l4"
    *_, told, last = advice_text(CHANGES[2:], verdict="does not fit", fit=command).splitlines()
    assert told == "  no single change is enough; for the smallest combination that fits:" and last == f"    {command}"
    *_, told, last = advice_text(CHANGES, verdict="does not fit", fit=command).splitlines()
    assert "no single change" not in told and last == f"    {command}"
    assert advice_text([], verdict="does not fit", fit=command).splitlines()[0] == "What to change first"


def test_of_a_job_that_fits_nothing_is_said_of_fitting() -> None:
    title, line = advice_text([change(GIB, seq_len=512)], verdict="fits").splitlines()
    assert (title, line) == ("What would free memory", "  seq_len: 512  frees 1.00 GiB")
    faster = advice_text([], verdict="fits", fit="tunecast fit gpt2")
    assert faster == "What would make it faster\n  tunecast fit gpt2"


def test_sentences_name_flags_to_somebody_who_types() -> None:
    assert with_flags("with a bridge: hardware.interconnect: nvlink4") == "with a bridge: --interconnect nvlink4"
    assert with_flags("set yours with hardware.inter_node_gbps") == "set yours with --inter-node-gbps"
    assert with_flags("(data.num_proc; data.prepared skips it)") == "(--num-proc; --prepared skips it)"
    for other in ("transformers.Trainer: 5.17", "config.json", "torch.compile lowers it"):
        assert with_flags(other) == other


def test_flags_are_quoted_for_the_shell() -> None:
    given = {"model": "./my model", "hardware.gpu": "4090", "lora.dora": False, "lora": None}
    assert as_flags(given) == "--model './my model' --gpu 4090 --no-dora --set lora=null"


def test_nothing_helps() -> None:
    assert advice_text([], verdict="does not fit") == ""


def test_the_best_of_each_field() -> None:
    eight = change(8 * GIB, optimizer="adamw_8bit")
    paged = change(9 * GIB, optimizer="paged_adamw_8bit")
    shorter = change(4 * GIB, seq_len=512)
    assert best_of([paged, eight, shorter], 100 * GIB, verdict="fits") == [paged, shorter]
    assert best_of([paged, eight, shorter], 100 * GIB, verdict="fits", most=1) == [paged]


def test_what_frees_next_to_nothing_is_left_out_unless_it_makes_the_job_fit() -> None:
    little = change(GIB // 2, allocator="expandable_segments")
    assert best_of([little], 100 * GIB, "fits") == []
    assert best_of([little], 100 * GIB, verdict="does not fit") == [little]
    assert best_of([change(GIB // 2, "does not fit", seq_len=9)], 100 * GIB, verdict="does not fit") == []


def test_long_changes_take_two_lines_in_a_narrow_terminal() -> None:
    names = {"quantization.prepare_kbit": False, "gradient_checkpointing": True, "optimizer": "paged_adamw_8bit"}
    text = advice_text(
        [change(GIB, "does not fit", **names)], Terminal(width=72, unicode=False), verdict="does not fit"
    )
    assert len(text.splitlines()) == 3
    assert text.isascii()
