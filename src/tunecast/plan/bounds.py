"""What a setting takes at least: bytes of a card, seconds, dollars. Each floor is proven, or it is 0.

Memory  At the optimizer's step a rank holds its part of the weights, their gradients and the optimizer's state; at the
        end of a forward pass its part of weights and state, and the input of every layer, which the backward pass
        needs, with checkpointing or without. Exact counts, from the closed form's own tensors.
Time    A rank's own stream runs one operation after another, its host launches one after another, and so does the
        stream that gathers weights: each of the three is a floor.
        ddp, layers   a micro-batch does all that it does alone on one such card, and more
        fsdp, hsdp    the same but for casts (weights arrive cast), and in 16 bits where one card has 32: what is in
                      16 bits takes as long, what moves in 32 half at least, as many operations are launched
        zero          products alone
        Beside that, gradients are added to those of the micro-batches before, and what is gathered or summed is copied.
        Weights are gathered twice a micro-batch (forward, backward), at the rate NCCL's best way has on these links;
        ddp sums gradients once a step. Attention counts as by the best kernel there is, since which one runs depends on
        the card. The optimizer comes after all that, on a rank's part of the weights. Waiting is left out.
Cost    The floor of time at the lowest price of the rig; rounding, interruptions, storage and egress left out.

`tests/unit/test_plan_bounds.py` holds each against predictions. Where ranks share more than the data (tensor, context,
pipeline) products are cut too, and the floor is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tunecast.hardware.cluster import cards_of
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.job.model import ModelConfig
from tunecast.plan.space import Rig, Spread
from tunecast.predict.checkpoint import FOUR_BIT, WIDTHS, Parameter, optimizer_states
from tunecast.predict.collectives import SIMPLE, rate
from tunecast.predict.host import Host
from tunecast.predict.outside import held_bytes
from tunecast.predict.price import ATTENTION, MOVING, PRODUCTS, kind_of, rates_of, seconds
from tunecast.predict.price.attention import CUDNN, FLASH_2, FLASH_3
from tunecast.predict.price.moving import STREAMING
from tunecast.predict.price.rates import Rates
from tunecast.predict.spreading import CUT, THROUGH_ACCELERATE
from tunecast.tape.op import Op, Phase
from tunecast.tape.timed import Step

CUT_STATE = ("zero1", "zero2", *CUT)
CUT_GRADIENTS = ("zero2", *CUT)
BY_CARD = frozenset({"gemm_4bit", "sum"})
"""Whose size or presence follows the card: 4-bit products others unpack the weight for, and what Triton's kernels leave
for each multiprocessor to be summed."""
CAST = "_to_copy"
FLOAT32 = "float32"
FASTEST = max(kernel.forward for kernel in (CUDNN, FLASH_2, FLASH_3))
FEWEST_FLOPS = min(kernel.work for kernel in (CUDNN, FLASH_2, FLASH_3))
HALF_BYTES = 2
"""The least an activation's element takes."""


class Tensors(NamedTuple):
    """Bytes of the whole model."""

    weights: int
    gradients: int
    state: int
    layer_inputs: int
    """Of one row of a micro-batch."""
    gathered: int
    """Of the layers' weights as they are sent: packed, or in 16 bits."""
    scattered: int
    """Of gradients as they are summed: in 16 bits at least."""


NO_TENSORS = Tensors(0, 0, 0, 0, 0, 0)


