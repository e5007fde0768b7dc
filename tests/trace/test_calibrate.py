"""The measuring program, run for real on the processor: every part gives a figure, in the form a calibration reads."""

from __future__ import annotations

import pytest

from tunecast.errors import NotResolved
from tunecast.learn.calibrate import measure_card
from tunecast.prediction.time.calibration import calibration_from

torch = pytest.importorskip("torch")


def test_every_part_is_measured() -> None:
    found = measure_card(None, 300.0, "cpu")
    calibration = calibration_from(found, found["measured"])
    assert "cut_short" not in found
    assert calibration.flop_per_s["fp32"] > 1e6
    assert calibration.copy_bytes_per_s is not None and calibration.copy_bytes_per_s > 1e6
    assert calibration.forward_launch_s is not None and 1e-7 < calibration.forward_launch_s < 1e-2
    assert found["attentions"][0]["backward_s"] > 0
    assert len(found["launches"]) > 1
    assert calibration.planning is not None and calibration.planning.length_s[2] >= 0
    assert [row["compiled"] for row in found["plans"]] == [True] * 6 + [False]
    assert calibration.start_s is not None and calibration.start_s[0] > 0.1


def test_it_stops_in_time() -> None:
    found = measure_card(None, 0.0, "cpu")
    assert found["cut_short"] == "launches"


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a card")
def test_a_machine_without_a_card_is_told_so() -> None:
    with pytest.raises(NotResolved, match="no GPU"):
        measure_card(None, 1.0)
