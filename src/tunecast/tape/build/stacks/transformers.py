"""transformers' own loop, with PEFT, bitsandbytes and Liger: what `tape/trace/recipe.py` runs for real."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from tunecast.errors import Unsupported
from tunecast.job.job import Job
from tunecast.job.kernels import CUT_HEAD, LORA_TRITON, chosen_kernels, is_flash, liger_parts
from tunecast.job.stacks import stack_of
from tunecast.job.stored import USUAL, Packing, packing_of
from tunecast.tape.build.adapters import adapt
from tunecast.tape.build.autograd import backward
from tunecast.tape.build.dtypes import FLOAT32, INT64
from tunecast.tape.build.eras import guesses
from tunecast.tape.build.families import model_of
from tunecast.tape.build.machine import Machine, Setup
from tunecast.tape.build.modules import Linear, bring_all
from tunecast.tape.build.optimizers import Optimizer, make_optimizer
from tunecast.tape.build.quantized import Quantizer, change_dtype
from tunecast.tape.build.recompute import first_of
from tunecast.tape.build.repeats import RepeatedPasses, micro_batches
from tunecast.tape.build.sharding import Scheme, scheme_of
from tunecast.tape.build.sharding.scheme import ranks_of
from tunecast.tape.build.stacks import Refusals, leaves_out
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.vision.batches import image_tensors, images_in
from tunecast.tape.op import PASS, Phase

PACKED_LAYERS = {
    "gptq": "gptq", "awq": "packed.awq", "finegrained_fp8": "packed.fp8", "torchao_int8": "packed.torchao",
    "torchao_float8": "packed.torchao",
}  # fmt: skip
"""By `quantization.format`: the module whose layers take the place of plain ones before anything is loaded."""
MADE_ON_CARD = frozenset(PACKED_LAYERS) - {"finegrained_fp8"}
"""Formats whose loading nobody compared: their weights are made on the card, as of steps alone."""
REFUSES: Refusals = {
    "compile": lambda job: (
        job.compile
        and (
            is_flash(job.attention)
            or bool(chosen_kernels(job))
            or job.quantization.format in ("int8", *PACKED_LAYERS)
            or job.vision.has_images
        )
    ),
    "matmul_dtype": lambda job: (
        job.matmul_dtype is not None and (job.compile or bool(chosen_kernels(job)) or job.lora.dora)
    ),
    "loss": lambda job: (
        job.loss == "chunked" and (not stack_of(job).is_plain_loop or bool(chosen_kernels(job)) or job.compile)
    ),
    **leaves_out("stack_version", "offload_activations"),
}
NOT_FUSED = (
    "kernels lora_triton: adapters are taken to run as PEFT's own; fused ones keep less for the backward pass and take "
    "less time"
)
POSITIONS = ("max_position_embeddings", "n_positions")
Making = Callable[[Machine, Mapping[str, Any]], Any]


def model(machine: Machine, config: Mapping[str, Any]) -> Any:
    """The model of a config.json before anything is on the card, or None for an architecture nobody wrote down."""
    return model_of(machine, config)


def setup(job: Job, given: Setup) -> Setup:
    """What of the machine is the stack's own: the kind of checkpointing."""
    own = job.checkpoint_reentrant
    return given._replace(reentrant=given.era.reentrant if own is None else own)


def scheme(job: Job, machine: Machine) -> Scheme:
    return scheme_of(job, machine)


def part(name: str) -> Any:
    """A module of tape/build that few jobs need: loaded when one does, since a cold start is felt."""
    return import_module(f"tunecast.tape.build.{name}")


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    in_trainer = job.data.has_lengths and not job.compile and not job.optimizer_in_backward
    model, parameters, optimizer = prepared(job, config, machine, in_trainer=in_trainer)
    if in_trainer:  # samplers, batches and `run` of a job with samples are the Trainer's, and so is its loop
        trainer = part("stacks.trainer")
        trainer.take_steps(job, model, parameters, optimizer, lengths, trainer.models_loss)
    else:
        take_steps(job, model, parameters, optimizer, lengths)
    machine.end()


def prepared(
    job: Job, config: Mapping[str, Any], machine: Machine, adapting: Callable[[Job, Any], None] = adapt,
    *, in_trainer: bool = False, making: Making = model_of,
) -> tuple[Any, list[Tensor], Optimizer]:  # fmt: skip
    """What stands on the card when the first step begins; `adapting` is the stack's own way to it. The Trainer empties
    the cache (`free_memory`) before it wraps the model (`accelerator.prepare`), so what that leaves stays cached.
    `making` gives the model of a config.json, where it is not the language model."""
    if job.optimizer_in_backward:
        part("optimizers.state").require_one_gradient(job)
    machine.run("zeros", (), (1,), FLOAT32)
    scheme = machine.scheme
    with scheme.loading():
        model = load(job, config, machine, making=making)
        machine.guesses.update(dict.fromkeys(guesses(machine.era, model.model_type)))
        if job.loss == "chunked" and stack_of(job).is_plain_loop:
            part("chunked").apply(model)
        adapting(job, model)
        if job.matmul_dtype is not None:
            part(job.matmul_dtype).apply(model)
        if "foak" in job.kernels:
            part("foak").apply(job, model)
    if in_trainer:
        machine.empty_cache()
    scheme.wrap(model)
    if not in_trainer:
        machine.empty_cache()
    parameters = scheme.parameters(model)
    ends = (model.input_embedding(), model.output_embedding())
    outer = [getattr(module, "base_layer", module).weight for module in ends]  # either may be adapted
    linear = linear_weights(model)
    if job.optimizer_in_backward:
        in_backward = part("optimizers.state").InBackward
        return model, parameters, in_backward(parameters, lambda own: make_optimizer(job, own, outer, linear))
    return model, parameters, scheme.optimizer(parameters, outer, linear)


