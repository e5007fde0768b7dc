"""What a plan is made of: machines, choices, refusals, and the plan itself as the contract's `tunecast.plan/1`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

from tunecast.advise.unstated import Effect, Taken
from tunecast.errors import TunecastError
from tunecast.hardware.grids import grid
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job, nested
from tunecast.market.cost import RATE, Cost, CostLine, Rate
from tunecast.market.listed import RentedOffer, rented
from tunecast.market.offer import Offer
from tunecast.prediction.prediction import Prediction
from tunecast.records import NamedTuple, dataclass, field, replace
from tunecast.result import Result
from tunecast.units import KILO

if TYPE_CHECKING:
    from tunecast.prediction.lessons.correction import Correction

NOT_KNOWN = "not known"
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
class Fleet:
    """What is rented: `nodes` machines of an offer, each with `gpus` cards."""

    gpu: Gpu
    gpus: int
    nodes: int
    offer: Offer
    serving: int = 0
    """Further such cards, on which vLLM generates."""

    @property
    def cards(self) -> int:
        """That train."""
        return self.gpus * self.nodes

    @property
    def hardware(self) -> str:
        """`8 x h100-sxm-80gb`, `4 machines of 8 x h100-sxm-80gb`, `2 x h100-sxm-80gb + 1 x h100-sxm-80gb for vLLM`."""
        one = f"{self.gpus} x {self.gpu.name}"
        trains = one if self.nodes == 1 else f"{self.nodes} machines of {one}"
        return f"{trains} + {self.serving} x {self.gpu.name} for vLLM" if self.serving else trains

    @property
    def usd_per_hour(self) -> float:
        """Of all machines, and of the cards that serve at the same price a card."""
        return self.offer.usd_per_hour * (self.nodes + self.serving / self.gpus)


@dataclass(frozen=True)
class ChoiceCost(Result):
    """What a choice costs, line by line. The lines sum to the choice's `total_usd`."""

    lines: tuple[CostLine, ...]
    billed_s: float
    """Per machine."""
    interruptions: float
    """Expected."""
    usd_per_epoch: float | None
    """None where the run is given in steps."""
    usd_per_million_tokens: float | None
    usd_per_year_weekly: float
    assumptions: tuple[str, ...]


class RoughCase(NamedTuple):
    """A spot machine that is interrupted as often as the roughest one measured."""

    total_usd: float
    total_s: float
    interruptions: float


class ChoiceEnergy(NamedTuple):
    kwh: float
    co2_kg: tuple[float, float] | None
    """From the cleanest to the dirtiest grid of the countries the offer may stand in; None where none is known."""


