"""How long the samples of a data set are: a list, a file, or a distribution, as `data.lengths` of a job says.

    [512, 97, 1024]                                  a list, one a sample
    ./lengths.json, ./lengths.txt                    a file: a JSON list, or a length a line (`length,count` for many)
    constant(512)   uniform(50, 900)                 a distribution
    lognormal(median=300, p90=1200)                  or mean=, or sigma= beside the median
    percentiles(0=20, 50=300, 90=1200, 100=2048)     straight between them
    alpaca   gsm8k                                   a data set of lengths.toml: as many samples, and as long

A distribution stands for its quantiles at (i + 1/2) / n: no random numbers, so an answer is the same every time.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from tunecast.errors import UsageError, nearest
from tunecast.job.job import Data
from tunecast.job.knob import shown
from tunecast.job.readers.bounds import bounded_text
from tunecast.records import NamedTuple
from tunecast.tables import Tables, text_beside
from tunecast.units import MIB

if TYPE_CHECKING:
    from tunecast.job.texts.scan import Scan

FIELD = "data.lengths"
MOST_FILE_BYTES = 16 * MIB
"""Some three million lengths, one per line; as `length,count` any data set."""
MOST_SAMPLES = 10**13
"""As `data.samples` allows."""
QUANTILES = 4096
"""That a distribution is cut into where there are more samples: a length is then off by its share of a 4096th."""
LONGEST = 10_000_000
WIDEST_SIGMA = 5.0
"""Its p90 is 600 times its median: no data set is wider."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
"""Without a dot or a slash: hardly a file."""
_CALL = re.compile(r"\s*([a-z]+)\s*\(([^()]*)\)\s*")


class PairTokens(NamedTuple):
    """Tokens of preferences, in the data set's order."""

    prompts: tuple[int, ...]
    chosen: tuple[int, ...]
    """Each with its prompt."""
    rejected: tuple[int, ...]


class Lengths(NamedTuple):
    """How many samples have which length."""

    counts: tuple[tuple[int, int], ...]
    """(length, samples), shortest first."""
    order: tuple[int, ...] | None = None
    """As the data set has them, where it was given sample by sample."""
    samples: int | None = None
    """Of the whole data set, for which `counts` stands; None where only a distribution is known."""
    prompts: tuple[int, ...] | None = None
    """In the data set's order: tokens at each sample's beginning that have no label; None where all have one."""
    pairs: PairTokens | None = None
    """Of preferences, whose longer answer `order` has; None where they were not counted."""

    @property
    def listed(self) -> int:
        return sum(count for _, count in self.counts)

    @property
    def mean(self) -> float:
        return sum(length * count for length, count in self.counts) / self.listed

    @property
    def is_sample(self) -> bool:
        """Whether `counts` only stands for the data set: its samples are drawn from it anew."""
        return self.samples is None or self.samples != self.listed


def sample_lengths(data: Data) -> Lengths | None:
    """What a job says of its samples' lengths; None where it says nothing. Raises `UsageError` or `NotResolved`."""
    given = data.lengths
    if data.path is not None:
        found = lengths_of(scan_of(data), data.samples)
        return found if data.completion_only else found._replace(prompts=None)
    if given is None:
        return None
    if isinstance(given, str):
        call = _CALL.fullmatch(given)
        if call is not None:
            return _distribution(call[1], call[2], given, data.samples)
        if _NAME.fullmatch(given) and not os.path.exists(given):
            return _named(given, data.samples)
        counts, order = _file(given)
        found = Lengths(counts, order)
        return found._replace(samples=data.samples or found.listed)
    return Lengths(_counted(given), given, data.samples or len(given))


def scan_of(data: Data) -> Scan:
    """What was counted of the training data that a job names."""
    from tunecast.job.texts.scan import scan  # few jobs name any

    assert data.path is not None
    return scan(data.path, data.tokenizer, append_eos=data.append_eos is not False)


