"""Machines and links for the terminal and for programs: a line each, or all that is known of one."""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.hardware.links import Link, NodeType
from tunecast.hardware.spec import Gpu
from tunecast.report.draw.text import DEFAULT, Terminal, facts, headed
from tunecast.units import GB

MARK = "*"
_NODE_HEAD = (
    ("", "", "", "", "between", "", "", "RAM"),
    ("machine", "provider", "cards", "inside", "Gb/s", "fabric", "CPUs", "GiB"),
)
_LINK_HEAD = (("", "", "a card, GB/s", "vendor's", "hop"), ("link", "kind", "achieved", "GB/s", "us"))
_NETWORK = ("nics", "nic_gbit_per_s", "inter_node_gbit_per_s")


def node_table(nodes: Sequence[NodeType], terminal: Terminal = DEFAULT) -> str:
    """A line a machine, what is not verified with a mark."""
    return marked_table(_NODE_HEAD, [_node_row(node) for node in nodes], (0, 1, 2, 3, 5), terminal)


def link_table(links: Sequence[Link], terminal: Terminal = DEFAULT) -> str:
    return marked_table(_LINK_HEAD, [_link_row(link) for link in links], (0, 1), terminal)


def node_page(node: NodeType, terminal: Terminal = DEFAULT) -> str:
    """All that is known of one machine, with where it is from."""
    rows = (
        ("provider", node.provider),
        ("cards", f"{node.gpus} x {node.gpu}"),
        ("inside", node.interconnect or "nothing"),
        (
            "between",
            f"{_known(node.inter_node_gbit_per_s)}{mark(node, *_NETWORK)} Gb/s over {node.fabric or 'not known'}",
        ),
        ("adapters", f"{node.nics} x {node.nic_gbit_per_s:g} Gb/s" if node.nics and node.nic_gbit_per_s else ""),
        ("host", ", ".join(part for part in (node.host_cpu or "", _cpus(node), _ram(node)) if part)),
        ("notes", node.notes),
        ("not verified", ", ".join(node.unverified)),
        ("source", f"{node.source} (checked {node.checked})"),
    )
    return terminal.plain("\n".join(facts(node.name, rows, terminal))) + "\n"


def _node_row(node: NodeType) -> tuple[str, ...]:
    between = f"{_known(node.inter_node_gbit_per_s)}{mark(node, *_NETWORK)}"
    cards = f"{node.gpus} x {node.gpu}"
    return (
        *(node.name, node.provider, cards, node.interconnect or "", between, node.fabric or "", _cpus(node)),
        f"{_known(node.ram_gib)}{mark(node, 'ram_gib')}",
    )


def _link_row(link: Link) -> tuple[str, ...]:
    rate = f"{link.bytes_per_s / GB:.1f}{mark(link, 'gb_per_s', 'fraction')}"
    peak = "" if link.peak_bytes_per_s is None else f"{link.peak_bytes_per_s / GB:g}"
    return link.name, link.kind, rate, peak, f"{link.latency_s * 1e6:g}{mark(link, 'latency_us')}"


def _cpus(node: NodeType) -> str:
    if node.cores is not None:
        return f"{node.cores}{mark(node, 'cores')} cores"
    return "" if node.vcpus is None else f"{node.vcpus}{mark(node, 'vcpus')} vCPUs"


def _ram(node: NodeType) -> str:
    return "" if node.ram_gib is None else f"{node.ram_gib}{mark(node, 'ram_gib')} GiB"


def _known(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def mark(of: Gpu | NodeType | Link, *fields: str) -> str:
    return MARK if set(fields) & set(of.unverified) else ""


def marked_table(
    head: Sequence[tuple[str, ...]], rows: Sequence[tuple[str, ...]], left: tuple[int, ...], terminal: Terminal,
    more: str = "",
) -> str:  # fmt: skip
    """With what its marks mean, where there are any; `more`: where to read on."""
    lines = headed([*head, *rows], terminal, left, len(head))
    if any(MARK in cell for row in rows for cell in row):
        lines += ["", f"{MARK} no source at hand confirms it{more}"]
    return terminal.plain("\n".join(lines)) + "\n"
