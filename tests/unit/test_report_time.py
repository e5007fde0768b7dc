"""The section on time of the terminal's report, and the sentences in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tunecast.job import Job, job_from_dict
from tunecast.prediction.time.reasons import host_needs, parts_told, reasons, whole_reasons
from tunecast.prediction.time.runtime import StepTime
from tunecast.prediction.values import CodeLine, Energy, HostNeeds, Time, Utilization
from tunecast.report.draw.text import Terminal
from tunecast.report.page.time import time_panel
from tunecast.report.run.time import duration, host_words, line_rows, time_text

TIME = Time(
    step_s=1.25,
    low_s=1.1,
    high_s=1.4,
    tokens_per_s=26_214.4,
    tokens_per_s_per_gpu=3_276.8,
    total_s=7300.0,
    total_range_s=(6500.0, 8100.0),
    steps=5600,
    bound_by="compute",
    breakdown_s={"products": 1.25},
    phases_s={"download": 53.0, "load": 0.0, "training": 7247.0},
    padding_fraction=0.31,
    why=("compute-bound: matmuls 100 %",),
    missing=("evaluation (data.eval_samples is not given)",),
)
UTILIZATION = Utilization(0.41, 0.55, 1e14, 0.98, 0.3, 0.0, HostNeeds(8, 16 * 2**30))
ENERGY = Energy(12.345, (8.0, 150.0), 4.2, "DE", "")


def job(**fields: Any) -> Job:
    return job_from_dict({"model": "gpt2", **fields})


def step(bound_by: str, **more: Any) -> StepTime:
    parts = {"matrix_products": 0.6, "memory_bound": 0.3, "launch": 0.1}
    return replace(StepTime(1.0, 1.0, 1.0, parts, bound_by, 0.9, 0.5, 1, 1, 0.0), **more)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.0458, "0.0458 s"), (9.5, "9.5 s"), (42.13, "42.1 s"), (60, "1 min"), (200, "3 min 20 s"), (3600, "1 h"),
     (18_750, "5 h 12 min"), (86_400, "24 h"), (93_096, "25 h 51 min"),
     (172_800, "48 h"), (176_400, "2 d 1 h"), (274_000, "3 d 4 h")],
)  # fmt: skip
def test_durations(seconds, told):
    assert duration(seconds) == told


def test_a_line_that_is_computed_again_in_the_backward_pass_is_one_row():
    """There nobody called it."""
    folder = "/v/lib/site-packages/transformers"
    lines = (CodeLine(f"train.py:9 > {folder}/a.py:4", 0.3, 0.3), CodeLine(f"{folder}/b.py:7", 0.4, 0.4),
             CodeLine(f"{folder}/a.py:4", 0.2, 0.2))  # fmt: skip
    assert line_rows(replace(TIME, lines=lines)) == [
        ("0.5 s", "50 %", "transformers/a.py:4"),
        ("0.4 s", "40 %", "transformers/b.py:7"),
    ]


def test_the_whole_section():
    text = time_text(TIME, UTILIZATION, ENERGY, Terminal(width=100), details=True)
    assert text.splitlines() == [
        "Time",
        "  per step      1.25 s  1.1 s to 1.4 s",
        "  tokens/s      26,214  3,277 per GPU, 31 % of a batch is padding",
        "  whole job  2 h 1 min  1 h 48 min to 2 h 15 min; 5,600 steps",
        "",
        "  phase                  time   share",
        "  downloading the model  53 s   0.7 %",
        "  training                2 h  99.3 %",
        "",
        "  compute-bound: matmuls 100 %",
        "  MFU 41 % (55 % counting recomputation), GPU busy 98 % of the time, memory bandwidth 30 % used",
        "  energy: 12.3 kWh (8 to 150), 4.2 kg of CO2 in DE",
        "  not included: evaluation (data.eval_samples is not given)",
    ]


def test_the_short_section_names_only_the_phases_that_take_long():
    slow = replace(TIME, phases_s={"preparation": 700.0, "load": 9.0, "training": 6600.0})
    told = time_text(slow, UTILIZATION, replace(ENERGY, co2_kg=None), hint="--samples N")
    assert "  of the whole job: preparing the data 11 min 40 s" in told.splitlines()
    assert "phase  " not in told and "energy" not in told and "--samples" not in told
    assert "of the whole job" not in time_text(TIME)
    unknown = time_text(replace(TIME, total_s=None), hint="--samples N", fits=False)
    assert unknown.startswith("Time, if it had the memory\n") and unknown.endswith("\n  --samples N")


def test_what_a_host_needs_in_words():
    assert host_words(UTILIZATION) == ["host needs 16.00 GiB of RAM, 8 CPU cores"]
    assert host_words(replace(UTILIZATION, host=HostNeeds(1))) == ["host needs 1 CPU core"]
    drives = replace(UTILIZATION, host=HostNeeds(2, 2**30, 2**40))
    assert host_words(drives) == ["host needs 1.00 GiB of RAM, 2 CPU cores, 1024.00 GiB of NVMe"]
    assert host_words(None) == []


def test_what_was_not_computed_is_not_shown():
    assert time_text(None) == ""
    bare = Time(1.25, 1.1, 1.4, None, None, None, "compute", {"products": 1.25})
    text = time_text(bare)
    assert text.splitlines() == ["Time", "  per step  1.25 s  1.1 s to 1.4 s"]
    assert "CO2" in time_text(bare, None, replace(ENERGY, co2_kg=None, country=None), details=True)


def test_small_jobs_have_small_units():
    small = replace(ENERGY, kwh=0.0085, range=(0.004, 0.015), co2_kg=0.000376)
    assert "  energy: 8.5 Wh (4 to 15), 0.376 g of CO2 in DE" in time_text(TIME, None, small).splitlines()


def test_parts_of_a_step():
    assert parts_told({"matrix_products": 6.0, "memory_bound": 3.0, "launch": 0.9, "optimizer": 0.1}) == (
        "matmuls 60 %, memory-bound ops 30 %, GPU waiting for the host 9 %"
    )


def test_a_launch_bound_step_says_which_batch_is_free():
    told = reasons(job(micro_batch=1), step("launch", cpu_s=0.2, gpu_busy_s=0.05, kernels=10_464), 32)
    assert told == [
        "launch-bound: the host needs 0.20 s to launch 10,464 kernels per step (327 per layer), the GPU 0.05 s to run "
        "them; micro_batch 4 would take about as long; torch.compile lowers it"
    ]


def test_why_lora_is_not_much_faster():
    [_, why] = reasons(job(method="lora"), step("compute"))
    assert "6 of 8 FLOPs" in why
    [_, why] = reasons(job(method="lora", gradient_checkpointing=False), step("compute"))
    assert "4 of 6 FLOPs" in why
    assert len(reasons(job(), step("compute"))) == 1
    assert any("dequantized 3 x per micro-batch" in why for why in reasons(job(method="qlora"), step("memory")))


def test_a_step_that_waits_for_the_host_is_bound_by_no_figure_of_the_card():
    parts = {"offload": 0.8, "matrix_products": 0.2}
    [told] = reasons(job(), step("memory", breakdown_s=parts))
    assert told == "offload-bound: offload copies and the optimizer on the CPU 80 %, matmuls 20 %"


def test_padding_and_waiting_are_told():
    [_, why] = reasons(job(), step("compute"), None, 0.4)
    assert why == "40 % of the compute is padding: group_by_length or packing saves most of it"
    [_, why] = reasons(job(data={"group_by_length": True}), step("compute", breakdown_s={"a": 0.7, "waiting": 0.3}))
    assert why == "GPUs wait 30 % of a step for the one with the longest rows: packing evens them out"


def test_many_new_lengths_are_told():
    spent = {"new_lengths": 10.0, "training": 90.0}
    [why] = whole_reasons(job(), spent)
    assert why.startswith("10 % of the job goes to cuDNN planning attention for new sequence lengths")
    assert whole_reasons(job(data={"pad_to_multiple_of": 64}), spent) == []
    assert whole_reasons(job(), {"new_lengths": 1.0, "training": 99.0}) == []


def test_an_idle_card_is_told():
    assert reasons(job(), step("compute", gpu_busy_s=0.7))[0].endswith("; the GPU is idle 30 % of the step")
    assert reasons(job(), step("communication", communication_s=0.5))[0].startswith("communication-bound: 0.50 s")


def test_what_a_machine_needs():
    made = job(hardware={"gpus": 8, "nodes": 2}, data={"workers": 3})
    assert host_needs(made, None).to_dict() == {"cpu_cores": 32, "ram_bytes": None}


def test_the_page_shows_the_same():
    panel = time_panel(TIME, UTILIZATION, replace(ENERGY, country="<b>"))
    for told in ("Time", "1.25 s", "downloading the model", "99.3 %", "4.2 kg of CO2 in &lt;b&gt;", "41 %"):
        assert told in panel
    assert time_panel(None, None, None) == ""
