"""How far a prediction may be off: an 80 % range for each kind of memory, from what measured runs show.

`ranges_table.py` is written by `benchmarks/ranges.py` from the residuals of all measured runs; no other number stands
here. Runs are alike where the same is known about them:

    several cards     how this family of stacks shares a job among cards, wherever it was measured
    the stack's own   the closed form follows a release of TRL, litgpt or torchtune that others measured
    measured card     an exact tape on the card that was measured, the H200, of the releases it was measured with
    elsewhere         an exact tape on any other card, or of other releases, of transformers' own loop
    unseen            a stack whose memory nobody measured: as far off as all others are, each counting the same
    varying lengths   a job's own batches, replayed in their order: at least this wide, wherever it runs
    guessed           a tape with guesses: likewise
"""

from __future__ import annotations

from collections.abc import Mapping

from tunecast.job.stacks import DEFAULT_STACK, STACKS
from tunecast.prediction.evidence import family_of
from tunecast.prediction.memory.ranges_table import BANDS
from tunecast.records import NamedTuple
from tunecast.units import MIB

MEASURED_CARD, ELSEWHERE, UNSEEN = "measured card", "elsewhere", "unseen"
VARYING, GUESSED = "varying lengths", "guessed"
TRACED = frozenset(name for name, stack in STACKS.items() if stack.recipe is not None)
"""Stacks whose runs on the measured card make its range: event for event as traced."""
KINDS = ("allocated", "reserved", "device")
FLOOR_BYTES = {"allocated": 512, "reserved": 2 * MIB, "device": 2 * MIB}
"""The least there can be: PyTorch's allocator rounds to blocks of 512 bytes and to segments of 2 MiB."""


BandFields = tuple[float, float, int, int, float | None]


class MemoryBand(NamedTuple):
    below: float
    """How far below the prediction the range begins, as a share of it."""
    above: float
    runs: int
    models: int
    covered: float | None
    """The share of runs inside a range made of the other models' runs; None where those are too few."""


class Basis(NamedTuple):
    """What is known of a prediction before it is compared with anything."""

    stack: str = DEFAULT_STACK
    measured_card: bool = True
    guessed: bool = False
    several: bool = False
    """Cards share the job."""
    varies: bool = False
    """The job's own batches were replayed, of many lengths."""
    measured_releases: bool = True

    @property
    def own(self) -> str:
        """The group of the stack's own runs."""
        return f"{family_of(self.stack)}, several cards" if self.several else self.stack


def band_of(kind: str, basis: Basis, bands: Mapping[tuple[str, str], BandFields] | None = None) -> MemoryBand:
    """Of the stack's own runs where there are enough, else of those on such a card; many lengths
    and guesses can only make it wider."""
    table = BANDS if bands is None else bands
    band = MemoryBand(*table[_group(kind, basis, table), kind])
    for holds, name in ((basis.varies, VARYING), (basis.guessed, GUESSED)):
        if holds:
            least = MemoryBand(*table[name, kind])
            band = band._replace(below=max(band.below, least.below), above=max(band.above, least.above))
    return band


def _group(kind: str, basis: Basis, table: Mapping[tuple[str, str], BandFields]) -> str:
    if (basis.own, kind) in table:
        return basis.own
    if basis.several or (basis.stack not in TRACED and not any((basis.own, each) in table for each in KINDS)):
        return UNSEEN
    return MEASURED_CARD if basis.measured_card and basis.measured_releases else ELSEWHERE


def is_unseen(kind: str, basis: Basis) -> bool:
    """Whether nobody measured such runs' memory."""
    return _group(kind, basis, BANDS) == UNSEEN


def range_of(nbytes: int, kind: str, basis: Basis) -> tuple[int, int]:
    """The 80 % range around a prediction."""
    band = band_of(kind, basis)
    floor = FLOOR_BYTES[kind]
    below, above = max(floor, int(nbytes * band.below)), max(floor, int(nbytes * band.above))
    return max(0, nbytes - below), nbytes + above


def device_was_measured(basis: Basis) -> bool:
    """Whether such runs' device memory was ever read. Else all that is known of it is what contexts hold elsewhere."""
    return (basis.own, "device") in BANDS or _group("device", basis, BANDS) == MEASURED_CARD
