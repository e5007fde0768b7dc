"""The tape: what a fine-tuning run does to one GPU, in order. Read this file first.

A tape is one list of events. Memory replays its `Alloc` and `Free` events through an allocator; time prices
its `Op` events on a GPU; both see the same run, because there is only this one list.

    Begin(LOAD, 0)        the model is built
    Op, Alloc, Alloc      an operation and what it keeps or borrows
    Begin(FORWARD, 0)     step 0 starts
    Op, Alloc, Op, Alloc, Free, ...
    Begin(BACKWARD, 0)
    ...
    Begin(OPTIMIZER, 0)
    ...
    Begin(FORWARD, 1)     step 1 starts

An `Op` comes before the allocations it makes. A `Free` comes where the last reference died, which is
between operations or inside one. Sizes are what was asked for; rounding is the allocator's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from tunecast.records import NamedTuple, dataclass, field, replace

MANY = "(many)"
"""The module of an operation on a list of tensors of many modules: an optimizer's, a gradient norm's."""


class Role(StrEnum):
    """What a block of memory is for. The values are the keys of `breakdown_bytes`."""

    WEIGHTS = "weights"
    ADAPTERS = "adapters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    LOGITS_AND_LOSS = "logits_and_loss"
    TEMPORARIES = "temporaries"


class Phase(StrEnum):
    """Where in a run an event happens. Recomputation belongs to the backward pass that asks for it."""

    LOAD = "load"
    GENERATE = "generate"
    """A rollout: the model writes completions, token by token."""
    SCORE = "score"
    """Completions are scored: log-probabilities of references and of the model itself before it steps, rewards."""
    FORWARD = "forward"
    BACKWARD = "backward"
    CLIP = "clip"
    OPTIMIZER = "optimizer"
    OTHER = "other"


class Op(NamedTuple):
    """One operation on the device."""

    name: str
    module: str = ""
    """Qualified name of the module it belongs to, also in the backward pass; '' outside any module."""
    flops: int = 0
    """An FMA is 2."""
    read_bytes: int = 0
    written_bytes: int = 0
    kernels: int = 1
    dtype: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Shapes of the first tensors read, enough to price a matrix product or an attention."""
    source: str = ""
    """`file:line` of the user's code that caused it, where known."""
    stream: int = 0
    group: str = ""
    """Of a collective: the ranks that take part, as `COLLECTIVES` says."""
    by_engine: bool = False
    """Autograd's engine runs it, for a gradient. Never of what a backward pass computes again."""
    layout: str = ""
    """What keeps its kernel from moving 16 bytes at a time through everything: `SPREAD`, `CROSSED` or `OFF_GRID`."""

    @property
    def work(self) -> tuple[object, ...]:
        """All fields but `module` and `source`: operations that are alike in these take the same time."""
        return (
            self.name, self.flops, self.read_bytes, self.written_bytes, self.kernels, self.dtype, self.shapes,
            self.stream, self.group, self.by_engine, self.layout,
        )  # fmt: skip


SPREAD = "spread"
"""Tensors are not one stretch of memory in the same order: a slice of a row, a factor for every row."""
CROSSED = "crossed"
"""What is a row of one is a column of another."""
OFF_GRID = "off grid"
"""Of a matrix product: rows of a factor do not start at multiples of 16 bytes."""

COLLECTIVES = frozenset(
    {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "broadcast",
        "reduce",
        "gather_to_one",
        "scatter_from_one",
        "send",
        "recv",
    }
)
"""Operations between cards. `read_bytes` is what this rank sends, `written_bytes` what it receives, `shapes`
((elements sent), (ranks of the group)), `group` the dimension of the mesh: data, shard, replicate, tensor, pipeline,
context, sequence or expert ('' where a script's own groups have no such name). They run on their `stream`, beside the
others. A tensor's own gather and scatter have those names: what goes to or comes from one rank is called so."""
FROM_HOST, TO_HOST = "copy_from_host", "copy_to_host"
"""Copies over the card's link to its host: `written_bytes` of the one, `read_bytes` of the other."""
HOST_STEP, HOST_LOOP = "host_optimizer", "host_optimizer_loop"
"""The optimizer's step by the host's processor: `read_bytes` and `written_bytes` are of its memory, `kernels` 0. All at
once (torch's fused kernel, DeepSpeed's), or operation by operation, each through memory again."""
FROM_NVME, TO_NVME = "read_from_nvme", "write_to_nvme"
"""Between the host's memory and its drives: `written_bytes` of the one, `read_bytes` of the other, `kernels` 0."""
WAIT = "wait"
"""An operation of no kernels: stream `stream` goes on only when all that `shapes[0][0]` was given is done."""

