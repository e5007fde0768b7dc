"""What a setting takes at least: bytes of a card, seconds, dollars. Each floor is proven, or it is 0.

Memory  At the optimizer's step a rank holds its part of the weights, their gradients and the optimizer's state; at the
        end of a forward pass its part of weights and state, and the input of every layer, which the backward pass
        needs, with checkpointing or without. Exact counts, from the closed form's own tensors.
Time    A rank's own stream runs one operation after another, its host launches one after another, and so does the
        stream that gathers weights: each of the three is a floor.
        ddp, layers   a micro-batch does all that it does alone on one such card, and more
        fsdp, hsdp,   the same but for casts (weights arrive cast, or DeepSpeed cast the model), and in 16 bits where
        zero          one card has 32: what is in 16 bits takes as long, what moves in 32 half at least, as many
                      operations are launched
        float8        the same as in 16 bits, products at the rate of float8; casts come on top
        compiled      products and attention alone: all else may be fused, and few kernels are launched
        Beside that, gradients are added to those of the micro-batches before, and what is gathered or summed is copied.
        Weights are gathered twice a micro-batch (forward, backward), at the rate NCCL's best way has on these links;
        ddp sums gradients once a step. ZeRO 1 sums them after the last backward pass, ZeRO 1 and 2 gather the new
        weights after the optimizer, and no work is left to hide that. A closer floor of ZeRO is what one card does
        whose model was cast as DeepSpeed casts it, all of it. Attention counts as by the best kernel there is, since
        which one runs depends on the card. The optimizer comes after all that, on a rank's part of the weights.
        Waiting is left out.
Cost    The floor of time at the lowest price of the rig; rounding, interruptions, storage and egress left out.

`tests/unit/test_plan_bounds.py` holds each against predictions. Where ranks share more than the data (tensor, context,
pipeline) products are cut too, and the floor is 0.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from tunecast.errors import TunecastError
from tunecast.hardware.cluster import cards_of
from tunecast.hardware.spec import Gpu
from tunecast.job.job import Job
from tunecast.job.lengths import sample_lengths
from tunecast.job.model import ModelConfig
from tunecast.job.optimizers import optimizer_of
from tunecast.job.shardings import SHARDINGS, Sharding, shards_and_copies
from tunecast.job.stacks import stack_of
from tunecast.planning.space import Rig, Spread
from tunecast.prediction.data.lengths import longest_row
from tunecast.prediction.outside.checkpoint import FOUR_BIT, QUANTIZED, WIDTHS, Parameter, optimizer_states
from tunecast.prediction.outside.needs import held_bytes
from tunecast.prediction.price import ATTENTION, MOVING, PRODUCTS, kind_of, rates_of, seconds
from tunecast.prediction.price.attention import CUDNN, FLASH_2, FLASH_3
from tunecast.prediction.price.collectives import SIMPLE, rate
from tunecast.prediction.price.host import Host
from tunecast.prediction.price.moving import STREAMING
from tunecast.prediction.price.rates import Rates
from tunecast.records import NamedTuple, replace
from tunecast.tape.build.sharding.zero_sizes import settings_of
from tunecast.tape.op import NODES, Op, Phase
from tunecast.tape.step import Step

LARGE_ELEMENTS = 2**20
"""Far above what ZeRO 3 leaves whole on every rank, unless the job says more (`param_persistence_threshold`: 100,000,
or ten hidden sizes)."""
BY_CARD = frozenset({"gemm_4bit", "sum"})
"""Whose size or presence follows the card: 4-bit products others unpack the weight for, and what Triton's kernels leave
for each multiprocessor to be summed."""
CAST, COPY = "_to_copy", "copy_"
NODE = Op(NODES, kernels=0, shapes=((1,),))
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
    """Of the layers' weights as they are sent: packed, or in 16 bits. Under ZeRO the large ones alone."""
    gathered_again: int
    """Of these, for the backward pass."""
    scattered: int
    """Of gradients as they are summed: in 16 bits at least."""


