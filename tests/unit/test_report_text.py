"""What the terminal shows of hand-made figures."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace

import pytest

from tunecast.prediction.verdict import Room
from tunecast.report.draw.figures import (
    OUTSIDE,
    Alike,
    Figures,
    LeastCard,
    LiveBlock,
    PhasePeak,
    Share,
    grouped_blocks,
    grouped_modules,
    short_source,
    shown,
    tail,
    top,
)
from tunecast.report.draw.text import DEFAULT, Terminal, when
from tunecast.report.run.answer import NOTHING, Sections, answer_text, details_text
from tunecast.report.run.memory import composition, figures_text, memory_text, module_table, phases_text
from tunecast.report.run.verdict import between, headline, short_line
from tunecast.units import GIB, KIB, MIB

LOGITS = LiveBlock(2 * GIB, "logits_and_loss", "lm_head", "aten._to_copy", "/home/me/train.py:31", "forward", 1)
RESIDUAL = LiveBlock(64 * MIB, "activations", "model.layers.*", "aten.add", "", "forward", 1)
FIGURES = Figures(
    title="train.py",
    allocated_bytes=20 * GIB,
    reserved_bytes=21 * GIB,
    peak_phase="backward",
    peak_step=1,
    breakdown_bytes={"weights": 15 * GIB, "activations": 5 * GIB - 512, "temporaries": 512, "optimizer": 0},
    phases=(
        PhasePeak("load", 0, 15 * GIB, 15 * GIB, {"weights": 15 * GIB}),
        PhasePeak("other", 0, 15 * GIB, 15 * GIB, {"weights": 15 * GIB}),
        PhasePeak("backward", 1, 20 * GIB, 21 * GIB, {"weights": 15 * GIB, "activations": 5 * GIB}),
    ),
    modules={f"model.layers.{n}.mlp.up_proj": GIB // 2 for n in range(32)} | {"lm_head": 3 * GIB, "": GIB},
    blocks=(LOGITS, *(RESIDUAL._replace(module=f"model.layers.{n}") for n in range(32))),
    context_bytes=GIB // 2,
    gpu="a100-sxm-40gb",
    room=Room(21 * GIB, 20 * GIB + GIB // 2, 22 * GIB, 40 * GIB, fits=True),
    smallest_capacity_bytes=20 * GIB + 512 * MIB,
    assumptions=("data sets are used as they are",),
    versions={"torch": "2.11.0"},
)
NEEDS = Room(20 * GIB + GIB // 2, 20 * GIB, 21 * GIB + GIB // 2, 16 * GIB, fits=False)
TOO_SMALL = dataclasses.replace(FIGURES, gpu="l4", room=NEEDS, stopped_by=LOGITS)
TIGHT = dataclasses.replace(FIGURES, gpu="l4", room=Room(21 * GIB, 20 * GIB, 23 * GIB, 22 * GIB, fits=True))


def report(figures: Figures, terminal: Terminal = DEFAULT, sections: Sections = NOTHING) -> str:
    return details_text(figures, terminal, sections)


def test_the_verdict_comes_first_and_with_its_range() -> None:
    """40 - 21 to spare; 20.5 - 16 over."""
    assert headline(FIGURES).splitlines() == [
        "train.py: fits, 19.00 GiB to spare",
        "  needs 21.00 GiB (20.5 to 22.0) of the 40.00 GiB PyTorch can use",
    ]
    assert headline(TOO_SMALL, Terminal(width=120)).splitlines() == [
        "train.py: does not fit, 4.50 GiB over",
        "  needs 20.50 GiB (20.0 to 21.5); PyTorch can use 16.00 GiB of the card",
        "  runs out of memory in forward of step 1: aten._to_copy asks for 2.00 GiB of logits and loss at "
        "/home/me/train.py:31",
    ]


def test_what_fits_only_in_the_middle_of_its_range_may_not_fit() -> None:
    assert headline(TIGHT).splitlines() == [
        "train.py: may not fit",
        "  needs 21.00 GiB (20.0 to 23.0) of the 22.00 GiB PyTorch can use",
    ]
    assert "\x1b[33mmay not fit\x1b[0m" in headline(TIGHT, Terminal(colour=True))
    assert "exact" not in report(TIGHT) + answer_text(TIGHT)


def test_a_pretended_capacity_is_not_the_cards() -> None:
    pretended = dataclasses.replace(TOO_SMALL, pretended=True)
    assert "needs 20.50 GiB (20.0 to 21.5) of the 16.00 GiB given as capacity" in headline(pretended)


def test_a_verdict_is_not_broken_between_lines() -> None:
    long = dataclasses.replace(FIGURES, title="train.py --epochs 3 --learning-rate 1e-4 on 1 x A100 SXM 40 GB")
    first, second, *_ = headline(long, Terminal(width=72)).splitlines()
    assert first.endswith("40 GB:") and second == "  fits, 19.00 GiB to spare"


def test_ranges_are_told_in_the_unit_of_their_middle() -> None:
    assert between(30 * GIB, 33 * GIB, 31 * GIB) == "30.0 to 33.0"
    assert between(31 * GIB, 31 * GIB + 20 * MIB, 31 * GIB) == "31.00 to 31.02"
    assert between(500 * MIB, GIB, 600 * MIB) == "500 to 1024 MiB"
    assert between(2 * KIB, 3 * KIB, 2 * KIB) == "2 to 3 KiB"
    assert between(0, 130 * MIB, 0) == "0 to 130 MiB"
    assert between(0, 0, 0) == "0 to 0 KiB"


def test_moments_have_names_that_can_be_read() -> None:
    told = [when(phase, 39) for phase in ("load", "backward", "other")]
    assert told == ["while loading", "in backward of step 39", "in other work of step 39"]


def test_one_line_says_all_that_decides() -> None:
    time = SimpleNamespace(step_s=1.25, low_s=1.1, high_s=1.4, total_s=7300.0, total_range_s=[6500.0, 8100.0])
    assert short_line(FIGURES, time, "$4.20") == (
        "train.py: fits, 19.00 GiB to spare; needs 21.00 GiB (20.5 to 22.0) of the 40.00 GiB PyTorch can use; "
        "1.25 s per step (1.1 s to 1.4 s); 2 h 1 min in all (1 h 48 min to 2 h 15 min); $4.20\n"
    )
    assert short_line(FIGURES).count("\n") == 1


def test_the_figures_a_run_is_known_by() -> None:
    text = figures_text(FIGURES)
    assert re.search(r"peak allocated +20\.00 GiB  in backward of step 1", text)
    assert re.search(r"reserved by PyTorch +21\.00 GiB  1\.00 GiB more", text)
    assert re.search(r"on the card +21\.50 GiB  with 512\.00 MiB of CUDA context", text)
    assert re.search(r"minimum for PyTorch +20\.50 GiB  with less it runs out of memory", text)


def test_the_short_text_has_one_bar_with_the_size_of_every_part() -> None:
    """82 columns of 40.5 GiB: as in the long text."""
    assert memory_text(FIGURES, Terminal(width=84)).splitlines() == [
        "Memory: 20.00 GiB in use at the peak in backward of step 1, 21.50 GiB with cache and",
        "    CUDA context",
        "  " + "W" * 30 + "A" * 10 + "cc" + "x" + "·" * 38 + "|",
        "  W weights 15.00 GiB   A activations 5.00 GiB   c cached by the allocator 1.00 GiB",
        "  x CUDA context 512.00 MiB   | end of the card, 40.50 GiB",
    ]


def test_the_short_text_is_about_a_screen() -> None:
    sections = Sections(time="Time\n  t", host="Host: h", advice="What to change first\n  a", trust="not measured")
    text = answer_text(TOO_SMALL, Terminal(), sections)
    assert text.splitlines()[0] == "train.py: does not fit, 4.50 GiB over"
    assert len(text.splitlines()) < 35
    for told in ("  role ", "phase  ", "Peak by module", "Assumed", "Versions"):
        assert told not in text and told in report(TOO_SMALL, Terminal(), sections)


def test_without_a_card_nothing_is_said_of_one() -> None:
    bare = Figures("t", 512, 2 * MIB, "load", 0, {"weights": 512})
    text = report(bare)
    assert answer_text(bare).splitlines()[0] == "t"
    assert "fit" not in text and "card" not in text and "None" not in text
    assert "while loading" in text


def test_the_composition_adds_up_to_the_byte() -> None:
    """Parts to allocated, and allocated, allocator and context to the card."""
    rows = [re.match(r"  ([=+]? ?[\w ]+?)  +([\d,]+) ", line) for line in composition(FIGURES).splitlines()[2:]]
    values = {row[1]: int(row[2].replace(",", "")) for row in rows if row}
    assert values["weights"] + values["activations"] + values["temporaries"] == values["= allocated"] == 20 * GIB
    assert values["= allocated"] + values["+ allocator"] + values["+ context"] == values["= on the card"]
    assert "optimizer" not in values


def test_one_bar_against_the_card_and_one_a_phase() -> None:
    """A card of 40.5 GiB; 82 columns less one for its end are 2 a GiB: 30 weights, 10 activations, 2 cached, 1 context
    leave 38. Beside a phase's figures there is less room, to the same scale."""
    text = phases_text(FIGURES, Terminal(width=84))
    lines = text.splitlines()
    assert lines[0] == "Where it goes: 21.50 GiB against 40.50 GiB of the A100 SXM 40 GB"
    assert lines[1] == "  " + "W" * 30 + "A" * 10 + "cc" + "x" + "·" * 38 + "|"
    assert lines[3].split() == ["phase", "allocated", "reserved"]
    assert [line.split()[0] for line in lines[4:6]] == ["load", "backward"], "what lies between phases is not the peak"
    assert lines[4].startswith("  load      15.00 GiB  15.00 GiB  WWWW") and "A" not in lines[4]
    assert len({len(line) for line in lines[4:6]}) == 1, "the card ends at one place"
    assert lines[-2:] == [
        "  W weights   A activations   c cached by the allocator   x CUDA context   · free",
        "  | end of the card",
    ]


