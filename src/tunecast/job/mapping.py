"""A job from a mapping, as YAML, JSON or flags give it. Everything wrong with it is told at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.errors import UsageError
from tunecast.job.check import contradictions, in_vain, settled
from tunecast.job.foreign import called, fields_of_meaning, plain, remark, spelling
from tunecast.job.job import Job, all_knobs, sections
from tunecast.job.knob import REQUIRED, Problem, Wrong, raise_if_any, shown
from tunecast.job.names import ROLLOUTS

MOST_UNKNOWN_FIELDS = 20
"""Told one by one; a file with more is not a job, and the rest is counted."""


def job_from_dict(mapping: object) -> Job:
    """The job a mapping describes, or one `UsageError` with a line for each field that is wrong or contradicts."""
    if not isinstance(mapping, Mapping):
        allowed = "a mapping of fields, of which only model is required"
        raise UsageError(f"job: got {shown(mapping)}; allowed: {allowed}", field="job")
    given, problems = _given(mapping)
    values, wrong = _values(given)
    problems += wrong
    bad = {problem.field for problem in problems}
    if values["lengths"] is not None and "seq_len" not in given:
        values["seq_len"] = max(values["lengths"])
    elif values["task"] in ROLLOUTS and not {"seq_len", *bad} & set(given):
        knobs = all_knobs()  # of prompts whose length nobody says: the room that the defaults leave
        prompt = values["rl.prompt_length"] or knobs["seq_len"].default - knobs["rl.completion_length"].default
        values["seq_len"] = prompt + values["rl.completion_length"]
    problems += _null_and_qlora(given, values, bad)
    full = settled(values)
    if problems or in_vain(full, given):  # else the job itself goes through the rules
        raise_if_any([*problems, *contradictions(full, given, bad)])
    return job_from_flat(values, frozenset(given))


def with_overrides(mapping: Mapping[Any, Any], overrides: Mapping[str, object]) -> dict[Any, Any]:
    """The mapping with dotted fields set; what is set wins.

    A method that is set also drops what the mapping holds only for another method, so that trying `method: full`
    on a file for LoRA needs no second change.
    """
    merged = dict(mapping)
    method = overrides.get("method")
    if method == "full":
        merged.pop("lora", None)
    if method in ("full", "lora"):
        merged.pop("quantization", None)
    for dotted, value in overrides.items():
        _set(merged, dotted, value)
    return merged


def _set(whole: dict[Any, Any], dotted: str, value: object) -> None:
    section, _, rest = dotted.partition(".")
    if not rest:
        whole[section] = value
        return
    inner = whole.get(section)
    if inner is None or isinstance(inner, Mapping):  # anything else is wrong, and is told as the file has it
        whole[section] = dict(inner or {})
        _set(whole[section], rest, value)


def check_overrides(overrides: Mapping[str, object]) -> None:
    """Raises one `UsageError` for every flag that no job could take, whatever its file says."""
    problems = []
    for dotted, value in overrides.items():
        knob = all_knobs().get(dotted)
        if knob is None:
            if not (dotted in sections() and value is None):
                problems.append(_unknown(dotted, ""))
            continue
        try:
            knob.read(value)
        except Wrong as wrong:
            problems.append(Problem(dotted, str(wrong)))
    raise_if_any(problems)


def _given(mapping: Mapping[Any, object]) -> tuple[dict[str, object], list[Problem]]:
    """What was given, by dotted name, and what no field has the name of."""
    given: dict[str, object] = {}
    unknown: list[tuple[str, str]] = []
    problems: list[Problem] = []

    def take(inner: Mapping[Any, object], section: str) -> None:
        for key, value in inner.items():
            plain_key = isinstance(key, str) and "." not in key
            dotted = f"{section}.{key}" if section else key
            if plain_key and dotted in sections():
                found = _section_given(dotted, value)
                if isinstance(found, Problem):
                    problems.append(found)
                else:
                    take(found, dotted)
            elif plain_key and dotted in all_knobs():
                given[dotted] = value
            else:
                unknown.append((_name(key), section))

    take(mapping, "")
    problems += [_unknown(name, section) for name, section in unknown[:MOST_UNKNOWN_FIELDS]]
    if len(unknown) > MOST_UNKNOWN_FIELDS:
        problems.append(Problem("job", f"{len(unknown) - MOST_UNKNOWN_FIELDS} more unknown fields"))
    return given, problems


def _section_given(section: str, value: object) -> Mapping[Any, object] | Problem:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        if section == "quantization" and "format" in value and value["format"] is None:
            return {"format": None}  # said outright that nothing is quantised: how it would be done is moot
        return value
    leaves = ", ".join(_leaves(section))
    return Problem(section, f"got {shown(value)}; allowed: a mapping of {leaves}; or null")


def _values(given: Mapping[str, object]) -> tuple[dict[str, Any], list[Problem]]:
    """Every field's value, the default where none (or a wrong one) was given."""
    values: dict[str, Any] = {}
    problems = []
    for dotted, knob in all_knobs().items():
        values[dotted] = "" if knob.default is REQUIRED else knob.default
        try:
            if dotted in given:
                values[dotted] = knob.read(given[dotted])
            elif knob.default is REQUIRED:
                problems.append(Problem(dotted, f"missing; allowed: {knob.help}"))
        except Wrong as wrong:
            problems.append(Problem(dotted, str(wrong)))
    return values, problems


