"""NVIDIA's NeMo Automodel on paper: its fine-tuning recipe under FSDP 2, of transformers' models and three of its own.

experts.py   Automodel's own experts, in the place of transformers'
lora.py      Automodel's adapters
models.py    what Automodel's own modules do otherwise than transformers'
parallel.py  how Automodel spreads a model: FSDP 2, and what tensor, context, expert and pipeline parallelism leave
pipeline.py  a step of a pipeline's stage
tasks.py     what Automodel trains for beyond the language model's own loss: a student of a teacher, an encoder of texts

Weights stay in the dtype they were loaded in; FSDP 2 gathers them as bf16 and sums gradients in fp32. Alone on a card
nothing is wrapped and nothing cast. Llama, Qwen 2 and Qwen 3 are its own modules: norms are one compiled kernel, and
checkpointing is of attention, MLP and norms each. Of other models checkpointing is of whole layers.

Source   NVIDIA-NeMo/Automodel at 36044ad3 (0.5.0, August 2026): recipes/llm/train_ft.py, `_forward_backward_step`,
         `_run_train_optim_step`; components/distributed/config.py, `FSDP2Config`; parallelizer.py,
         `DefaultParallelizationStrategy`, `apply_fsdp2_sharding_recursively`; activation_checkpointing.py;
         components/loss/masked_ce.py; models/llama, qwen2, qwen3.
Checked  tests/golden/stacks/automodel: its modules, traced alone and as one rank of eight, event for event; of weights
         in 4 bits nothing, nor of other meshes. Two published steps of LoRA on an H100, run with more fused kernels,
         are told 12 and 18 % slower than they were. Of other meshes docs/performance-summary.mdx has steps on H100s:
         over them, tensor parallel LoRA is told at 0.91 to 1.19, Qwen3 30B and gpt-oss with experts split at 0.98 to
         1.23, Nemotron 3 at 1.4 to 1.6.
Ignored  Liger's kernels, which it puts into transformers' models where the package is installed; Transformer Engine's
         rotary kernel, which replaces torch's where that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.job.job import Job
from tunecast.job.kernels import CUT_HEAD, INSTALLED, LORA_TRITON, chosen_kernels
from tunecast.job.names import HEADS
from tunecast.job.shardings import SHARDED, sharding_of
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import backward
from tunecast.tape.build.dtypes import FLOAT32, INT64
from tunecast.tape.build.machine import Machine, Setup
from tunecast.tape.build.optimizers import Optimizer
from tunecast.tape.build.repeats import micro_batches
from tunecast.tape.build.score import use_own_forward
from tunecast.tape.build.sharding.layers import cut_ends
from tunecast.tape.build.sharding.scheme import Scheme
from tunecast.tape.build.stacks import Refusals, leaves_out, transformers
from tunecast.tape.build.stacks.automodel.experts import use_own_experts
from tunecast.tape.build.stacks.automodel.lora import insert_adapters
from tunecast.tape.build.stacks.automodel.models import (
    freeze_towers,
    fuse_norms,
    leave_towers,
    make_own,
    switch_on_checkpointing,
)
from tunecast.tape.build.stacks.automodel.parallel import cut, ends_of_stage, scheme
from tunecast.tape.build.stacks.automodel.pipeline import pipelined
from tunecast.tape.build.stacks.automodel.tasks import AutomodelTeacher, encoder_forward, kd_loss, making, mark
from tunecast.tape.build.stacks.transformers import load, model
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.batches import image_tensors, images_in
from tunecast.tape.op import Phase

__all__ = ["REFUSES", "making", "model", "scheme", "train"]

REFUSES: Refusals = {
    **transformers.REFUSES,
    **leaves_out("compile", "matmul_dtype", "autocast", "checkpoint_reentrant", "optimizer_in_backward"),
    "loss": lambda job: job.loss == "chunked",
    "kernels": lambda job: bool(set(chosen_kernels(job)) - {CUT_HEAD, LORA_TRITON}),
}
LAST_LAYERS = 2
"""The last layer's weights stay between its two passes, which changes when the one before it is gathered."""
OWN_MODELS = ("llama", "qwen2", "qwen3")
OWN_CODE = (
    *("qwen3_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "deepseek_v3", "deepseek_v32", "deepseek_v4"),
    *("gpt_oss", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "minimax_m2", "nemotron_h", "kimi_linear", "kimi_k2"),
    *("mistral4", "ministral3", "mimo_v2_flash", "ernie4_5_moe", "hunyuan_v1_moe", "hy_v3", "bailing_moe", "step3p5"),
    *("laguna", "gemma4_text", "muse_glimmer", "baichuan"),
)
"""Models of its own code that is not written down (_transformers/registry.py)."""
READ = "NeMo Automodel: its modules were traced, but nobody measured the memory of a run"
NOT_WRITTEN = (
    "Automodel's own code of {} is not written down but for experts and norms: transformers' modules stand for the "
    "rest, and torch's kernels for those of Transformer Engine, DeepEP and others"
)
WITH_IMAGES = (
    "of Automodel's training with images transformers' model is taken, its tower frozen and spread as Automodel does; "
    "nobody traced it"
)
WHOLE_IMAGES = "of rows that cards share every card is taken to see all images; nobody traced it"
KD_RATIO = 0.5
"""`kd_ratio` of its recipe, where a file does not say; at 1 the loss of labels is left out."""
NO_LIGER = "Liger's kernels, which Automodel uses where the package is installed, are left out"


def setup(job: Job, given: Setup) -> Setup:
    """Its `cuda` and `fla` extras bring the packages that layers without attention take (pyproject.toml)."""
    return given._replace(kernels=tuple(dict.fromkeys((*given.kernels, *INSTALLED))))


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    kind = config.get("text_config", config)["model_type"]
    # a language model beside a tower is transformers', and so is an encoder
    is_own = kind in OWN_MODELS and machine.pictures is None and job.task not in HEADS
    machine.guesses[READ] = None
    mark(job, machine)
    if machine.pictures is not None:
        machine.guesses[WITH_IMAGES] = None
        if job.parallel.context > 1:
            machine.guesses[WHOLE_IMAGES] = None
    if kind in OWN_CODE:
        machine.guesses[NOT_WRITTEN.format(kind)] = None
    elif not is_own:
        machine.assumptions[NO_LIGER] = None
    machine.run("zeros", (), (1,), FLOAT32)
    scheme = machine.scheme
    with scheme.loading():
        model = load(job, config, machine, cutting=lambda model: cut(job, model), making=making(job))
        if is_own:
            make_own(model, kind)
        elif kind in OWN_CODE:
            fuse_norms(model)
            use_own_experts(job, model)
            machine.use_attention(job.attention)  # fused too where transformers has none, as of gpt-oss
        if job.method != "full":
            insert_adapters(job, model)
        freeze_towers(job, model)
        ends = ends_of_stage(job, machine)
        cut_ends(model, ends)
        if machine.pictures is not None and not ends.embedding:
            leave_towers(model)
    if job.task == "rerank":
        use_own_forward(model)
    elif CUT_HEAD not in job.kernels:
        vars(model)["output"] = lambda logits, labels: logits  # the loss is the recipe's
    if job.gradient_checkpointing:
        whole = not is_own or job.parallel.expert > 1
        switch_on_checkpointing(model, whole_layers=whole)
        model.input_embedding().gives_gradient = whole and type(scheme) is Scheme  # transformers' own
    scheme.wrap(model)
    machine.empty_cache()
    parameters = scheme.parameters(model)
    optimizer = scheme.optimizer(parameters, (), ())
    teacher = AutomodelTeacher(job, config, machine) if job.task == "distill" else None
    take_steps(job, model, parameters, optimizer, lengths, teacher)
    machine.end()


def defaults(job: Job) -> dict[str, Any]:
    """components/distributed/config.py, `FSDP2Config`, `MoEParallelizerConfig`; components/_peft/lora.py, `PeftConfig`;
    the optimizer of its examples, torch.optim.AdamW as it is."""
    ways: dict[str, Any] = {"autocast": None, "gradient_checkpointing": False, "optimizer": "adamw_torch"}
    parallel = job.parallel
    if job.hardware.gpus * job.hardware.nodes > 1 and sharding_of(job).is_replicated:
        ways["parallel.data"] = SHARDED
    if parallel.expert > 1 or parallel.pipeline > 1:
        ways["parallel.reshard_after_forward"] = False
    if job.method != "full":
        ways |= {"lora.adapter_dtype": job.weights_dtype, "lora.rank": 8}
    if job.method == "qlora":
        ways["quantization.prepare_kbit"] = False
    return ways


# ---------------------------------------------------------------------------------------------------------- the loop


def take_steps(
    job: Job, model: Any, parameters: Sequence[Tensor], optimizer: Optimizer, lengths: Sequence[int],
    teacher: AutomodelTeacher | None = None,
) -> None:  # fmt: skip
    """`_run_train_optim_step`. A step's losses live until the next step's are there."""
    machine, scheme = model.machine, model.machine.scheme
    loss_buffer: list[Tensor] = []
    for length in machine.steps(lengths):
        tokens = scheme.tokens_of(length)
        loss_buffer = []
        if job.parallel.pipeline > 1:
            loss_buffer += pipelined(job, model, lambda: forward(job, model, tokens, teacher))  # noqa: B023 (called at once)
        else:
            for number in micro_batches(machine, job.grad_accum):
                with scheme.micro_batch(last=number == job.grad_accum - 1):
                    loss_buffer.append(forward_backward_step(job, model, tokens, teacher))
        scheme.end_step(parameters, optimizer)
    scheme.end()
    loss_buffer.clear()


def forward_backward_step(job: Job, model: Any, length: int, teacher: AutomodelTeacher | None) -> Tensor:
    """The batch and the logits live as long as it runs."""
    dp_group_size = 1
    batch, logits, local_loss = forward(job, model, length, teacher)
    kept: Tensor = local_loss.detach().clone()
    backward(local_loss * dp_group_size)
    del batch, logits
    return kept


def forward(
    job: Job, model: Any, length: int, teacher: AutomodelTeacher | None
) -> tuple[Sequence[Tensor], Tensor, Tensor]:
    """The batch, what the model makes of it, and the loss."""
    if job.task in HEADS:
        return encoder_forward(job, model, length)
    machine = model.machine
    batch = [machine.run("_to_copy", (), (job.micro_batch, length), INT64) for _ in range(3)]
    batch += image_tensors(machine, job.micro_batch, length)
    sees = ends_of_stage(job, machine).embedding  # every stage's batch has images, which the first alone is given
    images = images_in(machine, batch[3:]) if sees else {}
    teacher_logits = None if teacher is None else teacher.logits(batch, images)
    machine.phase, machine.in_forward = Phase.FORWARD, True
    machine.scheme.begin_forward()
    outputs = model(*batch[:3], **images)
    if CUT_HEAD in job.kernels:
        return batch, outputs, outputs
    loss = masked_cross_entropy(outputs, batch[2], widens=job.loss != "low_precision")
    if teacher_logits is not None:
        loss = loss * KD_RATIO + kd_loss(outputs, teacher_logits, batch[2]) * KD_RATIO
    return batch, outputs, loss


def masked_cross_entropy(logits: Tensor, labels: Tensor, widens: bool) -> Tensor:
    """`MaskedCrossEntropy`: logits in fp32 unless `fp32_upcast` is off, and a sum over the labels of all ranks. They
    were shifted before."""
    with logits.machine.within("loss"):
        num_label_tokens = 1  # of all ranks; on the host
        flat = logits.view(-1, logits.shape[-1])
        return F.cross_entropy(flat.float() if widens else flat, labels.view(-1)) / num_label_tokens