def test_what_is_more_than_the_card_stands_behind_its_end() -> None:
    bar = phases_text(TOO_SMALL, Terminal(width=89)).splitlines()[1].strip()
    inside, end, beyond = bar.partition("|")
    assert end and len(inside) == 66 and len(beyond) == 20, "16.5 GiB of 21.5, in 86 columns"
    assert "·" not in bar


def test_what_others_hold_is_not_free() -> None:
    display = dataclasses.replace(FIGURES, others_bytes=8 * GIB)
    assert display.card_bytes == 48 * GIB + GIB // 2
    text = phases_text(display, Terminal(width=100))
    assert "xoooo" in text and "o held by others" in text


def test_a_phase_says_its_step_where_there_is_room() -> None:
    assert "highest in" not in phases_text(FIGURES, Terminal(width=80))
    assert "backward  step 1      20.00 GiB" in phases_text(FIGURES, Terminal(width=100))


def test_bars_without_unicode_and_without_a_card() -> None:
    assert "A" * 10 + "cc" + "x" + "-" * 38 + "|" in report(FIGURES, Terminal(width=84, unicode=False))
    bare = dataclasses.replace(FIGURES, context_bytes=None, gpu=None, room=None)
    text = phases_text(bare, Terminal(width=86))
    assert text.splitlines()[:2] == ["Where it goes: 21.00 GiB", "  " + "W" * 60 + "A" * 20 + "c" * 4]


