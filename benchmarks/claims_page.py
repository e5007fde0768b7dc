"""docs/claims.md from the committed results: claims by topic, what was claimed, what tunecast computes, the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from claims_jobs import command
from claims_rule import (
    AGREES,
    CONFIRMED,
    FEW,
    MEASURED,
    MEASUREMENT,
    NARROW,
    NO,
    NOT_COMPUTED,
    NOT_SETTLED,
    OUTDATED,
    REFUTED,
    RULES,
    UNSEEN,
    VERDICTS,
    YES_OR_NO,
    Claim,
    at_odds,
    read_claims,
)
from figures import table

from tunecast.prediction.evidence import FEWEST

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
FURTHEST = 10
SAID_FIRST = ("up to", "at least", "at most", "more than", "less than")
"""Rules that a number claimed is told with."""
GUIDES: Mapping[str, str] = {
    "Which GPU for Fine-Tuning 70B Models? (Lyceum, 2026-02-23)":
    "https://lyceum.technology/magazine/which-gpu-for-fine-tuning-70b-model",
    "Best GPU for LLM Fine-Tuning in 2026 (Lyceum, 2026-05-10)":
    "https://lyceum.technology/magazine/best-gpu-for-llm-fine-tuning-2026/index.html",
    "LLM fine-tuning hardware guide (Lyceum, 2026)":
    "https://lyceum.technology/magazine/hardware-recommendation-llm-fine-tuning",
    "Best GPU for Fine Tuning (guide, March 2026)": "https://deploybase.ai/articles/best-gpu-for-fine-tuning",
}  # fmt: skip
TOP = ["# What guides claim, computed", "", "Widely read guides to fine-tuning assert what it takes. Here is each "
       "assertion beside what tunecast computes for it.", ""]  # fmt: skip
ABOUT = [
    "A verdict follows from the numbers by [rules](#how-a-verdict-comes-about) written down once. Written by",
    "`benchmarks/claims.py` from [claims.csv](../benchmarks/data/claims.csv); only the claims and the remarks on them",
    "were written by hand. Nothing was measured for it: how far predictions are off is told [for memory](accuracy.md)",
    "and [for time](accuracy_time.md). What the guides recommend to rent is beside our picks in",
    "[decisions.md](decisions.md). The guides:",
    "",
]
METHOD = f"""## How a verdict comes about

A claim leaves settings open; each that is tried is a case. Where nothing is said: one row of 512 tokens (the least
that still trains) and four rows of 2,048, gradient checkpointing, bfloat16 weights, adapters on all linear layers,
Llama 2 7B and 13B, Code Llama 34B, Llama 3.1 70B. A case agrees with a claim, lies below or lies above.

- **confirmed**: all cases agree. **refuted**: all lie on one side of it. **depends**: otherwise; the cases on both
  sides say on what. Of a claim with several parts one refuted part refutes it; parts that cannot be computed do not
  count.
- **outdated**: right with the prices it prints, no longer with the bundled ones.
- **not settled**: what disagrees may not decide. A claim that somebody measured is not refuted by a prediction for a
  card we did not time ourselves. Fewer than {FEW} measurements by others do not refute a claim about a thing that
  varies. And a time predicted for a card or a stack nobody timed, marked † and called unvalidated, is on no side where
  it is within {UNSEEN:.0%} of it, which is how far such times are off. A time is validated where the card, the stack's
  kernels and, on several cards, links and spreading were each timed in {FEWEST} runs at least, as `tunecast predict`
  says it.
- **not computed**: tunecast has no number for it, and says why.

