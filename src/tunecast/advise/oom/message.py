"""PyTorch's out-of-memory message, read back: which request failed, and what filled the card. Pure: text in.

    log ──► `messages` ──► `OomMessage` ──► `filled` ──► `Filling`, whose parts sum to the card

The log is anyone's: it is read in pieces of bounded size, and nothing in it is trusted to be well formed. Forms of
CUDACachingAllocator.cpp, by the torch that prints them (HIP and XPU builds print theirs with another first word):

    1.0   Tried to allocate X (GPU 0; T total capacity; A already allocated; F free; C cached)
    1.5   ...; F free; R reserved in total by PyTorch)                          R: A and what is cached
    1.8   ...; F free; L allowed; R reserved in total by PyTorch)               L: of a memory fraction
    2.1   Tried to allocate X. GPU 0 has a total capacty of T of which F is free. [Process P has M memory in use.]
          [Including non-PyTorch memory, this process has M memory in use.] [L allowed;] Of the allocated memory A is
          allocated by PyTorch, [with G allocated in private pools (e.g., CUDA Graphs),] and U is reserved by PyTorch
          but unallocated.                                                      from 2.2 on: capacity; A contains G
    cudaMallocAsync (CUDAMallocAsyncAllocator.cpp)
          Allocation on device 0 would exceed allowed memory. (out of memory) Currently allocated : A
          Requested : X Device limit : T Free (according to CUDA): F PyTorch limit (...) : L

Others carry no figures ("CUDA error: out of memory"); of them only that they came is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from tunecast.records import NamedTuple, dataclass
from tunecast.result import Result
from tunecast.units import GIB, KIB, MIB

MOST_MESSAGE_CHARS = 2000
"""The longest form with ten processes on the card is half of it."""
MOST_LINE_CHARS = 600
"""Of a message that was cut off before its end."""
UNLIMITED_BYTES = 2**60
"""cudaMallocAsync prints 2**64 - 1 where no limit was set."""

_SIZE = r"([0-9]{1,20}(?:\.[0-9]{1,4})?) ?(bytes|KiB|MiB|GiB|TiB)"
_UNITS: Mapping[str, int] = {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 2**40}
_HINTS = ("out of memory", "would exceed allowed memory")
_START = re.compile(
    r"(?:CUDA|HIP|XPU) out of memory\.\s{0,80}(?:Tried to allocate|Allocation was preemptively rejected)"
    r"|Allocation on device\s{1,80}[0-9]{1,4}\s{1,80}would exceed allowed memory"
    r"|(?:CUDA|HIP) (?:driver )?error: out of memory|cuda runtime error \(2\) ?: out of memory"
)
# what loggers and launchers put between the lines of a message
_PREFIX = re.compile(r"\n[ \t]*(?:\[rank[0-9]{1,6}\]:|\([A-Za-z_]{1,40} pid=[0-9]{1,9}\)|[>#|*]|//)?\s*")
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")
_END = re.compile(
    r"but unallocated\.|reserved in total by PyTorch\)|cached\)|fraction\) ?: [0-9.]{1,25} ?(?:bytes|[KMGT]iB)"
)

_PARTS: Mapping[str, re.Pattern[str]] = {
    "requested_bytes": re.compile(rf"Tried to allocate {_SIZE}|Requested(?: size)? ?: {_SIZE}"),
    "total_bytes": re.compile(rf"{_SIZE} total capacity|total capaci?ty of {_SIZE}|Device limit ?: {_SIZE}"),
    "free_bytes": re.compile(rf"{_SIZE} free\b|of which {_SIZE} is free|Free \(according to [A-Z]+\): {_SIZE}"),
    "allocated_bytes": re.compile(
        rf"{_SIZE} already allocated|{_SIZE} is allocated by PyTorch|Currently allocated ?: {_SIZE}"
    ),
    "cached_bytes": re.compile(rf"{_SIZE} cached"),
    "reserved_bytes": re.compile(rf"{_SIZE} reserved in total by PyTorch"),
    "unallocated_bytes": re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),
    "private_bytes": re.compile(rf"{_SIZE} allocated in private pools"),
    "allowed_bytes": re.compile(rf"{_SIZE} allowed;|PyTorch limit \(set by [a-z -]{{1,60}}\) ?: {_SIZE}"),
    "process_bytes": re.compile(rf"this process has {_SIZE} memory in use"),
}
_OTHER = re.compile(rf"\bProcess ([0-9]{{1,10}}) has {_SIZE} memory in use")
_GPU = re.compile(r"\bGPU ([0-9]{1,4})\b|on device ([0-9]{1,4})\b")


class Platform(NamedTuple):
    """What people of this vendor's cards call things."""

    name: str
    lists_processes: str
    """The command that shows who holds memory."""
    settings: str
    """The environment variable that configures the allocator."""
    libraries: str
    """That hold memory of their own."""
    defragment: str
    """What to set against fragmentation."""


