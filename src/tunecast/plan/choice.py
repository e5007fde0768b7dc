"""What a plan is made of: machines, choices, refusals, and the plan itself as the contract's `tunecast.plan/1`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any, NamedTuple

from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.offers.cost import Cost
from tunecast.offers.money import RATE, Rate
from tunecast.offers.offer import Offer
from tunecast.predict.prediction import Prediction
from tunecast.records import dataclass, field

SCHEMA = "tunecast.plan/1"
PICKS = ("cheapest", "fastest", "balanced", "deadline")
SETTINGS = (
    *("hardware.gpu", "hardware.gpus", "hardware.nodes", "hardware.interconnect", "hardware.inter_node_gbps"),
    *("method", "lora.rank", "weights_dtype", "optimizer", "micro_batch", "grad_accum", "gradient_checkpointing"),
    *("attention", "kernels", "parallel.data", "parallel.layers", "parallel.sync_each_batch"),
)
"""The fields of a job a plan decides, by dotted name; the rest is as the user wrote it."""


@dataclass(frozen=True)
class Machine:
    """What is rented: `nodes` machines of an offer, each with `gpus` cards."""

    gpu: Gpu
    gpus: int
    nodes: int
    offer: Offer

    @property
    def cards(self) -> int:
        return self.gpus * self.nodes

    @property
    def hardware(self) -> str:
        """`8 x h100-sxm-80gb`, `4 machines of 8 x h100-sxm-80gb`."""
        one = f"{self.gpus} x {self.gpu.name}"
        return one if self.nodes == 1 else f"{self.nodes} machines of {one}"

    @property
    def usd_per_hour(self) -> float:
        """Of all machines."""
        return self.offer.usd_per_hour * self.nodes


@dataclass(frozen=True)
class Choice:
    """One way to run the job. Memory is of the fullest card."""

    machine: Machine
    job: Job
    """The user's with `changes`."""
    changes: Mapping[str, object]
    """Fields that differ from the user's job, by dotted name."""
    device_bytes: int
    device_range_bytes: tuple[int, int]
    """80 %."""
    capacity_bytes: int
    """What a process may hold of the card: to compare with `device_bytes`, context and communication included."""
    step_s: float
    total_s: float
    """From the order to the saved model, expected interruptions included."""
    total_range_s: tuple[float, float]
    """80 %."""
    cost: Cost
    usd_range: tuple[float, float]
    """The cost at the ends of `total_range_s`."""
    tokens: float
    """Real ones, over the whole run: for the price of a million."""
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """Without interruptions."""
    risk: str | None = None
    """What may go wrong, such as fitting at the low but not at the high end of the range."""
    why: str = ""
    prediction: Prediction | None = None
    """Of picks; of the whole front where that was asked for."""

    @property
    def total_usd(self) -> float:
        return self.cost.total_usd

    @property
    def usd_per_epoch(self) -> float | None:
        """None where the run is given in steps."""
        return None if self.job.run.max_steps is not None else self.cost.usd_per_epoch(self.job.data.epochs)

    @property
    def usd_per_million_tokens(self) -> float | None:
        return self.cost.usd_per_million_tokens(self.tokens) if self.tokens else None

    @property
    def fits_surely(self) -> bool:
        """At the high end of the range too."""
        return self.device_range_bytes[1] <= self.capacity_bytes

    @property
    def hardware(self) -> str:
        return self.machine.hardware

    def settings(self) -> dict[str, Any]:
        """The knobs chosen, nested as a job's file has them: written over the user's file they make this job."""
        flat = self.job.flat()
        made: dict[str, Any] = {}
        for dotted in SETTINGS:
            if dotted == "lora.rank" and self.job.method == "full":
                continue
            section, _, leaf = dotted.rpartition(".")
            value = flat[dotted]
            place = made.setdefault(section, {}) if section else made
            place[leaf] = list(value) if isinstance(value, tuple) else value
        return made

    def to_dict(self) -> dict[str, Any]:
        return {
            "hardware": self.hardware,
            "cards": self.machine.cards,
            "offer": offer_dict(self.machine.offer),
            "job": self.settings(),
            "changes": {name: list(v) if isinstance(v, tuple) else v for name, v in self.changes.items()},
            "prediction": None if self.prediction is None else self.prediction.to_dict(),
            "device_bytes": self.device_bytes,
            "device_range_bytes": list(self.device_range_bytes),
            "capacity_bytes": self.capacity_bytes,
            "fits_surely": self.fits_surely,
            "step_s": self.step_s,
            "total_s": self.total_s,
            "total_range_s": list(self.total_range_s),
            "phases_s": dict(self.phases_s),
            "total_usd": self.total_usd,
            "usd_range": list(self.usd_range),
            "cost": {
                "lines": [{"name": line.name, "usd": line.usd, "told": line.told} for line in self.cost.lines],
                "billed_s": self.cost.billed_s,
                "interruptions": self.cost.interruptions,
                "usd_per_epoch": self.usd_per_epoch,
                "usd_per_million_tokens": self.usd_per_million_tokens,
                "usd_per_year_weekly": self.cost.usd_per_year(),
                "assumptions": list(self.cost.assumptions),
                "missing": list(self.cost.missing),
            },
            "risk": self.risk,
            "why": self.why,
        }


