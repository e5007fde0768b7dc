"""What a plan may choose between: machines on one side, settings of the job on the other.

    offers ──► rigs (card x cards x machines x links, with the offers that have them)
    job    ──► techniques (method, rank, dtype, optimizer, checkpointing, kernels, attention)
    both   ──► spreads (ddp, fsdp, hsdp, layers) and splits of the global batch (micro_batch x grad_accum x ranks)

The global batch of the job as written is kept exactly, and so is every field the user wrote, but for the cards (they
are the question) and the split of the batch. Nothing here is predicted, and blocks are counted, not written out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import isqrt
from typing import Any

from tunecast.errors import UsageError
from tunecast.hardware.catalog import MODELLED, gpus
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.job.names import ROLLOUTS
from tunecast.job.shardings import REPLICATED, SHARDINGS, Sharding
from tunecast.job.stacks import stack_of
from tunecast.market.offer import Offer
from tunecast.market.store import bundled
from tunecast.planning.technique import Technique, has_kernels, job_with, techniques_of
from tunecast.prediction.modelled import require_modelled
from tunecast.records import NamedTuple, dataclass, field, replace, replace_unchecked
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.sharding.scheme import rows_per_step

MOST_CARDS = 64
"""Looked at, where nobody says how many machines: eight machines of eight cards."""
QUESTION = frozenset(
    {"hardware.gpu", "hardware.gpus", "hardware.nodes", "hardware.interconnect", "micro_batch", "grad_accum"}
)
"""Fields that are chosen although the user wrote them: which cards is what a plan is asked for."""
ALLOWABLE: Mapping[str, tuple[str, ...]] = {
    "method": ("method",),
    "rank": ("lora.rank",),
    "lora.rank": ("lora.rank",),
    "precision": ("weights_dtype", "matmul_dtype"),
    "matmul_dtype": ("matmul_dtype",),
    "compile": ("compile",),
    "prepare_kbit": ("quantization.prepare_kbit",),
    "weights_dtype": ("weights_dtype",),
    "optimizer": ("optimizer",),
    "parallel.data": ("parallel.data",),
    "zero": ("parallel.data",),
    "gradient_checkpointing": ("gradient_checkpointing",),
    "kernels": ("kernels",),
    "attention": ("attention",),
}
"""What `--allow` may name, and the fields it frees."""
KEEPABLE = (
    *("micro_batch", "grad_accum", "gradient_checkpointing", "quantization.prepare_kbit", "kernels", "attention"),
    *("parallel.data", "parallel.layers", "parallel.sync_each_batch", "data.num_proc"),
    *("hardware.gpu", "hardware.gpus", "hardware.nodes", "hardware.interconnect"),
)
"""What `--keep` may name: fields that would otherwise be chosen."""
SYNC = "parallel.sync_each_batch"
BFLOAT16 = (8, 0)
VCPUS_PER_CORE = 2
MOST_PROCESSES = 1024
"""As many as `data.num_proc` may be."""


LIGHTER: tuple[Mapping[str, Any], ...] = (
    {},
    {"cpu_ram_efficient_loading": True, "load_on_rank_0": True},
    {"cpu_ram_efficient_loading": True, "load_on_rank_0": True, "state_dict_type": "sharded"},
)
"""Under FSDP: as the Trainer does; the first rank alone loads the model (docs/host_memory.md has the code for it); and
every rank saves its own part, which has to be merged afterwards. Each is set only where the one before does not fit."""


class Spread(NamedTuple):
    """How the cards share the work."""

    data: str
    layers: int
    sync_each_batch: bool = False
    """Gradients are summed and cut after every micro-batch, not once a step."""
    light: int = 0
    """How little of the host's memory loading and saving take: `LIGHTER`."""

    @property
    def sharding(self) -> Sharding:
        return SHARDINGS[self.data]


ONE_CARD = Spread(REPLICATED, 1)


class Split(NamedTuple):
    """Of the global batch, on one rank."""

    micro_batch: int
    grad_accum: int


class Setting(NamedTuple):
    technique: Technique
    spread: Spread
    split: Split


class Rig(NamedTuple):
    """Machines alike in all that a prediction sees."""

    gpu_name: str
    gpus: int
    nodes: int
    interconnect: str | None
    inter_node_gbps: float | None

    @property
    def cards(self) -> int:
        return self.gpus * self.nodes

    @property
    def gpu(self) -> Gpu:
        return gpus()[self.gpu_name]

    @property
    def hardware(self) -> str:
        one = f"{self.gpus} x {self.gpu_name}"
        return one if self.nodes == 1 else f"{self.nodes} machines of {one}"