NO_TENSORS = Tensors(0, 0, 0, 0, 0, 0, 0)


def tensors_of(job: Job, model: ModelConfig, parameters: Sequence[Parameter]) -> Tensors:
    """What is not there for certain counts nothing: pages on the host, gradients an optimizer takes in the backward
    pass, activations that wait on the host."""
    if not stack_of(job).uses_accelerate or job.parallel.offload != "none":
        return NO_TENSORS
    trained = [p for p in parameters if p.trainable]
    at_once = job.optimizer_in_backward or optimizer_of(job).in_backward
    gathered = sum(map(_sent_bytes, _of_layers(parameters)))
    return Tensors(
        held_bytes(parameters, job.quantization.double_quant),
        0 if at_once else sum(p.elements * WIDTHS.get(p.dtype, 0) for p in trained),
        _state_bytes(job, trained),
        _layer_inputs_bytes(job, model),
        gathered,
        gathered,
        sum([p.elements for p in trained]) * HALF_BYTES,
    )


def zero_tensors_of(job: Job, model: ModelConfig, parameters: Sequence[Parameter]) -> Tensors:
    """The same under DeepSpeed's ZeRO, which casts the model to the dtype of mixed precision and keeps what is trained
    in float32 beside it, as a part of the optimizer's state. ZeRO 3 keeps what is used again within
    `max_reuse_distance`, and the first layer's weights have no backward pass where its inputs want no gradient."""
    if not stack_of(job).uses_accelerate or job.parallel.offload != "none":
        return NO_TENSORS
    kept = parameters if job.autocast is None else [_in_dtype(p, job.autocast) for p in parameters]
    masters = [p._replace(dtype=FLOAT32) for p in kept if p.trainable]
    elements = sum([p.elements for p in masters])
    settings = settings_of(job, 3, 0)
    large = max(LARGE_ELEMENTS, settings.param_persistence_threshold)
    gathered = sum([_sent_bytes(p) for p in _of_layers(kept) if p.elements > large])
    stays = settings.max_reuse_distance * HALF_BYTES + gathered // max(1, model.layers)
    return Tensors(
        held_bytes(kept, job.quantization.double_quant),
        elements * HALF_BYTES,
        elements * WIDTHS[FLOAT32] + _state_bytes(job, masters),
        _layer_inputs_bytes(job, model),
        gathered,
        max(0, gathered - stays),
        elements * HALF_BYTES,
    )


def cast_by_deepspeed(job: Job) -> Job:
    """What a rank under ZeRO runs of a job on one card: no autocast, all weights in its dtype. Raises `UsageError`."""
    if job.autocast is None:
        return job
    lora = job.lora if job.method == "full" else replace(job.lora, adapter_dtype=job.autocast)
    packed = replace(job.quantization, prepare_kbit=False) if job.method == "qlora" else job.quantization
    return replace(job, autocast=None, weights_dtype=job.autocast, lora=lora, quantization=packed)


def _in_dtype(parameter: Parameter, dtype: str) -> Parameter:
    return parameter if parameter.dtype in QUANTIZED else parameter._replace(dtype=dtype)


def _state_bytes(job: Job, trained: Sequence[Parameter]) -> int:
    try:
        return sum(each.nbytes for each in optimizer_states(job.optimizer, trained) if not each.on_host)
    except TunecastError:  # its state is not known
        return 0


def _layer_inputs_bytes(job: Job, model: ModelConfig) -> int:
    longest = longest_row(job, sample_lengths(job.data))
    is_free = job.offload_activations or job.compile  # which chooses for itself what it computes again
    return 0 if is_free else max(0, model.layers - 1) * longest * model.hidden_size * HALF_BYTES


def _of_layers(parameters: Sequence[Parameter]) -> list[Parameter]:
    return [p for p in parameters if not p.is_embedding and not p.name.endswith("lm_head.weight")]


