"""Maximum flow, for the partitioner's minimum cut: Dinic's algorithm on lists.

networkx does this for torch; the core has no dependencies, and the graphs are small (two nodes an operation).

What a compiled forward pass keeps for the backward pass, and what that computes again.

After torch/_functorch/partitioners.py of torch 2.11 (`min_cut_rematerialization_partition`, `solve_min_cut`) with its
default settings: the joint graph of both passes is cut where least must be kept, and what is expensive, random, made
in memory for the backward pass anyway, small, or used near and far is not computed again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from tunecast.tape.build.compiler.graph import INPUT, ITEM, MANY, RECOMPUTABLE, TANGENT, Graph, Value

# --------------------------------------------------------------------------------------------------------- maximum flow


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


# ------------------------------------------------------------------------------------------------------ the partitioner


FAR = 1 << 30
CLOSER = 1.1
"""How much dearer a value is to keep for each operation it is further from the backward pass."""
CHEAP_REDUCTION = 4
LONG_CHAIN = 100


class Partitioner:
    def __init__(self, graph: Graph, forward_outputs: Sequence[int], backward_outputs: Sequence[int],
                 parameters: frozenset[int] | set[int]) -> None:  # fmt: skip
        self.graph, self.parameters = graph, parameters
        self.forward = graph.ancestors(forward_outputs)
        self.in_order = sorted(self.forward, key=lambda n: (graph.values[n].kind != INPUT, n))
        self.order = {number: place for place, number in enumerate(self.in_order)}
        self.outputs = set(backward_outputs)
        self.returned = set(forward_outputs) | self.outputs
        self.closure: set[int] = set()
        """What depends on the gradient that comes in."""
        for value in graph.values:
            if value.kind == TANGENT or any(number in self.closure for number in value.inputs):
                self.closure.add(value.number)
        self.again = {v.number for v in graph.values if v.checkpoint and v.number in self.forward}
        self.kept_by_checkpoints = self._boundaries()
        self.again -= self.kept_by_checkpoints
        self.distance = self._distances()
        self.banned: set[int] = set()

    def saved(self) -> list[int]:
        """The values the forward pass hands to the backward pass, in the order they are made."""
        values, count = self.graph.values, len(self.graph.values)
        source, sink = 2 * count, 2 * count + 1
        flow = Flow(2 * count + 2)
        for value in values:
            number = value.number
            if number in self.closure:
                flow.connect(2 * number, sink, INFINITE)
                continue
            if number in self.outputs:
                flow.connect(2 * number + 1, sink, INFINITE)
            if number in self.again:
                flow.connect(2 * number, sink, INFINITE)
                for user in value.users:
                    flow.connect(2 * number + 1, 2 * user, INFINITE)
                continue
            if value.kind == INPUT or (number in self.forward and self._never_again(value)):
                self._ban(value)
            flow.connect(2 * number, 2 * number + 1, self._weight(value))
            for user in value.users:
                flow.connect(2 * number + 1, 2 * user, INFINITE)
        self._ban_used_near_and_far()
        self._ban_long_chains()
        for number in self.banned:
            flow.connect(source, 2 * number, INFINITE)
        side = flow.sink_side(source, sink)
        return [v.number for v in values if 2 * v.number + 1 in side and 2 * v.number not in side]

    def _boundaries(self) -> set[int]:
        """Of two checkpointed calls in a row the first one's result is kept (`cleanup_recompute_tags`)."""
        values = self.graph.values
        return {
            number
            for number in self.again
            if any(u in self.again and values[u].checkpoint > values[number].checkpoint for u in values[number].users)
        }

    def _distances(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for value in reversed(self.graph.values):
            if value.number not in self.forward:
                found[value.number] = 0
            else:
                found[value.number] = min([found[user] + 1 for user in value.users], default=FAR)
        return found

    def _fuses(self, maker: Value, user: Value) -> bool:
        return user.op == "cat" or (maker.is_fusible and user.is_fusible)

    def _weight(self, value: Value) -> float:
        if value.number in self.parameters:
            return 0
        if value.kind == MANY:
            return INFINITE
        size = int(value.nbytes * CLOSER ** max(min(self.distance[value.number], 100), 1))
        if value.kind in (INPUT, TANGENT):
            return size
        values = self.graph.values
        fused = value.number not in self.returned and all(self._fuses(value, values[user]) for user in value.users)
        return 2 * size if fused else size

    def _ban(self, value: Value) -> None:
        if not value.is_view and value.number not in self.again:
            self.banned.add(value.number)

    def _never_again(self, value: Value) -> bool:
        if value.kind in (INPUT, TANGENT, ITEM):
            return False
        if value.number in self.kept_by_checkpoints or value.op not in RECOMPUTABLE:
            return True
        if self._is_made_in_backward(value):
            return True
        alone = {"cat": 0, "index": 1}.get(value.op, len(value.inputs))  # inputs in lists are not looked at
        read = sum([self.graph.values[number].nbytes for number in value.inputs[:alone]])
        return value.nbytes * CHEAP_REDUCTION < read

    def _is_made_in_backward(self, value: Value) -> bool:
        """Whether the backward pass needs it in memory (`is_materialized_backwards`), or it is in memory anyway."""
        if value.is_view:
            return False
        values, stack = self.graph.values, [value]
        while stack:
            current = stack.pop()
            if current.number in self.returned:
                return True
            for number in current.users:
                user = values[number]
                if number not in self.forward and not self._fuses(current, user):
                    return True
                if user.is_view:
                    stack.append(user)
        return False

    def _ban_used_near_and_far(self) -> None:
        """A value used before and after something that cannot be fused is not computed again for the far use."""
        values = self.graph.values
        for number in self.in_order:
            used = values[number]
            users = [user for user in used.users if user in self.forward]
            if not users:
                continue
            first = self._first_unfusible(users, max(self.order[user] for user in users))
            for user in users:
                if self.order[user] > first and self._fuses(used, values[user]):
                    self._ban(values[user])

    def _first_unfusible(self, starts: Sequence[int], reach: int) -> int:
        heap = [(self.order[number], True) for number in starts]
        heapq.heapify(heap)
        seen = set(heap)
        values = self.graph.values
        while heap:
            place, fuses = heapq.heappop(heap)
            if not fuses:
                return place
            node = values[self.in_order[place]]
            for number in node.users:
                if number in self.forward and self.order[number] <= reach:
                    entry = (self.order[number], self._fuses(node, values[number]))
                    if entry not in seen:
                        seen.add(entry)
                        heapq.heappush(heap, entry)
        return reach

    def _ban_long_chains(self) -> None:
        """No chain of more than a hundred operations is computed again as one."""
        values, visited = self.graph.values, set()
        for start in self.in_order:
            heap = [(self.order[start], start)]
            while heap:
                place, number = heapq.heappop(heap)
                if number in visited:
                    continue
                visited.add(number)
                if place > self.order[start] + LONG_CHAIN and not heap:
                    self._ban(values[number])
                    break
                for user in values[number].users:
                    if user in self.forward and user not in self.banned and self._fuses(values[number], values[user]):
                        heapq.heappush(heap, (self.order[user], user))
