"""What was measured, for trackers that a program itself has on: Weights & Biases, MLflow, Trackio; none is imported."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import Any


def figures_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record, by `tunecast/` and their place in it."""
    found: dict[str, float] = {}
    for part in ("memory", "time", "tokens", "utilization"):
        values = record.get(part)
        for name, value in values.items() if isinstance(values, Mapping) else ():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                found[f"tunecast/{name}"] = value
    if record.get("energy_j") is not None:
        found["tunecast/energy_j"] = record["energy_j"]
    return found


def export(record: Mapping[str, Any]) -> list[str]:
    """To each tracker with a run that is open in this process; their names."""
    figures, done = figures_of(record), []
    wandb, mlflow, trackio = (sys.modules.get(name) for name in ("wandb", "mlflow", "trackio"))
    with contextlib.suppress(Exception):  # a tracker that fails takes nothing of the training with it
        if wandb is not None and wandb.run is not None:
            wandb.run.summary.update(figures)
            done.append("wandb")
    with contextlib.suppress(Exception):
        if mlflow is not None and mlflow.active_run() is not None:
            mlflow.log_metrics({name.replace("/", "."): value for name, value in figures.items()})
            done.append("mlflow")
    with contextlib.suppress(Exception):
        if trackio is not None and trackio.context_vars.current_run.get() is not None:
            trackio.log(figures)
            done.append("trackio")
    return done