"""
TOLERANCES = f"""10 % because guides do not keep GB and GiB apart, which is 7 %, and because time is predicted to about
5 %. A verdict that would be another with all numbers {NARROW * 100:.0f} % lower or higher is called narrow. GB are
10^9 bytes; memory is what `nvidia-smi` shows of the fullest card; prices are those bundled with tunecast, of one card
on demand, the median over providers, without VAT."""


def page(results: Mapping[str, Row]) -> str:
    claims = read_claims()
    guides = [f"- [{name}]({address})" for name, address in GUIDES.items()]
    lines = [*TOP, *summary(claims, results), *ABOUT, *guides, ""]
    lines += ["## Every claim", "", *every_claim(claims, results)]
    lines += [METHOD]
    lines += table(["rule", "a case agrees where"], [[name, told] for name, told in RULES.items()])
    lines += [TOLERANCES, ""]
    lines += ["## Claims that contradict each other", "", *contradictions(claims, results)]
    for topic, name in TOPICS.items():
        lines += [f"## {name}", "", *((REMARKS[topic], "") if topic in REMARKS else ())]
        for claim in claims:
            if claim.topic == topic:
                lines += section(claim, results[claim.id])
    return "\n".join(lines).rstrip() + "\n"


def summary(claims: list[Claim], results: Mapping[str, Row]) -> Iterator[str]:
    """How many of each verdict, by topic; then the refuted numbers that are furthest off."""
    counts = _counts(claims, results)
    yield from (f"**{len(claims)} claims:** " + ", ".join(f"{n} {name}" for name, n in counts.items() if n) + ".", "")
    rows = []
    for topic, name in TOPICS.items():
        counts = _counts([claim for claim in claims if claim.topic == topic], results)
        link = f"[{name}](#{name.lower().replace(' ', '-')})"
        rows.append([link, str(sum(counts.values())), *(str(n) if n else "" for n in counts.values())])
    yield from table(["of", "claims", *VERDICTS], rows)
    yield from (f"The {FURTHEST} refuted numbers that are furthest off:", "")
    off = sorted(claims, key=lambda claim: (-times_off(claim, results[claim.id]), claim.id))[:FURTHEST]
    yield from table(
        ["claim", "claimed", "tunecast", "off by"],
        [
            [link_to(claim), claimed(claim), ours(claim, found), number(times_off(claim, found), "x")]
            for claim in off
            for found in [results[claim.id]]
        ],
    )


def _counts(claims: list[Claim], results: Mapping[str, Row]) -> dict[str, int]:
    return {verdict: sum(results[claim.id]["verdict"] == verdict for claim in claims) for verdict in VERDICTS}


def times_off(claim: Claim, found: Row) -> float:
    """Of a refuted number the factor to the nearest case, in the part that is furthest off; 0 where there is none."""
    if found["verdict"] != REFUTED or not claim.value or claim.rule in YES_OR_NO:
        return 0.0
    factors = []
    for part, (low, high) in enumerate(claim.intervals):
        cases = [case for case in found["cases"] if case["part"] == part and not case["aside"]]
        values = [float(case["value"]) for case in cases if case["value"] is not None and case["value"] > 0]
        if values and low > 0:
            factors.append(min(max(low / value, value / high, 1.0) for value in values))
    return max(factors, default=0.0)


def link_to(claim: Claim) -> str:
    return f"[{claim.claim}](#{claim.id.replace('.', '')})"


def every_claim(claims: list[Claim], results: Mapping[str, Row]) -> Iterator[str]:
    """Each with its verdict and its number."""
    yield from ("† rests on predicted times of cards or stacks nobody timed ([rules](#how-a-verdict-comes-about)).", "")
    rows = []
    for topic, name in TOPICS.items():
        for claim in claims:
            if claim.topic == topic:
                found = results[claim.id]
                word = found["verdict"] + (" †" if found["unvalidated"] else "")
                said = claimed(claim) if claim.value else ""
                rows.append([name, link_to(claim), word, said, "" if found["why"] else ours(claim, found)])
    yield from table(["", "claim", "verdict", "claimed", "tunecast"], rows)


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
    narrow += ", by unvalidated predictions" if found["unvalidated"] else ""
    yield from (f"### {claim.id}", "", f"> {claim.claim}", ">", f"> {claim.source}", "")
    so = "that it can be" if claim.rule == "can" else "that it is so"
    said = f"Claimed: {claimed(claim) if claim.value else so}"
    conditions = f" ({claim.conditions})" if claim.conditions else ""
    word = f"**{found['verdict'].capitalize()}{narrow}**{reason(claim, found)}"
    yield from (f"{said}{conditions}. tunecast: {ours(claim, found)}. {word}", "")
    if claim.note:
        yield from (claim.note, "")
    rows = []
    for case in found["cases"]:
        beside = " (for comparison)" if case["aside"] else ""
        value = number(case["value"], unit_of(claim, case["part"]))
        where = case["side"] + (" †" if case["unvalidated"] else "")
        rows.append([case["label"] + beside, value, where, case["told"].replace("|", "/")])
    if rows:
        yield from table(["case", "tunecast", "", "from"], rows)
    asked = list(dict.fromkeys(command(row) for case in found["cases"] for row in case["jobs"]))
    again = f"python benchmarks/claims.py {claim.id}"
    more = f"  # all {len(asked)} of them" if len(asked) > COMMANDS else ""
    yield from ("```sh", *asked[:COMMANDS], again + more, "```", "")


def reason(claim: Claim, found: Row) -> str:
    """What lies on either side; of what is not settled or not computed, why."""
    verdict = found["verdict"]
    if verdict == NOT_COMPUTED:
        return f": {found['why']}."
    if verdict == OUTDATED:
        return ": right with the prices it prints, not with the bundled ones."
    counted = [case for case in found["cases"] if not case["aside"] and case["side"] != NOT_COMPUTED]
    if verdict == NOT_SETTLED:
        return f": {why_not_settled(claim, found, counted)}."
    if verdict in (REFUTED, CONFIRMED):
        return "."
    sides: dict[str, list[str]] = {}
    for case in counted:
        sides.setdefault(case["side"], []).append(case["label"])
    names = {AGREES: "agrees", NO: "does not"}
    told = "; ".join(f"{names.get(side, side)}: {first_of(labels)}" for side, labels in sides.items())
    return f": {told}."


def why_not_settled(claim: Claim, found: Row, counted: list[Row]) -> str:
    if any(case["measured"] for case in counted):
        return f"{len(counted)} measurements by others, which are too few"
    if claim.basis == MEASUREMENT:
        cards = {asked["hardware"]["gpu"] for case in counted for asked in case["jobs"]} - MEASURED
        said = f"measured by others {claimed(claim)}, predicted {ours(claim, found)}"
        return f"{said}; {' and '.join(sorted(cards))} were not timed by us"
    return "within the error of times on cards nobody timed"


def first_of(labels: list[str]) -> str:
    more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
    return labels[0] + more


def unit_of(claim: Claim, part: int) -> str:
    return claim.units[part] if part < len(claim.units) else ""


def claimed(claim: Claim) -> str:
    if not claim.value:
        return "yes"
    words = f"{claim.rule} " if claim.rule in SAID_FIRST else ""
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