HOOK = "saved_tensor_hook"
"""An operation of no kernels: Python is called because a tensor is saved for the backward pass, or asked for again
(`torch.autograd.graph.saved_tensors_hooks`; torch's checkpointing lives on them)."""
CHECKPOINT, RECOMPUTE = "checkpoint", "recompute"
"""The same: torch's checkpointing begins a call, or does it again: states of random numbers are kept and set."""
CALLS = "module_calls"
"""The same: Python has called so many modules, `shapes[0][0]`, since the operation before."""
NODES = "autograd_nodes"
"""The same: so many nodes has autograd's engine come to, whether or not they have anything to launch."""
PASS = "model_pass"
"""The same: a model of transformers is called, and what it does around its layers."""
EXCHANGE = "parameter_exchange"
"""The same: PEFT puts a computed weight in the place of a parameter, and the parameter back."""
TENSORS = "list_of_tensors"
"""The same: Python goes over a list of so many tensors, `shapes[0][0]`."""
LET_GO = "gradients_let_go"
"""The same: so many gradients go, `shapes[0][0]`."""
LOOP, LOOP_END = "loop", "loop_end"
"""The same: what stands between these two runs so many times in a row, `shapes[0][0]` of the second."""
SYNCHRONIZE = "synchronize"
"""An operation of no kernels: the host goes on only when the card has done all it was given."""
HOST_WAIT = "host_wait"
"""The same of what stream `stream` was given (`cudaEventSynchronize`)."""


class Alloc(NamedTuple):
    """`block` comes to life. A block's number is used once on a tape."""

    block: int
    nbytes: int
    role: Role = Role.TEMPORARIES
    module: str = ""
    """The module (or parameter's module) the block belongs to."""
    stream: int = 0
    """The allocator keeps a pool a stream; 0 is the default one."""


class Free(NamedTuple):
    block: int


class Begin(NamedTuple):
    """The phase of all that follows, and the optimizer step it belongs to."""

    phase: Phase
    step: int = 0


class EmptyCache(NamedTuple):
    """`torch.cuda.empty_cache()` was called."""


Event = Op | Alloc | Free | Begin | EmptyCache


class Unit(NamedTuple):
    """A part of a script's run that the tracer may skip as a whole: see units.py."""

    name: str
    """`call`, `backward`, or another function that is skipped as a whole."""
    detail: int
    """Of a call, which module in which mode with inputs of which kinds, by number."""
    start: int
    end: int
    """Its events; where it was skipped, its outputs' blocks are allocated there."""
    traced: bool
    sizes: tuple[int, ...] = ()
    """Those of its inputs that may vary."""
    keeps_graph: bool = False
    """A call with gradients: a backward pass will follow."""
    outputs: tuple[int, ...] = ()
    """Where it was skipped: which of the survivors its allocations are, in order."""


@dataclass(frozen=True)
class Tape:
    events: tuple[Event, ...]
    guesses: tuple[str, ...] = ()
    """What had to be assumed to make this tape, a sentence each. Empty: every event is what the code does."""
    assumptions: tuple[str, ...] = ()
    """What was taken for granted and does not change what is allocated, as far as code can tell."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the packages whose code the tape follows."""
    managed_bytes: int = 0
    """Made by a script in CUDA's managed memory, outside the allocator."""
    units: tuple[Unit, ...] = ()
    """Of a script that ran to its end with most of its units skipped, all of them; then these events are not the run,
    which `whole_run.py` puts together."""

    def ops(self) -> Iterator[Op]:
        return (event for event in self.events if isinstance(event, Op))

    def steps(self) -> dict[int, tuple[Event, ...]]:
        """Events of each optimizer step; what comes before the first `Begin` that is not LOAD is step -1."""
        parts: dict[int, list[Event]] = {-1: []}
        current = -1
        for event in self.events:
            if isinstance(event, Begin):
                current = -1 if event.phase is Phase.LOAD else event.step
            parts.setdefault(current, []).append(event)
        return {step: tuple(events) for step, events in parts.items()}

    def with_events(self, events: Iterable[Event]) -> Tape:
        return replace(self, events=tuple(events))


BETWEEN = frozenset({HOOK, PASS, EXCHANGE, LET_GO, LOOP, LOOP_END, SYNCHRONIZE, HOST_WAIT})
"""What only time asks for, and may stand between frees."""
OF_THE_HOST = BETWEEN | {CHECKPOINT, RECOMPUTE, CALLS, NODES, TENSORS}
"""What only time asks for: a tape for memory alone goes without."""


def with_frees_in_order(events: Iterable[Event]) -> list[Event]:
    """Frees that follow each other directly, sorted by block.

    Nothing is allocated between them, so their order changes nothing an allocator does; but some come out of hash
    tables (autocast's cache of cast weights), and two tapes of the same run should be the same.
    """
    out: list[Event] = []
    frees: list[Free] = []
    for event in events:
        if isinstance(event, Free):
            frees.append(event)
            continue
        if frees and not (isinstance(event, Op) and event.name in BETWEEN):
            out.extend(sorted(frees))
            frees.clear()
        out.append(event)
    return out + sorted(frees)


def name_clip_phases(events: list[Event], begins: Sequence[int] | None = None) -> list[Event]:
    """What runs between the backward pass and the optimizer is the clipping of gradients. `begins`: where phases do."""
    if begins is None:
        begins = [i for i, event in enumerate(events) if isinstance(event, Begin)]
    for before, here, after in zip(begins, begins[1:], begins[2:], strict=False):
        phases = [events[i].phase for i in (before, here, after)]  # type: ignore[union-attr]
        if phases == [Phase.BACKWARD, Phase.OTHER, Phase.OPTIMIZER]:
            events[here] = Begin(Phase.CLIP, events[here].step)  # type: ignore[union-attr]
    return events


def op_before(events: Iterable[Event], request: int) -> Op | None:
    """The last operation before the how-manieth request."""
    op = None
    for event in events:
        if isinstance(event, Op):
            op = event
        elif isinstance(event, Alloc):
            if not request:
                return op
            request -= 1
    return None
