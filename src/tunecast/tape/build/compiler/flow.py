"""Maximum flow, for the partitioner's minimum cut: Dinic's algorithm on lists.

networkx does this for torch; the core has no dependencies, and the graphs are small (two nodes an operation)."""

from __future__ import annotations

from collections import deque

INFINITE = float("inf")


class Flow:
    def __init__(self, nodes: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(nodes)]
        """Numbers of the edges that leave each node; edge `e ^ 1` is `e` backwards."""
        self.heads: list[int] = []
        self.room: list[float] = []

    def connect(self, tail: int, head: int, capacity: float) -> None:
        self.edges[tail].append(len(self.heads))
        self.edges[head].append(len(self.heads) + 1)
        self.heads += (head, tail)
        self.room += (capacity, 0)

    def sink_side(self, source: int, sink: int) -> set[int]:
        """The nodes that can still reach the sink when as much flows as can: of all minimum cuts the one nearest to the
        sink, which is the one `networkx.minimum_cut` returns."""
        while (levels := self._levels(source, sink))[sink] >= 0:
            self._fill(source, sink, levels)
        seen, queue = {sink}, deque([sink])
        while queue:
            node = queue.popleft()
            for edge in self.edges[node]:
                tail = self.heads[edge]
                if tail not in seen and self.room[edge ^ 1] > 0:
                    seen.add(tail)
                    queue.append(tail)
        return seen

    def _levels(self, source: int, sink: int) -> list[int]:
        levels = [-1] * len(self.edges)
        levels[source] = 0
        queue = deque([source])
        heads, room = self.heads, self.room
        while queue:
            node = queue.popleft()
            for edge in self.edges[node]:
                head = heads[edge]
                if levels[head] < 0 and room[edge] > 0:
                    levels[head] = levels[node] + 1
                    queue.append(head)
        return levels

    def _fill(self, source: int, sink: int, levels: list[int]) -> None:
        """Paths of the shortest length, until none is left."""
        heads, room, edges = self.heads, self.room, self.edges
        place = [0] * len(edges)
        path: list[int] = []
        node = source
        while True:
            if node == sink:
                amount = min(room[edge] for edge in path)
                if amount == INFINITE:
                    raise ValueError("a value must be saved and cannot be")
                for edge in path:
                    room[edge] -= amount
                    room[edge ^ 1] += amount
                full = next(number for number, edge in enumerate(path) if room[edge] <= 0)
                node = heads[path[full] ^ 1]
                del path[full:]
                continue
            here = edges[node]
            while place[node] < len(here):
                edge = here[place[node]]
                if room[edge] > 0 and levels[heads[edge]] == levels[node] + 1:
                    break
                place[node] += 1
            if place[node] < len(here):
                path.append(here[place[node]])
                node = heads[path[-1]]
            elif path:
                node = heads[path.pop() ^ 1]
                place[node] += 1
            else:
                return