def lengths_of(found: Scan, samples: int | None = None) -> Lengths:
    return Lengths(found.counts, found.order, samples or found.samples, found.prompts, found.pairs)


def lengths_source(data: Data) -> str:
    found = scan_of(data)
    bad = f", {found.bad_lines:,} lines were not" if found.bad_lines else ""
    return f"lengths of {found.samples:,} samples were counted in {found.path}{bad}; tokens: {found.tokenizer}"


def lengths_guess(data: Data) -> str | None:
    """That lengths are only estimated, where they are."""
    if data.path is None:
        return None
    found = scan_of(data)
    return None if found.is_exact else f"lengths of the samples are {found.tokenizer} (data.tokenizer counts them)"


@lru_cache(maxsize=1)
def data_sets() -> Tables:
    """Well-known data sets by name, each with `samples`, `lengths` and `source`."""
    return Tables(text_beside(__file__, "lengths.toml"))


def data_set_of(name: str) -> str | None:
    """What a data set that a trainer's file names is called in `data_sets`; None where its lengths are not known."""
    plain = name.lower()
    return next((own for own, told in data_sets().items() if plain in map(str.lower, told["hub"])), None)


def longest_of(name: str) -> int:
    """Tokens of the longest sample of one of `data_sets`."""
    call = _CALL.fullmatch(data_sets()[name]["lengths"])
    quantile = _percentiles(_arguments(call[2])) if call is not None else None
    assert quantile is not None, "each is told by its percentiles"
    return round(quantile(1.0))


def _named(given: str, samples: int | None) -> Lengths:
    known, name = data_sets(), given.lower().replace("_", "-")
    if name not in known:
        close = nearest(name, known)
        told = f"; nearest: {close}" if close else ""
        raise _wrong(
            f"got {shown(given)}, neither a file nor a data set that is known; known: {', '.join(known)}{told}"
        )
    call = _CALL.fullmatch(known[name]["lengths"])
    assert call is not None
    return _distribution(call[1], call[2], given, samples or known[name]["samples"])


def all_of(length: int, samples: int | None) -> Lengths:
    return Lengths(((length, samples or 1),), None, samples)


def _counted(lengths: Iterable[int]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(Counter(lengths).items()))


Counts = tuple[tuple[int, int], ...]


def _file(name: str) -> tuple[Counts, tuple[int, ...] | None]:
    try:
        seen = os.stat(name)
        return _read(name, seen.st_mtime_ns, seen.st_size)
    except (OSError, ValueError):  # whoever reads it says what is wrong
        return _read.__wrapped__(name, 0, 0)


@lru_cache(maxsize=1)
def _read(name: str, changed_ns: int, size_bytes: int) -> tuple[Counts, tuple[int, ...] | None]:
    """How many samples have which length, and their order where the file lists them one by one.

    Once for all who ask about a job, as long as the file stays as it is.
    """
    from pathlib import Path

    text = bounded_text(Path(name), MOST_FILE_BYTES)
    counts: Counter[int] = Counter()
    try:
        if "," not in text or text.lstrip().startswith("["):
            listed = text.lstrip().startswith("[")
            order = json.loads(text) if listed else [int(line) for line in text.splitlines() if line.strip()]
            if any(type(length) is not int for length in order):
                raise TypeError
            counts.update(order)
        else:
            order = None
            for length, count in filter(None, map(_line, text.splitlines())):
                counts[length] += count
    except (TypeError, ValueError, RecursionError):
        told = "neither a JSON list of whole numbers nor one a line; of texts, count the tokens first"
        raise _wrong(f"{name}: {told} (docs/cookbook.md)") from None
    for length in [length for length, count in counts.items() if count]:
        if not 1 <= length <= LONGEST:
            raise _wrong(f"{name}: got {shown(length)}; allowed: whole numbers from 1 to {LONGEST}")
    if not counts.total():
        raise _wrong(f"{name}: holds no length")
    if counts.total() > MOST_SAMPLES:
        raise _wrong(f"{name}: got {counts.total()} samples; allowed: up to {MOST_SAMPLES}")
    return tuple(sorted((+counts).items())), None if order is None else tuple(order)


