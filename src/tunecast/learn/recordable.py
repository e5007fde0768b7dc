"""What of a job and of its model is recorded: all that prediction needs, and nothing that says whose they are.

Left out of a job     its id, the paths of data and tokenizer, a model's name where it is a folder of this machine
Kept in their place   the lengths of samples (a list of up to 2,000, else percentiles); the sizes in config.json

The same functions read a record that came from elsewhere, so a path cannot come in by that way either.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tunecast.job.config_keys import KINDS, WORD
from tunecast.job.hub import is_hub_id
from tunecast.job.job import Job, all_knobs, nested
from tunecast.job.knob import Problem, Wrong, shown
from tunecast.job.lengths import sample_lengths
from tunecast.job.mapping import with_overrides
from tunecast.job.model import known_model
from tunecast.job.registry import bundled_name
from tunecast.job.spellings import FOLDERS
from tunecast.learn.checks import Several

UNRECORDED = frozenset({"id", "data.path", "data.tokenizer"})
MODELS = ("model", "rl.reward_model", "distill.teacher")
MOST_LENGTHS = 2_000
"""Lengths in one list: of more samples the percentiles, which tell as much of a batch's longest row."""
PERCENTILES = (0, 1, 2, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98, 99, 99.5, 99.9, 100)
MOST_NAMES = 512
"""Modules that a job trains or adapts, by name."""
MOST_KEYS, MOST_WORDS, DEEPEST = 200, 1_024, 4
"""Of a config.json: keys of one mapping, entries of one list (a layer each), mappings in mappings."""
LARGEST = 1e12
"""Number in a config.json, as job/model.py bounds them."""

_DISTRIBUTION = re.compile(r"[a-z]{1,20}\([a-z0-9=., ]{1,400}\)")
_DATA_SET = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9 .-]{0,63}")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_SHAPE_WORD = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_SHAPE_WORDS = frozenset({
    *(name for name, kinds in KINDS.items() if WORD in kinds),
    *("architectures", "dtype", "torch_dtype", "quant_method", "bnb_4bit_quant_type", "bnb_4bit_compute_dtype"),
    *("layer_types", "attention_types", "layers_block_type", "mlp_layer_types", "position_embedding_type", "type"),
})  # fmt: skip
"""Keys of config.json whose words are recorded. Of all others only numbers and flags are: `_name_or_path`, templates
and an author's own keys are texts."""


def job_fields(job: Job) -> dict[str, Any]:
    """Of a job, to be recorded. Its data is looked at where the job names a file of it."""
    values = job.flat()
    changes: dict[str, Any] = {name: public_name(values[name]) for name in MODELS if values[name] is not None}
    if job.data.path is not None or _is_file_of_lengths(job.data.lengths):
        found = sample_lengths(job.data)
        if found is not None:
            changes["data.samples"] = found.samples
            changes["data.lengths"] = found.order or percentiles(_repeated(found.counts))
    return job_from_record(with_overrides(job.to_dict(), _bounded({**values, **changes}, changes)))


def model_shape(job: Job) -> dict[str, Any] | None:
    """What of its config.json decides sizes, where the model is not one that comes with the package."""
    if not os.path.exists(job.model) and bundled_name(job.model) is not None:
        return None
    found = known_model(job.model)
    return None if found is None else shape_from(found.raw)


def ran_as_planned(job: Mapping[str, Any], hardware: Mapping[str, Any]) -> bool:
    """Whether it ran on what its job names, so that measured over predicted says something of the card. A job without
    a card was predicted for the one it ran on."""
    planned = job.get("hardware") or {}
    if planned.get("gpu") is None:
        return True
    cards = [(each.get("gpus") or 1) * (each.get("nodes") or 1) for each in (planned, hardware)]
    several = ((job.get("parallel") or {}).get("layers") or 1) > 1  # in one process, which does not count its cards
    return planned["gpu"] == hardware.get("gpu") and (several or cards[0] == cards[1])


def public_name(model: object) -> str | None:
    """A bundled name or a Hub id, without its revision; None of a folder or file, which only this machine has."""
    if not isinstance(model, str) or os.path.exists(model):
        return None
    if not is_hub_id(model):
        return bundled_name(model)
    return None if model.partition("/")[0].lower() in FOLDERS else model.partition("@")[0]


def job_from_record(given: object) -> dict[str, Any]:
    """A job's fields as a record may hold them: each as the job itself would read it. Unknown ones are dropped, and so
    are `UNRECORDED`, whoever wrote them."""
    if not isinstance(given, Mapping):
        raise Wrong(f"got {shown(given)}; allowed: a mapping of a job's fields")
    values: dict[str, Any] = {}
    problems = []
    for dotted, knob in all_knobs().items():
        if dotted in UNRECORDED:
            continue
        is_there, value = _reach(given, dotted.split("."))
        if not is_there:
            continue
        try:
            values[dotted] = None if value is None and dotted in MODELS else _public(dotted, knob.read(value))
        except Wrong as wrong:
            problems.append(Problem(dotted, str(wrong)))
    if problems:
        raise Several(problems)
    return nested(values)


