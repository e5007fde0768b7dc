"""The numbers of torch's generator on the CPU, without torch: a Mersenne twister seeded the plain way.

Source   torch 2.13.0: ATen/core/MT19937RNGEngine.h (seeding), randperm_cpu (TensorFactories.cpp), random64
         (CPUGeneratorImpl.cpp: two words). Python's Random is the same engine, and takes its state as it is.
Checked  tests/facts/test_batches.py, number by number.
Ignored  permutations of more than 2**32 / 20, which torch makes with words of 64 bits.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from random import Random

STATE_WORDS = 624
AT_ONCE = 1 << 14
"""Words that are drawn in one call."""


class Generator:
    """`torch.Generator().manual_seed(seed)`."""

    def __init__(self, seed: int) -> None:
        word = seed & 0xFFFFFFFF
        state = [word]
        for place in range(1, STATE_WORDS):
            word = (1812433253 * (word ^ (word >> 30)) + place) & 0xFFFFFFFF
            state.append(word)
        self._random = Random()
        self._random.setstate((3, (*state, STATE_WORDS), None))

    def skip(self, words: int) -> None:
        for _ in self._words(words):
            pass

    def shuffled(self, items: Sequence[int], first: int | None = None) -> list[int]:
        """`items` in the order of `torch.randperm`; where not all are wanted, its `first` ones."""
        count = len(items)
        drawn = max(0, count - 1) if first is None else min(first, count - 1)
        order = list(items)
        for here, word in enumerate(self._words(drawn)):
            there = here + word % (count - here)
            order[here], order[there] = order[there], order[here]
        return order if first is None else order[:first]

    def _words(self, count: int) -> Iterator[int]:
        """32 bits each."""
        for start in range(0, count, AT_ONCE):
            some = min(AT_ONCE, count - start)
            drawn = self._random.getrandbits(32 * some).to_bytes(4 * some, "little")
            yield from memoryview(drawn).cast("I") if _LITTLE else _swapped(drawn)


_LITTLE = array("I", [1]).tobytes()[:1] == b"\x01" and array("I").itemsize == 4


def _swapped(drawn: bytes) -> Iterator[int]:
    return (int.from_bytes(drawn[at : at + 4], "little") for at in range(0, len(drawn), 4))
