"""Packages whose compiled code is not used: what stands for them lets their Python go its way."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from tunecast.tape.card import Card
from tunecast.tape.op import Alloc
from tunecast.tape.trace.packages import early_stopping
from tunecast.tape.trace.run import trace_script

LAZY = """
import torch
from lightning_fabric.utilities.load import _lazy_load
model = torch.nn.Linear(300, 7, bias=False)
model.load_state_dict(_lazy_load("model.pth"))
model = model.cuda()
optimizer = torch.optim.SGD(model.parameters())
model(torch.ones(2, 300, device="cuda")).sum().backward()
optimizer.step()
"""
PICTURES = """
import torch, torchvision
model = torchvision.models.net().cuda()
model(torch.ones(2, 300, device="cuda")).sum().backward()
torch.optim.SGD(model.parameters()).step()
"""
TORCHVISION = {
    "__init__.py": "from torchvision import extension, _meta_registrations, models",
    "extension.py": "def _has_ops():\n    return False",
    "_meta_registrations.py": """
import torch
@torch.library.register_fake("torchvision::nms")
def meta_nms(dets, scores, iou_threshold): ...
@torch.library.register_fake("torchvision::qnms")
def meta_qnms(dets, scores, iou_threshold): ...
""",
    "models.py": "import torch\ndef net():\n    return torch.nn.Linear(300, 7, bias=False)",
}
"""The parts of torchvision 0.28.0 that matter: its library did not load, and two operators of it are described."""


def traced_sizes(folder: Path, script: str) -> list[int]:
    """Of the allocations of a script that does one step."""
    (folder / "train.py").write_text(script)
    tape, answer = trace_script("train.py", (), Card(), steps=0)
    assert (answer.error, answer.finished, answer.steps) == (None, True, 1)
    return [event.nbytes for event in tape.events if isinstance(event, Alloc)]


def test_weights_that_lightning_would_read_when_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning_fabric")
    monkeypatch.chdir(tmp_path)
    torch.save(torch.nn.Linear(300, 7, bias=False).state_dict(), "model.pth")
    assert 300 * 7 * 4 in traced_sizes(tmp_path, LAZY)


def test_torchvision_whose_library_did_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in TORCHVISION.items():
        path = tmp_path / "torchvision" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert 300 * 7 * 4 in traced_sizes(tmp_path, PICTURES)


def test_early_stopping_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has ended the run already stays as it is."""
    changes: dict[str, Any] = {}
    monkeypatch.setattr(early_stopping, "after_import", changes.__setitem__)
    recorder = SimpleNamespace(assumptions=Counter())
    early_stopping.install(cast(Any, recorder))

    class EarlyStoppingCallback:
        def on_evaluate(self, args: Any, state: Any, control: Any, **options: Any) -> None:
            control.should_training_stop |= options["metrics"] == "no better"

    class EarlyStopping:
        def _evaluate_stopping_criteria(self, current: str) -> tuple[bool, str | None]:
            return current == "no better", "patience is over"

    changes["transformers.trainer_callback"](SimpleNamespace(EarlyStoppingCallback=EarlyStoppingCallback))
    for ended, metrics, told in ((False, "better", 0), (True, "better", 0), (False, "no better", 1)):
        control = SimpleNamespace(should_training_stop=ended)
        EarlyStoppingCallback().on_evaluate(None, None, control, metrics=metrics)
        assert (control.should_training_stop, len(recorder.assumptions)) == (ended, told)
    recorder.assumptions.clear()
    changes["lightning.pytorch.callbacks.early_stopping"](SimpleNamespace(EarlyStopping=EarlyStopping))
    assert EarlyStopping()._evaluate_stopping_criteria("better") == (False, "patience is over")
    assert EarlyStopping()._evaluate_stopping_criteria("no better") == (False, None) and recorder.assumptions