def shape_from(given: object, depth: int = 1) -> dict[str, Any]:
    """What of a config.json is recorded: numbers, flags, nulls, and the words of `_SHAPE_WORDS`."""
    if not isinstance(given, Mapping):
        raise Wrong(f"got {shown(given)}; allowed: a mapping of config.json's keys")
    found: dict[str, Any] = {}
    for key, value in given.items():
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            continue
        if isinstance(value, Mapping):
            if depth < DEEPEST:
                found[key] = shape_from(value, depth + 1)
        elif isinstance(value, (list, tuple)):
            if len(value) <= MOST_WORDS and all(_is_recordable(key, each) for each in value):
                found[key] = list(value)
        elif _is_recordable(key, value):
            found[key] = value
        if len(found) > MOST_KEYS:
            raise Wrong(f"got more than {MOST_KEYS} keys; allowed: what of config.json decides sizes")
    return found


def percentiles(lengths: Sequence[int]) -> str:
    """As `data.lengths` takes them: `percentiles(0=20, 50=300, 100=2048)`."""
    ordered = sorted(lengths)
    last = len(ordered) - 1
    return f"percentiles({', '.join(f'{each:g}={ordered[round(each / 100 * last)]}' for each in PERCENTILES)})"


def _repeated(counts: Sequence[tuple[int, int]]) -> list[int]:
    """A few thousand lengths that stand for as many samples as there are."""
    whole = sum(count for _, count in counts)
    share = max(1, whole // 100_000)
    return [length for length, count in counts for _ in range(max(1, count // share))]


def _bounded(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes, and those that give a record room for a job's lists."""
    found = dict(changes)
    samples, batches = values["data.lengths"], values["lengths"]
    if isinstance(samples, tuple) and len(samples) > MOST_LENGTHS:
        found |= {"data.samples": values["data.samples"] or len(samples), "data.lengths": percentiles(samples)}
    if batches is not None and len(batches) > MOST_LENGTHS:
        found["lengths"] = spread(batches, MOST_LENGTHS)
    return found


def spread(lengths: Sequence[int], most: int) -> tuple[int, ...]:
    """At most so many of them, the shortest and the longest included, evenly of all in order of size."""
    if len(lengths) <= most:
        return tuple(lengths)
    ordered = sorted(lengths)
    return tuple(ordered[round(each * (len(ordered) - 1) / (most - 1))] for each in range(most))


def _is_file_of_lengths(lengths: object) -> bool:
    return isinstance(lengths, str) and not _DISTRIBUTION.fullmatch(lengths) and os.path.exists(lengths)


def _public(dotted: str, value: Any) -> Any:
    """The value as a job has it, unless its text may be a path. What a folder's name hides behind is null."""
    if dotted in MODELS:
        if len(value) > 200 or "@" in value or not (is_hub_id(value) or _SHAPE_WORD.fullmatch(value)):
            raise Wrong(f"got {shown(value)}; allowed: a bundled model, a Hub id without revision, or null")
    elif dotted == "data.lengths" and isinstance(value, str):
        if not (_DISTRIBUTION.fullmatch(value) or _DATA_SET.fullmatch(value)):
            raise Wrong(f"got {shown(value)}; allowed: a list, a distribution, or a data set's name")
    elif isinstance(value, tuple):
        most = MOST_NAMES if all_knobs()[dotted].kind == "names" else MOST_LENGTHS
        if len(value) > most:
            raise Wrong(f"got a list of {len(value)}; allowed: at most {most}")
    elif value is not None and all_knobs()[dotted].kind == "text" and not _PLAIN.fullmatch(value):
        raise Wrong(f"got {shown(value)}; allowed: a name of up to 64 letters, digits, dots and hyphens")
    return value


def _is_recordable(key: str, value: Any) -> bool:
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, (int, float)):
        return abs(value) <= LARGEST  # which NaN is not
    return isinstance(value, str) and key in _SHAPE_WORDS and _SHAPE_WORD.fullmatch(value) is not None


def _reach(mapping: Any, names: Sequence[str]) -> tuple[bool, Any]:
    for name in names:
        if not isinstance(mapping, Mapping) or name not in mapping:
            return False, None
        mapping = mapping[name]
    return True, mapping


def strings(value: Any) -> Iterator[str]:
    """Every text in a record, all the way down."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from strings(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from strings(each)