PLATFORMS: Mapping[str, Platform] = {
    "CUD": Platform(
        "CUDA", "nvidia-smi", "PYTORCH_CUDA_ALLOC_CONF", "NCCL, TensorRT, JAX, cupy", "expandable_segments:True"
    ),
    "HIP": Platform(
        "HIP",
        "rocm-smi --showpids",
        "PYTORCH_HIP_ALLOC_CONF",
        "RCCL, MIOpen, JAX",
        "expandable_segments:True (torch 2.12 or newer with ROCm 7; older builds warn and ignore it: there "
        "max_split_size_mb:512)",
    ),
    "XPU": Platform("XPU", "xpu-smi ps", "PYTORCH_ALLOC_CONF", "oneCCL, oneDNN", "expandable_segments:True"),
}
"""By the first letters of a message. Expandable segments on ROCm: pytorch/pytorch#177974 and #179930 (2026)."""


class Process(NamedTuple):
    pid: int
    nbytes: int


@dataclass(frozen=True)
class OomMessage(Result):
    """One message. None is what it does not say."""

    text: str
    """The message itself, in one line."""
    requested_bytes: int | None = None
    gpu: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    """By PyTorch, private pools included."""
    unallocated_bytes: int | None = None
    """Reserved by PyTorch and not in use: pieces of segments that are partly in use."""
    private_bytes: int = 0
    """Of `allocated_bytes`, in private pools: CUDA graphs, or torch.cuda.MemPool."""
    allowed_bytes: int | None = None
    """Of torch.cuda.set_per_process_memory_fraction, where it was called."""
    process_bytes: int | None = None
    """This process on the card, what is not PyTorch's included."""
    processes: tuple[Process, ...] = ()
    """Processes named by their number. In a container this one is among them, under the number it has outside."""

    @property
    def platform(self) -> Platform:
        """Whose build of PyTorch printed it, by its first word; CUDA where that says nothing."""
        return PLATFORMS.get(self.text[:3], PLATFORMS["CUD"])

    @property
    def has_figures(self) -> bool:
        return None not in (self.requested_bytes, self.total_bytes, self.free_bytes, self.allocated_bytes)


@dataclass(frozen=True)
class Filling:
    """What was on the card. Its parts less `spilled_bytes` sum to `total_bytes`."""

    total_bytes: int
    allocated_bytes: int
    unallocated_bytes: int
    outside_bytes: int
    """This process beside PyTorch's allocator: the CUDA context, libraries, communication. Of it and of `others_bytes`
    only the sum is known where the message names no process; then all of it is here."""
    others_bytes: int
    free_bytes: int
    others: tuple[Process, ...] = ()
    split: bool = True
    """`outside_bytes` and `others_bytes` could be told apart."""

    @property
    def spilled_bytes(self) -> int:
        """PyTorch holds more than the card has in use: Windows lends host memory; or the message's two decimals."""
        return max(0, self.allocated_bytes + self.unallocated_bytes - (self.total_bytes - self.free_bytes))


def messages(pieces: Iterable[str]) -> Iterator[OomMessage]:
    """Every out-of-memory message of a log that comes in pieces, in order; a message may lie across two of them."""
    kept = ""
    for piece in pieces:
        text = kept + piece
        settled = max(0, len(text) - MOST_MESSAGE_CHARS)  # what begins later may go on in the next piece
        yield from _beginning_before(settled, text)
        kept = text[settled:]
    yield from _beginning_before(len(kept), kept)


def _beginning_before(place: int, text: str) -> Iterator[OomMessage]:
    if not any(hint in text for hint in _HINTS):
        return
    starts = [match.start() for match in _START.finditer(text)]
    for start, following in pairwise([*starts, len(text)]):
        if start < place:
            yield parsed(text[start : min(start + MOST_MESSAGE_CHARS, following)])


