"""The training run of a job on paper: the same program `tape/trace/recipe.py` runs for real."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.tape.build import liger, ops
from tunecast.tape.build.adapters import adapt
from tunecast.tape.build.autograd import backward
from tunecast.tape.build.families import model_of
from tunecast.tape.build.modules import bring
from tunecast.tape.build.optimizers import Optimizer, clip_gradients, make_optimizer
from tunecast.tape.build.quantized import quantize
from tunecast.tape.build.tensor import DTYPES, FLOAT32, INT64, Machine, Tensor
from tunecast.tape.card import Card
from tunecast.tape.op import Phase, Tape

ONE_WORKSPACE_FROM = (2, 13)
"""The torch release whose cublasLt shares cuBLAS' workspace (tape/trace/workspaces.py)."""

POSITIONS = ("max_position_embeddings", "n_positions")


def build(
    job: Job, config: Mapping[str, Any], lengths: Sequence[int], card: Card, torch_version: str = "2.11",
    *, keeps_ops: bool = True, folds: tuple[int, int, int] = (0, -1, 1),
) -> Tape:  # fmt: skip
    """The tape of one optimizer step for each of `lengths`; see `Machine` for `keeps_ops` and `folds`."""
    refuse(job)
    shared = tuple(int(part) for part in torch_version.split(".")[:2]) >= ONE_WORKSPACE_FROM
    machine = Machine(card, DTYPES[job.weights_dtype], job.attention, shared)
    machine.keeps_ops, machine.folds = keeps_ops, folds
    machine.run("zeros", (), (1,), FLOAT32)
    model = load(job, config, machine)
    adapt(job, model)
    machine.empty_cache()
    parameters = [p for p in model.parameters() if p.requires_grad]
    ends = (model.input_embedding(), model.output_embedding())
    outer = [getattr(module, "base_layer", module).weight for module in ends]  # either may be adapted
    optimizer = make_optimizer(job, parameters, outer)
    take_steps(job, model, parameters, optimizer, lengths)
    return Tape(machine.tape_events(), tuple(machine.guesses))


TRACED_INSTEAD = "To fix: --engine traced (it needs torch: pip install 'tunecast[trace]')"


def refuse(job: Job) -> None:
    """What the closed form leaves to the tracer, by name."""
    for field, got, missing in (("stack", job.stack, job.stack != "transformers"), ("compile", "true", job.compile)):
        if missing:
            raise Unsupported(f"{field}: got {got}, which the closed form does not know. {TRACED_INSTEAD}", field=field)


def load(job: Job, config: Mapping[str, Any], machine: Machine) -> Any:
    text = config.get("text_config", config)
    model = model_of(machine, with_room(config, max(job.lengths or (job.seq_len,))))
    if model is None:
        told = f"model: the closed form does not know the architecture {text['model_type']!r}. {TRACED_INSTEAD}"
        raise Unsupported(told, field="model")
    model.name_all()
    machine.head_modules = {model.output_embedding().path, model.path}
    model.model_type = text["model_type"]
    if job.quantization.format is not None:
        quantize(job, model, text.get("initializer_range", 0.02))
    for module in model.modules():
        for tensor in module.own.values():
            if tensor.storage is None:
                bring(tensor, module.path)
    model.tie()
    if "liger" in job.kernels:
        liger.apply(model, text["model_type"])
    return model


def with_room(config: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """Tables of positions are made as long as the run needs, as `build` of tape/trace/recipe.py makes them."""
    roomy = {name: max(value, longest) if name in POSITIONS and value else value for name, value in config.items()}
    return {**roomy, "text_config": with_room(config["text_config"], longest)} if "text_config" in config else roomy


def take_steps(
    job: Job, model: Any, parameters: Sequence[Tensor], optimizer: Optimizer, lengths: Sequence[int]
) -> None:
    """The loop of `take_steps` in tape/trace/recipe.py."""
    machine = model.machine
    dtype = DTYPES[job.autocast] if job.autocast else None
    for step, length in enumerate(lengths):
        machine.step, machine.phase, machine.module = step, Phase.OTHER, ""
        for _ in range(job.grad_accum):
            ids = machine.run("randint", (), (job.micro_batch, length), INT64)
            mask = machine.run("ones_like", (ids,), ids.shape, INT64)
            machine.phase, machine.in_forward = Phase.FORWARD, True
            with machine.autocasting(dtype):
                loss = ops.scale(model(ids, mask, ids), "div")
            backward(loss)
        if job.max_grad_norm:
            clip_gradients(parameters)
        machine.phase = Phase.OPTIMIZER
        optimizer.step()
        machine.phase, machine.module = Phase.OTHER, ""
        optimizer.zero_grad()
        del loss
    machine.step = len(lengths)
