"""Whether a model cannot be built for its config.json, and then for which key, or for a fault of ours.

A config.json may come from anyone and say anything (job/config_keys.py refuses what is of the wrong kind). Where
building fails all the same, the bundled model of the same architecture that it shares most keys with is built for the
same job: if that fails too, the fault is ours and stays an internal error. If not, the keys in which the two differ are
exchanged one by one: the one that makes it work is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from typing import Any

from tunecast.errors import NotResolved, TunecastError, Unsupported
from tunecast.job.job import Job
from tunecast.job.knob import shown
from tunecast.job.model import BUNDLED, ModelConfig, model_config
from tunecast.job.registry import bundled_config, bundled_names
from tunecast.records import NamedTuple
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.stacks import task_program
from tunecast.tape.card import Card

Path = tuple[str, ...]
MISSING = object()
BUILD_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a number or a word of a config.json that no model has comes to where a model is built of it."""


class Donor(NamedTuple):
    name: str
    raw: dict[str, Any]


@contextmanager
def config_errors(model: ModelConfig, predict: Callable[[ModelConfig], object]) -> Iterator[None]:
    """What goes wrong inside is the config's fault where `predict` says so."""
    try:
        yield
    except BUILD_ERRORS as error:
        told = None if model.source.startswith(BUNDLED) else _culprit(model, predict, error)
        if told is None:
            raise
        raise told from error


def require_architecture(job: Job, model: ModelConfig) -> None:
    """Raises `Unsupported` where the job's stack has no such model, or its kernels are not known of it: then no card
    and no setting helps."""
    program = task_program(job)

    def build(of: ModelConfig) -> object:
        return program.model(Machine(Card()), of.raw)

    with config_errors(model, build):
        if build(model) is None:
            told = f"{model.source}: model_type: got {shown(model.model_type)}, which the closed form does not know"
            raise Unsupported(f"{told} of {job.stack}. To fix: trace your own script, `tunecast trace`", field="model")
    if "foak" in job.kernels:
        import_module("tunecast.tape.build.foak").require_known(model.model_type)


def _culprit(model: ModelConfig, predict: Callable[[ModelConfig], object], error: Exception) -> NotResolved | None:
    def works(raw: dict[str, Any]) -> bool:
        """A refusal of the job is an answer too; one of the exchanged config.json is none."""
        try:
            other = model_config(model.name, raw, model.source)
        except NotResolved:
            return False
        try:
            predict(other)
        except TunecastError:
            return True
        except BUILD_ERRORS:
            return False
        return True

    why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    raw = model.raw
    donor = _donor(raw)
    if donor is None:
        told = f"{model.source}: model_type: got {shown(model.model_type)}, an architecture that is not written down"
        return Unsupported(
            f"{told}, and as the nearest known one it cannot be built ({why}). To fix: --engine traced", field="model"
        )
    if not works(donor.raw):
        return None
    for path in _differences(raw, donor.raw):
        got, has = _at(raw, path), _at(donor.raw, path)
        if works(_exchanged(raw, path, has)):
            other = f"{donor.name} has {'none' if has is MISSING else shown(has)}"
            had = "missing" if got is MISSING else f"got {shown(got)}, with which the model cannot be built"
            kind = Unsupported if type(got) is type(has) else NotResolved
            return kind(f"{model.source}: {'.'.join(path)}: {had} ({why}); {other}", field="model")
    return None


def _donor(raw: Mapping[str, Any]) -> Donor | None:
    """The bundled model of the same architecture with the most keys alike."""

    def architecture(config: Mapping[str, Any]) -> tuple[object, object]:
        text = config.get("text_config")
        return config.get("model_type"), text.get("model_type") if isinstance(text, Mapping) else None

    alike = [Donor(name, config) for name in sorted(bundled_names()) for config in [bundled_config(name)]]
    alike = [donor for donor in alike if architecture(donor.raw) == architecture(raw)]
    return min(alike, key=lambda donor: sum(1 for _ in _differences(raw, donor.raw)), default=None)


def _differences(raw: Mapping[str, Any], other: Mapping[str, Any], before: Path = ()) -> Iterator[Path]:
    for key in sorted({*raw, *other}):
        mine, its = raw.get(key, MISSING), other.get(key, MISSING)
        if isinstance(mine, Mapping) and isinstance(its, Mapping):
            yield from _differences(mine, its, (*before, key))
        elif mine != its or type(mine) is not type(its):
            yield *before, key


def _at(raw: Mapping[str, Any], path: Path) -> Any:
    for key in path[:-1]:
        raw = raw[key]
    return raw.get(path[-1], MISSING)


def _exchanged(raw: Mapping[str, Any], path: Path, value: Any) -> dict[str, Any]:
    whole = deepcopy(dict(raw))
    part = whole
    for key in path[:-1]:
        part = part[key]
    part.pop(path[-1], None)
    if value is not MISSING:
        part[path[-1]] = value
    return whole
