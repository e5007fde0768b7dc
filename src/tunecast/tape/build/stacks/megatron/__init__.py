"""Megatron Core and NeMo (which runs it): one rank's training program on paper.

layers.py     Megatron Core's attention and experts on paper, one rank's heads, with TE's kernels
linears.py    TransformerEngine's linear layers on paper
model.py      Megatron Core's GPT on paper, one rank's part of it, and its loss
optimizer.py  Megatron's optimizer on paper, and what data-parallel ranks exchange
shape.py      what Megatron's arguments say of a model
tasks.py      what ms-swift trains with Megatron Core beyond the language model's own loss, and images beside text
teacher.py    a teacher beside a student of Megatron Core, as ms-swift has it

Weights are 16 bits with float32 masters. NeMo is run as its performance recipes are: collectives of tensor parallelism
beside the products they feed (`tp_comm_overlap`), TransformerEngine's loss, gradients in the weights' dtype
(`grad_reduce_in_fp32=False`). Megatron is run as `pretrain_gpt.py` runs with --bf16: it waits for collectives, takes
the loss in float32 and adds gradients up in float32 (`--accumulate-allreduce-grads-in-fp32`).
A pipeline is its first stage or its last (`sharding/layers.py` has cut the model and says which).

Source   NVIDIA/Megatron-LM, core 0.13.0 and 0.16.1 (`stack_version` says which, of what is Megatron's); TE 2.5.0
Checked  tests/trace/test_megatron.py: Megatron Core and TE's Python, traced: dense models of RMSNorm and SwiGLU in
         bfloat16, alone, with tensor parallelism, replicated and sharing the optimizer, event for event but for what
         TE's and cuDNN's kernels borrow. Nobody traced pipelines, context or expert parallelism, adapters, low
         precisions, dropout, learned positions: the tape says so.
         Memory of Megatron-LM's own functional tests (benchmarks/data/megatron_ci.jsonl).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tunecast.job.further import TEACHER, further_config, has_second_teacher
from tunecast.job.job import Job
from tunecast.job.releases import RELEASES, numbers
from tunecast.job.shardings import sharding_of
from tunecast.records import replace_unchecked
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import backward
from tunecast.tape.build.dtypes import DTYPES, INT64, Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import bring
from tunecast.tape.build.ops.views import narrow
from tunecast.tape.build.stacks import Refusals, followed, leaves_out, no_such_model
from tunecast.tape.build.stacks.megatron import tasks
from tunecast.tape.build.stacks.megatron.layers import KERNELS
from tunecast.tape.build.stacks.megatron.linears import MegatronRank
from tunecast.tape.build.stacks.megatron.model import GPT, LORA_TARGETS
from tunecast.tape.build.stacks.megatron.optimizer import DataExchange, MegatronOptimizer
from tunecast.tape.build.stacks.megatron.shape import MegatronShape, shape_of
from tunecast.tape.build.stacks.megatron.teacher import (
    MegatronTeacher,
    is_taught,
    require_one_vocabulary,
)
from tunecast.tape.build.stacks.torchtitan.loop import places
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.batches import image_tensors, images_in
from tunecast.tape.op import Phase, Role

REFUSES: Refusals = {
    "method": lambda job: job.method == "qlora" and job.quantization.format != "float8",
    "quantization": lambda job: job.quantization.format not in (None, "float8"),
    "autocast": lambda job: job.autocast not in (None, job.weights_dtype),
    **leaves_out("compile", "kernels", "optimizer_in_backward", "recompute", "offload_activations"),
    "loss": lambda job: job.loss not in (None, "full", "fused"),
    **leaves_out("transformers_version"),
    "stack_version": lambda job: (
        job.stack_version is not None and (runs_nemo(job) or not is_followed(job.stack_version))
    ),
    "optimizer": lambda job: job.optimizer not in ("adamw_torch", "adamw_torch_fused"),
    "attention": lambda job: job.attention not in (*KERNELS, "eager"),
    "checkpoint_reentrant": lambda job: job.checkpoint_reentrant is not None,
    "optimizer_state_dtype": lambda job: asks_in_vain(job) and job.optimizer_state_dtype == "bfloat16",
    "master_weights": lambda job: asks_in_vain(job) and job.master_weights == "remainders",
    "lora.dora": lambda job: job.method != "full" and job.lora.dora,
}
KERNELS_UNTRACED = "what TransformerEngine's and cuDNN's kernels borrow was not traced and is left out"
UNTRACED = "Megatron Core follows its source and figures of its tests; nobody traced it with "
UNFUSED_LOSS = ("nemotron",)
"""Architectures whose recipes turn the fused loss off (nemo/collections/llm/recipes/nemotron3_8b.py, nemotron4_15b.py,
nemotron4_340b.py)."""
LOW: Mapping[str, Dtype] = {"float8": Dtype("float8", 1), "float4": Dtype("float4", 1)}
"""What a kernel keeps of a number: float4 codes come twice, by row and by column, at half a byte each."""


def model(machine: Machine, config: Mapping[str, Any]) -> Any:
    shape = shape_of(config)
    return None if shape is None else GPT(machine, shape, MegatronRank(), {})


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    gpt = load(job, config, machine)
    reference = None
    if tasks.asks_reference(job) and job.method == "full":
        reference = load(job, config, machine)
        for parameter in reference.parameters():
            parameter.requires_grad = False
    teacher = MegatronTeacher(job, gpt, load_teacher(job, config, gpt)) if is_taught(job) else None
    machine.guesses[KERNELS_UNTRACED] = None
    tasks.mark(job, machine)
    if untraced := ", ".join(ways_untraced(job, gpt.shape)):
        machine.guesses[UNTRACED + untraced] = None
    trained = [p for p in gpt.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.after_gradient = let_gradient_go
    layers = sum(layer.trained_numel(kind) for layer in gpt.layers() for kind in (False, True))  # type: ignore[attr-defined]
    ranks, gradients, shares = data_ranks(job), gpt.parts.gradients, sharding_of(job).cuts_state
    expert_ranks = expert_data_ranks(job)
    gpt.exchange = DataExchange(machine, ranks, machine.weights_dtype, gradients, shares, expert_ranks)
    optimizer = MegatronOptimizer(
        trained, ranks, layers, gradients, shares, expert_ranks, is_aware(job), keeps_remainders(job),
        DTYPES[job.optimizer_state_dtype or "float32"],
    )  # fmt: skip
    for length in machine.steps(lengths):
        optimizer.begin_step()
        take_step(job, gpt, reference, length, teacher)
        optimizer.reduce_rest()
        gpt.exchange.settle()
        machine.phase = Phase.OPTIMIZER
        optimizer.step(bool(job.max_grad_norm))
        machine.phase, machine.module = Phase.OTHER, ""
    optimizer.begin_step()
    machine.end()


def ways_untraced(job: Job, shape: MegatronShape) -> Iterator[str]:
    """What tests/trace/test_megatron.py has no case of."""
    parallel = job.parallel
    ways = {
        "pipelines": parallel.pipeline > 1,
        "context parallelism": parallel.context > 1,
        "experts": shape.experts > 0,
        "adapters": job.method != "full",
        "products of 8 bits or fewer": job.matmul_dtype is not None,
        "overlapped tensor parallelism": overlaps(job) and parallel.tensor > 1,
        "an optimizer that is aware of precisions": is_aware(job),
        "weights in float32": job.weights_dtype == "float32",
        "attention other than cuDNN's": job.attention != "sdpa",
        "learned positions, biases or dropout": bool(shape.positions or shape.bias or shape.dropout),
        "layers without gates": not shape.gated,
        "NeMo's fused loss": runs_nemo(job),
    }
    return (name for name, asked in ways.items() if asked)


def let_gradient_go(parameter: Tensor) -> None:
    """It is in the buffer (distributed/distributed_data_parallel.py, `_make_backward_post_hook`)."""
    parameter.grad = None


def defaults(job: Job) -> dict[str, Any]:
    """NeMo 2.4: every recipe shares the optimizer (`use_distributed_optimizer`); nemo/collections/llm/peft/lora.py,
    `LoRA`, whose adapters have the weights' dtype."""
    ways: dict[str, Any] = {}
    if not runs_nemo(job):
        return ways
    if job.hardware.gpus * job.hardware.nodes > 1 and sharding_of(job).is_replicated:
        ways["parallel.data"] = "zero1"
    if job.method != "full":
        ways |= {"lora.dropout": 0.0, "lora.rank": 32, "lora.adapter_dtype": job.weights_dtype}
    return ways