def the_message(found: Iterable[OomMessage]) -> tuple[OomMessage | None, int]:
    """The one to explain, and how many there were: the last that has figures, else the last.

    Whoever catches the error and tries again with less prints the one that ended the run last.
    """
    chosen: OomMessage | None = None
    count = 0
    for message in found:
        count += 1
        if chosen is None or message.has_figures or not chosen.has_figures:
            chosen = message
    return chosen, count


def parsed(text: str) -> OomMessage:
    """One message from where it begins; whatever follows it may be there too."""
    line = " ".join(_PREFIX.sub(" ", _COLOUR.sub("", text)).split())
    end = _END.search(line)
    line = line[: end.end()] if end else line[:MOST_LINE_CHARS]
    parts = {name: _size_in(pattern, line) for name, pattern in _PARTS.items()}
    allocated, total = parts["allocated_bytes"], parts["total_bytes"]
    unallocated = parts["unallocated_bytes"] if parts["cached_bytes"] is None else parts["cached_bytes"]
    if unallocated is None and parts["reserved_bytes"] is not None and allocated is not None:
        unallocated = max(0, parts["reserved_bytes"] - allocated)
    allowed, process = parts["allowed_bytes"], parts["process_bytes"]
    gpu = _GPU.search(line)
    return OomMessage(
        text=line,
        requested_bytes=parts["requested_bytes"],
        gpu=int(gpu[1] or gpu[2]) if gpu else None,
        total_bytes=total,
        free_bytes=parts["free_bytes"],
        allocated_bytes=allocated,
        unallocated_bytes=unallocated,
        private_bytes=parts["private_bytes"] or 0,
        allowed_bytes=None if allowed is None or allowed >= UNLIMITED_BYTES else allowed,
        # where the driver cannot say (WSL, some containers) it is nothing at all, or 2**64 bytes
        process_bytes=None if not process or (total is not None and process > 1.02 * total) else process,
        processes=tuple(Process(int(pid), _nbytes(number, unit)) for pid, number, unit in _OTHER.findall(line)),
    )


def _size_in(pattern: re.Pattern[str], line: str) -> int | None:
    found = pattern.search(line)
    if found is None:
        return None
    number, unit = (group for group in found.groups() if group is not None)
    return _nbytes(number, unit)


def _nbytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])


def filled(message: OomMessage) -> Filling | None:
    """Where the card's memory was. None where the message does not say."""
    total, free, allocated = message.total_bytes, message.free_bytes, message.allocated_bytes
    if total is None or free is None or allocated is None:
        return None
    unallocated = message.unallocated_bytes or 0
    pytorch = allocated + unallocated
    beyond = max(0, total - free - pytorch)
    own, others = _own_and_others(message, pytorch)
    if own is not None:
        outside = min(beyond, max(0, own - pytorch))
    elif others:
        outside = max(0, beyond - sum(other.nbytes for other in others))
    else:
        outside = beyond
    return Filling(
        total_bytes=total,
        allocated_bytes=allocated,
        unallocated_bytes=unallocated,
        outside_bytes=outside,
        others_bytes=beyond - outside,
        free_bytes=free,
        others=others,
        split=own is not None or bool(others),
    )


def _own_and_others(message: OomMessage, pytorch_bytes: int) -> tuple[int | None, tuple[Process, ...]]:
    """What this process holds, and the others. A container sees itself under a number it does not know.

    Then the process that holds a little more than PyTorch says it does is taken to be this one.
    """
    if message.process_bytes is not None:
        return message.process_bytes, message.processes
    able = [other for other in message.processes if other.nbytes >= 0.99 * pytorch_bytes]
    if not able:
        return None, message.processes
    own = min(able, key=lambda other: other.nbytes)
    return own.nbytes, tuple(other for other in message.processes if other is not own)


def short_bytes(message: OomMessage) -> int | None:
    """How much room was missing at least. PyTorch asks for whole segments, so a little more may have been."""
    if message.requested_bytes is None or message.free_bytes is None:
        return None
    room = message.free_bytes
    if message.allowed_bytes is not None and message.allocated_bytes is not None:
        held = message.allocated_bytes + (message.unallocated_bytes or 0)
        room = min(room, message.allowed_bytes - held)
    return max(0, message.requested_bytes - max(0, room))
