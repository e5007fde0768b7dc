"""What a report shows, as plain values: text and page draw the same ones, and tests make them by hand.

`traced` makes them from a tape.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tunecast.errors import printable
from tunecast.prediction.verdict import Room, Verdict
from tunecast.records import NamedTuple, dataclass, field
from tunecast.result import Alias
from tunecast.units import gib


class PhasePeak(NamedTuple):
    """The most memory a phase reached in any step, and in which step."""

    phase: str
    step: int
    allocated_bytes: int
    reserved_bytes: int
    breakdown_bytes: Mapping[str, int] | None = None
    """By role, then: sums to `allocated_bytes`."""


class LiveBlock(NamedTuple):
    """A block that was alive at the peak, and what made it."""

    nbytes: int
    role: str
    module: str = ""
    op: str = ""
    source: str = ""
    phase: str = ""
    step: int = 0


class LeastCard(NamedTuple):
    """The smallest card that is large enough, at the high end of the prediction's range too."""

    name: str | None
    """None where no card is."""
    usable_bytes: int
    """What PyTorch can use of that card; of the largest one where no card is large enough."""
    measured: bool
    """Whether any run was measured on it."""


class Share(NamedTuple):
    """One module's part of the peak, or that of several alike under one name."""

    name: str
    nbytes: int
    times: int = 1


@dataclass(frozen=True)
class Figures:
    """All memory is that of one GPU. `None` is what was not asked for or not computed, never a zero."""

    title: str
    allocated_bytes: int
    reserved_bytes: int
    peak_phase: str
    peak_step: int
    breakdown_bytes: Mapping[str, int]
    """By role, at the allocated peak, to which they sum."""
    phases: tuple[PhasePeak, ...] = ()
    modules: Mapping[str, int] = field(default_factory=dict)
    """Qualified name to bytes at the peak, ungrouped; '' for what no module owns."""
    blocks: tuple[LiveBlock, ...] = ()
    """Alive at the peak; all of them, or the largest."""
    context_bytes: int | None = None
    communication_bytes: int = 0
    """Held by NCCL, where there are several ranks."""
    vllm_bytes: int = 0
    """Of an engine that generates on the same card."""
    pages_bytes: int = 0
    """Of a paged optimizer's state, on the card as long as PyTorch does not need the room."""
    gpu: str | None = None
    room: Room | None = None
    """What it needs of what PyTorch can use on that card: the verdict."""
    pretended: bool = False
    """The capacity was given, and is not the card's."""
    others_bytes: int = 0
    """Of that card, held by a display or other processes."""
    smallest_capacity_bytes: int | None = None
    least_card: LeastCard | None = None
    stopped_by: LiveBlock | None = None
    """The allocation that found no room, when it does not fit."""
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What may make the figures wrong, or keep the run from them."""
    guesses: tuple[str, ...] = ()
    """What had to be guessed or could not be traced. With any, the figures are an estimate."""
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        total_bytes = sum(self.breakdown_bytes.values())
        if total_bytes != self.allocated_bytes:
            raise ValueError(f"the parts sum to {total_bytes} bytes, the peak is {self.allocated_bytes}")

    @property
    def word(self) -> str:
        return "estimate" if self.guesses or (self.room is not None and self.room.unresolved) else "exact"

    fits = Alias[bool | None]("room.fits")
    verdict = Alias[Verdict | None]("room.verdict")
    """None when no card was named."""

    capacity_bytes = Alias[int | None]("room.capacity_bytes")
    """What the caching allocator may hold on that card."""

    @property
    def device_bytes(self) -> int | None:
        if self.context_bytes is None:
            return None
        beside = self.context_bytes + self.communication_bytes + self.vllm_bytes
        return self.reserved_bytes + self.pages_bytes + beside

    @property
    def card_bytes(self) -> int | None:
        """All of the card the bars are drawn against: the allocator's part, the context, and what others hold."""
        if self.capacity_bytes is None:
            return None
        beside = (self.context_bytes or 0) + self.communication_bytes + self.vllm_bytes
        return self.capacity_bytes + beside + self.others_bytes

    @property
    def sums(self) -> list[tuple[str, str, int]]:
        """From the peak to what is on the card: (`+` or `=`, what, bytes)."""
        rows = [
            ("=", "allocated", self.allocated_bytes),
            ("+", "allocator", self.reserved_bytes - self.allocated_bytes),
        ]
        if self.context_bytes is None or self.device_bytes is None:
            return [*rows, ("=", "reserved", self.reserved_bytes)]
        more = (
            ("communication", self.communication_bytes),
            ("vLLM", self.vllm_bytes),
            ("paged optimizer", self.pages_bytes),
        )
        return [
            *rows,
            ("+", "context", self.context_bytes),
            *(("+", name, nbytes) for name, nbytes in more if nbytes),
            ("=", "on the card", self.device_bytes),
        ]

    @property
    def largest_roles(self) -> list[tuple[str, int]]:
        """Those that hold anything at the peak, the largest first."""
        held = [(role, nbytes) for role, nbytes in self.breakdown_bytes.items() if nbytes]
        return sorted(held, key=lambda each: (each[1], each[0]), reverse=True)

    @property
    def besides_bytes(self) -> Mapping[str, int]:
        """On the card beside PyTorch's memory."""
        return {
            "paged_optimizer": self.pages_bytes,
            "context": self.context_bytes or 0,
            "communication": self.communication_bytes,
            "vllm": self.vllm_bytes,
            "others": self.others_bytes,
        }

    @property
    def outside(self) -> str:
        """What lies on the card besides PyTorch's memory, in words."""
        more = (("NCCL", self.communication_bytes), ("vLLM", self.vllm_bytes))
        told = "".join(f" and {gib(nbytes)} of {name}" for name, nbytes in more if nbytes)
        return f"with {gib(self.context_bytes or 0)} of CUDA context{told}"


