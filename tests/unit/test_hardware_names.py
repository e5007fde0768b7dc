"""Cards by the names people write."""

from __future__ import annotations

import pytest

from tunecast.hardware.catalog import gpus
from tunecast.hardware.spec import card_name


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("rtx-4090", "RTX 4090"),
        ("a10", "A10"),
        ("a100-sxm-80gb", "A100 SXM 80 GB"),
        ("h100-pcie-80gb", "H100 PCIe 80 GB"),
        ("rtx-6000-ada", "RTX 6000 Ada"),
        ("rtx-3060-ti", "RTX 3060 Ti"),
        ("mi300x", "MI300X"),
        ("gaudi2", "Gaudi 2"),
    ],
)
def test_a_card_as_it_is_written(name: str, written: str) -> None:
    assert card_name(name) == written


def test_no_two_cards_are_written_alike() -> None:
    written = [card_name(name) for name in gpus()]
    assert len(set(written)) == len(written)
    assert not any("-" in name for name in written)
