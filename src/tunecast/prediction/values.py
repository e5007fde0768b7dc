"""The parts of a prediction, named as the public contract's JSON is (docs/contract.md). None is what is not known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tunecast.records import NamedTuple, dataclass
from tunecast.result import Result

if TYPE_CHECKING:
    from tunecast.prediction.lessons.correction import Correction

Range = tuple[int, int]


class Ranges(NamedTuple):
    """80 % ranges in bytes: `prediction/memory/ranges.py`."""

    allocated: Range
    reserved: Range
    device: Range


@dataclass(frozen=True)
class Memory(Result):
    """Of one GPU, the fullest. `breakdown_bytes` sums to `device_bytes`."""

    model_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    range_bytes: Ranges
    peak_phase: str
    breakdown_bytes: Mapping[str, int]


class CodeLine(NamedTuple):
    """A line of code, and what the card works on for it in a step, its backward pass included."""

    source: str
    """`/home/me/train.py:31 > …/modeling_llama.py:175`: the script's line, and the library's that ran for it."""
    gpu_s: float
    fraction: float
    """Of all that the card works in a step."""


@dataclass(frozen=True)
class Time(Result):
    """Of one optimizer step, and of the whole job where the job says how long it is.

    `breakdown_s` sums to `step_s`, `phases_s` to `total_s`; `low_s`, `high_s` and `total_range_s` are 80 % ranges.
    """

    step_s: float
    low_s: float
    high_s: float
    tokens_per_s: float | None
    tokens_per_s_per_gpu: float | None
    total_s: float | None
    bound_by: str
    breakdown_s: Mapping[str, float]
    padding_fraction: float | None = None
    why: tuple[str, ...] = ()
    total_range_s: tuple[float, float] | None = None
    phases_s: Mapping[str, float] | None = None
    steps: int | None = None
    real_tokens: int | None = None
    padded_tokens: int | None = None
    evaluations: int | None = None
    checkpoints: int | None = None
    missing: tuple[str, ...] | None = None
    """What is not included; None where there is no total that it would be missing from."""
    task_s: Mapping[str, float] | None = None
    """Of a step that generates: `generate`, `score` and `train`, which sum to `step_s`; None where none does."""
    epoch_s: float | None = None
    """Of a script whose data loader says how long an epoch is: the steps alone."""
    epoch_steps: int | None = None
    lines: tuple[CodeLine, ...] | None = None
    """Of a script: the lines that take the most time of a step."""

    def to_dict(self) -> dict[str, Any]:
        """What follows `why` is left out where it is not known."""
        always = ("tokens_per_s", "tokens_per_s_per_gpu", "total_s")
        return {name: value for name, value in super().to_dict().items() if value is not None or name in always}


@dataclass(frozen=True)
class HostNeeds(Result):
    """Of one machine."""

    cpu_cores: int
    """For each card one thread that launches kernels (the backward pass takes turns with it), and the data loader's
    workers."""
    ram_bytes: int | None = None
    """What no other use of the machine can take back."""
    nvme_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_dict().items() if value or name != "nvme_bytes"}


@dataclass(frozen=True)
class Utilization(Result):
    """Of a card while it trains; None where its peak is not known."""

    mfu: float | None
    hfu: float | None
    achieved_flop_per_s: float
    gpu_busy_fraction: float
    memory_fraction: float | None
    communication_fraction: float
    host: HostNeeds


@dataclass(frozen=True)
class Energy(Result):
    """Of the whole job; `range` is that of `kwh`, 80 %."""

    kwh: float
    range: tuple[float, float]
    co2_kg: float | None
    """None where the country is not given."""
    country: str | None
    source: str


class Timing(NamedTuple):
    """A prediction's time, and what goes with it."""

    time: Time | None = None
    utilization: Utilization | None = None
    energy: Energy | None = None
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    learned: Correction | None = None
    """What the user's own runs changed of the step."""


class JobCost(Protocol):
    """What the job's own machines cost, rented (`planning/price.py`, `Rent`)."""

    @property
    def usd_per_hour(self) -> float: ...
    @property
    def total_usd(self) -> float | None: ...
    @property
    def usd_range(self) -> tuple[float, float] | None: ...
    def to_dict(self) -> dict[str, Any]: ...