def test_letters_are_painted_on_their_own_ground() -> None:
    text = phases_text(FIGURES, Terminal(width=84, colour=True))
    assert f"\x1b[30;44m{'W' * 30}\x1b[0m\x1b[30;42m{'A' * 10}\x1b[0m" in text
    assert "\x1b[30;44mW\x1b[0m weights" in text


def test_the_smallest_gpu_that_fits() -> None:
    small = dataclasses.replace(TOO_SMALL, least_card=LeastCard("rtx-3090", 23 * GIB, measured=False))
    assert headline(small).splitlines()[-1] == "  smallest GPU that fits: RTX 3090 (23.00 GiB usable)"
    told = "the RTX 3090 is the smallest GPU that fits by its memory alone: no run on it was measured"
    assert told in report(small, Terminal(width=140))
    measured = dataclasses.replace(TOO_SMALL, least_card=LeastCard("rtx-3090", 23 * GIB, measured=True))
    assert "was measured" not in report(measured)
    own = dataclasses.replace(FIGURES, least_card=LeastCard("a100-sxm-40gb", 40 * GIB, measured=False))
    assert "smallest" not in report(own)
    least = LeastCard(None, 276 * GIB, measured=False)
    none = dataclasses.replace(TOO_SMALL, least_card=least, smallest_capacity_bytes=277 * GIB)
    assert "no GPU is large enough, the largest has 276.00 GiB usable" in headline(none)


