"""docs/defaults.md, made from the fields themselves. `python -m tunecast.job.defaults` prints it."""

from __future__ import annotations

from tunecast.job.fields import REQUIRED
from tunecast.job.flags import job_flags
from tunecast.job.job import VERSIONS, all_knobs
from tunecast.job.knob import Knob, shown

_HEAD = """# A job's fields and their defaults

Only `model` is required. A default is TRL's where TRL has one, then transformers', PEFT's, accelerate's, at these
releases: {versions}. "tunecast" marks a field that none of them has.

Made by `python -m tunecast.job.defaults`. One test compares this page with the code, another the code with the
packages, where these releases are installed.

| field | flag | default | whose | there | may be | meaning |
|---|---|---|---|---|---|---|
"""


def defaults_markdown() -> str:
    head = _HEAD.format(versions=", ".join(f"{package} {version}" for package, version in VERSIONS.items()))
    flags = {flag.field: flag.flag for flag in job_flags()}
    return head + "".join(_row(name, flags[name], knob) for name, knob in all_knobs().items())


def _row(name: str, flag: str, knob: Knob) -> str:
    origin = knob.origin
    whose = f"{origin.package} {VERSIONS[origin.package]}" if origin.package in VERSIONS else origin.package
    there = f"`{origin.name}` = {_shown(origin.value)}" if origin.package in VERSIONS else origin.name
    default = "required" if knob.default is REQUIRED else _shown(knob.default)
    cells = (f"`{name}`", f"`{flag}`", default, whose, there, knob.allowed(), knob.help)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _shown(value: object) -> str:
    return f"`{value}`" if isinstance(value, str) else f"`{shown(list(value) if isinstance(value, tuple) else value)}`"


if __name__ == "__main__":
    print(defaults_markdown(), end="")
