"""What holds for every offer, run and reply."""

from __future__ import annotations

import contextlib
import json
from datetime import date

from hypothesis import given, settings
from hypothesis import strategies as st

from tunecast.errors import NotResolved
from tunecast.market.clean import cleaned
from tunecast.market.cost import total_cost
from tunecast.market.listing import Listing
from tunecast.market.offer import Offer
from tunecast.market.provider import Provider
from tunecast.market.sources import gpuhunt, runpod, skypilot, vast
from tunecast.market.table import offers_from, text_from

DAY = date(2026, 11, 15)
seconds = st.just(0.0) | st.floats(1e-3, 1e6)
"""No phase is shorter than a millisecond, or is not there."""
phases = st.fixed_dictionaries(
    {name: seconds for name in ("provisioning", "download", "load", "training", "evaluation", "checkpoints")}
)
providers = st.builds(
    Provider,
    name=st.just("p"),
    billing_step_s=st.sampled_from([None, 1, 60, 600, 3600]),
    billing_minimum_s=st.sampled_from([None, 1, 60, 3600]),
    bills_start=st.sampled_from([None, True, False]),
    egress_usd_per_gb=st.none() | st.floats(0, 0.2),
)
offers = st.builds(
    Offer,
    provider=st.just("p"),
    kind=st.sampled_from(["on-demand", "spot"]),
    gpu=st.just("l40s"),
    gpus=st.integers(1, 16),
    usd_per_hour=st.floats(0.01, 1000),
    dated=st.just(DAY),
    source=st.just("test"),
)


@given(phases, offers, providers, st.integers(1, 64), st.floats(0, 0.2), st.floats(60, 1e5))
def test_no_line_is_negative_and_the_bill_covers_the_run(phases_s, offer, of, nodes, rate, every_s):
    cost = total_cost(phases_s, offer, of, nodes=nodes, interruptions_per_hour=rate, checkpoint_every_s=every_s,
                      storage_bytes=1e9, egress_bytes=1e9)  # fmt: skip
    assert all(line.usd >= -1e-6 * (1 + cost.total_usd) for line in cost.lines)
    assert cost.wall_s >= sum(phases_s.values()) * (1 - 1e-9)
    billed_s = sum(phases_s.values()) - (phases_s["provisioning"] if of.bills_start is False else 0.0)
    assert cost.billed_s >= billed_s * (1 - 1e-9)
    machine = sum(line.usd for line in cost.lines if line.name not in ("storage", "egress"))
    assert abs(machine - cost.billed_s * offer.usd_per_hour * nodes / 3600) <= 1e-6 * (1 + machine)


@given(phases, offers, providers, st.floats(0.001, 0.05))
def test_more_interruptions_cost_more(phases_s, offer, of, rate):
    fewer, more = (
        total_cost(phases_s, offer, of, interruptions_per_hour=each, checkpoint_every_s=600.0)
        for each in (rate, 2 * rate)
    )
    assert more.total_usd >= fewer.total_usd * (1 - 1e-9)


cells = st.text(st.characters(codec="utf-8", exclude_characters="\r\x00"), max_size=12) | st.sampled_from(
    ["L4", "H100", "8", "1.0", "nan", "1e400", "-3", "{}", '"', ",", "\n", "FIN-01", "a2-highgpu-1g", "True"]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(cells, min_size=1, max_size=11), max_size=8), st.sampled_from(["verda", "gcp", "shadeform"]))
def test_whatever_a_list_says_is_read_or_refused(table, cloud):
    head = (
        "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice"
    )
    content = "\n".join([head, *(",".join(row) for row in table)]) + "\n"
    with contextlib.suppress(NotResolved):
        found = cleaned(skypilot.listings(content.encode("utf-8", "replace"), cloud, DAY), DAY)
        assert offers_from(text_from(found.offers), "x") is not None


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_whatever_a_server_sends_is_read_or_refused(content):
    with contextlib.suppress(NotResolved):
        skypilot.listings(content, "aws", DAY)
    with contextlib.suppress(NotResolved):
        gpuhunt.listings(content, "azure", DAY)
    with contextlib.suppress(NotResolved):
        gpuhunt.member(content, "azure")
    with contextlib.suppress(NotResolved):
        gpuhunt.version(content)


KEYS = (
    *("offers", "data", "gpuTypes", "id", "gpu_name", "num_gpus", "gpu_ram", "geolocation", "dph_total"),
    *("lowestPrice", "stockStatus", "securePrice", "rentable"),
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["H100 SXM", "High"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=6,
        )
    ),
    max_leaves=25,
)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60) | values.map(lambda value: json.dumps(value).encode()))
def test_whatever_is_said_of_what_is_free_is_read_or_refused(content):
    offer = Offer("p", "on-demand", "h100-sxm-80gb", 8, 1.0, DAY, "x", ("SE",), ("SE",))
    for source in (vast, runpod):
        with contextlib.suppress(NotResolved):
            stock = source.stock(content, offer)
            assert stock.is_free or stock.usd_per_hour is None


listings = st.builds(
    Listing,
    provider=st.sampled_from(["a", "b", "c", "runpod"]),
    gpu=st.sampled_from(["L40S", "H100", "B200"]),
    gpus=st.sampled_from([1, 2, 8]),
    usd_per_hour=st.none() | st.floats(0.1, 100),
    dated=st.dates(date(2024, 1, 1), DAY),
    source=st.sampled_from(["x", "y"]),
    spot_usd_per_hour=st.none() | st.floats(0.1, 100),
    form=st.sampled_from(["", "SXM", "PCIe"]),
    region=st.sampled_from(["r1", "r2"]),
    country=st.sampled_from(["", "DE", "US"]),
    ram_gib=st.none() | st.floats(),
    term_hours=st.none(),
    guessed_form=st.booleans(),
)


@given(st.lists(listings, max_size=20))
def test_every_price_is_kept_or_counted(rows):
    found = cleaned(rows, DAY)
    prices = sum(max(1, (row.usd_per_hour is not None) + (row.spot_usd_per_hour is not None)) for row in rows)
    assert found.kept + sum(found.dropped.values()) == prices
    assert len(found.offers) <= found.kept


@given(st.lists(listings, max_size=12), st.randoms())
def test_the_order_of_a_list_changes_nothing(rows, random):
    other = list(rows)
    random.shuffle(other)
    prices = [
        sorted(
            (offer.provider, offer.kind, offer.gpu, offer.gpus, offer.usd_per_hour)
            for offer in cleaned(each, DAY).offers
        )
        for each in (rows, other)
    ]
    assert prices[0] == prices[1]
