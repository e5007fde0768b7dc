"""A job's page beside its picture: verdict, advice, time, what lies outside the step, and how to make it again."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from tunecast.advise.changes import Change
from tunecast.cli import predict
from tunecast.cli.pages import provenance
from tunecast.door.launchers import without_secrets
from tunecast.job import job_from_dict
from tunecast.job.job import Job
from tunecast.prediction.outside.evaluation import Evaluation
from tunecast.prediction.outside.loading import Loading
from tunecast.prediction.outside.needs import Outside
from tunecast.prediction.outside.saving import Disk, Resuming, Saving
from tunecast.prediction.verdict import Room
from tunecast.report.draw.figures import Figures, LeastCard, LiveBlock
from tunecast.report.draw.job_yaml import job_in_yaml
from tunecast.report.draw.moments import AFTER, Band, Moment, Timeline, steps
from tunecast.report.page.card_bar import card_bar, card_key
from tunecast.report.page.document import Provenance, byline
from tunecast.report.page.job import PageExtras, timeline_html
from tunecast.report.page.outside import outside_panel
from tunecast.report.page.time import stacked_time
from tunecast.report.run.wording import FIELDS, FLAGS
from tunecast.units import GIB, MIB

JOB = Job("gpt2")
OUTSIDE = Outside(
    loading=Loading(GIB, 8 * GIB, 9 * GIB, 10 * GIB, 9 * GIB),
    saving=Saving(8 * GIB, 512),
    disk=Disk(8 * GIB, 16 * GIB, 0, saves=3, kept=3, most=3),
    evaluate=lambda: Evaluation(8, 1024, 4 * GIB, 20 * GIB, 0, None, -2 * GIB),
    resuming=Resuming(16 * GIB, 8 * GIB, 3 * MIB, 5 * MIB),
    process_bytes=GIB,
    training_process_bytes=2 * GIB,
)
TIMELINE = Timeline(
    events=20,
    roles=("weights", "activations"),
    bands=(Band("load", 0, 0, 5), Band("forward", 0, 5, 10), Band("backward", 0, 10, 15), Band("forward", 1, 15, 20)),
    moments=(Moment(2, (4 * GIB, 0), 5 * GIB), Moment(12, (4 * GIB, 5 * GIB), 10 * GIB)),
    peak_event=12,
)
FIGURES = Figures(
    title="train.py",
    allocated_bytes=9 * GIB,
    reserved_bytes=10 * GIB,
    peak_phase="backward",
    peak_step=0,
    breakdown_bytes={"weights": 4 * GIB, "activations": 5 * GIB},
    blocks=(LiveBlock(4 * GIB, "weights", "model.lin", "aten.empty", "/home/me/train.py:3", "load", 0),),
    context_bytes=GIB,
    gpu="l4",
    room=Room(10 * GIB, 19 * GIB // 2, 11 * GIB, 12 * GIB, True),
)
TOO_LARGE = replace(FIGURES, room=Room(14 * GIB, 13 * GIB, 15 * GIB, 12 * GIB, False))
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"' & <!-- ]]>"
MADE = Provenance("tunecast predict gpt2", "9.9", date(2026, 11, 16), "model: gpt2", "follows torch 2.11.0")


class Words(HTMLParser):
    """What a reader sees, and every attribute's name."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.inside, self.words, self.attributes = "", [], set()  # type: str, list[str], set[str]
        self.feed(page)

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.inside = name
        self.attributes |= {key for key, _ in attributes}

    def handle_data(self, data: str) -> None:
        if self.inside not in ("script", "style"):
            self.words.append(data)


def text(page: str) -> str:
    return "".join(Words(page).words)


