"""docs/claims.md from the committed results: claims by topic, what was claimed, what tunecast computes, the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from claims_jobs import command
from claims_rule import (
    AGREES,
    CONFIRMED,
    NARROW,
    NO,
    NOT_COMPUTED,
    REFUTED,
    RULES,
    VERDICTS,
    YES_OR_NO,
    Claim,
    at_odds,
    read_claims,
)
from figures import table

Row = dict[str, Any]
COMMANDS = 3
"""Of a claim; the rest are printed by the program."""
TOPICS: Mapping[str, str] = {
    "weights": "Weights", "full": "Full fine-tuning", "lora": "LoRA", "qlora": "QLoRA",
    "settings": "Settings and kernels", "speed": "Tokens a second", "cards": "Cards against cards",
    "links": "Links and many cards", "money": "Prices and cost", "machine": "Machines and places",
}  # fmt: skip
REMARKS: Mapping[str, str] = {
    "links": "Collectives on two streams (FSDP gathers weights while it scatters gradients) are priced as if each had\n"
    "the link to itself, so where a step waits for PCIe it is rather longer than told here.",
}
HEAD = """# What guides claim, computed

Widely read guides to fine-tuning assert what it takes. Here is each assertion beside what tunecast computes for it, and
a verdict that follows from the numbers by rules written down once. Written by `benchmarks/claims.py` from
[claims.csv](../benchmarks/data/claims.csv); only the claims and the remarks on them were written by hand. Nothing was
measured for it either: how far predictions are off is told [for memory](accuracy.md) and [for time](accuracy_time.md).