def test_a_gpu_that_only_may_fit_is_not_called_too_small() -> None:
    """Its 80 % range ends above the largest card; its point figure does not."""
    doubtful = dataclasses.replace(
        TOO_SMALL, least_card=LeastCard(None, 30 * GIB, measured=False), smallest_capacity_bytes=29 * GIB
    )
    assert "no GPU fits for sure; the largest has 30.00 GiB usable, and may" in headline(doubtful)


def test_a_gpu_smaller_than_what_it_takes_here_says_why_it_fits() -> None:
    """21 GiB with all the room it wants, 20.5 with as little as it can."""
    lucky = dataclasses.replace(FIGURES, least_card=LeastCard("rtx-3090", 20 * GIB + 768 * MIB, measured=False))
    told = "smallest GPU that fits: RTX 3090 (20.75 GiB usable, where it caches less and needs 20.50 GiB)"
    assert told in headline(lucky, Terminal(width=200))


def test_sections_made_elsewhere_have_their_places() -> None:
    sections = Sections(
        remarks=["h100 is taken as x"], taken="Not given", warnings=["evaluation"], time="Time\n  s", host="Host",
        advice="Which line\n  a: b", outside="Outside\n  c", trust="not measured",
    )  # fmt: skip
    places = ["train.py: ", "h100 is", "Not given", "evaluation", "In use", "Time\n", "Host", "Which line", "How far"]
    for text, found in (
        (answer_text(FIGURES, Terminal(), sections), [place.replace("In use", "Memory: ") for place in places]),
        (report(FIGURES, Terminal(), sections), [place.replace("In use", "What the peak") for place in places]),
    ):
        order = [text.index(part) for part in found]
        assert order == sorted(order)
    text = report(FIGURES, Terminal(), sections)
    places = ["Which line", "Peak by module", "Outside\n", "How far to trust this: not measured", "Assumed"]
    assert [text.index(part) for part in places] == sorted(text.index(part) for part in places)


def test_parts_that_do_not_add_up_are_a_bug() -> None:
    with pytest.raises(ValueError, match="511"):
        Figures("t", 512, 512, "load", 0, {"weights": 511})


def test_layers_are_grouped() -> None:
    assert "model.layers.*.mlp    x32" in module_table(FIGURES)
    assert grouped_modules(FIGURES.modules) == [
        Share("model.layers.*.mlp", 16 * GIB, 32),
        Share("lm_head", 3 * GIB),
        Share(OUTSIDE, GIB),
    ]


