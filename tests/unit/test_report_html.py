"""The page of a hand-made run: its numbers, its picture, and that nothing a script is called can become markup."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

from tunecast.prediction.verdict import Room
from tunecast.report.draw.figures import Figures, LiveBlock
from tunecast.report.draw.moments import Band, Moment, Timeline, steps
from tunecast.report.page.chart import stacked
from tunecast.report.page.job import timeline_html
from tunecast.report.page.markup import Markup, breakable, tag
from tunecast.units import GIB

ROLES = ("weights", "activations", "temporaries")
TIMELINE = Timeline(
    events=20,
    roles=ROLES,
    bands=(Band("load", 0, 0, 5), Band("forward", 0, 5, 10), Band("backward", 0, 10, 15), Band("forward", 1, 15, 20)),
    moments=(
        Moment(2, (4 * GIB, 0, 0), 5 * GIB, "aten.empty", "model", "/home/me/train.py:3"),
        Moment(7, (4 * GIB, 2 * GIB, 0), 7 * GIB, "aten.mm", "model.lin", "/home/me/train.py:8"),
        Moment(12, (4 * GIB, 2 * GIB, 3 * GIB), 10 * GIB, "aten.mm", "model.lin"),
        Moment(18, (4 * GIB, 0, 0), 10 * GIB),
    ),
    peak_event=12,
)
BLOCK = LiveBlock(4 * GIB, "weights", "model.lin", "aten.empty", "/home/me/train.py:3", "load", 0)
FIGURES = Figures(
    title="train.py",
    allocated_bytes=9 * GIB,
    reserved_bytes=10 * GIB,
    peak_phase="backward",
    peak_step=0,
    breakdown_bytes={"weights": 4 * GIB, "activations": 2 * GIB, "temporaries": 3 * GIB},
    modules={"model.lin": 9 * GIB},
    blocks=(BLOCK,),
    context_bytes=GIB,
    gpu="l4",
    room=Room(9 * GIB, 9 * GIB, 10 * GIB, 12 * GIB, fits=True),
    smallest_capacity_bytes=9 * GIB,
)


class Outline(HTMLParser):
    """Elements, attributes and text as a browser would see them; fails on elements that do not close in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)
        self.close()
        assert self.opened == []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += [(name, key, value) for key, value in attributes]
        if name not in ("meta", "wbr"):
            self.opened.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.opened.pop() == name

    def handle_data(self, text: str) -> None:
        if self.opened:
            self.texts.append((self.opened[-1], text))

    def all_text(self) -> str:
        return "".join(text for name, text in self.texts if name not in ("script", "style"))


def data_of(page: str) -> Any:
    return json.loads(next(text for name, text in Outline(page).texts if name == "script"))


def test_the_headline_numbers_are_there() -> None:
    text = Outline(timeline_html(FIGURES, TIMELINE)).all_text()
    for number in ("9.00 GiB", "10.00 GiB", "11.00 GiB", "3.00 GiB to spare", "in backward of step 0"):
        assert number in text
    assert "aten.empty" in text and "train.py:3" in text


def test_the_picture_has_an_area_a_role_and_the_two_lines() -> None:
    """Top of the chart: 12 GiB and 7 % more. So reserved ends at 2000 - 2000 x 10 / 12.84 = 442."""
    outline = Outline(timeline_html(FIGURES, TIMELINE))
    fills = [value for name, key, value in outline.attributes if name == "path" and key == "fill"]
    assert fills == ["var(--temporaries)", "var(--activations)", "var(--weights)"]
    reserved = [value for name, key, value in outline.attributes if name == "path" and key == "d"][-1]
    assert reserved == "M0,2000h6000v-779h15000v-311h15000v-468H60000"
    assert ("line", "class", "capacity") in outline.attributes


def test_a_card_far_above_the_run_does_not_flatten_it() -> None:
    outline = Outline(
        timeline_html(
            dataclasses.replace(FIGURES, room=Room(9 * GIB, 9 * GIB, 10 * GIB, 100 * GIB, fits=True)), TIMELINE
        )
    )
    assert ("line", "class", "capacity") not in outline.attributes
    assert "↑ L4: 100.00 GiB" in outline.all_text()


