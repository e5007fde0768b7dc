"""The cards tunecast knows, by name. One table, `gpus.toml`; the usual spellings lead to the same names.

An unknown name stops with the nearest known ones, an ambiguous one with the candidates: no card stands in for another.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from tunecast.errors import UsageError, nearest
from tunecast.hardware.spec import Gpu
from tunecast.units import GIB, MIB

FIELD = "hardware.gpu"
_LONGEST_NAME = 80

# words that name no card: the vendor's, and what a driver's device name adds
_NOISE = frozenset(("nvidia", "geforce", "tesla", "quadro", "gpu", "graphics", "generation", "edition", "blackwell"))
# not modelled yet, but not typing errors either
_OTHER_VENDORS = re.compile(r"\b(mi\d{3}x?|gaudi\d?|hl-?\d+|tpu\S*|trn\d|m[1-4](?: (?:max|ultra|pro))?)\b")


def gpu(name: str) -> Gpu:
    """The card a name means. Raises `UsageError` where it is unknown or could be several."""
    wanted = _words(name[:_LONGEST_NAME])
    exact = _aliases().get(" ".join(wanted))
    if exact is not None:
        return gpus()[exact]
    candidates = [known for known in gpus() if wanted and set(wanted) <= set(_words(known))]
    if len(candidates) == 1:
        return gpus()[candidates[0]]
    if candidates:
        raise UsageError(
            f"{FIELD}: got {_shown(name)}, which could be {' or '.join(candidates)}; say which", field=FIELD
        )
    raise _unknown(name, wanted)


@cache
def gpus() -> Mapping[str, Gpu]:
    """Every card, by name."""
    return {name: _gpu(name, fields) for name, fields in _table().items()}


def _gpu(name: str, fields: Mapping[str, Any]) -> Gpu:
    major, _, minor = fields["compute_capability"].partition(".")
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
        recalled=tuple(fields.get("recalled", ())),
    )


def _memory_bytes(fields: Mapping[str, Any]) -> int:
    """As measured to the byte, as printed in OOM messages to two decimals, or estimated from nvidia-smi's total."""
    if "torch_total_bytes" in fields:
        return int(fields["torch_total_bytes"])
    if "torch_total_gib" in fields:
        return int(fields["torch_total_gib"][0] * GIB)
    return int(fields["nvidia_smi_mib"] * MIB * fields["torch_fraction"])


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
        return UsageError(f"{FIELD}: got {shown}; only NVIDIA cards are modelled yet: {', '.join(gpus())}", field=FIELD)
    near = nearest("-".join(wanted), gpus()) or nearest(name[:_LONGEST_NAME], gpus())
    hint = f"; nearest: {near}" if near else ""
    return UsageError(f"{FIELD}: got {shown}; allowed: {', '.join(gpus())}{hint}", field=FIELD)


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
    table: dict[str, Mapping[str, Any]] = tomllib.loads((files("tunecast.hardware") / "gpus.toml").read_text("utf-8"))
    return table
