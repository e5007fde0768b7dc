"""docs/decisions.md from the committed results: three tables of picks, the guides' recommendations beside each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from decisions_guides import GUIDES
from figures import table

from tunecast.prediction.evidence import FEWEST
from tunecast.report.plan.markdown import plain
from tunecast.units import billions, percent

Row = dict[str, Any]
TABLES: Mapping[str, tuple[str, str]] = {
    "anything": (
        "Anything that can be rented",
        "Any card of any vendor, on demand or spot, from companies or marketplaces (`--spot --marketplace`). A spot\n"
        "machine may be taken away; one of a marketplace is somebody's.",
    ),
    "contract": (
        "NVIDIA data-centre cards, on demand, from companies with a contract",
        "The default of `tunecast plan`, without GeForce, workstation and AMD cards.",
    ),
    "eu": (
        "In the EU, without a US parent",
        "On demand from companies with a contract, proven to stand in the EU, of which no parent under US law is\n"
        "known (`--eu --no-cloud-act`).",
    ),
}
METHODS: Mapping[str, str] = {
    "full": "float32 weights under bfloat16 autocast and AdamW, usual mixed precision: 16 bytes per parameter before "
    "any activation",
    "lora": "rank 16 on all linear layers, base weights in bfloat16",
    "qlora": "rank 16 on all linear layers, base weights in NF4 with double quantization, embeddings left in bfloat16 "
    "as TRL's SFTTrainer does (`prepare_kbit: false`)",
}
DO_NOT_FIT = ("does not fit", "may not fit", "refused")
PICKS = ("cheapest", "cheapest measured", "balanced", "fastest")


def page(results: Mapping[str, Any]) -> str:
    rows: list[Row] = results["tables"]["anything"]
    counts = {row["size"]: billions(row["parameters"]) for row in rows}
    sizes = ", ".join(f"{size}: {model} ({counts[size]})" for size, model in results["sizes"].items() if size in counts)
    batch, tokens = results["batch"], results["batch"] * results["seq_len"]
    parts = [
        "# Decisions: what to rent for which size",
        "",
        "Written by `benchmarks/decisions.py` with `tunecast plan`. Nothing on this page was measured;",
        "[how far predictions are off](accuracy_time.md) is on a page of its own. A price is not availability: prices",
        f"are the [bundled ones](offers.md) as of {results['as_of']}, without VAT.",
        "",
        f"The job: {results['samples']:,} rows of {results['seq_len']:,} tokens, {results['epochs']} times over, with",
        f"a global batch of {batch} rows ({tokens:,} tokens per step) and PyTorch's own attention. tunecast chose the",
        "cards, the split of the batch, the sharding, whether to recompute, and Liger's kernels where there are any",
        "(`results/decisions.json` has the settings); the rest is fixed:",
        "",
        *(f"- **{method}**: {told};" for method, told in METHODS.items()),
        f"- models: {sizes}.",
        "  Falcon 180B is not bundled: its configuration is Falcon 40B's with the sizes litgpt lists.",
        "",
        "One machine, unless it takes several. Memory is of the fullest card; ranges hold in four of five cases. A",
        f"card and stack are **measured** where each was timed in {FEWEST} runs at least; where those of the cheapest",
        "pick were not, the cheapest of which they were stands below it.",
        "",
        "**Guides**: what widely read guides name for this size and method, set up in the cheapest way on the cheapest",
        "such offer of the same table, and how much dearer than the cheapest pick that is.",
        "",
        *(f"- {name}: {told}" for name, told in GUIDES.items()),
        "",
        *summary(results),
    ]
    for name, (title, words) in TABLES.items():
        found: list[Row] = results["tables"][name]
        parts += [f"## {title}", "", words, f"{results['offers'][name]:,} offers.", "", *_table(found)]
    searched = [row["searched"] for of in results["tables"].values() for row in of if row.get("searched")]
    total, predicted = (sum(each[key] for each in searched) for key in ("configurations", "predicted"))
    parts += [
        f"{len(searched)} plans over {total:,} configurations, of which {predicted:,} were predicted and the others",
        "ruled out by a proven bound.",
        "",
    ]
    return "\n".join(parts)


def summary(results: Mapping[str, Any]) -> Iterator[str]:
    """What became of the guides' recommendations, table by table."""
    rows = []
    for name, (title, _) in TABLES.items():
        found = [each for row in results["tables"][name] for each in row["guides"]]
        fit = sorted(each["dearer"] for each in found if each["verdict"] == "fits" and each["dearer"] is not None)
        level = sum(dearer < 0.1 for dearer in fit)
        middle = f"{percent(fit[len(fit) // 2])} (up to {percent(fit[-1])})" if fit else ""
        counts = [sum(each["verdict"] in verdicts for each in found) for verdicts in (DO_NOT_FIT, ("no such offer",))]
        rows.append([title, str(len(found)), str(level), str(len(fit) - level), middle, *map(str, counts)])
    head = ["table", "recommendations", "within 10 % of the pick", "dearer", "median", "do not fit", "not offered"]
    yield from table(head, rows)


def _table(rows: list[Row]) -> list[str]:
    out = []
    for row in rows:
        picks = row.get("picks") or {}
        guides = "; ".join(map(guide_told, row["guides"]))
        if not any(picks.values()):
            told = plain(f"nothing: {row['refused']}")
            out.append([row["size"], row["method"], "", told, "", "", "", "", guides])
            continue
        for names, one in merged(picks):
            memory = one["memory"] + ("" if one["surely"] else ", may not fit")
            rent = plain(f"{one['hardware']}, {one['offer']}")
            time, cost = f"{one['time']} ({one['time_range']})", f"{one['cost']} ({one['cost_range']})"
            measured = "measured" if one["validated"] else "not measured"
            out.append([row["size"], row["method"], names, rent, memory, time, cost, measured, plain(guides)])
            guides = ""
    head = ["model", "method", "pick", "rent", "memory of a card", "time", "cost", "card and stack", "guides"]
    return list(table(head, out))


def merged(picks: Mapping[str, Row | None]) -> Iterator[tuple[str, Row]]:
    """Each choice once, by all it was picked as."""
    done: list[Row] = []
    for name in PICKS:
        one = picks.get(name)
        if one is not None and one not in done:
            done.append(one)
            yield ", ".join(other for other in PICKS if picks.get(other) == one), one


def guide_told(each: Row) -> str:
    """`8 x a100-sxm-80gb (March): 120 % dearer, $3.40`."""
    name = f"{each['hardware']} ({each['guide']})"
    if "choice" not in each:
        return f"{name}: {each['verdict']}"
    name += ": may not fit" if each["verdict"] != "fits" else ""
    cost = each["choice"]["cost"]
    dearer = each["dearer"]
    if dearer is None:
        return f"{name}: {cost}"
    if abs(dearer) < 0.005:
        return f"{name}: {cost}, as the pick"
    return f"{name}: {percent(abs(dearer))} {'dearer' if dearer > 0 else 'cheaper'}, {cost}"
