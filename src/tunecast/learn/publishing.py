"""A run as it may be given to anybody: without what is its owner's alone.

Left out     the hash of the host, the note, the country; a model's Hub id unless it is that of a bundled model (it may
             be of a private repository; the model's shape stays, without the names of its classes, unless its model
             type is not one of transformers' own: its keys are then its author's words)
Made coarse  times to the day, lists of lengths to percentiles, local releases (2.13.0+acme1) to the public part
Kept         the id, a random number: a file that is published again adds nothing twice

What is left are numbers, names of products and words of fixed lists. `anonymised` looks once more at each text, for the
words that name this machine and its user.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tunecast.errors import UsageError
from tunecast.job.model import is_native_type
from tunecast.job.registry import bundled_name
from tunecast.learn.record import MeasuredRun, run_from
from tunecast.learn.recordable import MODELS, percentiles, spread, strings

_LOCAL = re.compile(r"\+(?!(?:cu|rocm|cpu|xpu)[0-9.]*$).*")
"""Behind a release, unless it says which CUDA it is for."""
_WORDS = re.compile(r"[a-z0-9]+")
SHORTEST_WORD = 4
"""Of a user's or machine's name that is looked for: a shorter one is part of other words too often to mean anything."""
MOST_PUBLIC_LENGTHS = 100
"""Of the padded batches' lengths: the shape of their distribution, and not one data set's own list."""
EVERYDAY = frozenset({"root", "user", "ubuntu", "debian", "linux", "localhost", "admin", "home", "node"})
"""Names that tell nobody apart."""


def anonymised(run: MeasuredRun, private_words: Iterable[str] = ()) -> MeasuredRun:
    """To be published. `private_words`: names of the machine and its user. Raises `UsageError` with the field where one
    of them is left."""
    told = run.to_dict()
    told |= {"note": None, "began": _day(run.began), "ended": None if run.ended is None else _day(run.ended)}
    told["hardware"] = None if told["hardware"] is None else {**told["hardware"], "host": None}
    told["job"] = None if told["job"] is None else _public_job(told["job"])
    told["model_shape"] = _public_shape(told["model_shape"])
    if told["software"] is not None:
        told["software"] = {name: _LOCAL.sub("", release) for name, release in told["software"].items()}
    made = run_from(told)
    _refuse_words(made.to_dict(), private_words)
    return made


def _public_shape(shape: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if shape is None or not is_native_type(shape.get("model_type")):
        return None
    return {name: value for name, value in shape.items() if name != "architectures"}


def _public_job(job: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: dict(value) if isinstance(value, Mapping) else value for name, value in job.items()}
    for dotted in MODELS:
        section, _, leaf = dotted.rpartition(".")
        place: Any = found.get(section) if section else found
        if isinstance(place, dict) and place.get(leaf) is not None and bundled_name(place[leaf]) is None:
            place[leaf] = None
    data, hardware = found.get("data") or {}, found.get("hardware") or {}
    if isinstance(data.get("lengths"), list):
        data["samples"] = data.get("samples") or len(data["lengths"])
        data["lengths"] = percentiles(data["lengths"])
    if isinstance(lengths := found.get("lengths"), list):
        found["lengths"] = spread(lengths, MOST_PUBLIC_LENGTHS)
    if "country" in hardware:
        hardware["country"] = None
    return found


def _refuse_words(told: Mapping[str, Any], private_words: Iterable[str]) -> None:
    words = {word.lower() for word in private_words if len(word) >= SHORTEST_WORD} - EVERYDAY
    if not words:
        return
    for field, value in told.items():
        for text in (*strings(value), *_keys(value)):
            found = words & set(_WORDS.findall(text.lower())) or {each for each in words if each == text.lower()}
            if found:
                name = sorted(found)[0]
                raise UsageError(f"{field}: holds {name!r}, a name of this machine or its user", field=field)


def _keys(value: Any) -> Iterator[str]:
    """Of mappings in a record, all the way down: those of a config.json are whoever's wrote it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield key
            yield from _keys(inner)


def _day(moment: str) -> str:
    return f"{moment[:10]}T00:00:00Z"