@dataclass(frozen=True)
class Choice(Result):
    """One way to run the job. Memory is of the fullest card."""

    KEYS: ClassVar[tuple[str, ...]] = (
        *("hardware", "cards", "offer", "job", "changes", "prediction", "device_bytes", "device_range_bytes"),
        *("capacity_bytes", "fits_surely", "validated", "evidence", "ram_bytes", "disk_bytes", "availability"),
        *("step_s", "total_s", "total_range_s", "phases_s", "total_usd", "usd_range", "cost", "if_rough", "energy"),
        *("risk", "why"),
    )
    FROM: ClassVar[Mapping[str, str]] = {"job": "settings"}

    fleet: Fleet
    job: Job | None
    """The user's with `changes`; None of a script, which runs as it is."""
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
    bill: Cost
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
    learned: Correction | None = None
    """What the user's own runs on this card changed of its steps; None where they say nothing of such."""
    runs: int = 1
    """Variants of the job that run one after another."""
    script_epochs: float | None = None
    """Of a script, where its data loader says how long one is."""
    stock: str | None = None
    """Whether one is free, as its provider said; None where nobody was asked."""

    @property
    def total_usd(self) -> float:
        return self.bill.total_usd

    @property
    def availability(self) -> str:
        """`free now`, `none free` or `not known`."""
        return self.stock or NOT_KNOWN

    @property
    def cost(self) -> ChoiceCost:
        bill, epochs = self.bill, self.epochs
        return ChoiceCost(
            bill.lines,
            bill.billed_s,
            bill.interruptions,
            None if epochs is None else bill.usd_per_epoch(epochs * self.runs),
            bill.usd_per_million_tokens(self.tokens) if self.tokens else None,
            bill.usd_per_year(),
            bill.assumptions,
        )

    @property
    def epochs(self) -> float | None:
        """None where the run is given in steps."""
        if self.job is None:
            return self.script_epochs
        return None if self.job.run.max_steps is not None else self.job.data.epochs

    @property
    def if_rough(self) -> RoughCase | None:
        """Of spot machines alone."""
        rough = self.rough
        return None if rough is None else RoughCase(rough.total_usd, rough.wall_s, rough.interruptions)

    @property
    def fits_surely(self) -> bool:
        """At the high end of the range too."""
        return self.device_range_bytes[1] <= self.capacity_bytes

    @property
    def hardware(self) -> str:
        return self.fleet.hardware

    @property
    def cards(self) -> int:
        return self.fleet.cards + self.fleet.serving

    @property
    def offer(self) -> RentedOffer:
        return rented(self.fleet.offer)

    @property
    def energy(self) -> ChoiceEnergy | None:
        """None where the choice was not predicted in full, or the card's power is not known."""
        return None if self.kwh is None else ChoiceEnergy(self.kwh, self.co2_kg)

    @property
    def kwh(self) -> float | None:
        """None where it was not predicted in full, or the card's power is not known."""
        energy = None if self.prediction is None else self.prediction.energy
        return None if energy is None else energy.kwh * self.runs

    @property
    def co2_kg(self) -> tuple[float, float] | None:
        """From the cleanest to the dirtiest grid of the countries the offer may stand in; None where none is known."""
        countries = self.fleet.offer.known_countries
        if self.kwh is None or not countries or "" in self.fleet.offer.countries:
            return None
        each = [self.kwh * grid(country).g_per_kwh / KILO for country in countries]
        return min(each), max(each)

    @property
    def settings(self) -> dict[str, Any] | None:
        """The knobs chosen, nested as a job's file has them: written over the user's file they make this job."""
        if self.job is None:
            return None
        flat, without = self.job.flat(), "lora.rank" if self.job.method == "full" else ""
        return nested({dotted: flat[dotted] for dotted in SETTINGS if dotted != without})


class Picks(dict[str, Choice | None]):
    """By the names of `PICKS`. None: not asked for (deadline), or, of all of them at once, that nothing keeps to the
    limits. Then `Plan.best` is None too; to a type checker the picks other than the deadline's are there."""

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, name: Literal["cheapest", "fastest", "balanced"]) -> Choice: ...
        @overload
        def __getitem__(self, name: str) -> Choice | None: ...
        def __getitem__(self, name: str) -> Choice | None: ...


@dataclass(frozen=True)
class Refusal(Result):
    """Hardware no setting runs on, or none that was allowed."""

    KEYS: ClassVar[tuple[str, ...]] = ("hardware", "reason", "remedy")

    hardware: str
    reason: str
    remedy: str
    too_small: bool = False
    """Whether it lacks memory; else nothing is known of such a job there, or it was not allowed."""
    too_small_by: float = inf
    """Where it does: times the memory it has."""


class Searched(NamedTuple):
    """Configurations of the whole space, those that a bound proved not worth a prediction, and those predicted."""

    configurations: int
    bounded: int
    predicted: int
    seconds: float


class Constraints(NamedTuple):
    """What the answer has to keep to; None: no such limit."""

    within_s: float | None = None
    max_usd: float | None = None


NO_LIMITS = Constraints()


@dataclass(frozen=True)
class Money:
    """How prices are shown; all figures of a plan are USD, and hold VAT where `vat_fraction` is not 0."""

    eur: bool = False
    rate: Rate = RATE
    vat_fraction: float = 0.0


DOLLARS = Money()


@dataclass(frozen=True)
class Alternative(Result):
    """The cheapest of what is not picked unasked, or cannot be proven."""

    KEYS: ClassVar[tuple[str, ...]] = ("kind", "why", "choice")

    kind: str
    """spot, marketplace, validated, deadline (without it), or `unproven`, of one provider each."""
    choice: Choice
    why: str = ""
    """What is not known, of the unproven."""