def test_the_verdict_is_read_off_the_range() -> None:
    assert "fits 2.00 GiB to spare; needs 10.00 GiB (9.5 to 11.0) of the 12.00 GiB PyTorch can use" in text(
        timeline_html(FIGURES, TIMELINE)
    )
    unsure = replace(FIGURES, room=Room(23 * GIB // 2, 11 * GIB, 25 * GIB // 2, 12 * GIB, True))
    page = timeline_html(unsure, TIMELINE)
    assert '<span class="pill warn">may not fit</span> needs 11.50 GiB (11.0 to 12.5) of the 12.00 GiB' in page
    page = timeline_html(TOO_LARGE, TIMELINE)
    assert '<span class="pill bad">does not fit</span> 2.00 GiB over; needs 14.00 GiB (13.0 to 15.0)' in page
    assert "end of the card" in page and "end of the card" not in timeline_html(FIGURES, TIMELINE)


def test_what_belongs_to_the_verdict_stands_with_it() -> None:
    beside = PageExtras(
        remarks=("also needs RAM",), warnings=("evaluation does not fit: 20 GiB",), trust="12 runs measured"
    )
    top = text(timeline_html(FIGURES, TIMELINE, beside)).partition("Memory over the run")[0]
    assert "Also needs RAM" in top and "warning Evaluation does not fit" in top and "12 runs measured" in top


def test_what_was_taken_is_told() -> None:
    page = text(timeline_html(FIGURES, TIMELINE, PageExtras(taken=("batch 8; batch 1: 12 GiB less", "rank 16"))))
    assert "Not given, so takenbatch 8; batch 1: 12 GiB lessrank 16" in page
    assert "Not given" not in timeline_html(FIGURES, TIMELINE)
    assert "Cost: $5.00" in text(timeline_html(FIGURES, TIMELINE, PageExtras(cost="$5.00")))


def change(**overrides: object) -> Change:
    return Change(overrides, JOB, 3 * GIB, "fits")


def test_the_smallest_gpu_and_the_advice_are_there() -> None:
    figures = replace(TOO_LARGE, least_card=LeastCard("a10", 22 * GIB, measured=False))
    tried = change(gradient_checkpointing=True, kernels=["liger"])
    page = text(timeline_html(figures, TIMELINE, PageExtras(changes=(tried,), fit_command="tunecast fit x --gpu l4")))
    for told in (
        "Smallest GPU that fits: A10 (22.00 GiB usable)",
        "What to change first",
        "gradient_checkpointing: true, kernels: [liger]frees 3.00 GiBfits then",
        "tunecast fit x --gpu l4",
    ):
        assert told in page
    fitting = text(timeline_html(FIGURES, TIMELINE, PageExtras(changes=(tried,), fit_command="tunecast fit x")))
    assert "What would free memory" in fitting
    assert "fits then" not in fitting and "tunecast fit" not in fitting
    assert "What" not in text(timeline_html(FIGURES, TIMELINE)).partition("Memory over the run")[0]
    typed = timeline_html(TOO_LARGE, TIMELINE, PageExtras(changes=(change(kernels=["liger"]),), wording=FLAGS))
    assert "--kernels liger" in typed


def test_the_page_tells_how_to_make_it_again() -> None:
    page = timeline_html(FIGURES, TIMELINE, PageExtras(MADE))
    assert byline(MADE) == "tunecast 9.9, 2026-11-16 · follows torch 2.11.0"
    assert byline(MADE) in text(page)
    assert '<pre class="mono">tunecast predict gpt2\n</pre><button type="button" hidden="" class="copy">Copy' in page
    assert '<pre class="mono">model: gpt2\n</pre>' in page


def test_a_line_of_code_has_no_column_where_none_is_known() -> None:
    page = text(timeline_html(FIGURES, TIMELINE))
    assert "Line, module" in page and "train.py:3" in page
    closed = replace(FIGURES, blocks=tuple(block._replace(source="") for block in FIGURES.blocks))
    page = text(timeline_html(closed, TIMELINE))
    assert "line not known" not in page and "Line" not in page and "model.lin" in page


def test_a_bar_has_the_card_to_scale_and_its_key_has_what_is_drawn() -> None:
    """12 GiB of a card of 10: to the scale of 12.5, the high end."""
    parts = {"weights": 4 * GIB, "allocator": 2 * GIB, "context": 0, "optimizer": 6 * GIB}
    bar = card_bar(parts, 10 * GIB, (11 * GIB, 25 * GIB // 2), "label")
    assert re.findall(r"width:([0-9.]*)%", bar) == ["32.000", "48.000", "16.000"]
    assert '<b class="end" style="left:80.000%">' in bar and '<b style="left:88.000%">' in bar
    key = card_key(parts, ends=True)
    assert "weights 4.00 GiB" in key and "cached by the allocator 2.00 GiB" in key and "CUDA context" not in key
    assert "end of the card" in key and "end of the card" not in card_key(parts)
    assert "cached" not in card_key({"weights": GIB, "allocator": 0})


def test_time_is_a_bar_of_its_parts() -> None:
    bar = stacked_time("A step", {"matrix_products": 3.0, "attention": 0.999, "launch": 0.001, "none": 0.0}, {})
    assert re.findall(r"width:([0-9.]*)%", bar) == ["75.000", "24.975"]
    assert "A step: 4 s" in bar and "matrix products 3 s, 75.0 %" in bar and "launch" not in bar
    assert stacked_time("Alone", {"training": 3.0}, {}) == ""


def test_host_memory_and_disk() -> None:
    page = outside_panel(OUTSIDE)
    assert '<dt>Host memory</dt><dd class="number">17.00 GiB' in page
    assert "24.00 GiB<small>weights 8.00 GiB, optimizer 16.00 GiB" in page and "72.00 GiB<small>3 at once" in page
    several = outside_panel(replace(OUTSIDE, machine_ram_bytes=130 * GIB))
    assert "130.00 GiB<small>of each machine, all processes; 17.00 GiB of the first" in several
    parts = outside_panel(replace(OUTSIDE, in_parts=True))
    assert "Evaluation" not in parts and "not known" in parts
    assert outside_panel(None) == ""


def test_what_comes_after_the_last_step_is_no_step() -> None:
    """A script goes on until its next operation: a tab of its own would make three steps four."""
    step = [Band(phase, 0, at, at + 1) for at, phase in enumerate(("forward", "backward", "optimizer", "other"))]
    assert steps([*step, Band("other", 1, 4, 6)]) == [Band("", 0, 0, 4), Band(AFTER, 1, 4, 6)]
    begun = [*step, Band("other", 1, 4, 6), Band("forward", 1, 6, 9)]
    assert steps(begun) == [Band("", 0, 0, 4), Band("", 1, 4, 9)]
    page = timeline_html(FIGURES, replace(TIMELINE, bands=(*step, Band("other", 1, 4, 20))))
    assert re.findall(r"<button type=\"button\" data-begin[^>]*>([^<]*)", page) == []  # but one step: nothing to choose


def test_a_picture_of_many_moments_is_drawn_to_its_end() -> None:
    moments = tuple(Moment(event, ((1 + event % 7) * GIB, 0), 8 * GIB) for event in range(3000))
    page = timeline_html(FIGURES, Timeline(3000, ("weights", "activations"), (), moments, 6))
    (area,) = re.findall(r'<path d="([^"]*)" fill="var\(--weights\)"', page)
    assert area.count("v") == 3000 and area.endswith("H60000V2000Z")


@pytest.mark.whole
def test_the_page_of_a_large_run_stays_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Llama 3.1 70B over 8 cards: 80 layers, gathered and freed one by one in six steps."""
    job = ["llama-3.1-70b", "--method", "lora", "--gpu", "h100-sxm-80gb", "--gpus", "8", "--parallel-data", "fsdp"]
    assert predict.run([*job, "--no-advice", "--short", "--html", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").stat().st_size < 300_000
    assert "fits" in capsys.readouterr().out


def test_axes_and_phases_have_names() -> None:
    page = text(timeline_html(FIGURES, TIMELINE))
    for told in ("GiB on one GPU", "events in order", "F forward", "B backward", "step 0 is the first optimizer step"):
        assert told in page
    assert "O optimizer" not in page  # there is none in this run


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "gpt2"},
        {"model": "llama-3.1-8b", "method": "qlora", "id": "my run: 1", "hardware": {"gpu": "rtx-4090", "gpus": 2}},
        {"model": "llama-3.1-8b", "method": "lora", "lora": {"rank": 64, "targets": ["q_proj", "v_proj"]}},
        {"model": "gpt2", "method": "full", "autocast": None, "lengths": [12, 13], "kernels": ["liger"], "id": "null"},
    ],
)  # fmt: skip
def test_a_job_as_yaml_is_the_job(fields: dict[str, Any]) -> None:
    job = job_from_dict(fields)
    written = job_in_yaml(job)
    assert job_from_dict(yaml.safe_load(written)) == job
    assert len(written.splitlines()) < 12


def test_a_long_list_is_counted() -> None:
    assert "# lengths: 100 values, left out here" in job_in_yaml(job_from_dict({"model": "gpt2", "lengths": [7] * 100}))


def test_the_command_is_told_without_its_secrets() -> None:
    argv = ["--gpu", "l4", "--", "train.py", "--hf-token", "abc", "--api_key=xyz", "--tokens", "5", "--token"]
    assert without_secrets(argv)[4:] == ["--hf-token", "***", "--api_key=***", "--tokens", "5", "--token"]
    assert provenance("trace", ["--gpu", "a b"]).command == "tunecast trace --gpu 'a b'"


def test_nothing_beside_becomes_markup() -> None:
    made = Provenance(EVIL, EVIL, date(2026, 11, 16), EVIL, EVIL)
    tried = Change({EVIL: EVIL}, JOB, GIB, "fits")
    beside = PageExtras(made, None, OUTSIDE, (tried,), EVIL, FIELDS, (EVIL,), EVIL, (EVIL,), (EVIL,), EVIL)
    figures = replace(TOO_LARGE, least_card=LeastCard(EVIL, GIB, measured=False), warnings=(EVIL,))
    page = timeline_html(figures, TIMELINE, beside)
    assert not [name for name in Words(page).attributes if name.startswith("on")]
    assert page.count("<script") == 2 and "<img" not in page and "<!--" not in page


def colours_in(css: str) -> list[dict[str, str]]:
    """In light and in dark, by name."""
    blocks = re.findall(r":root(?:\[data-theme=dark\])? \{(.*?)\}", css, re.DOTALL)
    return [dict(re.findall(r"--([a-z0-9_-]+): (#[0-9a-f]{6});", block)) for block in blocks]


def test_reports_have_the_colours_of_the_page() -> None:
    root = Path(__file__).parents[2]
    reports = colours_in((root / "src/tunecast/report/page/timeline.css").read_text("utf-8"))
    page = colours_in((root / "web/src/page.css").read_text("utf-8"))
    assert len(reports) == len(page) == 2 and all(len(each) > 15 for each in reports)
    for mine, its in zip(reports, page, strict=True):
        assert mine == {name: its[name] for name in mine}
