"""A tape of a few layers, extended to many: exactly, or not at all.

Transformer layers repeat. A tape of `n` layers holds, in each pass over the model, one run of events a layer:

    forward    embed | 0 | 1 | 2 | norm, head, loss
    backward   loss, head, norm | 2 | 1 | 0 | embed
    optimizer  embed | 0 | 1 | 2 | norm, head          (lists of parameters, in order)

Extending it copies the run of a middle layer. A run names the blocks it frees by where they were born: in which pass,
how many layers away, the how-manieth there; so the copy for layer 7 frees what layer 6 left behind. Sizes and counts
outside the layers that grow with their number (a list of gradient norms) grow along a line through two tapes.

`extended` proves itself: it is asked for the larger of two traced tapes first and must reproduce it event by event.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any

from tunecast.records import NamedTuple, dataclass
from tunecast.tape.op import Alloc, Event, Free, Op, Role, Tape, with_frees_in_order

TOWERS = frozenset({"visual", "vision_tower", "audio_tower", "vision_model"})
"""Names of what stands beside a language model: built whole, whatever numbers its layers have."""
NUMBERED = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")


class NotRepeating(Exception):
    """The tape does not fall into one run a layer; trace all layers instead."""


class LayerRun(NamedTuple):
    """Consecutive events of one layer (None: outside the layers)."""

    layer: int | None
    events: tuple[Event, ...]


class Birth(NamedTuple):
    """Where a block was born: in which pass over the layers, which layer, the how-manieth allocation there."""

    sweep: int
    layer: int | None
    nth: int


@dataclass(frozen=True)
class Sweep:
    """One pass over the layers in rising or falling order, or a stretch outside them (a single run)."""

    runs: tuple[LayerRun, ...]

    @property
    def falls(self) -> bool:
        return (self.runs[0].layer or 0) > (self.runs[-1].layer or 0)


def container_of(tape: Tape, layers: int) -> str:
    """The name before the layer's number: `model.layers` in `model.layers.3.mlp`."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for module in {event.module for event in tape.events if type(event) is Op or type(event) is Alloc}:
        for match in NUMBERED.finditer(module) if TOWERS.isdisjoint(module.split(".")) else ():
            numbers[module[: match.start()]].add(int(match.group(1)))
    fitting = [name for name, found in numbers.items() if name and found == set(range(layers))]
    if not fitting:
        raise NotRepeating(f"no module holds exactly {layers} numbered layers")
    return min(fitting, key=len)


def extended(small: Tape, large: Tape, small_layers: int, large_layers: int, layers: int, head: int = 1) -> Tape:
    """The tape of `layers` layers, from those of `small_layers` and `large_layers`.

    `large_layers - small_layers` is the period p with which layers repeat; the layers `head .. head + p - 1` of the
    small tape are copied, those before and after stand for the first and the last ones.
    """
    period = large_layers - small_layers
    if (layers - small_layers) % period:
        raise NotRepeating(f"{layers} layers are not {small_layers} and a multiple of {period}")
    sweeps = sweeps_of(small, small_layers)
    proof = _extend(sweeps, container_of(small, small_layers), head, period, 1)
    growth = _growth(proof, large)
    copies = (layers - small_layers) // period
    if copies <= 1:
        return small if copies == 0 else large
    events = _extend(sweeps, container_of(small, small_layers), head, period, copies)
    return small.with_events(_grow(events, growth, copies - 1))


def _growth(proof: Sequence[Event], large: Tape) -> dict[int, Event]:
    """Compare the extension by one period with the traced truth; what differs may differ in amounts only.

    The key is the how-manieth event outside the layers, the same in every extension.
    """
    if len(proof) != len(large.events):
        raise NotRepeating(f"one more layer makes {len(large.events)} events where {len(proof)} were expected")
    truth = with_frees_in_order(renumbered(large.events))
    growth: dict[int, Event] = {}
    outside = -1
    for ours, theirs in zip(with_frees_in_order(proof), truth, strict=True):
        if isinstance(ours, (_OutsideOp, _OutsideAlloc)):
            outside += 1
            plain = ours.event
            if _without_line(plain) == _without_line(theirs):
                continue
            if _shape_of(plain) != _shape_of(theirs):
                raise NotRepeating(f"{theirs} where {plain} was expected")
            growth[outside] = theirs
        elif _without_line(ours) != _without_line(theirs):
            raise NotRepeating(f"{theirs} where {ours} was expected")
    return growth


