"""Several jobs on machines that are there already: which runs where and in what order, so that all are over by a
deadline at least cost.

    p[j][m]  seconds of job j on machine m, None where it does not fit;  c[j][m] dollars

Two beginnings, and the better end of both:

    cheapest   every job where it costs least. Where that keeps the deadline nothing is cheaper
    soonest    the longest jobs first (by their time on their fastest machine), each where it ends soonest.
               A job added this way ends no later than all before it and its own fastest time after that, so the
               whole takes at most the sum of the fastest times, which is at most the best total times the machines
               (the bound: Ibarra and Kim, Journal of the ACM 24, 1977, p. 280-289; longest first: Graham, SIAM
               Journal on Applied Mathematics 17, 1969)

From each, jobs are moved one at a time, and swapped two at a time, as long as that ends sooner (before the deadline is
kept) or costs less (once it is). What one machine gets runs longest first; on one machine the order changes no total.

Left out  when a job becomes free to start, and jobs on several machines at once: each takes one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from tunecast.records import NamedTuple

Table = Sequence[Sequence[float | None]]
"""Of each job, by machine."""
Assignment = tuple[int, ...]
"""Of each job its machine."""
MOST_ROUNDS = 1000
"""Of improvements: each takes at least one job to a better place, so this is hardly reached."""


class MachineTurn(NamedTuple):
    job: int
    machine: int
    starts_s: float
    ends_s: float


class Sharing(NamedTuple):
    """Who runs where, and when."""

    turns: tuple[MachineTurn, ...]
    """By machine, in its order."""
    total_s: float
    """When the last one ends."""
    usd: float
    least_s: float
    """No way to share these machines ends sooner."""


def share(seconds: Table, usd: Table, machines: int, within_s: float | None = None) -> Sharing | None:
    """None where a job fits no machine. Where nothing that was found keeps the deadline, what ends soonest."""
    if any(all(each is None for each in row) for row in seconds):
        return None
    cheapest = tuple(min(_fitting(seconds[j], machines), key=lambda m: (_at(usd, j, m), _at(seconds, j, m), m))
                     for j in range(len(seconds)))  # fmt: skip
    found = [
        _improve(start, seconds, usd, machines, within_s)
        for start in dict.fromkeys((cheapest, soonest(seconds, machines)))
    ]
    best = min(found, key=lambda each: _worth(each, seconds, usd, machines, within_s))
    return Sharing(
        tuple(_turns(best, seconds, machines)),
        _total_s(best, seconds, machines),
        _usd(best, usd),
        least_seconds(seconds, machines),
    )


def soonest(seconds: Table, machines: int) -> Assignment:
    """Longest first, each where it ends soonest."""
    loads = [0.0] * machines
    found = [0] * len(seconds)
    for job in sorted(range(len(seconds)), key=lambda j: (-_fastest(seconds[j]), j)):
        best = min(_fitting(seconds[job], machines), key=lambda m: (loads[m] + _at(seconds, job, m), m))
        loads[best] += _at(seconds, job, best)
        found[job] = best
    return tuple(found)


def least_seconds(seconds: Table, machines: int) -> float:
    """The longest job on its fastest machine, or all of them on theirs with no machine ever idle."""
    fastest = [_fastest(row) for row in seconds]
    return max(max(fastest, default=0.0), sum(fastest) / machines)


def _improve(start: Assignment, seconds: Table, usd: Table, machines: int, within_s: float | None) -> Assignment:
    now, worth = start, _worth(start, seconds, usd, machines, within_s)
    for _ in range(MOST_ROUNDS):
        near = min(
            ((_worth(each, seconds, usd, machines, within_s), each) for each in _near(now, seconds, machines)),
            default=None,
        )
        if near is None or not near[0] < worth:
            return now
        worth, now = near
    return now


def _near(now: Assignment, seconds: Table, machines: int) -> Iterator[Assignment]:
    """One job elsewhere, or two that change places."""
    for job in range(len(now)):
        for machine in _fitting(seconds[job], machines):
            if machine != now[job]:
                yield (*now[:job], machine, *now[job + 1 :])
    for one, other in combinations(range(len(now)), 2):
        if now[one] != now[other] and seconds[one][now[other]] is not None and seconds[other][now[one]] is not None:
            made = list(now)
            made[one], made[other] = now[other], now[one]
            yield tuple(made)


def _worth(
    of: Assignment, seconds: Table, usd: Table, machines: int, within_s: float | None
) -> tuple[float, float, float, float]:
    """Less is better: past the deadline by how much, then the cost, then the time; then how even the machines are used,
    which is what a move has to change before the last one ends sooner."""
    loads = _loads(of, seconds, machines)
    total_s = max(loads, default=0.0)
    late_s = 0.0 if within_s is None else max(0.0, total_s - within_s)
    return late_s, _usd(of, usd), total_s, sum(load * load for load in loads)


def _loads(of: Assignment, seconds: Table, machines: int) -> list[float]:
    loads = [0.0] * machines
    for job, machine in enumerate(of):
        loads[machine] += _at(seconds, job, machine)
    return loads


def _total_s(of: Assignment, seconds: Table, machines: int) -> float:
    return max(_loads(of, seconds, machines), default=0.0)


def _usd(of: Assignment, usd: Table) -> float:
    return sum(_at(usd, job, machine) for job, machine in enumerate(of))


def _turns(of: Assignment, seconds: Table, machines: int) -> Iterator[MachineTurn]:
    for machine in range(machines):
        at = 0.0
        mine = [job for job, where in enumerate(of) if where == machine]
        for job in sorted(mine, key=lambda j: (-_at(seconds, j, machine), j)):
            ends = at + _at(seconds, job, machine)
            yield MachineTurn(job, machine, at, ends)
            at = ends


def _fitting(row: Sequence[float | None], machines: int) -> list[int]:
    return [machine for machine in range(machines) if row[machine] is not None]


def _fastest(row: Sequence[float | None]) -> float:
    return min(each for each in row if each is not None)


def _at(table: Table, job: int, machine: int) -> float:
    value = table[job][machine]
    assert value is not None
    return value
