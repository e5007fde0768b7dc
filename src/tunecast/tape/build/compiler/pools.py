"""Pools of memory for the buffers of one compiled graph (torch 2.11, _inductor/codegen/memory_planning.py).

Larger buffers are placed first; one goes where a placed one of at least its size is not live at the same time, else
beside it. A pool's size is a sum of the largest in each place, so it grows with the batch as they do.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from tunecast.tape.build.compiler.launches import Bytes, NamedBuffer

ALIGNMENT = 64
Range = tuple[int, int]


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def merged(ranges: list[Range]) -> list[Range]:
    out: list[Range] = []
    for begin, end in sorted(ranges, key=lambda each: each[0]):
        if out and out[-1][1] >= begin:
            out[-1] = (min(out[-1][0], begin), max(out[-1][1], end))
        else:
            out.append((begin, end))
    return out


def overlap(first: list[Range], second: list[Range]) -> bool:
    left, right = list(first), list(second)
    while left and right:
        if left[0][0] > right[0][0]:
            left, right = right, left
        if left[0][1] > right[0][0]:
            return True
        left.pop(0)
    return False


class Slot:
    """Memory for one buffer."""

    def __init__(self, buffer: NamedBuffer, live: Range, hint: int) -> None:
        self.buffer, self.live, self._hint = buffer, live, hint

    def ranges(self) -> list[Range]:
        return [self.live]

    def hint(self) -> int:
        return self._hint

    def nbytes(self, of: Bytes) -> int:
        return of(self.buffer.nbytes)

    def signature(self) -> Hashable:
        """The arrangement of buffers, without their sizes."""
        return self.buffer.name

    def take(self, block: Slot) -> bool:
        return False


class EmptySlot(Slot):
    """Free space."""

    def __init__(self, hint: int) -> None:
        self._hint = hint

    def ranges(self) -> list[Range]:
        return []

    def nbytes(self, of: Bytes) -> int:
        return 0

    def signature(self) -> Hashable:
        return None


class TemporalSplit:
    """Slots that are never live at the same time. A pool is one of these."""

    def __init__(self, parts: list[Slot | SpatialSplit]) -> None:
        self.parts = parts

    def ranges(self) -> list[Range]:
        return merged([each for part in self.parts for each in part.ranges()])

    def hint(self) -> int:
        return max((part.hint() for part in self.parts), default=0)

    def nbytes(self, of: Bytes) -> int:
        return max((part.nbytes(of) for part in self.parts), default=0)

    def signature(self) -> Hashable:
        return tuple([part.signature() for part in self.parts])

    def take(self, block: Slot) -> bool:
        room, wanted = self.hint(), block.hint()
        if wanted > room:
            return False
        meeting = [part for part in self.parts if overlap(part.ranges(), block.ranges())]
        if len(meeting) > 1:
            return False
        if meeting:
            return meeting[0].take(block)
        if len(self.parts) == 1 and isinstance(self.parts[0], EmptySlot):
            self.parts.pop()
        if room == wanted:
            self.parts.append(block)
        else:
            self.parts.append(SpatialSplit(TemporalSplit([block]), TemporalSplit([EmptySlot(room - wanted)])))
        return True


class SpatialSplit:
    """Two ranges of memory side by side."""

    def __init__(self, left: TemporalSplit, right: TemporalSplit) -> None:
        self.left, self.right = left, right

    def ranges(self) -> list[Range]:
        return merged([*self.left.ranges(), *self.right.ranges()])

    def hint(self) -> int:
        return aligned(self.left.hint()) + self.right.hint()

    def nbytes(self, of: Bytes) -> int:
        left = self.left.nbytes(of)
        if len(self.right.parts) == 1 and isinstance(self.right.parts[0], EmptySlot):  # nothing came to lie behind it
            return left
        return aligned(left) + self.right.nbytes(of)

    def signature(self) -> Hashable:
        return "beside", self.left.signature(), self.right.signature()

    def take(self, block: Slot) -> bool:
        return self.left.take(block) or self.right.take(block)


def pools_of(
    ranges: Mapping[NamedBuffer, list[int]], outputs: set[NamedBuffer], of: Bytes
) -> dict[NamedBuffer, TemporalSplit]:
    """Outputs have pools of their own; others go where there is room, and pools do not grow (`memory_pool="none"`,
    which Unsloth sets)."""
    blocks = [Slot(buffer, (live[0], live[1]), of(buffer.nbytes)) for buffer, live in ranges.items()]
    pools: list[TemporalSplit] = []
    found: dict[NamedBuffer, TemporalSplit] = {}

    def length(block: Slot) -> int:
        return block.live[1] - block.live[0]

    for block in sorted([b for b in blocks if b.buffer in outputs], key=lambda b: (b.hint(), -length(b))):
        pools.append(TemporalSplit([block]))
        found[block.buffer] = pools[-1]
    for block in sorted([b for b in blocks if b.buffer not in outputs], key=lambda b: (-b.hint(), -length(b))):
        for pool in pools:
            if pool.take(block):
                found[block.buffer] = pool
                break
        else:
            pools.append(TemporalSplit([block]))
            found[block.buffer] = pools[-1]
    return found
