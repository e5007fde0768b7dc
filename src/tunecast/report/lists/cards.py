"""Cards for the terminal and for programs: a line each, or all that is known of one."""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.hardware.spec import Gpu
from tunecast.report.draw.text import DEFAULT, Terminal, facts
from tunecast.report.lists.machines import mark, marked_table
from tunecast.units import GB, TERA, gib

_HEAD = (
    ("", "memory", "as", "", "bandwidth", "dense BF16", "dense FP8", "power", ""),
    ("card", "torch sees", "sold", "kind", "GB/s", "TFLOP/s", "TFLOP/s", "W", "since"),
)
_SEEN = ("torch_total_gib", "torch_fraction", "memory_gb")


def card_table(cards: Sequence[Gpu], terminal: Terminal = DEFAULT) -> str:
    """A line a card, what is not verified with a mark."""
    rows = [_row(card) for card in cards]
    return marked_table(_HEAD, rows, (0, 3), terminal, "; `tunecast gpus NAME` tells the sources")


def card_page(card: Gpu, terminal: Terminal = DEFAULT) -> str:
    """All that is known of one card, with where it is from."""
    seen = f"{gib(card.memory_bytes)}{mark(card, *_SEEN)}, torch.cuda.mem_get_info()[1]; sold as {_sold(card)}"
    rows = [
        ("vendor", f"{card.vendor}, {card.architecture}, {card.released}"),
        ("memory", f"{seen} {card.memory_type}"),
        ("bandwidth", _rate(card.memory_bytes_per_s, GB, " GB/s") + mark(card, "memory_gb_per_s")),
        ("dense rates", ", ".join(_rates(card)) or "not known"),
        ("best measured", ", ".join(f"{kind} {rate / TERA:g}" for kind, rate in card.achieved_flop_per_s.items())),
        ("capability", card.capability or ""),
        ("multiprocessors", _known(card.sm_count) + mark(card, "sm_count")),
        ("L2", (gib(card.l2_bytes) if card.l2_bytes else "not known") + mark(card, "l2_mib")),
        ("power", f"{_known(card.tdp_w)} W{mark(card, 'tdp_w')}"),
        ("links", f"{card.pcie}; {_link(card)}"),
        ("CUDA context", gib(card.training_context_bytes) + " while training" if card.training_context_bytes else ""),
        ("notes", card.notes),
        ("not verified", ", ".join(card.unverified)),
        ("source", f"{card.source} (checked {card.checked})"),
    ]
    return terminal.plain("\n".join(facts(card.name, rows, terminal))) + "\n"


def _row(card: Gpu) -> tuple[str, ...]:
    dense = card.dense_flop_per_s
    return (
        card.name,
        gib(card.memory_bytes) + mark(card, *_SEEN),
        _sold(card),
        card.memory_type,
        _rate(card.memory_bytes_per_s, GB) + mark(card, "memory_gb_per_s"),
        _rate(dense.get("bf16"), TERA) + mark(card, "dense_tflop_per_s.bf16"),
        _rate(dense.get("fp8"), TERA) + mark(card, "dense_tflop_per_s.fp8"),
        str(card.tdp_w or "") + mark(card, "tdp_w"),
        card.released,
    )


def _sold(card: Gpu) -> str:
    return f"{card.nominal_bytes / GB:.0f} GB" if card.nominal_bytes else ""


def _rates(card: Gpu) -> list[str]:
    """`bf16 989.4 TFLOP/s`, the unit once."""
    told = [
        f"{kind} {rate / TERA:g}{mark(card, f'dense_tflop_per_s.{kind}')}"
        for kind, rate in card.dense_flop_per_s.items()
    ]
    return [*told[:-1], f"{told[-1]} TFLOP/s"] if told else []


def _link(card: Gpu) -> str:
    if card.link_bytes_per_s is None:
        return "no link to other cards"
    return f"{card.link}, {card.link_bytes_per_s / GB:g} GB/s one way{mark(card, 'link_gb_per_s')}"


def _rate(rate: float | None, unit: float, name: str = "") -> str:
    return "" if rate is None else f"{rate / unit:g}{name}"


def _known(value: int | None) -> str:
    return "not known" if value is None else str(value)
