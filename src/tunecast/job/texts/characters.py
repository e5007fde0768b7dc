"""What kind of characters a text has, and how many tokens they make where no tokenizer is at hand.

    tokens = sum over kinds of characters of (characters of the kind) / (characters a token)

A token belongs to the kind of its first character that is no space. How many characters one has was counted with the
tokenizers and on the text that characters.toml names (benchmarks/characters_per_token.py). Rates of one tokenizer are
its own; a sample's length is by the mean of them, and the range is what they make of the same characters.

Kinds are told by the first byte of a character in UTF-8, which C counts a thousand times as fast as Python does.
Ignored  scripts that nobody measured, which are counted as `other`: Hebrew, Armenian, Thai and other Indic scripts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from operator import mul
from string import ascii_letters, digits

from tunecast.records import NamedTuple
from tunecast.tables import Tables, text_beside

PROSE, FOREIGN, CODE = "english", "latin", "code"
"""What Latin letters, digits, punctuation and blanks are part of; other scripts have one rate each."""
PARTS = (PROSE, FOREIGN, CODE)
KINDS = (
    *("letters", "digits", "blanks", "punctuation"),
    *("greek", "cyrillic", "arabic", "other", "kana", "han", "hangul"),
)
LEAST_LETTERS = 200
"""Of a text that is told to be another language than English: in fewer, `the` may be missing by chance."""


def _bytes_of(*ranges: tuple[int, int]) -> bytes:
    return bytes([byte for low, high in ranges for byte in range(low, high + 1)])


BY_BYTE: Mapping[str, bytes] = {
    "letters": ascii_letters.encode() + _bytes_of((0xC3, 0xCB)),
    "digits": digits.encode(),
    "blanks": b" \t\n\r\f\v",
    "punctuation": bytes([byte for byte in range(128) if not chr(byte).isalnum() and not chr(byte).isspace()])
    + _bytes_of((0xC2, 0xC2), (0xCC, 0xCD), (0xE2, 0xE2)),
    "greek": _bytes_of((0xCE, 0xCF)),
    "cyrillic": _bytes_of((0xD0, 0xD3)),
    "arabic": _bytes_of((0xD8, 0xDB)),
    "other": _bytes_of((0xD4, 0xD7), (0xDC, 0xE1), (0xF0, 0xF7)),
    "kana": _bytes_of((0xE3, 0xE3)),
    "han": _bytes_of((0xE4, 0xE9), (0xEF, 0xEF)),
    "hangul": _bytes_of((0xEA, 0xEE)),
}
VIETNAMESE = (b"\xe1\xb8", b"\xe1\xb9", b"\xe1\xba", b"\xe1\xbb")
"""Latin Extended Additional, among scripts that are none."""
_COMMON = (b" the ", b" to ", b" and ")
"""A tenth of the words of English prose, and of no other language's or of code."""
_ASCII = [bytes([byte for byte in BY_BYTE[kind] if byte < 128]) for kind in KINDS[:3]]
_ALL_ASCII = bytes(range(128))
_BEYOND = [bytes([byte for byte in BY_BYTE[kind] if byte >= 128]) for kind in ("letters", *KINDS[3:])]
_OTHER = KINDS.index("other") - 4
_NONE = (0,) * (len(KINDS) - 4)


CODE_PUNCTUATION = 0.14
"""Punctuation marks a letter, beyond which a text is code."""


class Characters(NamedTuple):
    """How many of each kind."""

    kind: str
    """Of what Latin letters are part: English, another language, or code."""
    counts: tuple[int, ...]
    """By `KINDS`."""


def characters_of(text: str) -> Characters:
    data = text.encode("utf-8", "surrogatepass")
    size = len(data)
    letters, digits, blanks = [size - len(data.translate(None, each)) for each in _ASCII]
    if size == len(text):
        counts = [letters, digits, blanks, size - letters - digits - blanks, *_NONE]
        return Characters(_kind(data, counts), tuple(counts))
    beyond = data.translate(None, _ALL_ASCII)
    rest = len(beyond)
    more, marks, *scripts = [rest - len(beyond.translate(None, each)) for each in _BEYOND]
    vietnamese = sum(map(beyond.count, VIETNAMESE))
    scripts[_OTHER] -= vietnamese
    punctuation = size - rest - letters - digits - blanks
    counts = [letters + more + vietnamese, digits, blanks, punctuation + marks, *scripts]
    return Characters(_kind(data, counts), tuple(counts))


def _kind(data: bytes, counts: list[int]) -> str:
    letters, _, _, punctuation, *others = counts
    if punctuation > CODE_PUNCTUATION * (letters + sum(others)):
        return CODE
    if letters < LEAST_LETTERS or sum(map(data.count, _COMMON)) * 100 >= letters:
        return PROSE
    return FOREIGN


@lru_cache(maxsize=1)
def _measured() -> Tables:
    return Tables(text_beside(__file__, "characters.toml"))


@lru_cache(maxsize=1)
def rates() -> Mapping[str, tuple[tuple[float, ...], ...]]:
    """By what Latin letters are part of: for each of `KINDS`, characters a token by tokenizer."""
    table = _measured()
    scripts = [tuple(table[kind][kind]) for kind in KINDS[4:]]
    return {part: (*(tuple(table[part][kind]) for kind in KINDS[:4]), *scripts) for part in PARTS}


@lru_cache(maxsize=1)
def tokens_a_character() -> Mapping[str, tuple[float, ...]]:
    """The same upside down, the mean of the tokenizers."""
    return {
        part: tuple([sum(1 / rate for rate in each) / len(each) for each in kinds]) for part, kinds in rates().items()
    }


def tokens_of(found: Characters) -> float:
    return float(sum(map(mul, found.counts, tokens_a_character()[found.kind])))


def tokens_by_tokenizer(found: Characters) -> list[float]:
    own = rates()[found.kind]
    return [sum(n / rate[place] for n, rate in zip(found.counts, own, strict=True)) for place in range(len(own[0]))]


class Range(NamedTuple):
    """What a sum of estimates may really be, as shares of it."""

    low: float
    high: float
    scripts: tuple[tuple[str, float], ...]
    """What the text is, with its share of the tokens, the largest first."""


def range_of(totals: Mapping[str, Iterable[int]]) -> Range:
    """Of characters by kind, summed by what Latin letters are part of: as the tokenizers differ, and as much again as
    the sum was off on text that was not counted (of a script that was not tried, as much as the worst one)."""
    every = [Characters(kind, tuple(counts)) for kind, counts in totals.items()]
    tokens = sum(map(tokens_of, every)) or 1.0
    sums = [sum(each) for each in zip(*map(tokens_by_tokenizer, every), strict=True)] or [tokens]
    shares = _shares(every, tokens)
    table = _measured()
    errors = {name: table[name]["error"][0] for name in shares if "error" in table[name]}
    worst = max(table[name]["error"][0] for name in table if "error" in table[name])
    error = sum(share * errors.get(name, worst) for name, share in shares.items())
    ranked = sorted(shares.items(), key=lambda each: -each[1])
    return Range(min(sums) / tokens / (1 + error), max(sums) / tokens / (1 - error), tuple(ranked))


def _shares(every: Iterable[Characters], tokens: float) -> dict[str, float]:
    shares: dict[str, float] = {}
    for found in every:
        for kind, count, rate in zip(KINDS, found.counts, tokens_a_character()[found.kind], strict=True):
            name = found.kind if kind in KINDS[:4] else kind
            shares[name] = shares.get(name, 0.0) + count * rate / tokens
    return {name: share for name, share in shares.items() if share}
