"""The cards tunecast knows, by name. One table, `gpus.toml`; the usual spellings lead to the same names.

An unknown name stops with the nearest known one, an ambiguous one with the candidates; where a name or a size is taken
for one of several, `meant_by` tells the others.
`known_gpu` knows every card of the table; `gpu` those whose memory can be predicted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from tunecast.errors import UsageError, nearest
from tunecast.hardware.spec import Gpu
from tunecast.records import NamedTuple
from tunecast.tables import Tables, fields_of, scaled, text_beside
from tunecast.units import GB, GIB, MIB, TERA, gib

FIELD = "hardware.gpu"
_LONGEST_NAME = 80

# words that name no card: the vendor's, and what a driver's device name adds
_NOISE = frozenset(
    (
        *("nvidia", "geforce", "tesla", "gpu", "graphics", "generation", "edition", "blackwell"),
        *("amd", "instinct", "radeon", "oam", "intel", "habana"),
    )
)
_TO_BE_SAID = frozenset(("ti", "super", "laptop", "max"))
MOST_OTHERS = 6
"""Named beside the card that was taken; the rest is counted."""
_SIZE = re.compile(r"(\d{1,4})gb")
# neither in the table nor typing errors
_OTHER_VENDORS = re.compile(r"\b(mi\d{3}[ax]?|gaudi\d?|hl-?\d+|tpu\S*|trn\d|m[1-4](?: (?:max|ultra|pro))?)\b")
MODELLED = ("NVIDIA", "AMD")
"""The vendor whose kernels and context are known. The others' caching allocator is the same, what runs in it is not."""


def gpu(name: str) -> Gpu:
    """The card a name means, if memory on it can be predicted. Raises `UsageError` else."""
    found = known_gpu(name)
    if found.vendor not in MODELLED:
        raise _not_modelled(name)
    return found


def known_gpu(name: str) -> Gpu:
    """The card a name means. Raises `UsageError` where it is unknown or could be several."""
    return meant_by(name).card


class Meant(NamedTuple):
    """The card a name was taken for."""

    card: Gpu
    others: tuple[str, ...] = ()
    """It could as well have been these."""
    is_size: bool = False
    """Only a size was given."""

    def note(self, name: str) -> str | None:
        """What was taken, where the name leaves others open."""
        if not self.others:
            return None
        others = ", ".join(self.others[:MOST_OTHERS])
        if len(self.others) > MOST_OTHERS:
            others += f" and {len(self.others) - MOST_OTHERS} more (tunecast gpus {name})"
        if not self.is_size:
            return f"{name} is taken as {self.card.name}; others: {others}"
        least = min((gpus()[other] for other in self.others), key=lambda card: card.memory_bytes)
        less = f"; the least memory has {least.name}, {gib(least.memory_bytes)}"
        told = f"{name} is taken as {self.card.name} ({gib(self.card.memory_bytes)}); others: {others}"
        return told + (less if least.memory_bytes < self.card.memory_bytes else "")


def meant_by(name: str) -> Meant:
    """The card a name or a size means, and what else it could mean. Raises `UsageError` where that does not decide."""
    if name in _table():
        return Meant(_card(name))
    wanted = _words(name[:_LONGEST_NAME])
    if len(wanted) == 1 and (size := _SIZE.fullmatch(wanted[0])):
        return _of_size(name, int(size[1]))
    exact = _aliases().get(" ".join(wanted))
    if exact is not None:
        alike = [known for known in gpus() if known != exact and set(wanted) <= set(_words(known))]
        return Meant(gpus()[exact], tuple(known for known in alike if _is_same_chip(known, exact)))
    named = _named(wanted)
    if len(named) == 1:
        return Meant(gpus()[named[0]])
    if named:
        raise UsageError(f"{FIELD}: got {_shown(name)}, which could be {' or '.join(named)}; say which", field=FIELD)
    raise _unknown(name, wanted)


def _named(wanted: list[str]) -> list[str]:
    """The cards these words may name: the one whose name or alias they are, or those that have them all. A Ti, a Super
    or a laptop's form is another card, and has to be said."""
    exact = _aliases().get(" ".join(wanted))
    if exact is not None:
        return [exact]
    candidates = [known for known in gpus() if wanted and set(wanted) <= set(_words(known))]
    return [known for known in candidates if not (set(_words(known)) - set(wanted)) & _TO_BE_SAID] or candidates


def _is_same_chip(one: str, other: str) -> bool:
    """Whether two names differ by mounting and memory alone: h100-sxm-80gb and h100-pcie-80gb."""
    return not (set(_words(one)) ^ set(_words(other))) & _TO_BE_SAID


def _flop_per_s(card: Gpu) -> float:
    return card.dense_flop_per_s.get("bf16", card.dense_flop_per_s.get("fp16", 0.0))


def _of_size(name: str, gb: int) -> Meant:
    """The slowest GeForce of that size, or the slowest card where no GeForce has it: who names a size alone is told no
    time that another of these cards would not reach. Cards without BF16 come last: it is what trainers compute in.
    """
    alike = [card for card in gpus().values() if card.nominal_bytes == gb * GB and card.vendor in MODELLED]
    nvidia = [card for card in alike if card.vendor == "NVIDIA" and card.dense_flop_per_s]
    usual = [card for card in nvidia if "bf16" in card.dense_flop_per_s] or nvidia or alike
    usual = [card for card in usual if "laptop" not in card.name] or usual
    geforce = [card for card in usual if card.is_consumer]
    if not usual:
        sizes = sorted({int((card.nominal_bytes or 0) / GB) for card in gpus().values() if card.vendor in MODELLED})
        told = f"got {_shown(name)}; allowed: a card's name, or a size there is: {', '.join(map(str, sizes))} GB"
        near = min(sizes, key=lambda size: (abs(size - gb), size))
        raise UsageError(
            f"{FIELD}: {told}; nearest: {near}gb, or hardware.capacity_bytes: {gb}GB (--capacity-bytes) on any card",
            field=FIELD,
        )
    card = min(geforce or usual, key=lambda card: (_flop_per_s(card), card.memory_bytes))
    others = [other.name for other in (*geforce, *usual, *alike) if other is not card]
    return Meant(card, tuple(dict.fromkeys(others)), is_size=True)