def _null_and_qlora(given: Mapping[str, object], values: Mapping[str, Any], bad: set[str]) -> list[Problem]:
    """Only here can a null that was written be told from a format left open."""
    name = "quantization.format"
    if values["method"] != "qlora" or values[name] is not None or name not in given or bad & {name, "method"}:
        return []
    return [Problem(name, "got null with method qlora; allowed: nf4, fp4, int8, or method: lora; nearest: nf4")]


def job_from_flat(values: Mapping[str, Any], given: frozenset[str] = frozenset()) -> Job:
    """Of values that are right, by dotted name; the inverse of `Job.flat`."""
    parts: dict[str, dict[str, Any]] = {name: {} for name in ("", *sections())}
    for dotted, value in values.items():
        section, _, leaf = dotted.rpartition(".")
        parts[section][leaf] = value
    for name in reversed(sections()):  # inner ones first
        outer, _, leaf = name.rpartition(".")
        parts[outer][leaf] = sections()[name](**parts[name])
    return Job(**parts[""], given=given)


def _unknown(name: str, section: str) -> Problem:
    """Points at the field meant: the one other tools call by this name, or one spelled alike."""
    dotted = f"{section}.{name}" if section else name
    leaf = name.rpartition(".")[2]
    idle = remark(leaf)
    if idle is not None:
        return Problem(dotted, f"unknown field: {idle}")
    places = [f"{section}.{leaf}" for leaf in _leaves(section)] if section else list(all_knobs()) + list(sections())
    own = next((known for known in all_knobs() if leaf == known.rpartition(".")[2]), None)
    spelled = spelling(dotted, places) or spelling(leaf, places) or spelling(leaf, called())
    meant = own or called().get(plain(leaf)) or fields_of_meaning(leaf) or called().get(spelled or "", spelled)
    allowed = ", ".join(_leaves(section)) if section else ", ".join(_leaves(""))
    return Problem(dotted, f"unknown field; allowed: {allowed}" + (f"; nearest: {meant}" if meant else ""))


def _leaves(section: str) -> list[str]:
    if section:
        inside = [name.removeprefix(f"{section}.") for name in all_knobs() if name.startswith(f"{section}.")]
        return list(dict.fromkeys(name.partition(".")[0] for name in inside))
    return list(dict.fromkeys(name.partition(".")[0] for name in all_knobs()))


def _name(key: object) -> str:
    """A key as a dotted name may show it."""
    return key if isinstance(key, str) and key.isprintable() and 0 < len(key) <= 64 else shown(key)