def _shape_of(event: Event) -> Event:
    """The event without the amounts that may grow with the number of layers."""
    if isinstance(event, Op):
        return event._replace(flops=0, read_bytes=0, written_bytes=0, kernels=0, shapes=(), source="")
    if isinstance(event, Alloc):
        return event._replace(nbytes=0)
    return event


def _without_line(event: Event) -> Event:
    """A package that patches classes makes the second model run other lines, doing the same."""
    return event._replace(source="") if isinstance(event, Op) and event.source else event


def _grow(events: Sequence[Event], growth: dict[int, Event], more: int) -> Iterator[Event]:
    """Amounts outside the layers follow the line through the two traced tapes, `more` periods beyond the larger."""
    outside = -1
    for event in events:
        if not isinstance(event, (_OutsideOp, _OutsideAlloc)):
            yield event
            continue
        outside += 1
        plain, larger = event.event, growth.get(outside)
        if isinstance(plain, Op) and isinstance(larger, Op):
            yield larger._replace(
                flops=larger.flops + more * (larger.flops - plain.flops),
                read_bytes=larger.read_bytes + more * (larger.read_bytes - plain.read_bytes),
                written_bytes=larger.written_bytes + more * (larger.written_bytes - plain.written_bytes),
                kernels=larger.kernels + more * (larger.kernels - plain.kernels),
            )
        elif isinstance(plain, Alloc) and isinstance(larger, Alloc):
            yield plain._replace(nbytes=larger.nbytes + more * (larger.nbytes - plain.nbytes))
        else:
            yield plain


class _OutsideOp(NamedTuple):
    event: Op


class _OutsideAlloc(NamedTuple):
    event: Alloc


def sweeps_of(tape: Tape, layers: int) -> tuple[Sweep, ...]:
    """Cut the tape into sweeps: rising or falling passes over the layers, and single runs outside them.

    Where one pass turns into the next (rising to the last layer, then falling) the run at the turn holds the end of
    the one and the beginning of the other; it is kept in the earlier.
    """
    sweeps: list[list[LayerRun]] = []
    direction = 0
    for run in _runs_of(tape, layers):
        before = sweeps[-1][-1].layer if sweeps else None
        if run.layer is None or before is None:
            sweeps.append([run])
            direction = 0
            continue
        step = run.layer - before
        if direction in (0, step) and abs(step) == 1:
            sweeps[-1].append(run)
        else:
            sweeps.append([run])
        direction = step if abs(step) == 1 else 0  # after a jump the next pass may go either way
    return tuple(Sweep(tuple(runs)) for runs in sweeps)


WORKSPACE = "_workspace"
NOWHERE = -1
"""The tag of events that name no module: they belong to the layer around them, if one is around them."""


def _runs_of(tape: Tape, layers: int) -> list[LayerRun]:
    """What a layer's operation makes is that layer's, whoever's gradient it will be. A free belongs to the layer that
    runs; but what layer 0 lets go of beyond its neighbour it does for all of them (the end of a backward pass does, and
    a gradient that every layer added to in place goes there): each such block's own layer has it."""
    container = container_of(tape, layers)
    layer_of = _Layers(container)
    owner: dict[int, int | None] = {}
    inside_layer = True
    tag: int | None = None
    runs: list[tuple[int | None, list[Event]]] = []
    events: list[Event] = []
    for event in tape.events:
        kind, before = type(event), tag
        if kind is Op:
            tag = layer_of[event.module]  # type: ignore[union-attr]
            inside_layer = tag is not None and tag != NOWHERE
        elif kind is Alloc:
            made = layer_of[event.module]  # type: ignore[union-attr]
            if made is not None or not inside_layer:
                tag = made
            owner[event.block] = tag  # type: ignore[union-attr]
        elif kind is Free:
            born = owner[event.block]  # type: ignore[union-attr]
            if not inside_layer or (tag == 0 and born is not None and born > 1):
                tag, inside_layer = born, False
        else:
            tag, inside_layer = None, False
        if tag != before or not runs:
            events = []
            runs.append((tag, events))
        events.append(event)
    return [LayerRun(tag, tuple(events)) for tag, events in _absorb_gaps(runs)]


class _Layers(dict[str, int | None]):
    """Of each module, looked up once."""

    def __init__(self, container: str) -> None:
        super().__init__()
        self.container = container

    def __missing__(self, module: str) -> int | None:
        found = self[module] = _layer(module, self.container)
        return found