def matching(texts: Iterable[str]) -> list[Gpu]:
    """The cards whose name holds every word, or whose architecture, vendor or kind of memory begins with it.

    Where the words are one card's name or alias, it alone.
    """
    words = [word for text in texts for word in text[:_LONGEST_NAME].lower().split()]
    spelled = _words(" ".join(words))
    if len(spelled) == 1 and (size := _SIZE.fullmatch(spelled[0])):
        alike = [known for known in gpus().values() if known.nominal_bytes == int(size[1]) * GB]
        if alike:
            return alike
    named = _named(spelled)
    if len(named) == 1:
        return [gpus()[named[0]]]
    return [known for known in gpus().values() if all(_is_told_by(word, known) for word in words)]


def _is_told_by(word: str, known: Gpu) -> bool:
    kinds = f"{known.architecture} {known.vendor} {known.memory_type}".lower().split()
    return word in known.name or any(kind.startswith(word) for kind in kinds)


@cache
def gpus() -> Mapping[str, Gpu]:
    """Every card, by name."""
    return {name: _card(name) for name in _table()}


@cache
def _card(name: str) -> Gpu:
    fields = _table()[name]
    major, _, minor = fields.get("compute_capability", "0.0").partition(".")
    converted: dict[str, Any] = {
        "compute_capability": (int(major), int(minor)),
        "memory_bytes": _memory_bytes(fields),
        "nominal_bytes": int(fields["memory_gb"] * GB),
        "memory_bytes_per_s": scaled(fields, "memory_gb_per_s", GB),
        "dense_flop_per_s": {kind: rate * TERA for kind, rate in fields.get("dense_tflop_per_s", {}).items()},
        "achieved_flop_per_s": {kind: rate * TERA for kind, rate in fields.get("achieved_tflop_per_s", {}).items()},
        "l2_bytes": None if "l2_mib" not in fields else int(fields["l2_mib"] * MIB),
        "link_bytes_per_s": scaled(fields, "link_gb_per_s", GB),
        "through_host": fields.get("through_host", fields.get("segment") == "consumer"),
    }
    return Gpu(name=name, **fields_of(Gpu, fields) | converted)


def _memory_bytes(fields: Mapping[str, Any]) -> int:
    """As measured to the byte, as printed in OOM messages to two decimals, or estimated from the driver's total.

    Where not even that is known (Gaudi, whose memory torch.cuda does not manage), what is sold.
    """
    if "torch_total_bytes" in fields:
        return int(fields["torch_total_bytes"])
    if "torch_total_gib" in fields:
        return int(fields["torch_total_gib"][0] * GIB)
    if "driver_mib" in fields:
        return int(fields["driver_mib"] * MIB * fields["torch_fraction"])
    return int(fields["memory_gb"] * GB)


def _words(name: str) -> list[str]:
    """`NVIDIA A100-SXM4-80GB`, `a100 80g sxm` and `a100-sxm-80gb` all have the words a100, sxm, 80gb."""
    lowered = re.sub(r"\b(rtx|gtx)(?=[a-z]?\d)", r"\1 ", name.lower())
    lowered = re.sub(r"(\d) (?=(?:g|gb|gib)\b)", r"\1", lowered)
    lowered = re.sub(r"(?<=\d0)(ti)(?=super\b|\b)|(?<=\d0|ti)(super)\b", r" \1\2 ", lowered)
    words = []
    for word in re.split(r"[^a-z0-9.]+", lowered):
        word = re.sub(r"^(sxm|pcie)\d$", r"\1", word)
        word = re.sub(r"^(\d+)(g|gib)$", r"\1gb", word)
        if word and word not in _NOISE:
            words.append(word)
    return words


def _unknown(name: str, wanted: list[str]) -> UsageError:
    shown = _shown(name)
    if _OTHER_VENDORS.search(" ".join(wanted)):
        return _not_modelled(name)
    near = nearest("-".join(wanted), gpus()) or nearest(name[:_LONGEST_NAME], gpus())
    hint = f"; nearest: {near}" if near else ""
    allowed = "a card of `tunecast gpus`, or a size such as 24gb"
    return UsageError(f"{FIELD}: got {shown}; allowed: {allowed}{hint}", field=FIELD)


def _not_modelled(name: str) -> UsageError:
    told = f"only {' and '.join(MODELLED)} cards are modelled yet: those of `tunecast gpus`"
    return UsageError(f"{FIELD}: got {_shown(name)}; {told}", field=FIELD)


def _shown(name: str) -> str:
    return repr(name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "...")


@cache
def _aliases() -> Mapping[str, str]:
    """Every name and alias, as its words: for spellings whose words do not lead to the card by themselves."""
    return {
        " ".join(_words(spelling)): name
        for name, fields in _table().items()
        for spelling in (name, *fields.get("aliases", ()))
    }


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    return Tables(text_beside(__file__, "gpus.toml"))