def linear_weights(model: Any) -> list[Tensor]:
    """Of every linear layer but the head; GPT-2's are none to torch."""
    head = model.output_embedding()
    linear = (module for module in model.modules() if isinstance(module, Linear) and module is not head)
    return [module.weight for module in linear if not module.fan_in_fan_out]


def load(
    job: Job, config: Mapping[str, Any], machine: Machine, reading: Mapping[str, int] | None = None,
    *, over_host: bool = False, cutting: Callable[[Any], None] | None = None, making: Making = model_of,
) -> Any:  # fmt: skip
    """Of steps alone the model is made on the card; `reading` are the options of `load_checkpoint`, where it is read
    all the same, and `over_host` says that it is moved to the card afterwards. `cutting` leaves of each weight what a
    rank has of it, before any memory is taken."""
    if reading is None and reads_checkpoint(job):
        reading = {}
    text = config.get("text_config", config)
    model = making(machine, with_room(config, max(job.lengths or (job.seq_len,))))
    if model is None:
        raise Unsupported.at(
            "model", f"the closed form does not know the architecture {text['model_type']!r}. To fix: --engine traced"
        )
    model.name_all()
    if cutting is not None:
        cutting(model)
    machine.name_head(model.output_embedding().path, model.path)
    model.model_type = text["model_type"]
    packing = packing_of(config) if stack_of(job).uses_accelerate else None
    if packing is not None and job.quantization.format is None:
        model.unpacking = part("packed.unpacking").unpacking_of(packing, model)
    if job.quantization.format in PACKED_LAYERS:
        packing = packing or USUAL[job.quantization.format]
        part(PACKED_LAYERS[job.quantization.format]).replace_linears(model, packing)
    elif job.quantization.format is not None:
        model.quantizer = Quantizer(job, model, text.get("initializer_range", 0.02), packing)
    if packing is not None:
        guess_packing(packing, model)
    if over_host:
        part("checkpoint").move_to_card(model)
    elif reading is not None:
        part("checkpoint").load_checkpoint(model, getattr(model, "quantizer", None), **reading)
    elif hasattr(model, "quantizer"):
        model.quantizer.replace_in(model)
    bring_all(model)
    if job.parallel.expert > 1 and stack_of(job).uses_accelerate:
        part("sharding.deep_ep").spread(model, job.parallel.expert)
    widen_kept(model)
    if reading is not None and not over_host:
        part("checkpoint").draw_initial_weights(model)
    model.tie()
    parts = liger_parts(job)
    if parts and "foak" not in job.kernels:  # foak has its own
        part("liger").apply(model, text["model_type"], parts, stack_of(job).fuses_any_head)
    if CUT_HEAD in job.kernels:
        part("cut_head").apply(model)
    if LORA_TRITON in job.kernels and not stack_of(job).matches_paths:
        machine.guesses[NOT_FUSED] = None
    return model


def widen_kept(model: Any) -> None:
    """As `widen_kept` of tape/trace/recipe.py does: what is loaded in float32 whatever the weights' dtype."""
    kept = part("checkpoint").ALSO_IN_FLOAT32.get(model.model_type)
    for module in model.modules() if kept else ():
        for name, tensor in module.own.items():
            if tensor.requires_grad and tensor.dtype != FLOAT32 and part("checkpoint").own_dtype(model, module, name):
                change_dtype(tensor, FLOAT32)


def guess_packing(packing: Packing, model: Any) -> None:
    """What of a packed checkpoint was not read in a config.json, or is not written down here."""
    machine = model.machine
    if machine.era.release < (5, 0) and packing.method != "gptq":
        release = ".".join(map(str, machine.era.release))
        machine.guesses[f"of transformers {release} what 5.17 makes of a checkpoint in {packing.title} is taken"] = None
    packs_experts = hasattr(model, "quantizer") and model.quantizer.options.experts
    if packing.method == "bitsandbytes" and not packs_experts and any(p.dim() == 3 for p in model.parameters()):
        machine.guesses["experts of a checkpoint stored by bitsandbytes are taken to be stored plain"] = None
    if not packing.stated:
        told = (
            f"{packing.bits} bits, groups of {packing.group}" if packing.method in ("gptq", "awq") else "the usual way"
        )
        machine.guesses[f"no config.json says how {packing.title} holds the weights: {told}"] = None
    computes = packing.compute_dtype
    if computes not in (None, machine.weights_dtype.name):
        machine.guesses[f"4-bit layers compute in {computes} by config.json; {machine.weights_dtype} was taken"] = None


