"""What a plan is made of: machines, choices, refusals, and the plan itself as the contract's `tunecast.plan/1`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any, NamedTuple

from tunecast.hardware.grids import grid
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.offers.cost import Cost
from tunecast.offers.money import RATE, Rate
from tunecast.offers.offer import Offer
from tunecast.offers.provider import tenancy
from tunecast.predict.prediction import Prediction
from tunecast.predict.taken import Effect, Taken
from tunecast.records import dataclass, field, replace
from tunecast.units import KILO

SCHEMA = "tunecast.plan/1"
PICKS = ("cheapest", "fastest", "balanced", "deadline")
SETTINGS = (
    *("hardware.gpu", "hardware.gpus", "hardware.nodes", "hardware.interconnect", "hardware.inter_node_gbps"),
    *("method", "lora.rank", "weights_dtype", "optimizer", "micro_batch", "grad_accum", "gradient_checkpointing"),
    *("quantization.prepare_kbit", "matmul_dtype", "compile", "attention", "kernels"),
    *("parallel.data", "parallel.layers", "parallel.sync_each_batch", "run.save_steps"),
    *("parallel.cpu_ram_efficient_loading", "parallel.load_on_rank_0", "parallel.state_dict_type", "data.num_proc"),
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
    rough: Cost | None = None
    """Of a spot machine that is interrupted as often as the roughest one measured."""
    ram_bytes: int | None = None
    """What one machine needs of its host's memory, at most; None where it is not known."""
    disk_bytes: int | None = None
    """On its disk, at most: the model, what is saved while it trains, and the result."""
    evidence: str = ""
    """What was measured of this card and stack, in words."""
    validated: bool = True
    """Whether runs on this card, with this kind of stack, were measured."""
    runs: int = 1
    """Variants of the job that run one after another."""
    availability: str | None = None
    """Whether one is free: `free now`, `none free` or `not known`; None where nobody was asked."""

    @property
    def total_usd(self) -> float:
        return self.cost.total_usd

    @property
    def usd_per_epoch(self) -> float | None:
        """None where the run is given in steps."""
        epochs = self.job.data.epochs * self.runs
        return None if self.job.run.max_steps is not None else self.cost.usd_per_epoch(epochs)

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

    @property
    def kwh(self) -> float | None:
        """None where it was not predicted in full, or the card's power is not known."""
        energy = None if self.prediction is None else self.prediction.energy
        return None if energy is None else float(energy["kwh"]) * self.runs

    @property
    def co2_kg(self) -> tuple[float, float] | None:
        """From the cleanest to the dirtiest grid of the countries the offer may stand in; None where none is known."""
        countries = self.machine.offer.known_countries
        if self.kwh is None or not countries or "" in self.machine.offer.countries:
            return None
        each = [self.kwh * grid(country).g_per_kwh / KILO for country in countries]
        return min(each), max(each)

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
            "validated": self.validated,
            "evidence": self.evidence,
            "ram_bytes": self.ram_bytes,
            "disk_bytes": self.disk_bytes,
            "availability": self.availability or "not known",
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
            },
            "if_rough": None
            if self.rough is None
            else {
                "total_usd": self.rough.total_usd,
                "total_s": self.rough.wall_s,
                "interruptions": self.rough.interruptions,
            },
            "energy": None
            if self.kwh is None
            else {"kwh": self.kwh, "co2_kg": None if self.co2_kg is None else list(self.co2_kg)},
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
        "vcpus": offer.vcpus,
        "ram_bytes": offer.ram_bytes,
        "disk_bytes": offer.disk_bytes,
        "tenancy": tenancy(offer) or None,
        "assumed": offer.assumed or None,
    }


@dataclass(frozen=True)
class Refusal:
    """Hardware no setting runs on, or none that was allowed."""

    hardware: str
    reason: str
    remedy: str
    too_small: bool = False
    """Whether it lacks memory; else nothing is known of such a job there, or it was not allowed."""

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


