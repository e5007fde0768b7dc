"""What `nvidia-smi` answers for a card that is not there.

    [-L | -q | --query-gpu=NAMES --format=csv[,noheader][,nounits]] [-i INDEX]

Of each card: name, bytes and bytes in use, the moment a script asks.
Source   nvidia-smi(1); `nvidia-smi --help-query-gpu`.
"""

from __future__ import annotations

MIB = 1 << 20
DRIVER, CUDA = "580.65.06", "13.0"
UNITS = {"memory.": "MiB", "utilization.": "%", "power.": "W", "clocks.": "MHz"}
ABSENT = "[N/A]"


def uuid_of(index: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{index:012d}"


def values_of(card: dict[str, object], index: int, count: int) -> dict[str, str]:
    """By the names that --query-gpu takes, without units."""
    total, used = int(str(card["total_bytes"])) // MIB, int(str(card["used_bytes"])) // MIB
    return {
        "index": str(index), "count": str(count), "name": str(card["name"]), "gpu_name": str(card["name"]),
        "uuid": uuid_of(index), "gpu_uuid": uuid_of(index), "serial": ABSENT, "driver_version": DRIVER,
        "memory.total": str(total), "memory.used": str(used), "memory.free": str(total - used),
        "memory.reserved": "0", "utilization.gpu": "0", "utilization.memory": "0", "temperature.gpu": "40",
        "power.draw": "100.00", "power.limit": "700.00", "compute_mode": "Default", "pstate": "P0",
        "compute_cap": str(card["capability"]), "mig.mode.current": "Disabled", "persistence_mode": "Enabled",
        "clocks.sm": "1980", "clocks.mem": "2619", "pci.bus_id": f"00000000:{index + 1:02X}:00.0",
    }  # fmt: skip


def query(names: list[str], form: list[str], cards: list[dict[str, object]], chosen: list[int]) -> str:
    units = {name: next((u for prefix, u in UNITS.items() if name.startswith(prefix)), "") for name in names}
    lines = []
    if "noheader" not in form:
        lines.append(", ".join(f"{name} [{units[name]}]" if units[name] else name for name in names))
    for index in chosen:
        values = values_of(cards[index], index, len(cards))
        fields = []
        for name in names:
            unit = "" if "nounits" in form or name not in values or not units[name] else f" {units[name]}"
            fields.append(values.get(name, ABSENT) + unit)
        lines.append(", ".join(fields))
    return "\n".join(lines)


def table(cards: list[dict[str, object]], chosen: list[int]) -> str:
    line = "+" + "-" * 77 + "+"
    rows = [line, f"| NVIDIA-SMI {DRIVER:<20} Driver Version: {DRIVER:<14} CUDA Version: {CUDA:<9}|", line]
    for index in chosen:
        values = values_of(cards[index], index, len(cards))
        memory = f"{values['memory.used']}MiB / {values['memory.total']}MiB"
        rows += [f"| {index:>3}  {values['name']:<32} {memory:>24}      0%      Default |", line]
    return "\n".join(rows)


def listing(cards: list[dict[str, object]], chosen: list[int]) -> str:
    """`nvidia-smi -q -d MEMORY`, as far as scripts look for it."""
    rows = [
        f"Driver Version                            : {DRIVER}",
        f"Attached GPUs                             : {len(cards)}",
    ]
    for index in chosen:
        values = values_of(cards[index], index, len(cards))
        rows += [
            f"GPU {values['pci.bus_id']}",
            f"    Product Name                          : {values['name']}",
            "    FB Memory Usage",
            f"        Total                             : {values['memory.total']} MiB",
            "        Reserved                          : 0 MiB",
            f"        Used                              : {values['memory.used']} MiB",
            f"        Free                              : {values['memory.free']} MiB",
        ]
    return "\n".join(rows)


def answer(words: list[str], cards: list[dict[str, object]]) -> str:
    asked, form, chosen, kind = "", "csv", list(range(len(cards))), "table"
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name in ("--query-gpu", "--format", "-i", "--id", "-d", "--display", "-l", "--loop") and not equals:
            value = rest.pop(0) if rest else ""
        if name == "--query-gpu":
            asked = value
        elif name == "--format":
            form = value
        elif name in ("-i", "--id"):
            chosen = [int(part) for part in value.split(",") if part.isdecimal() and int(part) < len(cards)]
        elif name in ("-L", "--list-gpus"):
            kind = "list"
        elif name in ("-q", "--query"):
            kind = "all"
        elif name.startswith(("--query-compute-apps", "--query-accounted-apps")):
            kind = "none"
    if asked:
        return query(
            [each.strip() for each in asked.split(",")], [part.strip() for part in form.split(",")], cards, chosen
        )
    if kind == "none":
        return ""
    if kind == "list":
        return "\n".join(f"GPU {index}: {cards[index]['name']} (UUID: {uuid_of(index)})" for index in chosen)
    return listing(cards, chosen) if kind == "all" else table(cards, chosen)