class AvoidableCost(NamedTuple):
    """What of the first pick's cost can be avoided, and how."""

    advice: str
    usd: float
    seconds: float


@dataclass(frozen=True)
class PriceList(Result):
    """Which prices a plan looked at."""

    listed: date | None = None
    """The day of the newest list."""
    age_days: int | None = None
    """Of that list; None where there is none."""
    left_out_old: int = 0
    """Offers left out for their age."""
    outliers: Mapping[str, str] = field(default_factory=dict)
    """Offers left out for their price, each with the reason."""
    unknown: Mapping[str, int] = field(default_factory=dict)
    """Offers left out because something asked for cannot be proven, by what."""


@dataclass(frozen=True)
class Plan(Result):
    """Picks, front and choices are one set: what fits for sure and keeps to the limits, or, where nothing does, what
    comes nearest (`is_answered`)."""

    schema: ClassVar[str] = "tunecast.plan/1"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("schema", "id", "job", "as_of", "best", "picks", "pareto", "choices", "beside", "dearer", "savings"),
        *("refused", "ruled_out", "searched", "limits", "prices", "asked", "notes", "assumptions", "warnings"),
    )
    FROM: ClassVar[Mapping[str, str]] = {"best": "best_name", "job": "written_job"}

    job: Job | None
    """As the user wrote it, with the data that was assumed where none was given; None of a script."""
    as_of: date
    picks: Picks
    """All of the front."""
    pareto: tuple[Choice, ...]
    """No other choice is both cheaper and faster, and none is hardly better than the next. The cheapest first."""
    choices: tuple[Choice, ...]
    """The best of each hardware that was predicted, the cheapest first."""
    refused: tuple[Refusal, ...]
    searched: Searched
    ruled_out: tuple[str, ...] = ()
    """Hardware of which nothing had to be predicted: by proven floors a choice is cheaper and faster."""
    limits: Constraints = NO_LIMITS
    asked: tuple[str, ...] = ()
    """The constraints in words, as flags: `--eu`, `--gpu rtx-4090`."""
    money: Money = DOLLARS
    beside: tuple[Alternative, ...] = ()
    dearer: Mapping[str, float] = field(default_factory=dict)
    """Providers of which something cannot be proven and which would cost more than the answer: USD, at least."""
    savings: tuple[AvoidableCost, ...] = ()
    prices: PriceList = PriceList()
    notes: tuple[str, ...] = ()
    """Worth knowing of the picks: what a reservation would have to be used for."""
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    taken: tuple[Taken, ...] = ()
    """What the job does not say, of the choice the answer begins with."""
    effects: tuple[Effect, ...] = ()
    """What other values of that would change there."""
    script: str | None = None
    """Of a script: its command and how long it runs, in words."""
    failure: TunecastError | None = None
    """Why the plan answers less than was asked; None where it answers all of it."""

    @property
    def id(self) -> str | int | None:
        return None if self.job is None else self.job.id

    @property
    def written_job(self) -> dict[str, Any] | None:
        """What the user said of the job, as a job's file has it; None of a script."""
        if self.job is None:
            return None
        return nested({name: value for name, value in self.job.flat().items() if self.job.is_given(name)})

    @property
    def best(self) -> Choice | None:
        """The pick the answer begins with; None where nothing keeps to the limits."""
        return self.picks.get("deadline") or self.picks.get("cheapest")

    @property
    def best_name(self) -> str | None:
        return None if self.best is None else "deadline" if self.picks.get("deadline") is not None else "cheapest"

    @property
    def is_answered(self) -> bool:
        return self.best is not None

    def with_availability(self, answers: Mapping[Offer, str]) -> Plan:
        """With what providers answered; a choice stays one object wherever it is."""
        made: dict[int, Choice] = {}

        def known(choice: Choice) -> Choice:
            answer = answers.get(choice.fleet.offer, choice.stock)
            return made.setdefault(id(choice), replace(choice, stock=answer))

        return replace(
            self,
            picks=Picks({name: None if one is None else known(one) for name, one in self.picks.items()}),
            pareto=tuple(map(known, self.pareto)),
            choices=tuple(map(known, self.choices)),
        )
