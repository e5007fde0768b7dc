"""What the stand-in for `nvidia-smi` prints, as the real one would."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.tape.trace.nvidia_smi import answer

MIB = 1 << 20
CARD: dict[str, Any] = {"name": "NVIDIA H200", "total_bytes": 143_156 * MIB, "capability": "9.0"}
CARDS = [CARD | {"used_bytes": 156 * MIB}, CARD | {"used_bytes": 0}]


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        (
            "--query-gpu=name,memory.used --format=csv",
            "name, memory.used [MiB]\nNVIDIA H200, 156 MiB\nNVIDIA H200, 0 MiB",
        ),
        ("--query-gpu=memory.free --format=csv,noheader,nounits -i 0", "143000"),
        ("--query-gpu memory.total --format csv,noheader -i 1", "143156 MiB"),
        ("--query-gpu=index,compute_cap,made.up --format=csv,noheader,nounits -i 1", "1, 9.0, [N/A]"),
        ("--query-compute-apps=pid --format=csv,noheader", ""),
        ("-L -i 1", "GPU 1: NVIDIA H200 (UUID: GPU-00000000-0000-0000-0000-000000000001)"),
    ],
)
def test_what_scripts_ask_for(command: str, printed: str) -> None:
    assert answer(command.split(), CARDS) == printed


def test_what_people_look_at() -> None:
    assert "156MiB / 143156MiB" in answer([], CARDS)
    free = [line.split(":")[1].strip() for line in answer(["-q", "-d", "MEMORY"], CARDS).splitlines() if "Free" in line]
    assert free == ["143000 MiB", "143156 MiB"]