def offer_dict(offer: Offer) -> dict[str, Any]:
    """What names an offer in a plan; `tunecast offers` shows the rest."""
    return {
        "provider": offer.provider,
        "via": offer.via or None,
        "kind": offer.kind,
        "instance": offer.instance or None,
        "gpu": offer.gpu,
        "gpus": offer.gpus,
        "usd_per_hour": offer.usd_per_hour,
        "regions": list(offer.regions),
        "countries": list(offer.countries),
        "placed": offer.placed,
        "dated": offer.dated.isoformat(),
        "source": offer.source,
        "term_hours": offer.term_hours,
    }


@dataclass(frozen=True)
class Refusal:
    """Hardware no setting runs on, or none that was allowed."""

    hardware: str
    reason: str
    remedy: str

    def to_dict(self) -> dict[str, str]:
        return {"hardware": self.hardware, "reason": self.reason, "remedy": self.remedy}


class Searched(NamedTuple):
    """Configurations of the whole space, those that a bound proved not worth a prediction, and those predicted."""

    configurations: int
    bounded: int
    predicted: int
    seconds: float


class Limits(NamedTuple):
    """What the answer has to keep to; None: no such limit."""

    within_s: float | None = None
    max_usd: float | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Money:
    """How prices are shown; all figures of a plan are USD, and hold VAT where `vat_fraction` is not 0."""

    eur: bool = False
    rate: Rate = RATE
    vat_fraction: float = 0.0


DOLLARS = Money()


@dataclass(frozen=True)
class Plan:
    job: Job
    """As the user wrote it, with the data that was assumed where none was given."""
    today: date
    picks: Mapping[str, Choice | None]
    """By the names of `PICKS`; None: not asked for (deadline), or none there."""
    pareto: tuple[Choice, ...]
    """No other choice is both cheaper and faster. The cheapest first."""
    choices: tuple[Choice, ...]
    """The best of each hardware that was predicted, the cheapest first."""
    refused: tuple[Refusal, ...]
    searched: Searched
    ruled_out: tuple[str, ...] = ()
    """Hardware of which nothing had to be predicted: by proven floors a choice is cheaper and faster."""
    limits: Limits = NO_LIMITS
    asked: tuple[str, ...] = ()
    """The constraints in words, as flags: `--eu`, `--gpu rtx-4090`."""
    money: Money = DOLLARS
    notes: tuple[str, ...] = ()
    """Worth knowing of the picks: what a reservation would have to be used for."""
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As the contract has it, ready for JSON."""
        return {
            "schema": SCHEMA,
            "id": self.job.id,
            "picks": {name: None if one is None else one.to_dict() for name, one in self.picks.items()},
            "pareto": [one.to_dict() for one in self.pareto],
            "choices": [one.to_dict() for one in self.choices],
            "refused": [one.to_dict() for one in self.refused],
            "ruled_out": list(self.ruled_out),
            "searched": self.searched._asdict(),
            "limits": self.limits._asdict(),
            "asked": list(self.asked),
            "notes": list(self.notes),
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
        }