def is_followed(release: str) -> bool:
    """Of Megatron Core, from the oldest that was compared to the newest."""
    followed = RELEASES["megatron-core"]
    return numbers(followed.oldest) <= numbers(release) <= numbers(followed.newest)


def runs_nemo(job: Job) -> bool:
    return job.stack == "nemo"


def is_aware(job: Job) -> bool:
    """NeMo's performance scripts ask for it where products are of 16 bits (scripts/performance/helpers.py,
    `set_precision_configs`); it comes with the shared optimizer alone."""
    narrow = job.weights_dtype != "float32" and job.matmul_dtype is None
    by_recipe = runs_nemo(job) and sharding_of(job).cuts_state and narrow
    return asks_for_awareness(job) or (by_recipe and job.master_weights is None)


def asks_for_awareness(job: Job) -> bool:
    """megatron/core/optimizer/optimizer_config.py, `__post_init__`: only an optimizer that is aware of precisions has
    moments of other dtypes, or keeps remainders."""
    return job.optimizer_state_dtype == "bfloat16" or job.master_weights == "remainders"


def asks_in_vain(job: Job) -> bool:
    """ "--use-precision-aware-optimizer only supported with distributed optimizer" (megatron/training/arguments.py), of
    weights of 16 bits."""
    return not sharding_of(job).cuts_state or job.weights_dtype == "float32"


