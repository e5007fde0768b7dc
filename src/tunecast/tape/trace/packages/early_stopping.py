"""Callbacks that end a run early never do here: how a metric goes on is not known, and what never moves would end it.

transformers  `EarlyStoppingCallback.on_evaluate` (trainer_callback.py) counts evaluations without a better metric.
Lightning     `EarlyStopping._evaluate_stopping_criteria` (callbacks/early_stopping.py) does so too.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder

NEVER = "early stopping does not end the run, whose whole length is taken: how the metric goes on is not known"


def install(recorder: Recorder) -> None:
    def of_transformers(module: ModuleType) -> None:
        callback = module.EarlyStoppingCallback
        on_evaluate = callback.on_evaluate

        def go_on(self: Any, args: Any, state: Any, control: Any, *rest: Any, **options: Any) -> Any:
            stops_already = control.should_training_stop
            result = on_evaluate(self, args, state, control, *rest, **options)
            if control.should_training_stop and not stops_already:
                control.should_training_stop = False
                recorder.assumptions[NEVER] = 1
            return result

        callback.on_evaluate = go_on

    def of_lightning(module: ModuleType) -> None:
        callback = module.EarlyStopping
        evaluate = callback._evaluate_stopping_criteria

        def go_on(self: Any, current: Any) -> tuple[bool, str | None]:
            stops, reason = evaluate(self, current)
            if stops:
                recorder.assumptions[NEVER] = 1
            return False, None if stops else reason

        callback._evaluate_stopping_criteria = go_on

    after_import("transformers.trainer_callback", of_transformers)
    for name in ("lightning.pytorch.callbacks.early_stopping", "pytorch_lightning.callbacks.early_stopping"):
        after_import(name, of_lightning)
