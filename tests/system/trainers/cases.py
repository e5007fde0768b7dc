"""Rendered trainings that the packages themselves run: frameworks by what they train and what on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LORA = {"method": "lora", "lora": {"targets": ["q_proj", "v_proj"]}}


@dataclass(frozen=True)
class Case:
    framework: str
    name: str
    data: str
    """A file that made.py makes."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    traced: bool = False
    """Also traced, as it is rendered for cards, and compared with its prediction."""
    resumed: str = ""
    """Also started again, as after a kill while it saved; where it has to go on. '': not tried."""
    trained: bool = True
    """On CPUs; else `why` not, as it said."""
    why: str = ""
    steps: int = 3
    difference: str = ""
    """What is known to be left between trace and prediction."""


SCALARS = "allocated +1,024, reserved +0 bytes"
"""512 of it is what the recipe keeps to log (`tokens_per_second_per_gpu` of the step before: without logging it is
gone); 512 are not explained."""
A_SEGMENT = "allocated +0, reserved +2,097,152 bytes"
"""Not explained: a segment of 2 MiB more."""
AXOLOTLS = "allocated +89,600, reserved +0 bytes"
"""Not explained."""
CASES = (
    Case("torchtune", "lora", "text", LORA, traced=True, difference=SCALARS),
    Case("torchtune", "full", "text", {"method": "full"}, traced=True, difference=SCALARS),
    Case("torchtune", "qlora", "text", {**LORA, "method": "qlora"}, traced=True, difference=SCALARS),
    Case(
        "torchtune",
        "epochs",
        "chats",
        {**LORA, "data.epochs": 2, "run.max_steps": None},
        resumed="in epoch 2",
        steps=64,
    ),
    Case("torchtune", "prompts", "prompts", LORA),
    Case("torchtune", "alpaca", "alpaca", LORA),
    Case("torchtune", "sharegpt", "sharegpt", LORA),
    Case(
        *("torchtune", "fsdp", "text", {"method": "full", "hardware.gpus": 2}),
        traced=True,
        trained=False,
        difference="allocated +2,048, reserved +0 bytes",
        why="ValueError: Logging memory stats is not supported on CPU devices (torchtune/training/memory.py)",
    ),
    Case("llama-factory", "lora", "chats", LORA, traced=True, resumed="after step 2"),
    Case("llama-factory", "full", "prompts", {"method": "full"}, traced=True, difference=A_SEGMENT),
    Case("llama-factory", "qlora", "sharegpt", {**LORA, "method": "qlora"}, traced=True),
    Case("llama-factory", "alpaca", "alpaca", LORA),
    Case("llama-factory", "dpo", "pairs", {**LORA, "task": "dpo"}, traced=True),
    Case("llama-factory", "ddp", "chats", {**LORA, "hardware.gpus": 2}),
    Case("axolotl", "lora", "text", LORA, traced=True, resumed="after step 2", difference=AXOLOTLS),
    Case("axolotl", "chats", "chats", LORA),
    Case("axolotl", "prompts", "prompts", LORA),
    Case("axolotl", "alpaca", "alpaca", LORA),
    Case("axolotl", "sharegpt", "sharegpt", LORA),
    Case("axolotl", "qlora", "text", {**LORA, "method": "qlora"}, traced=True, difference=AXOLOTLS),
)