def tensors_of(job: Job, model: ModelConfig, parameters: Sequence[Parameter]) -> Tensors:
    """What is not there for certain counts nothing: pages on the host, gradients an optimizer takes in the backward
    pass, activations that wait on the host."""
    if job.stack not in THROUGH_ACCELERATE or job.parallel.offload != "none":
        return NO_TENSORS
    trained = [p for p in parameters if p.trainable]
    at_once = job.optimizer_in_backward or job.optimizer.startswith(("lomo", "adalomo")) or "layerwise" in job.optimizer
    try:
        state = sum(each.nbytes for each in optimizer_states(job.optimizer, trained) if not each.paged)
    except Exception:  # its state is not written down
        state = 0
    longest = max(job.lengths or (job.seq_len,))
    inputs = 0 if job.offload_activations else max(0, model.layers - 1) * longest * model.hidden_size * HALF_BYTES
    return Tensors(
        held_bytes(parameters, job.quantization.double_quant),
        0 if at_once else sum(p.elements * WIDTHS.get(p.dtype, 0) for p in trained),
        state,
        inputs,
        sum(
            p.elements // 2 if p.dtype in FOUR_BIT else p.elements * min(HALF_BYTES, WIDTHS.get(p.dtype, 1))
            for p in parameters
            if not p.is_embedding and not p.name.endswith("lm_head.weight")
        ),
        sum([p.elements for p in trained]) * HALF_BYTES,
    )


def memory_floor_bytes(of: Tensors, job: Job, rig: Rig, spread: Spread, micro_batch: int) -> int:
    """Of the fullest card."""
    parts = job.parallel
    model = spread.layers * parts.tensor * parts.pipeline * parts.context * parts.expert
    shared = rig.gpus if spread.data == "hsdp" else rig.cards
    cut = max(1, shared)

    def held(nbytes: int, kinds: Sequence[str]) -> float:
        return nbytes / (cut if spread.data in kinds else model)

    lasting = held(of.weights, CUT) + held(of.state, CUT_STATE)
    return int(lasting + max(held(of.gradients, CUT_GRADIENTS), of.layer_inputs * micro_batch / model))


class Work(NamedTuple):
    """The operations of one micro-batch on one card that a floor may count, with how often each runs."""

    products: tuple[tuple[Op, int], ...]
    attention: tuple[tuple[Op, int], ...]
    moving: tuple[tuple[Op, int], ...]
    optimizer: tuple[tuple[Op, int], ...]
    """Of the step's end, whatever the micro-batches."""
    host_s: float
    """To launch a micro-batch, less its attention."""
    casts_s: float
    """Of that, casts."""

    def busy_s(self, gpu: Gpu, data: str) -> float:
        rates = rates_of(gpu)
        whole = data == "ddp"
        busy_s = sum(seconds(op, rates) * times for op, times in self.products if whole or op.dtype != FLOAT32)
        busy_s += sum(_attention_s(op, rates) * times for op, times in self.attention)
        if data.startswith("zero"):
            return busy_s
        for op, times in self.moving:
            if whole or op.name != CAST:
                busy_s += seconds(op, rates) * times * (0.5 if op.dtype == FLOAT32 and not whole else 1.0)
        return busy_s

    def launched_s(self, data: str) -> float:
        if data.startswith("zero"):
            return 0.0
        return self.host_s if data == "ddp" else self.host_s - self.casts_s

    def end_s(self, gpu: Gpu, data: str, cards: int) -> float:
        """Of a step's end, after its last micro-batch. A rank that keeps a part of the state updates that part."""
        if data.startswith("zero"):
            return 0.0
        rates = rates_of(gpu)
        whole_s = sum(seconds(op, rates) * times for op, times in self.optimizer)
        return whole_s if data == "ddp" else whole_s / cards


def _attention_s(op: Op, rates: Rates) -> float:
    """By the best kernel there is, at any length, half of it masked."""
    return op.flops * FEWEST_FLOPS / (rates.flop_per_s(op.dtype) * FASTEST)


def work_of(step: Step, host: Host) -> Work:
    found: dict[str, dict[tuple[object, ...], tuple[Op, int]]] = {PRODUCTS: {}, ATTENTION: {}, MOVING: {}}
    host_s = casts_s = 0.0
    last: list[tuple[Op, int]] = []
    for section in step.sections:
        ends = section.phase in (Phase.CLIP, Phase.OPTIMIZER)
        if not ends and section.phase not in (Phase.FORWARD, Phase.BACKWARD):
            continue
        for op in section.ops:
            if ends:
                if kind_of(op.name) == MOVING:
                    last.append((op, section.times))
                continue
            kind = kind_of(op.name)
            launch_s = 0.0 if kind == ATTENTION else host.op_s(op, section.phase) * section.times
            host_s += launch_s
            casts_s += launch_s if op.name == CAST else 0.0
            if kind not in found or op.stream or op.name in BY_CARD:
                continue
            key = (op.name, op.shapes, op.dtype, op.flops, *op[3:6], op.layout)
            _, times = found[kind].get(key, (op, 0))
            found[kind][key] = op, times + section.times
    products, attention, moving = (tuple(found[kind].values()) for kind in (PRODUCTS, ATTENTION, MOVING))
    return Work(products, attention, moving, tuple(last), host_s, casts_s)


