"""The tables of links and machines: a source for each, and figures that can be true."""

from __future__ import annotations

import tomllib
from datetime import date
from importlib.resources import files

import pytest

from tunecast.hardware.catalog import gpus
from tunecast.hardware.cluster import own_link
from tunecast.hardware.links import inside_names, links, nodes

LINKS = tomllib.loads((files("tunecast.hardware") / "links.toml").read_text("utf-8"))
NODES = tomllib.loads((files("tunecast.hardware") / "nodes.toml").read_text("utf-8"))
KINDS = {"nvlink", "xgmi", "pcie", "host", "network"}


@pytest.mark.parametrize("name", LINKS)
def test_a_link_has_a_history_and_is_slower_than_its_vendor_says(name):
    link = links()[name]
    assert link.kind in KINDS
    assert link.source
    assert link.checked >= date(2026, 1, 1)
    assert set(link.unverified) <= set(LINKS[name])
    assert 0.3 < link.bytes_per_s / link.peak_bytes_per_s < 1
    assert 0 < link.latency_s < 1e-3
    for part in (link.pair_bytes_per_s, link.reduce_bytes_per_s, link.small_bytes_per_s):
        assert part is None or 0 < part < link.peak_bytes_per_s
    assert (link.kind == "network") == (name not in inside_names())


@pytest.mark.parametrize(
    "name", [name for name, card in gpus().items() if card.link_bytes_per_s and card.vendor != "Intel"]
)
def test_a_cards_own_link_has_the_peak_the_card_is_sold_with(name):
    card = gpus()[name]
    link = links()[card.bridge] if card.bridge else own_link(card, 2)
    assert link.peak_bytes_per_s == card.link_bytes_per_s


@pytest.mark.parametrize("name", [name for name, card in gpus().items() if card.is_consumer])
def test_a_geforce_has_no_bridge_unless_one_is_named(name):
    """Bought apart; without it the driver lets no GeForce read another's memory."""
    assert own_link(gpus()[name], 2).kind == "host"


@pytest.mark.parametrize("name", [name for name, card in gpus().items() if not card.link_bytes_per_s])
def test_a_card_without_links_goes_over_pcie(name):
    assert own_link(gpus()[name], 2).kind in ("pcie", "host")


def test_links_name_cards_that_are_known():
    for link in links().values():
        for start in link.cards:
            assert any(name == start or name.startswith(f"{start}-") for name in gpus()), (link.name, start)


@pytest.mark.parametrize("name", NODES)
def test_a_machine_has_a_history_and_parts_that_are_known(name):
    node = nodes()[name]
    assert node.source
    assert node.checked >= date(2026, 1, 1)
    assert set(node.unverified) <= set(NODES[name])
    card = gpus()[node.gpu]
    assert 1 <= node.gpus <= 16
    assert node.interconnect is None or links()[node.interconnect].kind != "network"
    assert node.fabric is None or links()[node.fabric].kind == "network"
    if node.interconnect is not None and card.link_bytes_per_s and card.vendor != "Intel":
        assert links()[node.interconnect].peak_bytes_per_s == card.link_bytes_per_s
    assert node.inter_node_gbit_per_s is None or 10 <= node.inter_node_gbit_per_s / node.gpus <= 1000
    assert node.ram_gib is None or 24 <= node.ram_gib / node.gpus <= 1024
    for cpus in (node.cores, node.vcpus):
        assert cpus is None or 4 <= cpus / node.gpus <= 64


def test_the_shapes_are_all_there():
    assert len(nodes()) == 53
    assert sum(node.provider == "reference" for node in nodes().values()) == 12