def _sent_bytes(parameter: Parameter) -> int:
    if parameter.dtype in FOUR_BIT:
        return parameter.elements // 2
    return parameter.elements * min(HALF_BYTES, WIDTHS.get(parameter.dtype, 1))


def lasting_bytes(of: Tensors, job: Job, rig: Rig, spread: Spread) -> float:
    """Of the fullest card, from step to step: weights and state, and ZeRO 3's buffers for gradients."""
    sharding = spread.sharding
    lasting = _part(of.weights, job, rig, spread, sharding.cuts_weights)
    lasting += _part(of.state, job, rig, spread, sharding.cuts_state)
    if sharding.is_zero and sharding.cuts_weights and of.weights:
        bucket = settings_of(job, 3, 0).reduce_bucket_size
        lasting += of.gradients / rig.cards + bucket * HALF_BYTES
    return lasting


def whole_gradients_bytes(of: Tensors, spread: Spread, accumulates: bool) -> int:
    """What FSDP keeps in one piece from micro-batch to micro-batch, unless gradients are summed after each: those of
    all weights, in 16 bits at least."""
    is_kept = accumulates and spread.sharding.is_fsdp and not spread.sync_each_batch and of.gradients > 0
    return of.scattered if is_kept else 0


def memory_floor_bytes(
    of: Tensors, job: Job, rig: Rig, spread: Spread, micro_batch: int, *, accumulates: bool = False
) -> int:
    """Of the fullest card."""
    if whole := whole_gradients_bytes(of, spread, accumulates):
        return int(lasting_bytes(of, job, rig, spread) + whole + of.layer_inputs * micro_batch / _ways(job, spread))
    gradients = _part(of.gradients, job, rig, spread, spread.sharding.cuts_gradients)
    if spread.sharding.is_zero:
        gradients = _zero_gradients_bytes(of, job, rig, spread.sharding)
    inputs = of.layer_inputs * micro_batch / _ways(job, spread)
    return int(lasting_bytes(of, job, rig, spread) + max(gradients, inputs))


def _part(nbytes: int, job: Job, rig: Rig, spread: Spread, is_cut: bool) -> float:
    """Of what the spread cuts or does not."""
    if not is_cut:
        return nbytes / _ways(job, spread)
    return nbytes / max(1, shards_and_copies(spread.sharding, rig.gpus, rig.nodes, job.parallel.replicate)[0])


def _ways(job: Job, spread: Spread) -> int:
    """In which the model itself is split."""
    parts = job.parallel
    return spread.layers * parts.tensor * parts.pipeline * parts.context * parts.expert


def _zero_gradients_bytes(of: Tensors, job: Job, rig: Rig, zero: Sharding) -> float:
    """At a step a rank has its part of the gradients in 16 bits, once more in one piece, and that in float32: ZeRO 3
    for a sub-group of weights at a time. ZeRO 1 has all of them at the end of a backward pass, unless it sums them on
    the way."""
    part = of.gradients / rig.cards
    settings = settings_of(job, zero.zero_stage, 0)
    if zero.cuts_weights:  # in groups of at least that size; one more weight of 1 is no group
        return 3 * min(part, settings.sub_group_size * HALF_BYTES)
    at_once = 0 if zero.cuts_gradients or settings.overlap_comm else of.gradients
    in_one_group = stack_of(job).is_plain_loop  # else weights that do not decay take a step of their own
    return max(4 * part if in_one_group else part, at_once)


