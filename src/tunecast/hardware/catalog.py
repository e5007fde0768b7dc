"""The cards tunecast knows, by name. One table, `gpus.toml`; the usual spellings lead to the same names.

An unknown name stops with the nearest known ones, an ambiguous one with the candidates: no card stands in for another.
`known_gpu` knows every card of the table; `gpu` those whose memory can be predicted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from tunecast.errors import UsageError, nearest
from tunecast.hardware.spec import Gpu
from tunecast.tables import Tables, text_beside
from tunecast.units import GB, GIB, MIB, TERA

FIELD = "hardware.gpu"
_LONGEST_NAME = 80

# words that name no card: the vendor's, and what a driver's device name adds
_NOISE = frozenset(
    (
        *("nvidia", "geforce", "tesla", "quadro", "gpu", "graphics", "generation", "edition", "blackwell"),
        *("amd", "instinct", "radeon", "oam", "intel", "habana"),
    )
)
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
    if name in _table():
        return _card(name)
    wanted = _words(name[:_LONGEST_NAME])
    exact = _aliases().get(" ".join(wanted))
    if exact is not None:
        return gpus()[exact]
    candidates = candidates_for(name)
    if len(candidates) == 1:
        return gpus()[candidates[0]]
    if candidates:
        raise UsageError(
            f"{FIELD}: got {_shown(name)}, which could be {' or '.join(candidates)}; say which", field=FIELD
        )
    raise _unknown(name, wanted)


def candidates_for(name: str) -> list[str]:
    """The cards that have every word of a name: `h100` is taken for one of several."""
    wanted = set(_words(name[:_LONGEST_NAME]))
    return [known for known in gpus() if wanted and wanted <= set(_words(known))]


def matching(texts: Iterable[str]) -> list[Gpu]:
    """The cards whose name holds every word, or whose architecture, vendor or kind of memory begins with it.

    Where the words are one card's name or alias, it alone.
    """
    words = [word for text in texts for word in text[:_LONGEST_NAME].lower().split()]
    named = _aliases().get(" ".join(_words(" ".join(words))))
    if named is not None:
        return [gpus()[named]]
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
    return Gpu(
        name=name,
        vendor=fields["vendor"],
        compute_capability=(int(major), int(minor)),
        sm_count=fields.get("sm_count"),
        memory_bytes=_memory_bytes(fields),
        context_bytes=fields.get("context_bytes"),
        training_context_bytes=fields.get("training_context_bytes"),
        source=fields["source"],
        checked=fields["checked"],
        unverified=tuple(fields.get("unverified", ())),
        architecture=fields["architecture"],
        released=fields["released"],
        nominal_bytes=int(fields["memory_gb"] * GB),
        memory_type=fields["memory_type"],
        memory_bytes_per_s=_scaled(fields.get("memory_gb_per_s"), GB),
        dense_flop_per_s={kind: rate * TERA for kind, rate in fields.get("dense_tflop_per_s", {}).items()},
        achieved_flop_per_s={kind: rate * TERA for kind, rate in fields.get("achieved_tflop_per_s", {}).items()},
        l2_bytes=None if "l2_mib" not in fields else int(fields["l2_mib"] * MIB),
        tdp_w=fields.get("tdp_w"),
        pcie=fields.get("pcie", ""),
        link=fields.get("link", "none"),
        link_bytes_per_s=_scaled(fields.get("link_gb_per_s"), GB),
        notes=fields.get("notes", ""),
    )


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit


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
    return UsageError(f"{FIELD}: got {shown}; allowed: {', '.join(_modelled())}{hint}", field=FIELD)


def _not_modelled(name: str) -> UsageError:
    told = f"only {' and '.join(MODELLED)} cards are modelled yet: {', '.join(_modelled())}"
    return UsageError(f"{FIELD}: got {_shown(name)}; {told}", field=FIELD)


def _modelled() -> list[str]:
    return [name for name, known in gpus().items() if known.vendor in MODELLED]


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