**How a verdict comes about.** A claim leaves settings open; each that is tried is a case. Where nothing is said: one
row of 512 tokens (the least that still trains) and four rows of 2,048, gradient checkpointing, bfloat16 weights,
adapters on all linear layers, Llama 2 7B and 13B, Code Llama 34B, Llama 3.1 70B. A case agrees with a claim, lies below
or lies above. All agree: **confirmed**. All lie on one side of it: **refuted**. Otherwise it **depends**, and the cases
on both sides say on what. Of a claim with several parts one refuted part refutes it; parts that cannot be computed do
not count."""
TOLERANCES = f"""10 % because guides do not keep GB and GiB apart, which is 7 %, and because time is predicted to about
5 %. A verdict that would be another with all numbers {NARROW * 100:.0f} % lower or higher is called narrow. GB are
10^9 bytes; memory is what `nvidia-smi` shows of the fullest card; prices are those bundled with tunecast, of one card
on demand, the median over providers, without VAT."""


def page(results: Mapping[str, Row]) -> str:
    claims = read_claims()
    lines = [HEAD, "", *table(["rule", "a case agrees where"], [[name, told] for name, told in RULES.items()])]
    lines += [TOLERANCES, "", *counts(claims, results)]
    lines += ["## Claims that contradict each other", "", *contradictions(claims, results)]
    for topic, name in TOPICS.items():
        lines += [f"## {name}", "", *((REMARKS[topic], "") if topic in REMARKS else ())]
        for claim in claims:
            if claim.topic == topic:
                lines += section(claim, results[claim.id])
    return "\n".join(lines).rstrip() + "\n"


def counts(claims: list[Claim], results: Mapping[str, Row]) -> list[str]:
    found = {verdict: [c for c in claims if results[c.id]["verdict"] == verdict] for verdict in VERDICTS}
    rows = [
        [verdict, str(len(group)), ", ".join(f"[{claim.id}](#{claim.id.replace('.', '')})" for claim in group)]
        for verdict, group in found.items()
        if group
    ]
    return [f"**{len(claims)} claims:**", "", *table(["verdict", "claims", "which"], rows)]


def contradictions(claims: list[Claim], results: Mapping[str, Row]) -> list[str]:
    rows = []
    for about, group in at_odds(claims):
        for claim in group:
            shown = f"{claim.claim} ({claim.source})"
            rows.append([about, shown, claimed(claim), ours(claim, results[claim.id]), results[claim.id]["verdict"]])
    told = "Of the same thing, and no number satisfies them all:"
    return [told, "", *table(["of", "claim", "claimed", "tunecast", "verdict"], rows)]


def section(claim: Claim, found: Row) -> Iterator[str]:
    narrow = ", narrowly" if found["narrow"] else ""
    yield from (f"### {claim.id}", "", f"> {claim.claim}", ">", f"> {claim.source}", "")
    so = "that it can be" if claim.rule == "can" else "that it is so"
    said = f"Claimed: {claimed(claim) if claim.value else so}"
    conditions = f" ({claim.conditions})" if claim.conditions else ""
    word = f"**{found['verdict'].capitalize()}{narrow}**{reason(found)}"
    yield from (f"{said}{conditions}. tunecast: {ours(claim, found)}. {word}", "")
    if claim.note:
        yield from (claim.note, "")
    rows = []
    for case in found["cases"]:
        beside = " (for comparison)" if case["aside"] else ""
        value = number(case["value"], unit_of(claim, case["part"]))
        rows.append([case["label"] + beside, value, case["side"], case["told"].replace("|", "/")])
    if rows:
        yield from table(["case", "tunecast", "", "from"], rows)
    asked = list(dict.fromkeys(command(row) for case in found["cases"] for row in case["jobs"]))
    again = f"python benchmarks/claims.py {claim.id}"
    more = f"  # all {len(asked)} of them" if len(asked) > COMMANDS else ""
    yield from ("```sh", *asked[:COMMANDS], again + more, "```", "")


def reason(found: Row) -> str:
    """Of a claim that depends: what lies on either side. Of one not computed: why."""
    if found["verdict"] == NOT_COMPUTED:
        return f": {found['why']}."
    if found["verdict"] == REFUTED or found["verdict"] == CONFIRMED:
        return "."
    sides: dict[str, list[str]] = {}
    for case in found["cases"]:
        if not case["aside"] and case["side"] != NOT_COMPUTED:
            sides.setdefault(case["side"], []).append(case["label"])
    names = {AGREES: "agrees", NO: "does not"}
    told = "; ".join(f"{names.get(side, side)}: {first_of(labels)}" for side, labels in sides.items())
    return f": {told}."


def first_of(labels: list[str]) -> str:
    more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
    return labels[0] + more


def unit_of(claim: Claim, part: int) -> str:
    return claim.units[part] if part < len(claim.units) else ""


def claimed(claim: Claim) -> str:
    if not claim.value:
        return "yes"
    words = {"up to": "up to ", "at least": "at least ", "at most": "at most "}.get(claim.rule, "")
    parts = [
        number(low, unit_of(claim, part))
        if low == high
        else f"{number(low, '')} to {number(high, unit_of(claim, part))}"
        for part, (low, high) in enumerate(claim.intervals)
    ]
    return words + ", ".join(parts)


def ours(claim: Claim, found: Row) -> str:
    """From the least to the most, part by part."""
    counted = [case for case in found["cases"] if not case["aside"] and case["value"] is not None]
    if not counted:
        return "nothing"
    if claim.rule in YES_OR_NO:
        return f"so in {sum(bool(case['value']) for case in counted)} of {len(counted)} cases"
    told = []
    for part in sorted({case["part"] for case in counted}):
        values = [case["value"] for case in counted if case["part"] == part]
        unit = unit_of(claim, part)
        least, most = number(min(values), ""), number(max(values), unit)
        told.append(most if number(max(values), "") == least else f"{least} to {most}")
    return ", ".join(told)


def number(value: float | bool | None, unit: str) -> str:
    if value is None:
        return NOT_COMPUTED
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value and abs(value) < 0.001:
        text = f"{value:.2e}"
    else:
        text = f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".strip()
