"""Numbers as they are shown."""

from __future__ import annotations

import pytest

from tunecast.units import digits


@pytest.mark.parametrize(
    ("value", "count", "told"),
    [(0.0, 3, "0"), (0.2134, 3, "0.213"), (6.38, 3, "6.38"), (99.96, 3, "100"), (3330.4, 3, "3,330"),
     (0.0093, 2, "0.0093"), (1.26, 2, "1.3"), (12.6, 2, "13"), (251.4, 2, "251"), (1_234_567, 2, "1,234,567"),
     (-3330.4, 3, "-3,330")],
)  # fmt: skip
def test_a_large_number_has_no_exponent(value: float, count: int, told: str) -> None:
    assert digits(value, count) == told
