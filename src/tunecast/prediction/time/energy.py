"""Energy of a whole job in kWh, and the CO2 of that electricity.

    watts of a machine = what it takes besides its cards + cards * (idle + busy fraction * (load - idle))
    kWh = watts * seconds, phase by phase, * PUE

Shares are of a card's rated power (TDP), and are inferred from few published sums, read in abstract: an 8-GPU H100
machine took 8.4 kW at most; if its cards then took their 5.6 kW, 2.8 kW or 0.5 of that went elsewhere. In intensive
training it took 76 % of its rated 10.2 kW, which by the same share leaves the cards 0.87 of theirs. An idle H100
shows 68 to 73 W of 700. BLOOM's cluster took 0.59 of its cards' rated power besides them (256,646 kWh in 1,082,990
hours of 400 W cards). No run of ours had its power measured; the low ends of load and host are judgement.
Source   Latif et al. 2025 (IEEE Access 13), Newkirk et al. 2025 (arXiv 2506.14551); Luccioni et al. 2023 (JMLR 24);
         nvidia-smi in public repositories; Uptime Institute's surveys of 2023 and 2024, as quoted by others.
Ignored  that arithmetic takes more power than copying; what the machine's making emitted; other jobs on the machine,
         whose share of it is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunecast.hardware.grids import grid
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.prediction.memory.vllm import server_cards
from tunecast.prediction.values import Energy
from tunecast.units import HOUR_S, KILO

IDLE_FRACTION = 0.10
LOAD_FRACTION = (0.87, 0.60, 1.0)
"""Of the rated power while kernels run: likely, low, high. Memory-bound kernels take less than matrix products."""
HOST_FRACTION = (0.50, 0.25, 0.59)
"""Of the cards' rated power, what their machine takes besides. The low end is judgement, for a workstation."""
PUE = (1.3, 1.1, 1.58)
"""The survey's average was 1.58 in 2023; newer, larger sites have 1.3 or better (2024), hyperscale ones 1.1 to 1.2."""
UNBILLED = ("provisioning",)
"""The machine is not there yet."""


def energy(
    job: Job,
    gpu: Gpu,
    phases_s: Mapping[str, float],
    busy_fraction: float,
    total_range_s: tuple[float, float] | None = None,
) -> Energy | None:
    """Of a whole job; cards work in training and evaluation only. None where the card's power is not known."""
    if gpu.tdp_w is None:
        return None
    spent = {name: seconds for name, seconds in phases_s.items() if name not in UNBILLED}
    total_s = sum(spent.values())
    low, likely, high = (
        _joules(job, gpu.tdp_w, spent, busy_fraction, load, host) * (job.hardware.pue or pue)
        for load, host, pue in (
            (LOAD_FRACTION[1], HOST_FRACTION[1], PUE[1]),
            (LOAD_FRACTION[0], HOST_FRACTION[0], PUE[0]),
            (LOAD_FRACTION[2], HOST_FRACTION[2], PUE[2]),
        )
    )
    shorter, longer = (1.0, 1.0) if total_range_s is None or not total_s else (s / total_s for s in total_range_s)
    kwh = likely / HOUR_S / KILO
    found = None if job.hardware.country is None else grid(job.hardware.country)
    told = "" if found is None else f"; {found.name}: {found.g_per_kwh:.0f} g CO2e/kWh, {found.source}, {found.year}"
    pue = job.hardware.pue or PUE[0]
    return Energy(
        kwh=kwh,
        range=(min(1.0, shorter) * low / HOUR_S / KILO, max(1.0, longer) * high / HOUR_S / KILO),
        co2_kg=None if found is None else kwh * found.g_per_kwh / KILO,
        country=None if found is None else found.country,
        source=f"{gpu.name}: {gpu.tdp_w} W rated; machine besides its cards: {_host_told(job)}; PUE {pue:g}{told}",
    )


def _joules(job: Job, tdp_w: float, phases_s: Mapping[str, float], busy: float, load: float, host: float) -> float:
    """Of all machines, phase by phase."""
    cards, machines = job.hardware.cards + server_cards(job), job.hardware.nodes
    besides = host * tdp_w * cards if job.hardware.host_w is None else job.hardware.host_w * machines
    total = 0.0
    for phase, seconds in phases_s.items():
        working = busy if phase in ("training", "evaluation", "first_step") else 0.0
        total += seconds * (besides + cards * tdp_w * (IDLE_FRACTION + working * (load - IDLE_FRACTION)))
    return total


def _host_told(job: Job) -> str:
    if job.hardware.host_w is not None:
        return f"{job.hardware.host_w:g} W"
    return f"{HOST_FRACTION[0]:.0%} of that"