def test_the_pointer_gets_the_values_back() -> None:
    data = data_of(timeline_html(FIGURES, TIMELINE))

    def sums(differences: list[int], unit: int = data["unit"]) -> list[int]:
        return [unit * sum(differences[: n + 1]) for n in range(len(differences))]

    assert sums(data["event"], 1) == [2, 7, 12, 18]
    assert data["unit"] == GIB
    assert sums(data["reserved"]) == [5 * GIB, 7 * GIB, 10 * GIB, 10 * GIB]
    assert sums(data["roles"][2]) == [0, 0, 3 * GIB, 0]
    assert data["text"][data["op"][1]] == "aten.mm" and data["text"][data["source"][1]] == "/home/me/train.py:8"
    assert data["peak"] == 2
    assert data["bands"][2] == ["backward", 0, 10, 15, "in backward of step 0"]


def test_roles_are_stacked_in_a_fixed_order() -> None:
    """Whatever order the roles come in, what stays lies below what comes and goes; an unknown one is on top."""
    mixed = Timeline(2, ("temporaries", "new", "weights"), (), (Moment(1, (1, 2, 3), 6),), 1)
    assert stacked(mixed).roles == ("weights", "temporaries", "new")
    assert stacked(mixed).moments[0].role_bytes == (3, 1, 2)


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"' & <!-- \u2028 \ud800 ]]>"


def test_nothing_a_script_is_called_becomes_markup() -> None:
    block = LiveBlock(4 * GIB, EVIL, EVIL, EVIL, EVIL, EVIL, 0)
    figures = dataclasses.replace(
        FIGURES, title=EVIL, gpu=EVIL, modules={EVIL: GIB}, blocks=(block,), stopped_by=block,
        room=Room(9 * GIB, 9 * GIB, 10 * GIB, 8 * GIB, fits=False),
        peak_phase=EVIL, assumptions=(EVIL,), guesses=(EVIL,), versions={EVIL: EVIL}, breakdown_bytes={EVIL: 9 * GIB},
    )  # fmt: skip
    timeline = Timeline(20, (EVIL,), (Band(EVIL, 0, 0, 20),), (Moment(3, (9 * GIB,), 9 * GIB, EVIL, EVIL, EVIL),), 3)
    page = timeline_html(figures, timeline)
    plain, wild = Outline(timeline_html(FIGURES, TIMELINE)), Outline(page)
    assert {name for name, _, _ in wild.attributes} <= {name for name, _, _ in plain.attributes} | {"h2", "p"}
    assert not [key for _, key, _ in wild.attributes if key.startswith("on")]
    assert page.count("<script") == 2 and page.count("</script") == 2 and "<img" not in page and "<!--" not in page
    page.encode("utf-8")
    assert EVIL[:50] in data_of(page)["text"][0]


def test_the_page_stands_alone() -> None:
    """Nothing is loaded, and no script but the page's own may run: the policy names its hash."""
    page = timeline_html(FIGURES, TIMELINE)
    assert not re.search(r"https?:|url\(|@import|src=|href=", page)
    (policy,) = [
        value for _, key, value in Outline(page).attributes if key == "content" and "default-src" in str(value)
    ]
    script = re.findall(r"<script>(.*?)</script>", page, re.S)[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in str(policy) and "default-src 'none'" in str(policy)


def test_a_run_without_moments_is_still_a_page() -> None:
    Outline(timeline_html(Figures("t", 0, 0, "load", 0, {}), Timeline(0, (), (), (), 0)))


def test_a_tag_escapes_what_is_not_markup() -> None:
    assert tag("b", "<i>", Markup("<i></i>"), title='"', data_x=None) == '<b title="&quot;">&lt;i&gt;<i></i></b>'
    assert breakable("a.b/c<.py:3") == "a.<wbr>b/<wbr>c&lt;.<wbr>py:3"


def test_the_peak_marked_is_the_one_the_figures_speak_of() -> None:
    """Loading may hold more; where nothing was sampled at the peak's event, the moment before it is meant."""
    assert dataclasses.replace(TIMELINE, peak_event=7).peak() == 1
    assert dataclasses.replace(TIMELINE, peak_event=11).peak() == 1
    assert dataclasses.replace(TIMELINE, peak_event=0).peak() == 0


def test_a_step_is_its_neighbouring_phases() -> None:
    assert steps(TIMELINE.bands) == [Band("load", 0, 0, 5), Band("", 0, 5, 15), Band("", 1, 15, 20)]