def _line(line: str) -> tuple[int, int] | None:
    if not line.strip():
        return None
    length, comma, count = line.partition(",")
    times = int(count) if comma else 1
    if not 0 <= times <= MOST_SAMPLES:
        raise ValueError(line)
    return int(length), times


def _distribution(name: str, arguments: str, given: str, samples: int | None) -> Lengths:
    makers: Mapping[str, Callable[[Mapping[str, float]], Callable[[float], float] | None]] = {
        "constant": _constant,
        "uniform": _uniform,
        "lognormal": _lognormal,
        "percentiles": _percentiles,
    }
    allowed = "constant(512), uniform(50, 900), lognormal(median=300, p90=1200), percentiles(0=20, 50=300, 100=2048)"
    quantile = makers[name](_arguments(arguments)) if name in makers else None
    if quantile is None:
        raise _wrong(f"got {shown(given)}; allowed: a list, a file, or a distribution such as {allowed}")
    points = min(samples or QUANTILES, QUANTILES)
    lengths = [min(LONGEST, max(1, round(quantile((i + 0.5) / points)))) for i in range(points)]
    return Lengths(_counted(lengths), None, samples)


def _arguments(text: str) -> dict[str, float]:
    """By name; one without is called by its place, 0 and on. What is no number is left out, and so is missed."""
    found: dict[str, float] = {}
    for place, part in enumerate(text.split(",")):
        name, equals, value = part.rpartition("=")
        try:
            number = float(value)
        except ValueError:
            return {}
        if not math.isfinite(number) or abs(number) > LONGEST:
            return {}
        found[name.strip() if equals else f"#{place}"] = number
    return found


def _constant(given: Mapping[str, float]) -> Callable[[float], float] | None:
    return (lambda _: given["#0"]) if set(given) == {"#0"} and given["#0"] >= 1 else None


def _uniform(given: Mapping[str, float]) -> Callable[[float], float] | None:
    if set(given) != {"#0", "#1"} or not 1 <= given["#0"] <= given["#1"]:
        return None
    low, high = given["#0"], given["#1"]
    return lambda p: low + p * (high - low)


def _lognormal(given: Mapping[str, float]) -> Callable[[float], float] | None:
    """Of a log-normal, mean = median * exp(sigma**2 / 2) and p90 = median * exp(1.2816 * sigma)."""
    from statistics import NormalDist  # it takes as long to load as a job to read

    median, sigma = given.get("median", 0.0), given.get("sigma", 0.0)
    if len(given) != 2 or median < 1:
        return None
    if given.get("p90", 0.0) > median:
        sigma = math.log(given["p90"] / median) / NormalDist().inv_cdf(0.9)
    elif given.get("mean", 0.0) > median:
        sigma = math.sqrt(2 * math.log(given["mean"] / median))
    if not 0 < sigma <= WIDEST_SIGMA:
        return None
    logs = NormalDist(math.log(median), sigma)
    return lambda p: math.exp(min(logs.inv_cdf(p), math.log(LONGEST)))


def _percentiles(given: Mapping[str, float]) -> Callable[[float], float] | None:
    try:
        points = sorted((float(name) / 100, length) for name, length in given.items())
    except ValueError:
        return None
    if len(points) < 2 or points[0][0] < 0 or points[-1][0] > 1 or min(length for _, length in points) < 1:
        return None
    if [length for _, length in points] != sorted(length for _, length in points):
        return None

    def quantile(p: float) -> float:
        if p <= points[0][0]:
            return points[0][1]
        for (left, low), (right, high) in pairwise(points):
            if p <= right:
                return low + (p - left) / (right - left) * (high - low)
        return points[-1][1]

    return quantile


def _wrong(message: str) -> UsageError:
    return UsageError(f"{FIELD}: {message}", field=FIELD)
