"""A step's operations priced on many cards at once, and what its clocks show then: `priced`.

In C where that was compiled (`_pricing.c`), else in Python; both take the numbers of `Terms`, which depend on the sizes
of a step and on no card, and of a `Course`, which depends on neither.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from tunecast.prediction import native
from tunecast.prediction.price import ATTENTION, COMMUNICATION, MOVING, OFFLOAD, PRODUCTS, products
from tunecast.prediction.price.attention import attention_column
from tunecast.prediction.price.clocks import ClockProgram, Column, ends, stretches_of
from tunecast.prediction.price.moving import moving_terms
from tunecast.prediction.price.offload import offload_seconds
from tunecast.prediction.price.rates import INSTEAD, RATE_OF_DTYPE, Rates
from tunecast.records import NamedTuple
from tunecast.tape.op import Op

if TYPE_CHECKING:
    from tunecast.hardware.cluster import Cluster

MOST_CLOCKS = 32
"""Of the C code."""
_RATES = {name: place for place, name in enumerate(INSTEAD)}
_CONSTANTS = array(
    "d",
    [
        *(products.PIPELINE, products.OFF_GRID_RATE, products.PLAIN_EFFICIENCY, products.BANDWIDTH, products.START_S),
        *(len(products.TILES), len(products.SPLITS), len(_RATES), _RATES["bf16"], _RATES["fp32"]),
        *(number for tile in products.TILES for number in tile),
        *products.SPLITS,
    ],
)
Part = tuple[str, str]
"""A name in the breakdown, and what it keeps busy; of collectives, their group instead of a name."""


class StepStructure(NamedTuple):
    """Of all steps of one structure, what depends on no size."""

    course: ClockProgram
    kinds: tuple[str, ...]
    """Of each operation that differs."""
    parts: Mapping[Part, Mapping[int, int]]
    """How often each operation runs, by part."""
    buffers: tuple[array[int], ...]
    """The course, the parts and what communicates, as the C code reads them."""


def step_structure(
    course: ClockProgram, kinds: tuple[str, ...], parts: Mapping[Part, Mapping[int, int]]
) -> StepStructure:
    counted = array("q")
    for number, part in enumerate(parts.values()):
        for place, times in part.items():
            counted.extend((number, place, times))
    silent = array("q", [place for place, kind in enumerate(kinds) if kind == COMMUNICATION])
    return StepStructure(course, kinds, parts, (*course.buffers(), counted, silent))


class CostTerms(NamedTuple):
    """What operations ask of any card."""

    moving: array[float]
    """Of every operation, `moving_terms`; zeros where it is none of those."""
    products: array[int]
    others: list[int]
    """Places of attention, copies to the host and collectives."""


def terms_of(distinct: Sequence[Op], kinds: Sequence[str]) -> CostTerms:
    moving, found, others = array("d", bytes(24 * len(distinct))), array("q"), []
    for place, (op, kind) in enumerate(zip(distinct, kinds, strict=True)):
        if kind == MOVING:
            moving[3 * place], moving[3 * place + 1], moving[3 * place + 2] = moving_terms(op)
        elif kind == PRODUCTS:
            *numbers, dtype, off_grid = products.product_terms(op)
            found.extend((place, *numbers, _RATES[RATE_OF_DTYPE.get(dtype, "bf16")], off_grid))
        elif kind in (ATTENTION, OFFLOAD, COMMUNICATION):
            others.append(place)
    return CostTerms(moving, found, others)


class Priced(NamedTuple):
    """Columns: one number a card."""

    end_s: Column
    alone_s: Column
    """Without communication."""
    spent_s: list[Column]
    """By part."""


def priced(
    plan: StepStructure, terms: CostTerms, distinct: Sequence[Op], launches: array[float],
    cards: Sequence[Rates], clusters: Sequence[Cluster | None], nvme_bytes_per_s: float | None = None,
) -> Priced:  # fmt: skip
    """`cards` and `clusters` are as long as each other. `launches`: what each operation takes of the host, in a pass
    through the model and then, all again, in an optimizer's step. `nvme_bytes_per_s`: of the host's drives."""
    others = {
        place: _other(distinct[place], plan.kinds[place], cards, clusters, nvme_bytes_per_s) for place in terms.others
    }
    if native.price is None or plan.course.clocks > MOST_CLOCKS:
        return _in_python(plan, _prices(plan, terms, distinct, others, cards), launches, len(cards))
    differing = list(dict.fromkeys(cards))
    number = {card: place for place, card in enumerate(differing)}
    given = array("d")
    for column in others.values():
        given.extend(column)
    told = native.price(
        plan.course.clocks, plan.course.differing, len(plan.parts), *plan.buffers, terms.products, array("q", others),
        array("q", [number[card] for card in cards]), terms.moving, given, launches,
        array("d", [figure for card in differing for figure in _figures(card)]), _CONSTANTS,
    )  # fmt: skip
    figures, count = array("d", told), len(cards)
    rows = [figures[at : at + count].tolist() for at in range(0, len(figures), count)]
    return Priced(rows[0], rows[1], rows[2:])


@lru_cache(maxsize=1000)
def _figures(card: Rates) -> tuple[float, ...]:
    return card.sm_count, card.bytes_per_s, card.flop_per_s("float32"), *(card.by_dtype[name] for name in INSTEAD)


def _other(
    op: Op, kind: str, cards: Sequence[Rates], clusters: Sequence[Cluster | None], nvme_bytes_per_s: float | None
) -> Column:
    if kind == ATTENTION:
        return attention_column(op, cards)
    if kind == OFFLOAD:
        sharing = [1 if cluster is None else cluster.gpus_per_node for cluster in clusters]
        return [
            offload_seconds(op, card.host, ranks, nvme_bytes_per_s) for card, ranks in zip(cards, sharing, strict=True)
        ]
    if not any(clusters):
        return [0.0] * len(cards)
    from tunecast.prediction.price.collectives import collective_column

    return collective_column(op, clusters)


def _prices(
    plan: StepStructure, terms: CostTerms, distinct: Sequence[Op], others: Mapping[int, Column], cards: Sequence[Rates]
) -> list[Column]:
    nothing = [0.0] * len(cards)
    rates = [(card.bytes_per_s, card.flop_per_s("float32")) for card in cards]
    made: list[Column] = []
    for place, kind in enumerate(plan.kinds):
        if kind == MOVING:
            nbytes, flops, start_s = terms.moving[3 * place : 3 * place + 3]
            made.append([nbytes / bandwidth + flops / plain + start_s for bandwidth, plain in rates])
        elif kind == PRODUCTS:
            asked = products.product_terms(distinct[place])
            made.append([products.matrix_seconds(*asked, card) for card in cards])
        else:
            made.append(others.get(place, nothing))
    return made


def _in_python(plan: StepStructure, prices: list[Column], launches: Sequence[float], cards: int) -> Priced:
    spent = [
        [sum(row) for row in zip(*([price * times for price in prices[at]] for at, times in part.items()), strict=True)]
        for part in plan.parts.values()
    ]
    stretches = stretches_of(plan.course, prices, launches)
    end = ends(plan.course, stretches, cards)
    silent = {place for place, kind in enumerate(plan.kinds) if kind == COMMUNICATION}
    if not silent:
        return Priced(end, end, spent)
    nothing = [0.0] * cards
    prices = [nothing if place in silent else column for place, column in enumerate(prices)]
    alone = ends(plan.course, stretches_of(plan.course, prices, launches, but=silent, known=stretches), cards)
    return Priced(end, alone, spent)