def keeps_remainders(job: Job) -> bool:
    """`store_param_remainders`, true by itself with such an optimizer."""
    return is_aware(job) and job.master_weights != "float32"


def data_ranks(job: Job) -> int:
    """That share an optimizer: those that see other rows, and those that see other parts of the same ones."""
    return job.hardware.gpus * job.hardware.nodes // (job.parallel.tensor * job.parallel.pipeline)


def expert_data_ranks(job: Job) -> int:
    """That have the same experts: their mesh is their own (megatron/core/parallel_state.py,
    `initialize_model_parallel`)."""
    split = job.parallel.pipeline * job.parallel.expert * job.parallel.cards_of_one_expert
    return max(1, job.hardware.gpus * job.hardware.nodes // split)


def parts_of(job: Job) -> MegatronRank:
    parallel = job.parallel
    low = LOW[job.matmul_dtype] if job.matmul_dtype else None
    frozen = LOW["float8"] if job.quantization.format == "float8" else None
    return MegatronRank(
        parallel.tensor, parallel.context, parallel.expert, overlaps(job), low,
        parallel.sequence_parallel is not False, job.attention, frozen, gradients_dtype(job),
        job.lora.dropout or 0.0, job.task == "sft" and job.data.packing,
        numbers(followed(job)["megatron-core"]), runs_nemo(job), parallel.cards_of_one_expert, runs_nemo(job),
    )  # fmt: skip


def overlaps(job: Job) -> bool:
    """Whether collectives of tensor parallelism run beside products: in NeMo's performance recipes, but for NVFP4
    (Megatron Bridge, scripts/performance/configs/llama: `tp_comm_overlap = False if precision == "nvfp4"`)."""
    return runs_nemo(job) and job.matmul_dtype != "float4"


def gradients_dtype(job: Job) -> Dtype:
    """`grad_reduce_in_fp32`: True in pretrain_gpt.py with --bf16, False in NeMo's performance recipes."""
    return DTYPES[job.parallel.reduce_dtype or (job.weights_dtype if runs_nemo(job) else "float32")]


def load(job: Job, config: Mapping[str, Any], machine: Machine) -> GPT:
    return made(job, config, machine, shape_of(config))


def load_teacher(job: Job, config: Mapping[str, Any], student: GPT) -> GPT | None:
    """Spread as the student is, and of its layers a stage's share; frozen."""
    if not has_second_teacher(job):
        return None
    of_teacher = further_config(config, TEACHER)
    shape = shape_of(of_teacher)
    shape = None if shape is None else shape._replace(layers=-(-shape.layers // job.parallel.pipeline))
    own = replace_unchecked(job, method="full", gradient_checkpointing=False)
    teacher = made(own, of_teacher, student.machine, shape, TEACHER)
    for parameter in teacher.parameters():
        parameter.requires_grad = False
    require_one_vocabulary(job, student.shape, teacher.shape)
    return teacher


def made(job: Job, config: Mapping[str, Any], machine: Machine, shape: MegatronShape | None, role: str = "") -> GPT:
    """`role`: of a model beside the one that is trained."""
    if shape is None:
        raise no_such_model(job.stack, config.get("model_type"))
    ranks = {} if job.method == "full" else adapters_of(job)
    first = is_first(job, machine)
    last = job.parallel.pipeline == 1 or not first
    parts = parts_of(job)
    visual = tasks.Tower(machine, config) if first and machine.pictures is not None else None
    labels = job.head.labels if tasks.has_head(job) else None
    gpt = GPT(
        machine, shape, parts, ranks, job.gradient_checkpointing, first, last, loss_of(job, config), labels, visual
    )
    gpt.name_all(role)
    machine.name_head("output_layer")
    for module in gpt.modules():
        for name, tensor in module.own.items():
            adapter = name.startswith("lora_")
            low = parts.frozen if name == "weight" and module is not gpt.output_layer else None
            bring(tensor, module.path, Role.ADAPTERS if adapter else Role.WEIGHTS, low)
            is_head = labels is not None and module is gpt.output_layer
            tensor.requires_grad = job.method == "full" or adapter or is_head
            if visual is not None and module.path.startswith("visual"):
                is_trained = visual.is_trained(module.path, job.vision.trained)
                tensor.requires_grad = job.method == "full" and is_trained
            elif job.vision.trained is not None and "language" not in job.vision.trained:
                tensor.requires_grad = False
    return gpt


def loss_of(job: Job, config: Mapping[str, Any]) -> str:
    """Of `LOSSES`: NeMo's recipes take TransformerEngine's kernel, Megatron what it is asked for."""
    if runs_nemo(job):
        by_kernel = job.loss != "full" and config.get("model_type") not in UNFUSED_LOSS
        return "kernel" if by_kernel else "full"
    return job.loss or "full"


def adapters_of(job: Job) -> dict[str, int]:
    given = job.lora.targets
    assert given is not None, "targets follow from the stack: fill_in comes first"
    if given == "attention":
        names = {"linear_qkv", "linear_proj"}
    elif given == "all-linear":
        names = set(LORA_TARGETS)
    else:
        names = {name for name, usual in LORA_TARGETS.items() if name in given or set(usual) & set(given)}
    return dict.fromkeys(names, job.lora.rank)


def is_first(job: Job, machine: Machine) -> bool:
    return job.parallel.pipeline == 1 or machine.ends is None or machine.ends.embedding


def take_step(job: Job, gpt: GPT, reference: GPT | None, length: int, teacher: MegatronTeacher | None) -> None:
    """1F1B: as many forward passes ahead as there are stages behind this one, all others of the first and none of the
    last. Interleaved: twice as many, and as many more as there are ranks for each piece but one
    (megatron/core/pipeline_parallel/schedules.py, `get_pp_rank_microbatches`)."""
    if job.task == "grpo":
        score_completions(job, gpt, reference, length, teacher)
    elif teacher is not None:
        ask_teacher(job, gpt, teacher, length)
    ranks, chunks, count = job.parallel.pipeline, job.parallel.virtual_stages, job.grad_accum
    behind = ranks - 1 if gpt.first and not (gpt.last and ranks == 1) else 0
    turns = places(count, ranks, chunks)
    ahead = 1 + behind if chunks == 1 else 1 + 2 * behind + (chunks - 1) * min(count, ranks)
    waiting = {now: forward(job, gpt, reference, length, *now) for now in turns[:ahead]}
    for turn, (place, number) in enumerate(turns):
        given, out = waiting.pop((chunks - 1 - place, number))
        backward(out)
        if given is not None:
            given.grad = None  # sent to the stage before
        del given, out
        for now in turns[turn + ahead : turn + ahead + 1]:
            waiting[now] = forward(job, gpt, reference, length, *now)


def score_completions(job: Job, gpt: GPT, reference: GPT | None, length: int, teacher: MegatronTeacher | None) -> None:
    """`_maybe_compute_logps` of every micro-batch, before any is trained on."""
    machine, tokens = gpt.machine, length // job.parallel.context
    for _ in range(job.grad_accum):
        given, labels, images = batch(job, gpt, tokens, gpt.first, gpt.last)
        machine.phase, machine.in_forward = Phase.SCORE, False
        for by_reference in tasks.passes_of_rollout(job):
            with tasks.asked(gpt, reference, by_reference) as found:
                found(given, labels, tokens, **images)
        if teacher is not None and job.distill.place == "card":
            with tasks.asked(gpt, teacher.model, True) as found:
                found(given, labels, tokens, **images)


def ask_teacher(job: Job, gpt: GPT, teacher: MegatronTeacher, length: int) -> None:
    """`_compute_teacher_logits` of every micro-batch, before any is trained on."""
    tokens = length // job.parallel.context
    for _ in range(job.grad_accum):
        if job.distill.place == "server":
            teacher.hear(tasks.rows_of(job), tokens)
            continue
        given, labels, images = batch(job, gpt, tokens, gpt.first, gpt.last)
        with tasks.asked(gpt, teacher.model, True) as found:
            teacher.ask(found, given, labels, tokens, images)


def batch(
    job: Job, gpt: GPT, tokens: int, begins: bool, ends: bool, passes: int = 1
) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
    """What a piece is given: tokens and images, or hidden states of `passes` from the piece before; and labels."""
    machine, rows = gpt.machine, tasks.rows_of(job)
    images: dict[str, Tensor] = {}
    if begins:
        given = machine.run("_to_copy", (), (rows, tokens), INT64)
        images = images_in(machine, image_tensors(machine, rows, tokens))
    else:  # p2p_communication.py: tokens are in parts where tensors are
        ways = job.parallel.tensor if gpt.parts.sequence else 1
        given = machine.run("empty", (), (passes * (tokens // ways), rows, gpt.shape.width), machine.weights_dtype)
    labels = machine.run("_to_copy", (), (tokens, rows), INT64) if ends else None
    return given, labels, images


def forward(
    job: Job, gpt: GPT, reference: GPT | None, length: int, chunk: int, number: int
) -> tuple[Tensor | None, Tensor]:
    """What a later piece is given by the one before, and what the piece makes of it."""
    machine, chunks = gpt.machine, job.parallel.virtual_stages
    gpt.exchange.gathers, gpt.exchange.reduces = number == 0, number == job.grad_accum - 1
    machine.phase, machine.module, machine.in_forward = Phase.OTHER, "", False
    tokens = length // job.parallel.context
    begins, ends = gpt.first and chunk == 0, gpt.last and chunk == chunks - 1
    passes = tasks.passes_sent(job)
    given, labels, images = batch(job, gpt, tokens, begins, ends, passes)
    given.requires_grad = not begins
    machine.phase, machine.in_forward = Phase.FORWARD, True
    beside = []
    for place, by_reference in enumerate(tasks.passes_before(job), 1):
        part = given if begins else given_of(given, passes, place)
        with tasks.asked(gpt, reference, by_reference) as found:
            beside.append(found(part, labels, tokens, chunk, chunks, **images))
    own = given if begins or passes == 1 else given_of(given, passes, 0)
    out = gpt(own, labels, tokens, chunk, chunks, **images)
    if beside and not ends:
        out = F.cat((out, *beside), 0)
    if not ends:  # `deallocate_pipeline_outputs`: its graph stays, its numbers are the next piece's
        out.storage = machine.tensor((1,), out.dtype).storage
    return None if begins else given, out


def given_of(given: Tensor, passes: int, place: int) -> Tensor:
    tokens = given.shape[0] // passes
    return narrow(given, 0, place * tokens, (place + 1) * tokens)
