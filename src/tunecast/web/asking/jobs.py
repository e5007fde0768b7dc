"""A job as a client sends it. A client never names a path of the server: what may be one is refused by name.

Models are bundled ones by any of their names, a config.json that comes with the request, and Hub ids where whoever
started the server allowed them (`tunecast serve --hub`). Lengths are numbers, a distribution or a known data set.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from tunecast.errors import NotResolved, UsageError, nearest_hint
from tunecast.job.hub import is_hub_id
from tunecast.job.job import Job, all_knobs
from tunecast.job.knob import Wrong, shown
from tunecast.job.lengths import data_sets
from tunecast.job.mapping import job_from_dict
from tunecast.job.registry import bundled_names, bundled_spelling
from tunecast.records import NamedTuple

CONFIG = "config.json"
Place = tuple[str, ...]
PATHS: tuple[Place, ...] = (("data", "path"), ("data", "tokenizer"))
"""Fields that name a file and nothing else."""
MODELS: tuple[Place, ...] = (("model",), ("distill", "teacher"), ("rl", "reward_model"))
"""Fields that name a model, which may be a path."""
DISTRIBUTION = re.compile(r"[a-z]{1,20}\([0-9a-z=., _-]{0,2000}\)")
"""`lognormal(median=300, p90=1200)`: no file is called so, as none is looked for."""


class Asker(NamedTuple):
    """What whoever works on a question may, and whom it tells how it goes."""

    hub: bool
    """Hub ids may be looked up."""
    tell: Callable[[Mapping[str, Any]], None] = lambda event: None
    """What happens on the way to the answer: `{"event", "data"}`."""


@contextmanager
def own_file(name: str, text: str) -> Iterator[str]:
    """A file of this name that holds this, in the folder the process is in, as long as it is needed."""
    try:
        with open(name, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        yield name
    finally:
        with suppress(OSError):
            os.unlink(name)


@contextmanager
def job_of(given: Mapping[str, Any], asker: Asker, name: str = "job") -> Iterator[Job]:
    """The job of a request: `job`, with `model_config` where its model is a config.json that was pasted."""
    content = given[name]
    config = given.get("model_config")
    require_no_paths(content, asker, pasted=config is not None)
    if config is None:
        yield job_from_dict(content)
        return
    try:
        all_knobs()["model"].read(content.get("model"))  # a name all the same, though it is not looked up
    except Wrong as wrong:
        raise UsageError.at("model", str(wrong)) from None
    with own_file(CONFIG, json.dumps(config)) as path:
        yield job_from_dict({**content, "model": path})


def require_no_paths(content: Mapping[str, Any], asker: Asker, *, pasted: bool) -> None:
    """Raises `UsageError` or `NotResolved` for what names a file, or a model that is not at hand."""
    for place in PATHS:
        if _at(content, place) is not None:
            raise UsageError.at(".".join(place), "a file of the server, which no request may name; allowed: null")
    for place in MODELS:
        found = _at(content, place)
        if isinstance(found, str) and not (pasted and place == ("model",)):
            require_known_model(".".join(place), found, asker)
    lengths = _at(content, ("data", "lengths"))
    if isinstance(lengths, str):
        require_known_lengths(lengths)


def require_known_model(field: str, name: str, asker: Asker) -> None:
    looks_local = name.startswith(("/", ".", "~", "\\")) or "\\" in name or ".." in name or name.endswith(".json")
    if not looks_local and (bundled_spelling(name) is not None or (asker.hub and is_hub_id(name))):
        return
    allowed = "a bundled model (GET /api/models), or its config.json in model_config"
    hub = "; Hub ids where the server was started with --hub" if is_hub_id(name) and not asker.hub else ""
    near = "" if looks_local else nearest_hint(name.rpartition("/")[2][:64], sorted(bundled_names()))
    raise NotResolved(f"{field}: got {shown(name)}; allowed: {allowed}{hub}{near}", field=field)


def require_known_lengths(given: str) -> None:
    name = given.lower().replace("_", "-")
    if name in data_sets() or DISTRIBUTION.fullmatch(given.lower()) or not given.strip(" ,0123456789"):
        return
    allowed = "a list of whole numbers, a distribution such as lognormal(median=300, p90=1200), or a data set"
    known = ", ".join(data_sets())
    raise UsageError.at(
        "data.lengths", f"got {shown(given)}; allowed: {allowed}: {known}{nearest_hint(name, data_sets())}"
    )


def _at(content: object, place: tuple[str, ...]) -> object:
    for name in place:
        content = content.get(name) if isinstance(content, Mapping) else None
    return content