@dataclass(frozen=True)
class Freedom:
    """Which fields stay, and how far to look."""

    written: frozenset[str] = frozenset()
    """By the user, by dotted name."""
    keep: frozenset[str] = frozenset()
    allow: frozenset[str] = frozenset()
    nodes_up_to: int | None = None

    def is_fixed(self, name: str) -> bool:
        if name in self.allow:
            return False
        return name in self.keep or (name in self.written and name not in QUESTION)


def freed_fields(names: Sequence[str]) -> frozenset[str]:
    """The fields `--allow` frees. Raises `UsageError`."""
    _require(names, ALLOWABLE, "--allow")
    return frozenset(dotted for name in names for dotted in ALLOWABLE[name])


def kept_fields(names: Sequence[str]) -> frozenset[str]:
    _require(names, KEEPABLE, "--keep")
    return frozenset(names)


def _require(names: Sequence[str], known: Collection[str], flag: str) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"{flag}: got {name[:80]!r}; allowed: {', '.join(known)}", field=flag)


@dataclass(frozen=True)
class SettingGroup:
    """Every setting of a rig that shares a technique and a spread: the splits of the batch."""

    rig: Rig
    technique: Technique
    spread: Spread
    splits: tuple[Split, ...]


MOST_ROLLOUT_SPLITS = 2
"""Of completions: what a step generates is one batch however it is split, and building a split takes a second."""


