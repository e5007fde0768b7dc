"""`tunecast gpus` as a shell sees it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tunecast.cli import main as cli
from tunecast.cli.gpus import size
from tunecast.hardware import gpus


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*argv: str) -> tuple[int, str, str]:
        code = cli.main(["gpus", *argv])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def names(out: str) -> list[str]:
    return [card["name"] for card in json.loads(out)["gpus"]]


def test_every_card_has_a_line(shell: Any) -> None:
    code, out, err = shell()
    assert (code, err) == (0, "")
    listed = [line.split()[0] for line in out.splitlines()[2:] if line.startswith("  ")]
    assert listed == list(gpus())
    assert max(map(len, out.splitlines())) <= 110


def test_what_no_source_confirms_is_marked(shell: Any) -> None:
    out = shell("ampere")[1]
    line = next(line for line in out.splitlines() if line.split()[:1] == ["a10"])
    assert "22.03 GiB*" in line
    assert "* no source at hand confirms it" in out


def test_one_card_tells_its_sources(shell: Any) -> None:
    code, out, _ = shell("NVIDIA H200")
    assert code == 0
    assert out.startswith("h200-sxm-141gb\n")
    for told in ("139.80 GiB", "989.4", "4800 GB/s", "450 GB/s one way", "766.81 MiB while training", "checked 20"):
        assert told in out
    assert "1979" not in out, "dense, not sparse"


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (["hopper"], {"h100-pcie-80gb", "h100-sxm-80gb", "h100-sxm-96gb", "h100-nvl-94gb", "h200-sxm-141gb",
                      "h200-nvl-141gb", "gh200-96gb"}),
        (["ada", "--min-memory", "40GB"], {"rtx-6000-ada", "rtx-5880-ada", "l40", "l40s"}),
        (["--vendor", "amd", "--min-memory", "200GiB"], {"mi325x", "mi350x", "mi355x"}),
        (["h100", "sxm"], {"h100-sxm-80gb"}),
        (["4090"], {"rtx-4090"}),
        (["HBM3e", "b200"], {"b200-sxm-180gb", "gb200-186gb"}),
    ],
)  # fmt: skip
def test_cards_are_narrowed_down(shell: Any, argv: list[str], found: set[str]) -> None:
    code, out, err = shell(*argv, "--json")
    assert (code, err) == (0, "")
    assert set(names(out)) == found


def test_json_is_for_programs(shell: Any) -> None:
    told = json.loads(shell("rtx-4090", "--json")[1])
    assert told["schema"] == "tunecast.gpus/1"
    (card,) = told["gpus"]
    assert card["memory_bytes"] == int(23.52 * 2**30)
    assert card["dense_flop_per_s"]["bf16"] == pytest.approx(165.2e12)
    assert card["context_bytes"] is None, "what nobody measured is null, never 0"


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (["rtx-4081"], 2, "nearest: rtx-4080"),
        (["--vendor", "nvida"], 2, "nearest: NVIDIA"),
        (["--min-memory", "40G"], 2, "such as 40GB or 40GiB"),
        (["--min-memory", "1TB"], 3, "the largest of the others has 287.98 GiB"),
        (["t4", "--vendor", "AMD"], 3, "no card matches"),
        (["--sort", "memory"], 2, "--sort: unknown flag"),
    ],
)
def test_what_is_not_there(shell: Any, argv: list[str], code: int, told: str) -> None:
    got, out, err = shell(*argv)
    assert (got, out) == (code, "")
    assert told in err


def test_a_size_names_its_unit() -> None:
    assert (size("40GB"), size("40 GiB")) == (40 * 10**9, 40 * 2**30)