class Work(NamedTuple):
    """The operations of one micro-batch on one card that a floor may count, with how often each runs: of steps that
    take turns, on average."""

    products: tuple[tuple[Op, float], ...]
    attention: tuple[tuple[Op, float], ...]
    moving: tuple[tuple[Op, float], ...]
    optimizer: tuple[tuple[Op, float], ...]
    """Of the step's end, whatever the micro-batches."""
    host_s: float
    """To launch a micro-batch, less its attention."""
    casts_s: float
    """Of that, casts: also those in place, and autograd's nodes for them."""

    def busy_s(self, gpu: Gpu, data: str, *, narrow: bool = False, fused: bool = False) -> float:
        """`narrow`: products in float8, at twice the rate or what the card has, of half the bytes. `fused`: whatever
        only moves may have gone into other kernels."""
        rates = rates_of(gpu)
        whole = SHARDINGS[data].is_replicated
        busy_s = sum(seconds(op, rates) * times for op, times in self.products if whole or op.dtype != FLOAT32)
        if narrow:
            busy_s *= min(0.5, rates.flop_per_s("bfloat16") / rates.flop_per_s("float8"))
        busy_s += sum(_attention_s(op, rates) * times for op, times in self.attention)
        if fused:
            return busy_s
        for op, times in self.moving:
            if whole or op.name not in (CAST, COPY):
                busy_s += seconds(op, rates) * times * (0.5 if op.dtype == FLOAT32 and not whole else 1.0)
        return busy_s

    def launched_s(self, data: str) -> float:
        return self.host_s if SHARDINGS[data].is_replicated else self.host_s - self.casts_s

    def end_s(self, gpu: Gpu, data: str, cards: int) -> float:
        """Of a step's end, after its last micro-batch. A rank that keeps a part of the state updates that part."""
        rates = rates_of(gpu)
        whole_s = sum(seconds(op, rates) * times for op, times in self.optimizer)
        if SHARDINGS[data].is_zero:  # of gradients in 16 bits, where others may have 32
            return 0.5 * whole_s / cards
        return whole_s if SHARDINGS[data].is_replicated else whole_s / cards


def _attention_s(op: Op, rates: Rates) -> float:
    """By the best kernel there is, at any length, half of it masked."""
    return op.flops * FEWEST_FLOPS / (rates.flop_per_s(op.dtype) * FASTEST)


def work_of(
    step: Step, host: Host, phases: Container[Phase] = (Phase.FORWARD, Phase.BACKWARD, Phase.CLIP, Phase.OPTIMIZER)
) -> Work:
    found: dict[str, dict[tuple[object, ...], tuple[Op, float]]] = {PRODUCTS: {}, ATTENTION: {}, MOVING: {}}
    host_s = casts_s = 0.0
    last: list[tuple[Op, float]] = []
    for section in step.sections:
        if section.phase not in phases:
            continue
        ends, times = section.phase in (Phase.CLIP, Phase.OPTIMIZER), section.times / step.count
        for op in section.ops:
            if ends:
                if kind_of(op.name) == MOVING:
                    last.append((op, times))
                continue
            kind = kind_of(op.name)
            launch_s = 0.0 if kind == ATTENTION else host.op_s(op, section.phase) * times
            host_s += launch_s
            if op.name in (CAST, COPY):
                node_s = host.op_s(NODE, section.phase) * times if op.by_engine else 0.0
                casts_s += launch_s + node_s
            if kind not in found or op.stream or op.name in BY_CARD:
                continue
            key = (
                op.name, op.shapes, op.dtype, op.flops, op.read_bytes, op.written_bytes, op.kernels, op.layout
            )  # fmt: skip
            _, before = found[kind].get(key, (op, 0))
            found[kind][key] = op, before + times
    products, attention, moving = (tuple(found[kind].values()) for kind in (PRODUCTS, ATTENTION, MOVING))
    return Work(products, attention, moving, tuple(last), host_s, casts_s)


class Copied(NamedTuple):
    """Seconds of a card's memory at least, beside what one card alone does."""

    micro_batch_s: float
    later_s: float
    """Of each micro-batch but the first, on top: gradients are added to those there are."""
    step_s: float
    """Of the first one, on top: once a step."""


