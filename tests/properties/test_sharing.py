"""Jobs that share machines, against every way to share them."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from tunecast.planning.sharing import Sharing, least_seconds, share, soonest

CELL = st.one_of(st.none(), st.integers(1, 20))
EPS = 1e-9


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[list[float | None]], list[list[float | None]], int, float | None]:
    """Up to six jobs on up to three machines: 729 ways at most."""
    machines, jobs = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    seconds = [[draw(CELL) for _ in range(machines)] for _ in range(jobs)]
    for row in seconds:
        if all(each is None for each in row):
            row[draw(st.integers(0, machines - 1))] = draw(st.integers(1, 20))
    usd = [[None if each is None else draw(st.integers(0, 9)) for each in row] for row in seconds]
    return seconds, usd, machines, draw(st.one_of(st.none(), st.integers(1, 60)))  # type: ignore[return-value]


def every_way(
    seconds: list[list[float | None]], usd: list[list[float | None]], machines: int
) -> list[tuple[float, float]]:
    """Total time and cost of each assignment."""
    found = []
    for way in product(range(machines), repeat=len(seconds)):
        times = [seconds[job][machine] for job, machine in enumerate(way)]
        if None in times:
            continue
        loads = [sum(t for t, where in zip(times, way, strict=True) if where == m and t) for m in range(machines)]
        found.append((max(loads), sum(usd[job][machine] or 0 for job, machine in enumerate(way))))
    return found


@settings(deadline=None, max_examples=150)
@given(tables())
def test_bounds_hold_and_nothing_is_promised_that_cannot_be(
    case: tuple[list[list[float | None]], list[list[float | None]], int, float | None],
) -> None:
    seconds, usd, machines, within_s = case
    found = share(seconds, usd, machines, within_s)
    ways = every_way(seconds, usd, machines)
    soonest_s = min(total for total, _ in ways)
    assert isinstance(found, Sharing)
    assert (found.total_s, found.usd) in ways, "it is one of the ways"
    assert found.least_s <= soonest_s + EPS, "no way ends sooner than the bound says"
    if within_s is not None and found.total_s > within_s:
        assert found.total_s <= machines * soonest_s + EPS
    kept = [cost for total, cost in ways if within_s is None or total <= within_s]
    if kept and (within_s is None or found.total_s <= within_s):
        assert found.usd >= min(kept)
    if within_s is None:
        assert found.usd == min(cost for _, cost in ways), "without a deadline nothing is cheaper"


@settings(deadline=None, max_examples=150)
@given(tables())
def test_longest_first_takes_at_most_the_sum_of_the_fastest(
    case: tuple[list[list[float | None]], list[list[float | None]], int, float | None],
) -> None:
    seconds, usd, machines, _ = case
    way = soonest(seconds, machines)
    loads = [sum(seconds[j][m] or 0 for j, where in enumerate(way) if where == m) for m in range(machines)]
    assert max(loads) <= sum(min(each for each in row if each is not None) for row in seconds) + EPS
    assert max(loads) <= machines * min(total for total, _ in every_way(seconds, usd, machines)) + EPS
    assert max(loads) >= least_seconds(seconds, machines) - EPS


@settings(deadline=None, max_examples=100)
@given(tables())
def test_every_job_has_one_turn_and_no_two_are_on_a_machine_at_once(
    case: tuple[list[list[float | None]], list[list[float | None]], int, float | None],
) -> None:
    seconds, usd, machines, within_s = case
    found = share(seconds, usd, machines, within_s)
    assert found is not None
    assert sorted(turn.job for turn in found.turns) == list(range(len(seconds)))
    for machine in range(machines):
        mine = [turn for turn in found.turns if turn.machine == machine]
        ends = [0.0, *(turn.ends_s for turn in mine)]
        assert [turn.starts_s for turn in mine] == ends[:-1]
        assert all(turn.ends_s - turn.starts_s == seconds[turn.job][machine] for turn in mine)
