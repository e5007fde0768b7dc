"""tunecast: which GPUs to rent for a fine-tune: its memory to the byte, its time and its cost, before it runs.

    >>> import tunecast
    >>> job = tunecast.read("llama-3.1-8b", method="lora", gpu="rtx-4090", samples=20_000)
    >>> p = tunecast.predict(job)
    >>> p.fits, p.memory.device_bytes, p.time.step_s
    >>> plan = tunecast.plan(job, within="6h", eu=True)
    >>> plan.best.hardware, plan.best.total_usd

What a command prints with `--json` is `to_dict()` of what the function of its name returns, and attributes have the
JSON's names. Importing this loads nothing else: each name below is read from its place when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunecast.advise.most import Largest as Largest
    from tunecast.advise.oom.explanation import OomExplanation as OomExplanation
    from tunecast.door.catalogue import gpus as gpus
    from tunecast.door.catalogue import models as models
    from tunecast.door.catalogue import nodes as nodes
    from tunecast.door.compare import compare as compare
    from tunecast.door.data import data as data
    from tunecast.door.diff import diff as diff
    from tunecast.door.explain_oom import explain_oom as explain_oom
    from tunecast.door.fit import fit as fit
    from tunecast.door.largest import largest as largest
    from tunecast.door.launch import launch as launch
    from tunecast.door.launch_many import LaunchedTogether as LaunchedTogether
    from tunecast.door.launch_many import RenderedTogether as RenderedTogether
    from tunecast.door.launched import Launched as Launched
    from tunecast.door.launched import LaunchedJobs as LaunchedJobs
    from tunecast.door.launched import cancel as cancel
    from tunecast.door.launched import jobs as jobs
    from tunecast.door.launched import logs as logs
    from tunecast.door.learned import calibration as calibration
    from tunecast.door.offers import offers as offers
    from tunecast.door.plan import plan as plan
    from tunecast.door.predict import predict as predict
    from tunecast.door.read import read as read
    from tunecast.door.read import recipe as recipe
    from tunecast.door.runs import StoredRuns as StoredRuns
    from tunecast.door.runs import runs as runs
    from tunecast.door.trace import ScriptTrace as ScriptTrace
    from tunecast.door.trace import trace as trace
    from tunecast.door.watch import Callback as Callback
    from tunecast.door.watch import watching as watching
    from tunecast.errors import DoesNotFit as DoesNotFit
    from tunecast.errors import NotResolved as NotResolved
    from tunecast.errors import OverBudget as OverBudget
    from tunecast.errors import TunecastError as TunecastError
    from tunecast.errors import Unsupported as Unsupported
    from tunecast.errors import UsageError as UsageError
    from tunecast.job.job import Job as Job
    from tunecast.job.readers import read_jobs as read_jobs
    from tunecast.launching.rendering import Rendering as Rendering
    from tunecast.learn.record import MeasuredRun as MeasuredRun
    from tunecast.market.listed import Offers as Offers
    from tunecast.planning.choice import Choice as Choice
    from tunecast.planning.choice import Plan as Plan
    from tunecast.planning.comparison import Comparison as Comparison
    from tunecast.planning.file_changes import FileChanges as FileChanges
    from tunecast.planning.fit.solution import Fit as Fit
    from tunecast.prediction.data.training_data import TrainingData as TrainingData
    from tunecast.prediction.prediction import Prediction as Prediction
    from tunecast.prediction.values import Memory as Memory

__version__ = "0.1.0"

_PLACES = {
    "advise.most": ("Largest",),
    "advise.oom.explanation": ("OomExplanation",),
    "door.catalogue": ("gpus", "models", "nodes"),
    "door.compare": ("compare",),
    "door.data": ("data",),
    "door.diff": ("diff",),
    "door.explain_oom": ("explain_oom",),
    "door.fit": ("fit",),
    "door.largest": ("largest",),
    "door.launch": ("launch",),
    "door.launch_many": ("LaunchedTogether", "RenderedTogether"),
    "door.launched": ("Launched", "LaunchedJobs", "cancel", "jobs", "logs"),
    "door.learned": ("calibration",),
    "door.offers": ("offers",),
    "door.plan": ("plan",),
    "door.predict": ("predict",),
    "door.read": ("read", "recipe"),
    "door.runs": ("StoredRuns", "runs"),
    "door.trace": ("ScriptTrace", "trace"),
    "door.watch": ("Callback", "watching"),
    "errors": ("DoesNotFit", "NotResolved", "OverBudget", "TunecastError", "Unsupported", "UsageError"),
    "job.job": ("Job",),
    "job.readers": ("read_jobs",),
    "launching.rendering": ("Rendering",),
    "learn.record": ("MeasuredRun",),
    "market.listed": ("Offers",),
    "planning.choice": ("Choice", "Plan"),
    "planning.comparison": ("Comparison",),
    "planning.file_changes": ("FileChanges",),
    "planning.fit.solution": ("Fit",),
    "prediction.data.training_data": ("TrainingData",),
    "prediction.prediction": ("Prediction",),
    "prediction.values": ("Memory",),
}
"""Where each public name is."""

__all__ = ["__version__", *(name for names in _PLACES.values() for name in names)]


def __getattr__(name: str) -> Any:
    place = next((place for place, names in _PLACES.items() if name in names), None)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{place}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
