"""The autograd engine's queue of nodes that may run: the one made last first.

Leaves all have the same number, so which of several goes first is for the heap to say. torch's is C++'s
`std::priority_queue` (torch/csrc/autograd/engine.h, `ReadyQueue`), whose moves are written down here (libstdc++,
bits/stl_heap.h, `__push_heap` and `__adjust_heap`: of two equal children the second rises).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunecast.tape.build.autograd import Leaf, Node


class ReadyQueue:
    __slots__ = ("_heap",)

    def __init__(self, first: Node | Leaf) -> None:
        self._heap = [first]

    def __bool__(self) -> bool:
        return bool(self._heap)

    def push(self, node: Node | Leaf) -> None:
        self._heap.append(node)
        self._rise(len(self._heap) - 1, node)

    def _rise(self, hole: int, node: Node | Leaf) -> None:
        heap = self._heap
        while hole:
            parent = (hole - 1) // 2
            if heap[parent].sequence >= node.sequence:
                break
            heap[hole] = heap[parent]
            hole = parent
        heap[hole] = node

    def pop(self) -> Node | Leaf:
        heap = self._heap
        last = heap.pop()
        if not heap:
            return last
        first, length, hole = heap[0], len(heap), 0
        while 2 * hole + 2 < length:
            second = 2 * hole + 2
            if heap[second].sequence < heap[second - 1].sequence:
                second -= 1
            heap[hole] = heap[second]
            hole = second
        if 2 * hole + 2 == length:
            heap[hole] = heap[length - 1]
            hole = length - 1
        self._rise(hole, last)
        return first
