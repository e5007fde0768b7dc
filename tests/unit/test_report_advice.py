"""Changes that were tried, as lines a job's file could hold."""

from __future__ import annotations

from tunecast.job.job import Job
from tunecast.predict.changes import Change
from tunecast.report.advice import advice_text, best_of
from tunecast.report.text import Terminal
from tunecast.units import GIB, MIB

JOB = Job("gpt2")


def change(saves_bytes: int, fits: bool = True, **overrides: object) -> Change:
    return Change(overrides, JOB, saves_bytes, fits)


def test_a_line_a_change() -> None:
    changes = [
        change(12 * GIB + 300 * MIB, gradient_checkpointing=True),
        change(GIB, fits=False, micro_batch=4, grad_accum=2),
        change(0, kernels=["liger"]),
    ]
    assert advice_text(changes, fitted=False).splitlines() == [
        "Which line to attack first",
        "  gradient_checkpointing: true   frees 12.29 GiB, fits then",
        "  micro_batch: 4, grad_accum: 2  frees 1.00 GiB, not enough by itself",
        "  kernels: [liger]               cuts memory up better, fits then",
    ]


def test_of_a_job_that_fits_nothing_is_said_of_fitting() -> None:
    assert advice_text([change(GIB, seq_len=512)], fitted=True).splitlines()[1] == "  seq_len: 512  frees 1.00 GiB"


def test_nothing_helps() -> None:
    assert advice_text([], fitted=False) == ""


def test_the_best_of_each_field() -> None:
    eight = change(8 * GIB, optimizer="adamw_8bit")
    paged = change(9 * GIB, optimizer="paged_adamw_8bit")
    shorter = change(4 * GIB, seq_len=512)
    assert best_of([paged, eight, shorter], 100 * GIB, fitted=True) == [paged, shorter]
    assert best_of([paged, eight, shorter], 100 * GIB, fitted=True, most=1) == [paged]


def test_what_frees_next_to_nothing_is_left_out_unless_it_makes_the_job_fit() -> None:
    little = change(GIB // 2, fits=True, allocator="expandable_segments")
    assert best_of([little], 100 * GIB, fitted=True) == []
    assert best_of([little], 100 * GIB, fitted=False) == [little]
    assert best_of([change(GIB // 2, fits=False, seq_len=9)], 100 * GIB, fitted=False) == []


def test_long_changes_take_two_lines_in_a_narrow_terminal() -> None:
    names = {"quantization.prepare_kbit": False, "gradient_checkpointing": True, "optimizer": "paged_adamw_8bit"}
    text = advice_text([change(GIB, fits=False, **names)], Terminal(width=72, unicode=False), fitted=False)
    assert len(text.splitlines()) == 3
    assert text.isascii()
