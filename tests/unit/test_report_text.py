"""What the terminal shows of hand-made figures."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tunecast.report.figures import (
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
from tunecast.report.text import Terminal, bars, composition, headline, module_table, report
from tunecast.units import GIB, MIB

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
    capacity_bytes=40 * GIB,
    fits=True,
    smallest_capacity_bytes=20 * GIB + 512 * MIB,
    assumptions=("data sets are used as they are",),
    versions={"torch": "2.13.0"},
)
TOO_SMALL = dataclasses.replace(FIGURES, gpu="l4", capacity_bytes=16 * GIB, fits=False, stopped_by=LOGITS)


def test_the_headline_says_what_people_ask() -> None:
    text = headline(FIGURES)
    assert text.splitlines()[0] == "train.py · exact"
    assert re.search(r"peak allocated +20\.00 GiB  in backward of step 1", text)
    assert re.search(r"reserved by PyTorch +21\.00 GiB  1\.00 GiB more", text)
    assert re.search(r"on the card +21\.50 GiB  with 512\.00 MiB of CUDA context", text)
    assert re.search(r"least capacity +20\.50 GiB", text)


def test_room_is_measured_against_the_least_capacity() -> None:
    """40 - 20.5 to spare, 49 % of 40; 20.5 - 16 short."""
    assert "fits: 19.50 GiB (49 %) to spare; PyTorch may hold 40.00 GiB on a100-sxm-40gb" in headline(FIGURES)
    text = headline(TOO_SMALL, Terminal(width=120))
    assert "does not fit: 4.50 GiB short; PyTorch may hold 16.00 GiB on l4" in text
    asks = "aten._to_copy asks for 2.00 GiB of logits and loss at /home/me/train.py:31"
    assert f"stops in forward of step 1: {asks}" in text


def test_a_margin_that_contradicts_the_verdict_is_not_told() -> None:
    """The least capacity is one boundary of several; the verdict is a replay with the very capacity."""
    lucky = dataclasses.replace(FIGURES, capacity_bytes=20 * GIB)
    assert "fits: 0 B (0 %) to spare" in headline(lucky)
    unlucky = dataclasses.replace(TOO_SMALL, capacity_bytes=21 * GIB)
    assert "does not fit: fragmented; PyTorch may hold 21.00 GiB on l4" in headline(unlucky)


def test_without_a_card_nothing_is_said_of_one() -> None:
    bare = Figures("t", 512, 2 * MIB, "load", 0, {"weights": 512})
    text = report(bare)
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
    text = bars(FIGURES, Terminal(width=84))
    lines = text.splitlines()
    assert lines[0] == "Where it goes: 21.50 GiB against 40.50 GiB of a100-sxm-40gb"
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
    bar = bars(TOO_SMALL, Terminal(width=89)).splitlines()[1].strip()
    inside, end, beyond = bar.partition("|")
    assert end and len(inside) == 66 and len(beyond) == 20, "16.5 GiB of 21.5, in 86 columns"
    assert "·" not in bar


def test_what_others_hold_is_not_free() -> None:
    display = dataclasses.replace(FIGURES, others_bytes=8 * GIB)
    assert display.card_bytes == 48 * GIB + GIB // 2
    text = bars(display, Terminal(width=100))
    assert "xoooo" in text and "o held by others" in text


def test_a_phase_says_its_step_where_there_is_room() -> None:
    assert "highest in" not in bars(FIGURES, Terminal(width=80))
    assert "backward  step 1      20.00 GiB" in bars(FIGURES, Terminal(width=100))


def test_bars_without_unicode_and_without_a_card() -> None:
    assert "A" * 10 + "cc" + "x" + "-" * 38 + "|" in report(FIGURES, Terminal(width=84, unicode=False))
    bare = dataclasses.replace(FIGURES, context_bytes=None, gpu=None, capacity_bytes=None, fits=None)
    text = bars(bare, Terminal(width=86))
    assert text.splitlines()[:2] == ["Where it goes: 21.00 GiB", "  " + "W" * 60 + "A" * 20 + "c" * 4]


def test_letters_are_painted_on_their_own_ground() -> None:
    text = bars(FIGURES, Terminal(width=84, colour=True))
    assert f"\x1b[30;44m{'W' * 30}\x1b[0m\x1b[30;42m{'A' * 10}\x1b[0m" in text
    assert "\x1b[30;44mW\x1b[0m weights" in text


def test_the_least_card() -> None:
    small = dataclasses.replace(TOO_SMALL, least_card=LeastCard("rtx-3090", 24 * GIB, measured=False))
    assert re.search(r"least card +24\.00 GiB  rtx-3090, by its memory\n", headline(small))
    assert "the rtx-3090 is the least card by its memory alone: no run on it was measured" in report(small)
    measured = dataclasses.replace(TOO_SMALL, least_card=LeastCard("rtx-3090", 24 * GIB, measured=True))
    assert "was measured" not in report(measured)
    own = dataclasses.replace(FIGURES, least_card=LeastCard("a100-sxm-40gb", 40 * GIB, measured=False))
    assert "a100-sxm-40gb, as named" in headline(own) and "by its memory" not in report(own)
    none = dataclasses.replace(TOO_SMALL, least_card=LeastCard(None, 276 * GIB, measured=False))
    assert "no card is large enough: the largest known has 276.00 GiB" in headline(none)


def test_sections_made_elsewhere_have_their_places() -> None:
    text = report(FIGURES, advice="Which line\n  a: b", outside="Outside\n  c")
    places = [text.index(part) for part in ("What the peak", "Which line", "Peak by module", "Outside\n", "Assumed")]
    assert places == sorted(places)


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
    assert "train.py · estimate" in text and "exact" not in text
    assert "Estimate: this was guessed or could not be traced\n  • flash_attn is modelled" in text
    assert "Estimate" not in report(FIGURES)


@pytest.mark.parametrize("width", [72, 80, 100, 160, 200])
@pytest.mark.parametrize("figures", [FIGURES, TOO_SMALL])
def test_lines_keep_to_the_width(figures: Figures, width: int) -> None:
    assert max(map(len, report(figures, Terminal(width=width)).splitlines())) <= width


def test_colour_only_when_asked_for() -> None:
    plain = report(TOO_SMALL)
    painted = report(TOO_SMALL, Terminal(colour=True))
    assert "\x1b" not in plain
    assert painted != plain and re.sub(r"\x1b\[[\d;]+m", "", painted) == plain


def test_a_terminal_without_unicode_gets_ascii() -> None:
    text = report(dataclasses.replace(TOO_SMALL, title="größer.py"), Terminal(unicode=False))
    assert text.isascii() and "####" in text and "gr??er.py - exact" in text


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
