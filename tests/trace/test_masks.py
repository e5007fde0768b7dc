"""Programs whose attention has a mask were off on a card for a reason nobody knows: they are no longer called exact."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunecast import trace
from tunecast.prediction.script_run import MASKED_ATTENTION

SCRIPT = """
import torch
from torch.nn import functional

weight = torch.nn.Parameter(torch.ones(64, 64, device="cuda", dtype=torch.bfloat16))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(2):
    mask = {mask}
    x = (torch.ones(2, 4, 32, 64, device="cuda", dtype=torch.bfloat16) @ weight)
    functional.scaled_dot_product_attention(x, x, x, attn_mask=mask).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("mask", "word"), [("None", "exact"), ("torch.ones(2, 1, 32, 32, device='cuda').bool()", "estimate")]
)
def test_a_script_with_masks_is_an_estimate_with_the_range_of_varying_lengths(
    mask: str, word: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(mask=mask), encoding="utf-8")
    found = trace([str(path)], gpu="h200", steps=0)
    assert (found.exactness, found.trace.word) == (word, word)
    assert (MASKED_ATTENTION in found.reasons) is (word == "estimate")
    assert found.on_card.basis.varies is (word == "estimate")
