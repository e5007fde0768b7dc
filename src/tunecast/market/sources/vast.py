"""What is free at Vast.ai right now: its own search, which asks for no key.

    POST https://console.vast.ai/api/v0/bundles/     {"gpu_name": {"in": […]}, "num_gpus": {"eq": 8}, "rentable": …}
    {"offers": [{"gpu_name": "H100 SXM", "num_gpus": 8, "gpu_ram": 81559, "geolocation": "Sweden, SE", "dph_total": …}]}

Source  dstackai/gpuhunt@3584151 providers/vastai.py, which sends no credentials; vast-ai/vast-cli@5567983 api/offers.py
        and data/offer.py for the fields, data/query.py for the names of cards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tunecast.hardware.catalog import gpus
from tunecast.market.offer import ON_DEMAND, SPOT, Offer
from tunecast.market.sources.replies import Stock, member, number_in, read, rows_in, text_in
from tunecast.units import MIB

NAMES: Mapping[str, tuple[str, ...]] = {
    **{"a100-pcie-80gb": ("A100 PCIE",), "a100-sxm-80gb": ("A100 SXM4", "A100 SXM"), "b200-sxm-180gb": ("B200",)},
    **{"h100-pcie-80gb": ("H100 PCIE",), "h100-nvl-94gb": ("H100 NVL",), "h100-sxm-80gb": ("H100 SXM",)},
    **{"h200-sxm-141gb": ("H200",), "h200-nvl-141gb": ("H200 NVL",), "l4": ("L4",), "l40": ("L40",), "l40s": ("L40S",)},
    **{"a10": ("A10",), "a40": ("A40",), "rtx-3090": ("RTX 3090",), "rtx-4090": ("RTX 4090",)},
    **{"rtx-5090": ("RTX 5090",), "rtx-a5000": ("RTX A5000",), "rtx-a6000": ("RTX A6000",)},
    **{"rtx-pro-6000-server": ("RTX PRO 6000 S",), "rtx-pro-6000-workstation": ("RTX PRO 6000 WS",)},
}
MOST_OFFERS = 200
"""Asked for: the cheapest."""
LEAST_MEMORY_SHARE = 0.9
"""Of the card's memory: less is the other size of the same name (an A100 of 40 GB)."""
_KINDS = {ON_DEMAND: ("on-demand", "dph_total"), SPOT: ("bid", "min_bid")}
"""What Vast.ai calls the kind, and the field of its price."""


def question(offer: Offer) -> bytes | None:
    """The body of the request; None for what cannot be asked."""
    if offer.gpu not in NAMES or offer.kind not in _KINDS:
        return None
    body = {
        "gpu_name": {"in": list(NAMES[offer.gpu])},
        "num_gpus": {"eq": offer.gpus},
        "rentable": {"eq": True},
        "rented": {"eq": False},
        "type": _KINDS[offer.kind][0],
        "order": [["dph_total", "asc"]],
        "limit": MOST_OFFERS,
    }
    return json.dumps(body).encode()


def stock(content: bytes, offer: Offer) -> Stock:
    """Whether one like it is free, in one of its countries, and from how many dollars an hour. Raises `NotResolved`."""
    where = "Vast.ai's search"
    least_mib = gpus()[offer.gpu].memory_bytes * LEAST_MEMORY_SHARE / MIB
    found = []
    for row in rows_in(member(read(content, where), "offers", where), where):
        memory_mib, usd = number_in(row, "gpu_ram"), number_in(row, _KINDS[offer.kind][1])
        here = not offer.known_countries or text_in(row, "geolocation")[-2:] in offer.known_countries
        same = text_in(row, "gpu_name") in NAMES[offer.gpu] and number_in(row, "num_gpus") == offer.gpus
        if same and here and usd and (memory_mib or 0.0) >= least_mib and row.get("rentable") is not False:
            found.append(usd)
    return Stock(bool(found), min(found, default=None))