OUTSIDE = "(outside any module)"
_NUMBER = re.compile(r"\d+")


def grouped_modules(modules: Mapping[str, int]) -> list[Share]:
    """Layers that differ in their number only, together: `model.layers.*.mlp` x32. Largest first.

    Below a numbered layer one more name is kept, which tells attention from MLP; the projections inside are summed.
    A group of one keeps its own name.
    """
    groups: dict[str, dict[str, int]] = {}
    for name, nbytes in modules.items():
        pattern, layer = _layer(name)
        members = groups.setdefault(pattern, {})
        members[layer] = members.get(layer, 0) + nbytes
    shares = [
        Share(pattern if len(members) > 1 else next(iter(members)), sum(members.values()), len(members))
        for pattern, members in groups.items()
    ]
    return sorted(shares, key=lambda share: (-share.nbytes, share.name))


def _layer(name: str) -> tuple[str, str]:
    """(`model.layers.*.mlp`, `model.layers.7.mlp`) of `model.layers.7.mlp.down_proj`; a name without a number twice."""
    if not name:
        return OUTSIDE, OUTSIDE
    parts = name.split(".")
    number = next((index for index, part in enumerate(parts) if _NUMBER.fullmatch(part)), None)
    if number is None:
        return name, name
    kept = parts[: number + 2]
    return ".".join([*kept[:number], "*", *kept[number + 1 :]]), ".".join(kept)


def top(shares: Iterable[Share], count: int) -> list[Share]:
    """The first `count`, the rest as one, so that the column still sums."""
    listed = list(shares)
    if len(listed) <= count:
        return listed
    rest = listed[count - 1 :]
    return [*listed[: count - 1], Share(f"({len(rest)} more)", sum(share.nbytes for share in rest), 1)]


class Alike(NamedTuple):
    """Blocks of one size made by one line for one role: a layer's activation, once a layer."""

    block: LiveBlock
    times: int

    @property
    def nbytes(self) -> int:
        return self.block.nbytes * self.times


def grouped_blocks(blocks: Iterable[LiveBlock]) -> list[Alike]:
    """Ten rows that differ in a layer's number say as much as one row. The most memory first."""
    counts: dict[LiveBlock, int] = {}
    members: dict[LiveBlock, LiveBlock] = {}
    for block in blocks:
        alike = block._replace(module=_pattern(block.module))
        counts[alike] = counts.get(alike, 0) + 1
        members[alike] = block
    rows = [Alike(members[alike] if count == 1 else alike, count) for alike, count in counts.items()]
    return sorted(rows, key=lambda row: (-row.nbytes, row.block))


def lines_bytes(blocks: Iterable[LiveBlock]) -> dict[str, int]:
    """Of each line of a script, the most first: `train.py:12 > modeling_llama.py:280 (backward)` is of line 12."""
    sums: dict[str, int] = {}
    for block in blocks:
        line = block.source.partition(" > ")[0].removesuffix(" (backward)")
        if line:
            sums[line] = sums.get(line, 0) + block.nbytes
    return dict(sorted(sums.items(), key=lambda each: -each[1]))


def _pattern(name: str) -> str:
    return ".".join("*" if _NUMBER.fullmatch(part) else part for part in name.split("."))


def shown(text: str) -> str:
    """Names come from scripts that are not ours."""
    return printable(text)


def short_source(source: str, length: int = 0) -> str:
    """`transformers/loss/loss_utils.py:55`: from its package on, with the folders `length` leaves room for."""
    path = shown(source).replace("\\", "/")
    for folder in ("/site-packages/", "/dist-packages/"):
        path = path.rpartition(folder)[2]
    return tail(path, "/", length) if length else path


def tail(name: str, separator: str, length: int) -> str:
    """The last parts of a path or a module's name: they say more than the first ones."""
    parts = name.split(separator)
    while len(name) > length and len(parts) > 1:
        parts.pop(0)
        name = separator.join(["…", *parts])
    return name
