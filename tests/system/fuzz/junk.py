"""Values no field expects, values at the edge of what one takes, and texts with something wrong in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import date
from random import Random
from typing import Any

from tunecast.job.knob import Knob

TEXTS = (
    "", " ", "null", "None", "~", "true", "yes", "0", "1", "-1", "0x10", "1_000", "1e3", "1e400", "NaN", "inf", "½",
    "١٢٣",
    "2GiB", "2GB", "1.5", "auto", "none", "a" * 300, "a" * 5000, "9" * 19, "9" * 5000, "\x00", "a\nb", "\t",
    "\x1b[31mred",
    "\x9b31m", "\u202eevil", "\ud800", "é", "🙂", "/dev/null", "/dev/zero", "/proc/self/mem", "../..", ".", "/",
    "~root",
    "-", "--", "--gpu", "-h", "{}", "[1]", "[1,2", "<script>alert(1)</script>", "%s%n", "$(id)", "`id`", "'", '"',
    ",", "=",
    "a=b", "a,b,,c", "1,2,3", ",".join(["7"] * 2000), "uniform(50, 900)", "lognormal(median=300, p90=1200)",
    "constant(0)",
    "percentiles(0=20)", "gpt2", "llama-3.1-8b", "config.json", "job.yaml", "lengths.txt", "org/name", "org/name@x",
    "http://127.0.0.1:9/", "file:///etc/passwd",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 3, 7, 63, 64, 65, 1000, 2**15, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**18, 10**30,
    -(10**30),
    10**4999, -0.0, 0.1, 0.5, 1.0, 1.5, 2048.0, 1e-320, 1e15, 1e16, 1e308, math.inf, -math.inf, math.nan,
)  # fmt: skip
DEEP: Any = []
for _ in range(60):
    DEEP = [DEEP]
OTHERS: tuple[Any, ...] = (
    None, True, False, [], {}, [None], [[]], [1], [1, 2], [1] * 50, ["a"], ["q_proj", 5], {"a": 1}, {"": None},
    {1: 2}, DEEP,
    list(range(1, 3000)), {str(n): n for n in range(300)}, date(2026, 11, 15),
)  # fmt: skip
JUNK: tuple[Any, ...] = (*OTHERS, *NUMBERS, *TEXTS)
PYTHON_JUNK: tuple[Any, ...] = (b"bytes", (1, 2), {1, 2}, 1j, object, range(5), float, Ellipsis)
"""What only a program could hand over."""


def junk(rng: Random) -> Any:
    """One's own copy: what is put into a job or a configuration may be changed there."""
    return deepcopy(rng.choice(JUNK))


MARKS = (
    "\x00", "\x1b[2J", "\ufeff", "\u2028", "\t", "\r\n", "\n\n", "---\n", "...\n", "&a ", "*a", "<<: *a\n",
    "!!python/object ",
    "!!binary ", "!!float ", "? ", ": ", "- ", "{", "}", "[", "]", '"', "'", ",", "#", "|\n", ">\n", "%YAML 9.9\n",
    "NaN",
    "Infinity", "1e999", "9" * 400, "null", "true", "2026-02-31", "0o8", "0b2", "12:34:56", "\\", "\\ud800", '{"a":',
    "[[[[",
    "id: x\n", "id: x\nid: y\n", '"model": 1, ', "method: qlora\n",
)  # fmt: skip


MODULES = ("layers.0", "layers.1.mlp", "lm_head", "q_proj")


def edges(knob: Knob) -> list[Any]:
    """Right at what it allows, and just beyond."""
    found: list[Any] = [knob.default if isinstance(knob.default, (str, int, float, bool)) else None, *knob.choices]
    found += [choice.upper() for choice in knob.choices[:2]] + [choice[:-1] for choice in knob.choices[:2]]
    for end, beyond in ((knob.low, -1), (knob.high, 1)):
        if math.isfinite(end):
            found += [end, end + beyond, end - beyond, str(int(end)), math.nextafter(end, math.inf * beyond)]
            found += [int(end), [int(end)], [int(end) + beyond]]
    return found


def legal(rng: Random, knob: Knob) -> Any:
    """What a user might write, small rather than large."""
    if knob.nullable and rng.random() < 0.1:
        return None
    if knob.kind == "bool":
        return rng.random() < 0.5
    if knob.choices and knob.kind == "choice":
        return rng.choice(knob.choices)
    if knob.kind == "names":
        if not knob.choices:
            return rng.sample(MODULES, rng.randint(0, len(MODULES)))
        closed = knob.default is not None
        return rng.sample(knob.choices, rng.randint(0, len(knob.choices))) if closed else rng.choice(knob.choices)
    if knob.kind in ("int", "bytes", "float"):
        return _number(rng, knob)
    if knob.kind in ("ints", "ints or text"):
        return [rng.randint(1, 4096) for _ in range(rng.randint(1, 6))]
    if knob.kind == "release":
        return rng.choice(("4.48.1", "5.22.2", "2.13.0+cpu", "9.9"))
    return rng.choice(("a", "h100-sxm-80gb", "nvlink4", "DE", "x1"))


def _number(rng: Random, knob: Knob) -> float:
    low, high = max(knob.low, 0.0), min(knob.high, 1e15)
    value = low + math.exp(rng.uniform(0.0, math.log(max(2.0, min(high - low, 5000.0)))))
    value = min(max(value, low), high)
    return value if knob.kind == "float" else int(value)


def any_value(rng: Random, knob: Knob) -> Any:
    """Legal, at the edge, or junk, about alike."""
    kind = rng.random()
    if kind < 0.5:
        return legal(rng, knob)
    return rng.choice(edges(knob)) if kind < 0.75 else junk(rng)


def plain(value: Any) -> Any:
    """What JSON can hold of it."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and abs(value) > 10**4000:
        return 10**4000
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def spoiled(rng: Random, content: bytes, marks: Sequence[str] = MARKS) -> bytes:
    """With up to eight changes: bytes flipped, cut out, doubled, put in; now and then in another encoding."""
    text = bytearray(content)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 8))):
        here = rng.randint(0, len(text))
        there = min(len(text), here + rng.choice((1, 1, 2, 5, 20, 80)))
        kind = rng.randrange(6)
        if kind == 0 and text:
            text[here % len(text)] = rng.randrange(256)
        elif kind == 1:
            del text[here:there]
        elif kind == 2:
            text[here:here] = text[here:there] * rng.choice((1, 1, 2, 30))
        elif kind == 3:
            text[here:there] = str(plain(rng.choice(NUMBERS[:-3]))).encode()
        else:
            text[here:here] = rng.choice(marks).encode("utf-8", "surrogatepass")
    if rng.random() < 0.02:
        return bytes(text).decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-32", "latin-1")), "replace")
    if rng.random() < 0.02:
        return bytes(text[: rng.randint(0, len(text))])
    return bytes(text)


def shown(value: object, most: int = 3000) -> str:
    """As a result file may hold it."""
    try:
        text = ascii(value)
    except ValueError:  # an integer of thousands of digits
        text = (
            ascii(plain(value))[:most] if isinstance(value, (Mapping, list)) else f"an int of {value.bit_length()} bits"
        )  # type: ignore[attr-defined]
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"