class Copied(NamedTuple):
    """Seconds of a card's memory at least, beside what one card alone does."""

    micro_batch_s: float
    later_s: float
    """Of each micro-batch but the first, on top: gradients are added to those there are."""
    step_s: float
    """Of the first one, on top: once a step."""


def copied_of(of: Tensors, job: Job, gpu: Gpu, data: str) -> Copied:
    """What is gathered arrives in one piece and is copied out of it, into weights; gradients are copied into one piece
    to be summed. Each is read and written once; of an addition two are read."""
    byte_s = 1 / (rates_of(gpu).bytes_per_s * STREAMING)
    if data == "ddp":
        return Copied(0.0, 3 * of.gradients * byte_s, 0.0)
    if data not in ("fsdp", "hsdp") or not job.parallel.reshard_after_forward:
        return Copied(0.0, 0.0, 0.0)
    return Copied(2 * 2 * of.gathered * byte_s, 3 * of.scattered * byte_s, 2 * of.scattered * byte_s)


class Sent(NamedTuple):
    """Seconds of the link at least: one collective after another."""

    micro_batch_s: float
    step_s: float
    """Once a step, on top."""


def sent_of(of: Tensors, job: Job, rig: Rig, spread: Spread) -> Sent:
    """Gathering for each micro-batch, and summing gradients once a step at least: a communicator runs one collective at
    a time."""
    if rig.cards == 1 or spread.layers > 1:
        return Sent(0.0, 0.0)
    cluster = cards_of(
        rig.card,
        rig.gpus,
        rig.nodes,
        mesh_of_rig(rig, spread),
        rig.interconnect,
        rig.inter_node_gbps,
    )
    if spread.data in ("fsdp", "hsdp"):
        group = cluster.group("shard")
        if group.ranks < 2:
            return Sent(0.0, 0.0)
        byte_s = (group.ranks - 1) / group.ranks / rate(group, cluster, SIMPLE)
        gathered_s, scattered_s = of.gathered * byte_s, of.scattered * byte_s
        if job.parallel.reshard_after_forward:
            return Sent(2 * gathered_s, scattered_s)
        return Sent(0.0, gathered_s + scattered_s)
    if spread.data == "ddp":
        group = cluster.group("data")
        n = group.ranks
        ways = [2 * (n - 1) / n / rate(group, cluster, SIMPLE)]
        if group.nodes == 1 and cluster.inside.reduce_bytes_per_s:
            ways.append((n + 1) / n / cluster.inside.reduce_bytes_per_s)
        return Sent(0.0, of.gradients * min(ways))
    return Sent(0.0, 0.0)


def mesh_of_rig(rig: Rig, spread: Spread) -> tuple[tuple[str, int], ...]:
    """As hardware/cluster.py makes it of a job that shares nothing but the data."""
    if spread.data == "hsdp":
        return tuple((name, size) for name, size in (("shard", rig.gpus), ("replicate", rig.nodes)) if size > 1)
    return (("data" if spread.data == "ddp" else "shard", rig.cards),)


def has_time_floor(job: Job) -> bool:
    """Grouped and token-filled batches are other batches on another number of ranks; compiled and offloaded steps
    follow no single card's."""
    parts, data = job.parallel, job.data
    plain = (parts.tensor, parts.pipeline, parts.context, parts.expert) == (1, 1, 1, 1) and parts.offload == "none"
    return (
        plain
        and job.stack in THROUGH_ACCELERATE
        and not (data.group_by_length or data.max_tokens_per_batch or job.compile)
    )
