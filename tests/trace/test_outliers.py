"""How many columns LLM.int8 keeps in 16 bits, untrained."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from tunecast.tape.kernels.outliers import share_of_outlier_columns  # noqa: E402


@pytest.mark.parametrize(("hidden", "rows"), [(2048, 3000), (1024, 4096), (4096, 500)])
def test_share_of_a_gated_mlp_is_what_a_draw_shows(hidden: int, rows: int) -> None:
    torch.manual_seed(0)
    deviation, columns = 0.02 * math.sqrt(hidden), 3000
    gate, up = (torch.randn(rows, columns) * deviation for _ in range(2))
    drawn = ((torch.nn.functional.silu(gate) * up).abs() >= 6).any(dim=0).float().mean().item()
    said = share_of_outlier_columns(6.0, rows, hidden, 0.02, gated=True)
    assert said == pytest.approx(drawn, abs=4 * math.sqrt(said * (1 - said) / columns) + 1e-9)


def test_without_a_gate_next_to_none() -> None:
    assert share_of_outlier_columns(6.0, 4096, 768, 0.02, gated=False) < 1e-6
