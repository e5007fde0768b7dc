"""Pools of memory for the buffers of one compiled graph (torch 2.11, _inductor/codegen/memory_planning.py).

Larger buffers are placed first; one goes where a placed one of at least its size is not live at the same time, else
beside it. A pool's size is a sum of the largest in each place, so it grows with the batch as they do.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from tunecast.tape.build.unsloth.graph import Buffer, Counts

ALIGNMENT = 64
Range = tuple[int, int]


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def joined(ranges: list[Range]) -> list[Range]:
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


class Place:
    """Memory for one buffer."""

    def __init__(self, buffer: Buffer, live: Range, hint: int) -> None:
        self.buffer, self.live, self._hint = buffer, live, hint

    def ranges(self) -> list[Range]:
        return [self.live]

    def hint(self) -> int:
        return self._hint

    def nbytes(self, counts: Counts) -> int:
        return self.buffer.size.nbytes(counts)

    def signature(self) -> Hashable:
        """Which buffers lie where, without their sizes."""
        return self.buffer.name

    def take(self, block: Place) -> bool:
        return False


class Gap(Place):
    """Nothing yet."""

    def __init__(self, hint: int) -> None:
        self._hint = hint

    def ranges(self) -> list[Range]:
        return []

    def nbytes(self, counts: Counts) -> int:
        return 0

    def signature(self) -> Hashable:
        return None


class InTurn:
    """`TemporalSplit`: places none of which is live when another is."""

    def __init__(self, parts: list[Place | Beside]) -> None:
        self.parts = parts

    def ranges(self) -> list[Range]:
        return joined([each for part in self.parts for each in part.ranges()])

    def hint(self) -> int:
        return max((part.hint() for part in self.parts), default=0)

    def nbytes(self, counts: Counts) -> int:
        return max((part.nbytes(counts) for part in self.parts), default=0)

    def signature(self) -> Hashable:
        return tuple([part.signature() for part in self.parts])

    def take(self, block: Place) -> bool:
        room, wanted = self.hint(), block.hint()
        if wanted > room:
            return False
        meeting = [part for part in self.parts if overlap(part.ranges(), block.ranges())]
        if len(meeting) > 1:
            return False
        if meeting:
            return meeting[0].take(block)
        if len(self.parts) == 1 and isinstance(self.parts[0], Gap):
            self.parts.pop()
        if room == wanted:
            self.parts.append(block)
        else:
            self.parts.append(Beside(InTurn([block]), InTurn([Gap(room - wanted)])))
        return True


class Beside:
    """`SpatialSplit`: one behind the other."""

    def __init__(self, left: InTurn, right: InTurn) -> None:
        self.left, self.right = left, right

    def ranges(self) -> list[Range]:
        return joined([*self.left.ranges(), *self.right.ranges()])

    def hint(self) -> int:
        return aligned(self.left.hint()) + self.right.hint()

    def nbytes(self, counts: Counts) -> int:
        left = self.left.nbytes(counts)
        if len(self.right.parts) == 1 and isinstance(self.right.parts[0], Gap):  # nothing came to lie behind it
            return left
        return aligned(left) + self.right.nbytes(counts)

    def signature(self) -> Hashable:
        return "beside", self.left.signature(), self.right.signature()

    def take(self, block: Place) -> bool:
        return self.left.take(block) or self.right.take(block)


class Pool:
    def __init__(self, block: Place) -> None:
        self.root = InTurn([block])

    def nbytes(self, counts: Counts) -> int:
        return self.root.nbytes(counts)

    def signature(self) -> Hashable:
        return self.root.signature()

    def take(self, block: Place) -> bool:
        return self.root.take(block)


def pools_of(ranges: Mapping[Buffer, list[int]], outputs: set[Buffer], counts: Counts) -> dict[Buffer, Pool]:
    """Outputs have pools of their own; others go where there is room, and pools do not grow (`memory_pool="none"`,
    which Unsloth sets)."""
    blocks = [Place(buffer, (live[0], live[1]), buffer.size.nbytes(counts)) for buffer, live in ranges.items()]
    pools: list[Pool] = []
    found: dict[Buffer, Pool] = {}

    def length(block: Place) -> int:
        return block.live[1] - block.live[0]

    for block in sorted([b for b in blocks if b.buffer in outputs], key=lambda b: (b.hint(), -length(b))):
        pools.append(Pool(block))
        found[block.buffer] = pools[-1]
    for block in sorted([b for b in blocks if b.buffer not in outputs], key=lambda b: (-b.hint(), -length(b))):
        for pool in pools:
            if pool.take(block):
                found[block.buffer] = pool
                break
        else:
            pools.append(Pool(block))
            found[block.buffer] = pools[-1]
    return found
