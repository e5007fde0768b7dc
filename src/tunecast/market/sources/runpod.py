"""What is free at RunPod right now: its GraphQL, of which this query asks for no key.

    POST https://api.runpod.io/graphql     gpuTypes(input: …) { id securePrice lowestPrice(input: …) { stockStatus } }
    {"data": {"gpuTypes": [{"id": "NVIDIA H200", "securePrice": 3.99, "lowestPrice": {"stockStatus": "High"}}]}}

`stockStatus` is High, Medium or Low, and null where none is free, in any of its data centres.

Source  dstackai/gpuhunt@3584151 providers/runpod.py, which sends no credentials, takes null as none and a machine's
        price as that of a card times their number; the ids of cards: docs.runpod.io/references/gpu-types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tunecast.market.offer import ON_DEMAND, Offer
from tunecast.market.sources.replies import Stock, member, number_in, read, rows_in, text_in

IDS: Mapping[str, str] = {
    **{"a100-pcie-80gb": "NVIDIA A100 80GB PCIe", "a100-sxm-80gb": "NVIDIA A100-SXM4-80GB", "a30": "NVIDIA A30"},
    **{"a40": "NVIDIA A40", "b200-sxm-180gb": "NVIDIA B200", "b300-sxm-288gb": "NVIDIA B300 SXM6 AC"},
    **{"h100-nvl-94gb": "NVIDIA H100 NVL", "h100-pcie-80gb": "NVIDIA H100 PCIe"},
    **{"h100-sxm-80gb": "NVIDIA H100 80GB HBM3", "h200-sxm-141gb": "NVIDIA H200", "l4": "NVIDIA L4"},
    **{"l40": "NVIDIA L40", "l40s": "NVIDIA L40S", "mi300x": "AMD Instinct MI300X OAM"},
    **{"rtx-3090": "NVIDIA GeForce RTX 3090", "rtx-4090": "NVIDIA GeForce RTX 4090"},
    **{"rtx-5090": "NVIDIA GeForce RTX 5090", "rtx-6000-ada": "NVIDIA RTX 6000 Ada Generation"},
    **{"rtx-a5000": "NVIDIA RTX A5000", "rtx-a6000": "NVIDIA RTX A6000"},
}
COMMUNITY = "COMMUNITY"
"""In the name of a machine that is not in a data centre of RunPod's partners."""
QUERY = """query GpuTypes($card: GpuTypeFilter, $machine: GpuLowestPriceInput) {
  gpuTypes(input: $card) { id securePrice communityPrice lowestPrice(input: $machine) { stockStatus } }
}"""


def question(offer: Offer) -> bytes | None:
    """The body of the request; None for what cannot be asked."""
    if offer.gpu not in IDS or offer.kind != ON_DEMAND:
        return None
    machine = {"gpuCount": offer.gpus, "secureCloud": _is_secure(offer)}
    return json.dumps({"query": QUERY, "variables": {"card": {"id": IDS[offer.gpu]}, "machine": machine}}).encode()


def _is_secure(offer: Offer) -> bool:
    return COMMUNITY not in offer.instance


def stock(content: bytes, offer: Offer) -> Stock:
    """Whether one is free, and for how many dollars an hour. Raises `NotResolved`."""
    where = "RunPod's answer"
    types = rows_in(member(member(read(content, where), "data", where), "gpuTypes", where), where)
    for row in types:
        if text_in(row, "id") == IDS[offer.gpu]:
            price = member(row, "lowestPrice", where)
            if not isinstance(price, dict) or not text_in(price, "stockStatus"):
                return Stock(False, None)
            usd = number_in(row, "securePrice" if _is_secure(offer) else "communityPrice")
            return Stock(True, usd * offer.gpus if usd else None)
    return Stock(False, None)
