"""Models with vision towers, trained on text alone: the tower is there and does not run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


def configs() -> Any:
    path = Path(__file__).parents[1] / "task_cases" / "vision_qwen.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LORA = {"method": "lora", "lora": {"rank": 8, "dropout": 0.0, "targets": "all-linear"}}
CASES = [
    ("qwen2.5-vl text full", {"method": "full"}, configs().QWEN2_5),
    ("qwen2.5-vl text lora", {**LORA, "gradient_checkpointing": True}, configs().QWEN2_5),
    ("qwen3-vl text lora", LORA, configs().QWEN3),
]