@dataclass(frozen=True)
class Space:
    """Everything that may be chosen for a job."""

    job: Job
    freedom: Freedom
    offers: Mapping[Rig, tuple[Offer, ...]]
    refused: Mapping[Rig, str] = field(default_factory=dict)
    """Rigs no setting of the space runs on, whatever they hold, and why."""
    alone: tuple[str, ...] = ()
    """Providers whose machines are not known to join."""
    config: Mapping[str, Any] | None = None
    """Of the model, from which a technique of another method takes what gets adapters."""

    @cached_property
    def global_batch(self) -> int:
        return rows_per_step(self.job)

    @cached_property
    def least_ram_bytes(self) -> Mapping[tuple[str, int], int]:
        return least_ram_bytes(each for of in self.offers.values() for each in of)

    @cached_property
    def techniques(self) -> tuple[Technique, ...]:
        return tuple(techniques_of(self.job, self.freedom))

    def blocks(self, rig: Rig) -> Iterator[SettingGroup]:
        """What runs on a rig; what no engine models is not there."""
        for spread in self.spreads(rig):
            splits = self.splits(rig, spread)
            if splits:
                for technique in self.techniques:
                    if has_kernels(rig.gpu, technique) and self._modelled(rig, technique, spread, splits[0]):
                        yield SettingGroup(rig, technique, spread, splits)

    def spreads(self, rig: Rig) -> list[Spread]:
        return list(_spreads(self.job, self.freedom, rig))

    def splits(self, rig: Rig, spread: Spread) -> tuple[Split, ...]:
        ranks = ranks_on(self.job, rig, spread)
        if not ranks or self.global_batch % ranks:
            return ()
        rows = self.global_batch // ranks
        fixed, job = self.freedom.keep, self.job
        batches = divisors(rows)
        if job.task in ROLLOUTS and "micro_batch" not in fixed:
            batches = batches[-MOST_ROLLOUT_SPLITS:]
        return tuple(
            Split(batch, rows // batch)
            for batch in batches
            if not (spread.sync_each_batch and rows == batch and not job.parallel.sync_each_batch)
            and ("micro_batch" not in fixed or batch == job.micro_batch)
            and ("grad_accum" not in fixed or rows // batch == job.grad_accum)
        )

    def job_of(self, rig: Rig, setting: Setting, *, checked: bool = True) -> Job:
        """The user's job on these machines. Raises `UsageError` where its fields contradict, unless nobody asks."""
        technique, spread, split = setting
        job = self._with_technique(technique)
        return (replace if checked else replace_unchecked)(
            job,
            micro_batch=split.micro_batch,
            grad_accum=split.grad_accum,
            hardware=replace(
                job.hardware,
                gpu=rig.gpu_name,
                gpus=rig.gpus,
                nodes=rig.nodes,
                interconnect=rig.interconnect,
                inter_node_gbps=rig.inter_node_gbps,
            ),
            parallel=replace(
                job.parallel,
                data=spread.data,
                replicate=job.parallel.replicate if spread.sharding.replicates_machines else None,
                layers=spread.layers,
                sync_each_batch=spread.sync_each_batch,
                **LIGHTER[spread.light],
            ),
        )

    def processes(self, offer: Offer) -> int:
        """That prepare the data: one for each core of the machine, where its virtual CPUs are known, which are two a
        core (hardware/nodes.toml)."""
        own = self.job.data.num_proc
        if self.freedom.is_fixed("data.num_proc") or offer.vcpus is None:
            return own
        return max(own, min(offer.vcpus // VCPUS_PER_CORE, MOST_PROCESSES))

    def lighter(self, setting: Setting) -> list[Setting]:
        """The same with ever less of the host's memory, itself first; as the user wrote it where that is written."""
        written = any(self.freedom.is_fixed(f"parallel.{name}") for name in LIGHTER[-1])
        is_plain = self.job.quantization.format is None and stack_of(self.job).uses_trainer
        if written or not is_plain or not setting.spread.sharding.is_fsdp:
            return [setting]
        return [setting._replace(spread=setting.spread._replace(light=level)) for level in range(len(LIGHTER))]

    def comes_late(self, block: SettingGroup) -> bool:
        """Whether it is looked at when all others are known: what takes long to predict and is seldom of use."""
        return self._is_zero(block) or block.technique != block.technique._replace(
            compile=self.job.compile, matmul_dtype=self.job.matmul_dtype
        )

    def _is_zero(self, block: SettingGroup) -> bool:
        return block.spread.sharding.is_zero and not self.freedom.is_fixed("parallel.data")

    def is_last_resort(self, block: SettingGroup) -> bool:
        """Whether it is there for jobs that nothing else fits: ZeRO, unless the user allows it in general."""
        return self._is_zero(block) and "parallel.data" not in self.freedom.allow

    def without_sync(self, rig: Rig, setting: Setting) -> Setting | None:
        """The same with gradients summed once a step, where that is in the space too."""
        plain = setting.spread._replace(sync_each_batch=False)
        return setting._replace(spread=plain) if plain != setting.spread and plain in self.spreads(rig) else None

    def alone_on(self, gpu: str, technique: Technique, micro_batch: int) -> Job:
        """One micro-batch on one such card: what every spread setting does at least. It need not be a job that
        trains: completions of one prompt may be spread over several cards."""
        setting = Setting(technique, ONE_CARD, Split(micro_batch, 1))
        return self.job_of(Rig(gpu, 1, 1, None, None), setting, checked=False)

    @cached_property
    def _jobs(self) -> dict[Technique, Job]:
        return {}

    @cached_property
    def _known(self) -> dict[tuple[object, ...], bool]:
        return {}

    def _with_technique(self, technique: Technique) -> Job:
        if technique not in self._jobs:
            job = job_with(self.job, technique)
            self._jobs[technique] = job if self.config is None else fill_in(job, self.config)
        return self._jobs[technique]

    def _modelled(self, rig: Rig, technique: Technique, spread: Spread, split: Split) -> bool:
        """Asked once for each kind of rig: the rules look at counts, not at names."""
        known, key = self._known, (rig.gpus, rig.nodes, technique, spread)
        if key not in known:
            try:
                require_modelled(self.job_of(rig, Setting(technique, spread, split)))
                known[key] = True
            except UsageError:
                known[key] = False
        return known[key]


def space_of(job: Job, freedom: Freedom, offers: Sequence[Offer], config: Mapping[str, Any] | None = None) -> Space:
    """Every rig these offers make."""
    rigs: dict[Rig, list[Offer]] = {}
    refused: dict[Rig, str] = {}
    alone: dict[str, None] = {}
    batch = rows_per_step(job)
    for offer in offers:
        most = joined_up_to(offer)
        wanted = _most_nodes(offer, freedom)
        if most is None:
            alone[offer.provider] = None
        for nodes in range(1, min(most or 1, wanted) + 1):
            rig = rig_of(offer, nodes, job.hardware.inter_node_gbps)
            why = _refused(job, freedom, rig, batch)
            if why is None:
                rigs.setdefault(rig, []).append(offer)
            elif nodes == 1 or freedom.is_fixed("hardware.nodes"):
                refused[rig] = why
    return Space(job, freedom, {rig: tuple(of) for rig, of in rigs.items()}, refused, tuple(alone), config)


def least_ram_bytes(offers: Iterable[Offer]) -> dict[tuple[str, int], int]:
    """Of machines by card and count, by those bundled and given offers that say it: what one that does not say it is
    taken to have."""
    found: dict[tuple[str, int], int] = {}
    for offer in (*bundled(), *offers):
        if offer.ram_bytes is not None:
            key = offer.gpu, offer.gpus
            found[key] = min(offer.ram_bytes, found.get(key, offer.ram_bytes))
    return found


def joined_up_to(offer: Offer) -> int | None:
    """Machines of an offer that are known to join; None: nobody says that several do."""
    if offer.max_nodes is not None:
        return offer.max_nodes
    node = offer.node
    return MOST_CARDS if node is not None and node.fabric is not None else None


def divisors(number: int) -> list[int]:
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return [*small, *(number // n for n in reversed(small) if n * n != number)]


def rig_of(offer: Offer, nodes: int, inter_node_gbps: float | None = None) -> Rig:
    """As the machine is described, else as the card's own reference; what the user wrote of the network stays."""
    node = offer.node
    link = offer.interconnect or (None if node is None else node.interconnect)
    rate = inter_node_gbps
    if rate is None and nodes > 1 and node is not None and node.inter_node_gbit_per_s is not None:
        rate = node.inter_node_gbit_per_s / offer.gpus
    return Rig(offer.gpu, offer.gpus, nodes, link if offer.gpus > 1 else None, rate if nodes > 1 else None)


def _most_nodes(offer: Offer, freedom: Freedom) -> int:
    if freedom.nodes_up_to is not None:
        return freedom.nodes_up_to
    return max(1, MOST_CARDS // offer.gpus)


def _refused(job: Job, freedom: Freedom, rig: Rig, batch: int) -> str | None:
    card = rig.gpu
    if card.vendor not in MODELLED:
        return f"{card.vendor} cards are not modelled"
    if card.compute_capability < BFLOAT16 and "bfloat16" in (job.weights_dtype, job.autocast):
        return "the card has no bfloat16"
    wanted = job.hardware
    for name, got, asked in (("gpus", rig.gpus, wanted.gpus), ("nodes", rig.nodes, wanted.nodes)):
        if freedom.is_fixed(f"hardware.{name}") and got != asked:
            return f"hardware.{name} {asked} is kept"
    spreads = list(_spreads(job, freedom, rig))
    if not spreads:
        return f"no way to spread the job over {rig.cards} cards is known of {job.stack}, as it is written"
    if not any((ranks := ranks_on(job, rig, spread)) and batch % ranks == 0 for spread in spreads):
        return f"the global batch of {batch} rows cannot be shared evenly by {rig.cards} cards"
    return None


def ranks_on(job: Job, rig: Rig, spread: Spread) -> int:
    """That get rows of their own; 0 where the cards do not divide."""
    parts = job.parallel
    model = spread.layers * parts.tensor * parts.pipeline * parts.context
    return rig.cards // model if rig.cards % model == 0 else 0


def _spreads(job: Job, freedom: Freedom, rig: Rig) -> Iterator[Spread]:
    """Summing gradients after every micro-batch keeps them cut: worth it where all weights are trained."""
    trains_all = job.method == "full" or "method" in freedom.allow
    may_sync = trains_all and stack_of(job).uses_accelerate and not freedom.is_fixed(SYNC)
    for spread in _ways_to_share(job, freedom, rig):
        yield spread
        if may_sync and spread.sharding.is_fsdp:
            yield spread._replace(sync_each_batch=not spread.sync_each_batch)


def _ways_to_share(job: Job, freedom: Freedom, rig: Rig) -> Iterator[Spread]:
    parts, stack = job.parallel, stack_of(job)
    sync = parts.sync_each_batch
    if freedom.is_fixed("parallel.data") or job.parallel.offload != "none":
        if parts.layers == 1 or freedom.is_fixed("parallel.layers"):
            yield Spread(parts.data, parts.layers, sync)
        return
    if rig.cards == 1:
        yield Spread(REPLICATED, 1, sync)
        return
    if freedom.is_fixed("parallel.layers"):
        yield Spread(REPLICATED, parts.layers, sync)
        return
    has_machines = (rig.nodes > 1 and rig.gpus > 1) or parts.replicate is not None
    known = [each for name, each in SHARDINGS.items() if name in stack.shardings]
    for sharding in sorted(known, key=lambda each: each.is_zero):  # ZeRO last: it takes long to predict
        if has_machines or not sharding.replicates_machines:
            yield Spread(sharding.name, 1, sync)
    if "layers" in stack.splits and rig.nodes == 1 and rig.gpus > 1:
        yield Spread(REPLICATED, rig.gpus, sync)
