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
from string import ascii_letters, digits

from tunecast.records import NamedTuple
from tunecast.tables import Tables, text_beside

PROSE, FOREIGN, CODE = "english", "latin", "code"
"""What Latin letters, digits, punctuation and blanks are part of; other scripts have one rate each."""
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
_COMMON = (b" the ", b" to ", b" of ", b" and ", b" is ", b" in ")
"""A fifth of the words of English prose, and of no other language's or of code."""


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
    ascii_only = size == len(text)
    counts = [size - len(data.translate(None, BY_BYTE[kind])) for kind in KINDS[:3]]
    if ascii_only:
        counts += [size - sum(counts), *[0] * 7]
    else:
        counts += [size - len(data.translate(None, BY_BYTE[kind])) for kind in KINDS[3:]]
        vietnamese = sum(map(data.count, VIETNAMESE))
        counts[0] += vietnamese
        counts[7] -= vietnamese
    return Characters(_kind(data, counts), tuple(counts))


def _kind(data: bytes, counts: list[int]) -> str:
    letters, _, _, punctuation, *others = counts
    if punctuation > CODE_PUNCTUATION * (letters + sum(others)):
        return CODE
    if letters < LEAST_LETTERS or sum(map(data.count, _COMMON)) * 100 >= letters:
        return PROSE
    return FOREIGN


@lru_cache(maxsize=1)
def rates() -> Mapping[str, tuple[tuple[float, ...], ...]]:
    """By what Latin letters are part of: for each of `KINDS`, characters a token by tokenizer."""
    table = Tables(text_beside(__file__, "characters.toml"))
    scripts = tuple([tuple(table[kind][kind]) for kind in KINDS[4:]])
    return {
        part: (*(tuple(table[part][kind]) for kind in KINDS[:4]), *scripts) for part in (PROSE, FOREIGN, CODE)
    }


def tokens_by_tokenizer(found: Characters) -> list[float]:
    own = rates()[found.kind]
    return [sum(n / rate[place] for n, rate in zip(found.counts, own, strict=True)) for place in range(len(own[0]))]
