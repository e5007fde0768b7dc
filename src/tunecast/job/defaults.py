"""docs/defaults.md, made from the fields themselves. `python -m tunecast.job.defaults` prints it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tunecast.job.flags import ORDER, group_of, job_flags
from tunecast.job.foreign import MEANINGS, fields_of_meaning
from tunecast.job.job import VERSIONS, all_knobs
from tunecast.job.knob import REQUIRED, Knob, shown

_HEAD = """# A job's fields and their defaults

Only `model` is required. What you leave out is what the training code itself would take: TRL's default where TRL has
one, then transformers', PEFT's, accelerate's, at these releases:
{versions}. So a job that says no more than `model: llama-3.1-8b` means

```yaml
{minimal}
```

In a file, a name with a dot is a section (`lora: {{rank: 16}}`). On the command line every field has a flag, and
`--set lora.rank=16` reaches it by its name. *From* says whose default it is and where it stands; where it is empty,
the field is tunecast's own.

Lengths may be written `4k` (4096, k is 1024), amounts `20M` or `1.5B` (k is 1000), sizes `24GiB` or `24GB`; dtypes
`bf16`, `fp16`, `fp32`; switches `yes`, `no`, `on`, `off`; all in upper or lower case.

Made by `python -m tunecast.job.defaults`, which `./dev docs` runs. One test compares this page with the code, another
the code with the packages, where these releases are installed.

"""
_OTHER_NAMES = """
## What other trainers call it

Flags, `--set` and `--to` take these names too, with `-` or `_` (`--per_device_train_batch_size 4`); a file is told the
field it means. The last rows are names that say something about other fields, here with the value that turns them on.

| field | also called |
|---|---|
"""
_MINIMAL = (
    "model", "method", "stack", "weights_dtype", "autocast", "optimizer", "micro_batch", "grad_accum", "seq_len",
    "gradient_checkpointing", "attention", "data.epochs", "run.save_steps", "hardware.gpu", "hardware.gpus",
)  # fmt: skip
"""The fields that decide most of an answer."""
_PLAIN_KINDS = ("a whole number", "a number", "true or false", "text", "bytes")
_LONG = 200
"""Characters of allowed values beyond which they stand below their table."""


def defaults_markdown() -> str:
    knobs = all_knobs()
    versions = ", ".join(f"{package} {version}" for package, version in VERSIONS.items())
    head = _HEAD.format(versions=versions, minimal="\n".join(_minimal_lines(knobs)))
    groups: dict[str, dict[str, Knob]] = {name: {} for name in ORDER}
    for name, knob in knobs.items():
        groups[group_of(name)][name] = knob
    return head + "\n".join(_section(title, of) for title, of in groups.items()) + _foreign(knobs)


def _foreign(knobs: Mapping[str, Knob]) -> str:
    """What else fields are called."""
    rows = [f"| `{name}` | {_code(knob.aka)} |\n" for name, knob in knobs.items() if knob.aka]
    alike: dict[str, list[str]] = {}
    for name in MEANINGS:
        alike.setdefault(fields_of_meaning(name) or "", []).append(name)
    rows += [f"| `{meant}` | {_code(names)} |\n" for meant, names in alike.items()]
    return _OTHER_NAMES + "".join(rows)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _minimal_lines(knobs: Mapping[str, Knob]) -> Iterator[str]:
    section = ""
    for name in _MINIMAL:
        inside, dot, last = name.partition(".")
        if dot and inside != section:
            yield f"{inside}:"
        section = inside if dot else ""
        given = knobs[name].default is REQUIRED
        yield f"{'  ' if dot else ''}{last or inside}: {'llama-3.1-8b' if given else _plain(knobs[name].default)}"


def _section(title: str, knobs: Mapping[str, Knob]) -> str:
    flags = {flag.field: flag.flag for flag in job_flags()}
    rows = "".join(_row(name, flags[name], knob) for name, knob in knobs.items())
    long = [
        f"\n`{name}` may be one of: {', '.join(f'`{one}`' for one in knob.allowed().split(', '))}.\n"
        for name, knob in knobs.items()
        if len(knob.allowed()) > _LONG
    ]
    return f"## {title}\n\n| field, flag | default | meaning | from |\n|---|---|---|---|\n{rows}{''.join(long)}"


def _row(name: str, flag: str, knob: Knob) -> str:
    default = "required" if knob.default is REQUIRED else f"`{_plain(knob.default)}`"
    cells = (f"`{name}`<br>`{flag}`", default, knob.help + _choices(knob), _from(knob))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _choices(knob: Knob) -> str:
    """The names a field takes; that a number is a number needs no words."""
    allowed = knob.allowed()
    if allowed.startswith(_PLAIN_KINDS):
        return ""
    return f". *One of:* {'those below' if len(allowed) > _LONG else allowed}"


def _from(knob: Knob) -> str:
    origin = knob.origin
    if origin.package not in VERSIONS:
        return origin.name
    return f"{origin.package}: `{origin.name}` = `{_plain(origin.value)}`"


def _plain(value: object) -> str:
    return value if isinstance(value, str) else shown(list(value) if isinstance(value, tuple) else value)


if __name__ == "__main__":
    print(defaults_markdown(), end="")