def reads_checkpoint(job: Job) -> bool:
    """A job that lists its samples is a whole program on one card, which loads by `from_pretrained` onto it; of steps
    alone the model was made there."""
    is_packed = job.quantization.format in MADE_ON_CARD or job.quantization.experts
    return job.data.has_lengths and ranks_of(job) == 1 and not is_packed


def with_room(config: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """Tables of positions are made as long as the run needs, as `build` of tape/trace/recipe.py makes them."""
    roomy = {name: max(value, longest) if name in POSITIONS and value else value for name, value in config.items()}
    return {**roomy, "text_config": with_room(config["text_config"], longest)} if "text_config" in config else roomy


def evaluate(job: Job, config: Mapping[str, Any], lengths: Sequence[int], machine: Machine) -> None:
    """Trainer.evaluate: one batch for each of `lengths`."""
    model, _, _ = prepared(job, config, machine)

    def loss_of(inputs: Sequence[Tensor]) -> Tensor:
        with machine.autocasting(machine.scheme.autocast):
            return first_of(model(*inputs[:3], **images_in(machine, inputs[3:])))

    evaluation_loop(job, model, lengths, loss_of)
    machine.end()


def evaluation_loop(
    job: Job, model: Any, lengths: Sequence[int], loss_of: Callable[[Sequence[Tensor]], Tensor],
    collated: Callable[[Job, Machine, int], Sequence[Tensor]] | None = None,
) -> None:  # fmt: skip
    """`evaluation_loop` without compute_metrics (transformers' trainer.py, 5.17.0): outputs go where `prediction_step`
    returns, the batch when the next one takes its name, and of each batch a loss a row is kept. `collated`: batches of
    others than tokens, mask and labels."""
    machine = model.machine
    repeats = stack_of(job).is_plain_loop and not job.compile
    passes_of_batches = RepeatedPasses(machine, (), lengths, repeats)
    inputs: Any = None
    losses: Any = None
    for length in machine.steps(lengths):
        if collated is None:
            inputs = [machine.run("_to_copy", (), (job.micro_batch, length), INT64) for _ in range(3)]
            inputs += image_tensors(machine, job.micro_batch, length)
        else:
            inputs = list(collated(job, machine, length))
        loss = passes_of_batches.repeat(inputs)
        if loss is None:
            machine.phase, machine.in_forward = Phase.FORWARD, True
            machine.of_host(PASS)
            with machine.no_grad():
                loss = loss_of(inputs)
            passes_of_batches.keep(inputs, loss)
        machine.phase, machine.module = Phase.OTHER, ""
        losses = machine.run("repeat", (loss,), (job.micro_batch,), FLOAT32)
        del loss
    del inputs, losses


def take_steps(
    job: Job, model: Any, parameters: Sequence[Tensor], optimizer: Optimizer, lengths: Sequence[int]
) -> None:
    """The loop of `take_steps` in tape/trace/recipe.py."""
    machine, scheme = model.machine, model.machine.scheme
    run = part("compiled").compiled_model(model) if job.compile else model
    repeats = stack_of(job).is_plain_loop and not job.compile  # Unsloth and compilers do more in the first passes
    passes_of_steps = RepeatedPasses(machine, parameters, lengths, repeats)
    batch: list[Any] = [None, None]

    def next_batch(length: int) -> None:
        batch[0] = machine.run("randint", (), (job.micro_batch, length), INT64)
        batch[1] = machine.run("ones_like", batch[:1], batch[0].shape, INT64)
        batch[2:] = image_tensors(machine, job.micro_batch, length)

    def images() -> dict[str, Tensor]:
        return images_in(machine, batch[2:])

    def passes() -> Tensor:
        for micro in micro_batches(machine, job.grad_accum, repeats):
            if micro:
                machine.take_turn(micro)
                next_batch(batch[0].shape[1])
            machine.phase, machine.in_forward = Phase.FORWARD, True
            with scheme.micro_batch(last=micro == job.grad_accum - 1):
                scheme.begin_forward()
                machine.of_host(PASS)
                with machine.autocasting(scheme.autocast):
                    loss = first_of(scheme.end_forward(run(*batch[:2], batch[0], **images()))) / job.grad_accum
                backward(loss)
        return loss

    for length in machine.steps(lengths):
        machine.take_turn(0)
        next_batch(scheme.tokens_of(length))
        loss = passes_of_steps.repeat(batch)
        if loss is None:
            loss = passes()
            passes_of_steps.keep(batch, loss)
        scheme.end_step(parameters, optimizer)
        del loss
    machine.scheme.end()