def _add(runs: list[tuple[int | None, list[Event]]], tag: int | None, events: list[Event]) -> None:
    if runs and runs[-1][0] == tag:
        runs[-1][1].extend(events)
    else:
        runs.append((tag, list(events)))


def _absorb_gaps(runs: list[tuple[int | None, list[Event]]]) -> list[tuple[int | None, list[Event]]]:
    """What happens between two neighbouring layers belongs to the earlier one, and what names no module between two
    runs of one layer to that layer."""
    merged: list[tuple[int | None, list[Event]]] = []
    for index, (tag, events) in enumerate(runs):
        before = merged[-1][0] if merged else None
        after = runs[index + 1][0] if index + 1 < len(runs) else None
        nowhere = tag == NOWHERE
        if nowhere:
            tag = None
        if tag is None and before is not None and after is not None and after != NOWHERE:
            distance = abs(after - before)
            if distance == 1 or (nowhere and distance == 0):
                tag = before
        _add(merged, tag, events)
    return merged


@lru_cache(maxsize=100_000)
def _layer(module: str, container: str) -> int | None:
    if not module or is_workspace(module):  # a library's workspace is made in whichever layer needs it first
        return NOWHERE
    if not module.startswith(container):
        return None
    match = NUMBERED.match(module, len(container))
    return int(match.group(1)) if match else None


def is_workspace(module: str) -> bool:
    return module.endswith(WORKSPACE)


def births_of(run: LayerRun) -> list[int]:
    """A run's blocks in the order they are made; workspaces, which the first run alone makes, after all others, so that
    the others have the same place in every run."""
    made = [event for event in run.events if type(event) is Alloc]
    late = [event.block for event in made if event.module.endswith(WORKSPACE)]
    return [event.block for event in made if not late or event.block not in late] + late


def aligned(run: LayerRun, other: LayerRun) -> list[int | None]:
    """Of each birth in a run, which of the births in another layer's run it is like.

    Where a pass begins, its first layer may make a block more than the rest (there a gradient is not yet anybody's to
    add to). Its births are then told by what they have in common with the other's from the front and from the back:
    None between those, and where both would do.
    """
    made, like = ([e for e in r.events if type(e) is Alloc and not is_workspace(e.module)] for r in (run, other))
    count, shift = len(made), len(like) - len(made)
    if not shift:
        return list(range(count))
    mine, theirs = (list(map(_traits, births)) for births in (made, like))
    front, back = _in_common(mine, theirs), _in_common(mine[::-1], theirs[::-1])
    least = min(count, count + shift)
    front, back = min(front, least - back), min(back, least - front)  # in both: it could be either
    return [n if n < front else n + shift if n >= count - back else None for n in range(count)]


def _traits(birth: Alloc) -> tuple[str, int, Role, int]:
    """By which births in different layers are told to be alike."""
    return NUMBERED.sub("", birth.module, count=1), birth.nbytes, birth.role, birth.stream


