"""What other cards cost the kernels of one: `slowdown`, by collectives that run beside them, and `slowest`, by waiting.

NCCL runs a channel as a block of threads that has a multiprocessor to itself, as long as the collective lasts. So while
gradients and weights are on their way, a card computes with fewer multiprocessors:

    a kernel of many blocks                loses the share that NCCL holds
    a product of Hopper and later cards    is launched as one block a multiprocessor, each with tiles of its own: those
                                           blocks that find none free begin when others have ended, a second wave

While a collective lasts, a part of what could be computed is lost. Work w of a kind takes 1 / (1 - l) times as long:

    lost = hidden * (1 - 1 / (sum of w / (1 - l)))

Source   NVIDIA/nccl#689 (a channel, a multiprocessor; 16 of them where a machine has eight adapters), #1432 (the card
         is at 85 % where NCCL has 15 % of it); products of an H100 beside a gather: "2x as long"
         (pytorch/pytorch#143988), 80 and 47 % of the peak (forums.developer.nvidia.com, 337991). Four A100 and H100 in
         training: 19 % slower on average and up to 40 % (arXiv 2507.03114)
Checked  llm-foundry's tables: its steps on 8 H100 lose 0.33 to 0.37 of the time their collectives take, on A100s 0.16
         to 0.25; neither was used for a constant here
Ignored  bandwidth and power that both share; that a collective waits for multiprocessors to become free
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import erf, sqrt
from typing import TYPE_CHECKING

from tunecast.prediction.price import COMMUNICATION, OFFLOAD
from tunecast.prediction.price.rates import AMD, NVIDIA, Rates
from tunecast.records import replace

if TYPE_CHECKING:
    from tunecast.hardware.cluster import Cluster
    from tunecast.prediction.price.pricing import Part

CHANNELS_BETWEEN = 16
"""Multiprocessors of collectives over several machines: at most (NVIDIA/nccl#689)."""
PERSISTENT = (9, 10)
"""Compute capabilities whose products are launched as one block a multiprocessor (pytorch/pytorch#143988)."""
SPREAD = 0.015
"""Standard deviation of a product's time from card to card: nine in ten cards of five clusters, and products that their
power holds back, range over 8 % without outliers (arXiv 2208.11035), from 2.7 deviations below to 2.7 above."""
COPIES = (OFFLOAD, "nvme")
"""Parts of a step that copy engines do."""
SECOND_WAVE = 0.45
"""Of a product's rate what it loses beside a collective there: between 0.41 (80 to 47 %) and 0.5 (twice as long)."""
BY_COPY_ENGINES = "tensor"
"""Collectives of this group are waited for, or overlap by copy engines (torch's symmetric memory, Transformer Engine's
user buffers)."""


def slowdown(spent_s: Mapping[Part, float], exposed_s: float, rates: Rates, cluster: Cluster) -> float:
    """How many times as long the card's kernels take.

    `spent_s`: by part of a step; `exposed_s`: what the step is longer with its collectives than without.
    """
    talking = {name: s for (name, waits), s in spent_s.items() if waits == COMMUNICATION}
    waited_for = talking.pop(BY_COPY_ENGINES, 0.0)
    hidden = sum(talking.values()) - max(0.0, exposed_s - waited_for)
    work: dict[str, float] = {}
    for (name, waits), s in spent_s.items():
        if waits != COMMUNICATION and name not in COPIES:
            work[waits] = work.get(waits, 0.0) + s
    busy = sum(work.values())
    if hidden <= 0 or not busy:
        return 1.0
    slower = sum(s / (1 - lost(waits, rates, cluster)) for waits, s in work.items()) / busy
    return 1 + min(hidden, busy) / busy * (1 - 1 / slower)


def lost(waits: str, rates: Rates, cluster: Cluster) -> float:
    """Of a card's rate, while a collective runs."""
    channels = cluster.inside.channels if cluster.nodes == 1 else min(CHANNELS_BETWEEN, cluster.inside.channels)
    held = min(0.5, channels / rates.sm_count)
    persistent = rates.vendor == NVIDIA and rates.compute_capability[0] in PERSISTENT
    return max(held, SECOND_WAVE) if waits == "compute" and persistent else held


@lru_cache(maxsize=1000)
def slowest(rates: Rates, ranks: int) -> Rates:
    """Of so many cards the one that the others wait for.

    Chips of one kind draw different power at the same clock, so those that are held back by their power run at
    different clocks; memory is the same for all. With a normal spread the slowest of n is the (n - 0.375) / (n + 0.25)
    quantile below the mean (Blom, 1958).
    """
    if ranks < 2 or not is_held_back(rates):
        return rates
    times = 1 + SPREAD * deviations((ranks - 0.375) / (ranks + 0.25))
    return replace(rates, by_dtype={name: rate / times for name, rate in rates.by_dtype.items()})


def deviations(quantile: float) -> float:
    """Of a normal distribution, by halving: `statistics` has it, and takes ten times as long to load."""
    low, high = 0.0, 10.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if (1 + erf(middle / sqrt(2))) / 2 < quantile else (low, middle)
    return low


def is_held_back(rates: Rates) -> bool:
    """By its power, in products: Hopper and later; an A100 mostly keeps its clock."""
    return rates.vendor == AMD or rates.compute_capability[0] in PERSISTENT


def slowed(rates: Rates, times: float) -> Rates:
    by_dtype = {name: rate / times for name, rate in rates.by_dtype.items()}
    return replace(rates, bytes_per_s=rates.bytes_per_s / times, by_dtype=by_dtype)