def copied_of(of: Tensors, job: Job, gpu: Gpu, spread: Spread) -> Copied:
    """What is gathered arrives in one piece and is copied out of it, into weights; gradients are copied into one piece
    to be summed. Each is read and written once; of an addition two are read."""
    byte_s = 1 / (rates_of(gpu).bytes_per_s * STREAMING)
    if spread.sharding.is_replicated:
        return Copied(0.0, 3 * of.gradients * byte_s, 0.0)
    if not spread.sharding.is_fsdp or not job.parallel.reshard_after_forward:
        return Copied(0.0, 0.0, 0.0)
    if spread.sync_each_batch:
        return Copied((2 * 2 * of.gathered + 2 * of.scattered) * byte_s, 0.0, 0.0)
    return Copied(2 * 2 * of.gathered * byte_s, 3 * of.scattered * byte_s, 2 * of.scattered * byte_s)


class Sent(NamedTuple):
    """Seconds of the link at least: one collective after another."""

    micro_batch_s: float
    step_s: float
    """Once a step, on top."""
    end_s: float = 0.0
    """After the last backward pass, with nothing beside it."""


NOTHING_SENT = Sent(0.0, 0.0)


def sent_of(of: Tensors, job: Job, rig: Rig, spread: Spread) -> Sent:
    """Gathering for each micro-batch, and summing gradients once a step at least: a communicator runs one collective at
    a time."""
    if rig.cards == 1 or spread.layers > 1:
        return NOTHING_SENT
    cluster = cards_of(
        rig.gpu,
        rig.gpus,
        rig.nodes,
        mesh_of_rig(rig, spread, job.parallel.replicate),
        rig.interconnect,
        rig.inter_node_gbps,
    )
    sharding = spread.sharding
    group = cluster.group("shard" if sharding.is_fsdp else "data")
    n = group.ranks
    if n < 2:
        return NOTHING_SENT
    byte_s = (n - 1) / n / rate(group, cluster, SIMPLE)
    summed_s = 2 * byte_s
    if group.nodes == 1 and cluster.inside.reduce_bytes_per_s:
        summed_s = min(summed_s, (n + 1) / n / cluster.inside.reduce_bytes_per_s)
    gathered_s, scattered_s = of.gathered * byte_s, of.scattered * byte_s
    if sharding.is_fsdp:
        each_s = scattered_s if spread.sync_each_batch else 0.0
        if job.parallel.reshard_after_forward:
            return Sent(2 * gathered_s + each_s, scattered_s - each_s)
        return Sent(each_s, gathered_s + scattered_s - each_s)
    if sharding.is_replicated:
        return Sent(0.0, of.gradients * summed_s)
    if sharding.cuts_weights:
        return Sent(gathered_s + of.gathered_again * byte_s + scattered_s, 0.0)
    if sharding.cuts_gradients:
        return Sent(of.scattered * summed_s, 0.0, scattered_s)
    if settings_of(job, 1, 0).overlap_comm:
        return Sent(0.0, of.scattered * summed_s, scattered_s)
    return Sent(0.0, 0.0, of.scattered * summed_s + scattered_s)


def mesh_of_rig(rig: Rig, spread: Spread, replicate: int | None) -> tuple[tuple[str, int], ...]:
    """As hardware/cluster.py makes it of a job that shares nothing but the data."""
    mesh = spread.sharding.mesh
    sizes = shards_and_copies(spread.sharding, rig.gpus, rig.nodes, replicate)
    return tuple((name, size) for name, size in zip(mesh, sizes, strict=False) if size > 1)


def has_time_floor(job: Job) -> bool:
    """Grouped and token-filled batches are other batches on another number of ranks; where a job says itself that it is
    compiled or offloaded, no tape is at hand that is neither."""
    parts, data = job.parallel, job.data
    plain = (parts.tensor, parts.pipeline, parts.context, parts.expert) == (1, 1, 1, 1) and parts.offload == "none"
    return (
        plain
        and stack_of(job).uses_accelerate
        and not (data.group_by_length or data.max_tokens_per_batch or job.compile)
    )