class Beside(NamedTuple):
    """The cheapest of what is not picked unasked, or cannot be proven."""

    kind: str
    """spot, marketplace, validated, deadline (without it), or `unproven`, of one provider each."""
    choice: Choice
    why: str = ""
    """What is not known, of the unproven."""

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "why": self.why, "choice": self.choice.to_dict()}


class Saving(NamedTuple):
    """What of the first pick's cost can be avoided, and how."""

    advice: str
    usd: float
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {"advice": self.advice, "usd": self.usd, "seconds": self.seconds}


@dataclass(frozen=True)
class PriceList:
    """Which prices a plan looked at."""

    listed: date | None = None
    """The day of the newest list."""
    old: int = 0
    """Offers left out for their age."""
    outliers: Mapping[str, str] = field(default_factory=dict)
    """Offers left out for their price, each with the reason."""
    unknown: Mapping[str, int] = field(default_factory=dict)
    """Offers left out because something asked for cannot be proven, by what."""

    def to_dict(self, today: date) -> dict[str, Any]:
        listed = self.listed
        return {
            "listed": None if listed is None else listed.isoformat(),
            "age_days": None if listed is None else max(0, (today - listed).days),
            "left_out_old": self.old,
            "outliers": dict(self.outliers),
            "unknown": dict(self.unknown),
        }


@dataclass(frozen=True)
class Plan:
    """Picks, front and choices are one set: what fits for sure and keeps to the limits, or, where nothing does, what
    comes nearest (`is_answered`)."""

    job: Job
    """As the user wrote it, with the data that was assumed where none was given."""
    today: date
    picks: Mapping[str, Choice | None]
    """By the names of `PICKS`; None: not asked for (deadline), or none there. All of the front."""
    pareto: tuple[Choice, ...]
    """No other choice is both cheaper and faster, and none is hardly better than the next. The cheapest first."""
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
    beside: tuple[Beside, ...] = ()
    dearer: Mapping[str, float] = field(default_factory=dict)
    """Providers of which something cannot be proven and which would cost more than the answer: USD, at least."""
    savings: tuple[Saving, ...] = ()
    prices: PriceList = PriceList()
    notes: tuple[str, ...] = ()
    """Worth knowing of the picks: what a reservation would have to be used for."""
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    taken: tuple[Taken, ...] = ()
    """What the job does not say, of the choice the answer begins with."""
    effects: tuple[Effect, ...] = ()
    """What other values of that would change there."""

    @property
    def best_name(self) -> str:
        return "deadline" if self.picks.get("deadline") is not None else "cheapest"

    @property
    def best(self) -> Choice | None:
        """The pick the answer begins with; None where nothing keeps to the limits."""
        return self.picks[self.best_name]

    @property
    def is_answered(self) -> bool:
        return self.best is not None

    def with_availability(self, answers: Mapping[Offer, str]) -> Plan:
        """With what providers answered; a choice stays one object wherever it is."""
        made: dict[int, Choice] = {}

        def known(choice: Choice) -> Choice:
            answer = answers.get(choice.machine.offer, choice.availability)
            return made.setdefault(id(choice), replace(choice, availability=answer))

        return replace(
            self,
            picks={name: None if one is None else known(one) for name, one in self.picks.items()},
            pareto=tuple(map(known, self.pareto)),
            choices=tuple(map(known, self.choices)),
        )

    def to_dict(self) -> dict[str, Any]:
        """As the contract has it, ready for JSON."""
        return {
            "schema": SCHEMA,
            "id": self.job.id,
            "as_of": self.today.isoformat(),
            "best": self.best_name if self.is_answered else None,
            "picks": {name: None if one is None else one.to_dict() for name, one in self.picks.items()},
            "pareto": [one.to_dict() for one in self.pareto],
            "choices": [one.to_dict() for one in self.choices],
            "beside": [one.to_dict() for one in self.beside],
            "dearer": dict(self.dearer),
            "savings": [one.to_dict() for one in self.savings],
            "refused": [one.to_dict() for one in self.refused],
            "ruled_out": list(self.ruled_out),
            "searched": self.searched._asdict(),
            "limits": self.limits._asdict(),
            "prices": self.prices.to_dict(self.today),
            "asked": list(self.asked),
            "notes": list(self.notes),
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
        }