def _in_common(one: Sequence[Any], two: Sequence[Any]) -> int:
    """How far they are alike."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False))))


def _extend(sweeps: Sequence[Sweep], container: str, head: int, period: int, copies: int) -> list[Event]:
    births: dict[int, Birth] = {}
    for number, sweep in enumerate(sweeps):
        for run in sweep.runs:
            births.update((block, Birth(number, run.layer, nth)) for nth, block in enumerate(births_of(run)))
    copied = _Copied(sweeps, head + period - 1, copies * period)
    numbers = copied.numbers
    out: list[Event] = []
    for number, sweep in enumerate(sweeps):
        for run, layer in longer(sweep, head, period, copies):
            shift = 0 if layer is None or run.layer is None else layer - run.layer
            copied.runs[number, layer] = run
            for event in run.events:
                if isinstance(event, Alloc):
                    block = numbers[Birth(number, layer, births[event.block].nth)] = len(numbers)
                    moved = Alloc(
                        block, event.nbytes, event.role, module_moved(event.module, container, shift), event.stream
                    )
                    out.append(moved if layer is not None else _OutsideAlloc(moved))  # type: ignore[arg-type]
                elif isinstance(event, Free):
                    out.append(Free(copied.born(births[event.block], run.layer, layer)))
                elif isinstance(event, Op):
                    op = event._replace(module=module_moved(event.module, container, shift)) if shift else event
                    out.append(op if layer is not None else _OutsideOp(op))  # type: ignore[arg-type]
                else:
                    out.append(event)
    return out


def stood_for(sweep: Sweep, whole: Sequence[int]) -> Iterator[tuple[LayerRun, int | None]]:
    """The runs of a sweep over more layers, each with the layer it now stands for: `whole` has of each of those the
    layer that stands for it."""
    if sweep.runs[0].layer is None:
        yield sweep.runs[0], None
        return
    runs = {run.layer or 0: run for run in sweep.runs}
    several = {layer for layer, times in Counter(whole).items() if times > 1}
    missing = several - runs.keys()
    if missing and (missing != several or min(runs) < min(several) < max(several) < max(runs)):
        raise NotRepeating(f"a pass over the layers takes {[run.layer for run in sweep.runs]} only")
    found = [(runs[stands], layer) for layer, stands in enumerate(whole) if stands in runs]
    yield from reversed(found) if sweep.falls else found


def longer(sweep: Sweep, head: int, period: int, copies: int) -> Iterator[tuple[LayerRun, int | None]]:
    """The runs of a sweep over `copies * period` more layers, each with the layer it now stands for."""
    if sweep.runs[0].layer is None:
        yield sweep.runs[0], None
        return
    rising = sorted(sweep.runs, key=lambda run: run.layer or 0)
    first = [run for run in rising if (run.layer or 0) < head]
    middle = [run for run in rising if head <= (run.layer or 0) < head + period]
    last = [run for run in rising if (run.layer or 0) >= head + period]
    if len(middle) != period and (middle or (first and last)):
        raise NotRepeating(f"a pass over the layers takes {[run.layer for run in sweep.runs]} only")
    longer = [(run, run.layer) for run in first]
    longer += [(run, (run.layer or 0) + k * period) for k in range(copies + 1) for run in middle]
    longer += [(run, (run.layer or 0) + copies * period) for run in last]
    yield from reversed(longer) if sweep.falls else longer


class _Copied:
    """What has been written of the longer tape."""

    def __init__(self, sweeps: Sequence[Sweep], last_copied: int, added: int) -> None:
        self.last_copied, self.added = last_copied, added
        self.numbers: dict[Birth, int] = {}
        self.runs: dict[tuple[int, int | None], LayerRun] = {}
        """Of each sweep and layer, the run that stands for it."""
        self._short = {(number, run.layer): run for number, sweep in enumerate(sweeps) for run in sweep.runs}
        self._aligned: dict[tuple[int, int | None, int | None], list[int | None]] = {}

    def born(self, birth: Birth, written: int | None, stands_for: int | None) -> int:
        """The block a run means when it stands for another layer: equally many layers away. A run outside the layers
        means the first layers by their number and the last ones by their distance from the end."""
        layer = birth.layer
        if layer is not None:
            if written is not None and stands_for is not None:
                if abs(layer - written) > 1:
                    raise NotRepeating(f"layer {written} frees what layer {layer} made")
                layer = stands_for + layer - written
            elif layer > self.last_copied:
                layer += self.added
        found = self.numbers.get(Birth(birth.sweep, layer, self._nth(birth, layer)))
        if found is None:
            raise NotRepeating(f"layer {stands_for} frees a block that layer {layer} did not make")
        return found

    def _nth(self, birth: Birth, layer: int | None) -> int:
        """Which of the births in the run that stands for `layer`."""
        run = self.runs.get((birth.sweep, layer))
        if run is None or run.layer == birth.layer:
            return birth.nth
        key = birth.sweep, birth.layer, run.layer
        if key not in self._aligned:
            self._aligned[key] = aligned(self._short[birth.sweep, birth.layer], run)
        return nth_of(self._aligned[key], birth.nth)


def nth_of(places: Sequence[int | None], nth: int) -> int:
    found = places[nth] if nth < len(places) else None
    if found is None:
        raise NotRepeating("a block is freed that other layers make no like of")
    return found


def module_moved(module: str, container: str, shift: int) -> str:
    if not shift or not module.startswith(container):
        return module
    return container + NUMBERED.sub(
        lambda match: match.group(0).replace(match.group(1), str(int(match.group(1)) + shift)),
        module[len(container) :],
        count=1,
    )


def renumbered(events: Sequence[Event]) -> list[Event]:
    """The same events with blocks numbered in the order they come to life."""
    numbers: dict[int, int] = {}
    out: list[Event] = []
    for event in events:
        if isinstance(event, Alloc):
            numbers[event.block] = len(numbers)
            out.append(event._replace(block=numbers[event.block]))
        elif isinstance(event, Free):
            out.append(Free(numbers[event.block]))
        else:
            out.append(event)
    return out
