"""tunecast: the GPU memory of a fine-tuning job, from the real training code, before it runs and without a GPU.

    >>> import tunecast
    >>> said = tunecast.prediction({"model": "llama-3.2-1b", "method": "lora", "hardware": {"gpu": "rtx-4090"}})
    >>> said.fits, said.memory.device_bytes

Importing this loads nothing else: each name below is read from its place when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunecast.errors import DoesNotFit as DoesNotFit
    from tunecast.errors import NotResolved as NotResolved
    from tunecast.errors import OverBudget as OverBudget
    from tunecast.errors import TunecastError as TunecastError
    from tunecast.errors import Unsupported as Unsupported
    from tunecast.errors import UsageError as UsageError
    from tunecast.job.job import Job as Job
    from tunecast.job.readers import read_jobs as read_jobs
    from tunecast.predict.engines import prediction as prediction
    from tunecast.predict.prediction import Memory as Memory
    from tunecast.predict.prediction import Prediction as Prediction

__version__ = "0.1.0"

__all__ = [
    "DoesNotFit",
    "Job",
    "Memory",
    "NotResolved",
    "OverBudget",
    "Prediction",
    "TunecastError",
    "Unsupported",
    "UsageError",
    "__version__",
    "prediction",
    "read_jobs",
]

_PLACES = {
    **dict.fromkeys(
        ("DoesNotFit", "NotResolved", "OverBudget", "TunecastError", "Unsupported", "UsageError"), "tunecast.errors"
    ),
    "Job": "tunecast.job.job",
    "read_jobs": "tunecast.job.readers",
    **dict.fromkeys(("Memory", "Prediction"), "tunecast.predict.prediction"),
    "prediction": "tunecast.predict.engines",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