def test_one_layer_keeps_its_name_and_inner_numbers_are_summed() -> None:
    modules = {"net.3.fc": 1, "h.0.mlp.experts.0.up": 2, "h.0.mlp.experts.1.up": 3, "h.1.mlp.experts.0.up": 4, "h.1": 5}
    assert grouped_modules(modules) == [Share("h.*.mlp", 9, 2), Share("h.1", 5), Share("net.3.fc", 1)]


def test_the_rest_is_one_row() -> None:
    shares = [Share(name, nbytes) for name, nbytes in (("a", 4), ("b", 3), ("c", 2), ("d", 1))]
    assert top(shares, 3) == [Share("a", 4), Share("b", 3), Share("(2 more)", 3)]
    assert top(shares, 4) == shares


def test_equal_blocks_of_equal_layers_are_one_row() -> None:
    """32 of 64 MiB weigh 2 GiB, as much as the logits; equal weights are in the order of their blocks."""
    assert grouped_blocks(FIGURES.blocks) == [Alike(RESIDUAL, 32), Alike(LOGITS, 1)]
    text = report(FIGURES)
    assert "2.00 GiB  activations, 32 x 64.00 MiB, aten.add in forward of step 1" in text
    assert "/home/me/train.py:31  lm_head" in text


def test_a_guess_makes_an_estimate() -> None:
    guessed = dataclasses.replace(FIGURES, guesses=("flash_attn is modelled",))
    text = report(guessed)
    assert "Warnings\n  • guessed: flash_attn is modelled" in text and "exact" not in text
    assert "Warnings\n  • guessed: flash_attn is modelled" in answer_text(guessed)
    assert "guessed" not in report(FIGURES)


@pytest.mark.parametrize("width", [72, 80, 100, 160, 200])
@pytest.mark.parametrize("figures", [FIGURES, TOO_SMALL])
def test_lines_keep_to_the_width(figures: Figures, width: int) -> None:
    for text in (report, answer_text):
        assert max(map(len, text(figures, Terminal(width=width)).splitlines())) <= width


def test_colour_only_when_asked_for() -> None:
    plain = report(TOO_SMALL)
    painted = report(TOO_SMALL, Terminal(colour=True))
    assert "\x1b" not in plain
    assert painted != plain and re.sub(r"\x1b\[[\d;]+m", "", painted) == plain


def test_a_terminal_without_unicode_gets_ascii() -> None:
    text = report(dataclasses.replace(TOO_SMALL, title="größer.py"), Terminal(unicode=False))
    assert text.isascii() and "####" in text and "gr??er.py: does not fit" in text


def test_names_cannot_steer_the_terminal() -> None:
    evil = "\x1b]0;owned\x07\x1b[2Jx\u202ey\r\n\ud800"
    block = LiveBlock(5 * GIB, evil, evil, evil, evil, evil, 0)
    figures = dataclasses.replace(
        TOO_SMALL, title=evil, modules={evil: GIB}, blocks=(block,), stopped_by=block, gpu=evil,
        assumptions=(evil,), guesses=(evil,), versions={evil: evil}, peak_phase=evil,
        phases=(PhasePeak(evil, 0, GIB, GIB, {evil: GIB}),), least_card=LeastCard(evil, GIB, measured=False),
        breakdown_bytes={evil: 20 * GIB},
    )  # fmt: skip
    text = report(figures)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800]", text)
    text.encode("utf-8")
    assert shown("a\tb") == "a\N{REPLACEMENT CHARACTER}b"


def test_sources_are_shortened_from_the_left() -> None:
    path = "/opt/venv/lib/python3.11/site-packages/transformers/loss/loss_utils.py:55"
    assert short_source(path) == "transformers/loss/loss_utils.py:55"
    assert short_source(path, 25) == "…/loss/loss_utils.py:55"
    assert short_source(path, 5) == "…/loss_utils.py:55"
    assert short_source("C:\\me\\train.py:3") == "C:/me/train.py:3"
    assert tail("model.layers.0.mlp", ".", 10) == "….0.mlp"
