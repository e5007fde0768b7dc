"""The training run a job describes, as plain code a reader would write: real transformers, PEFT, bitsandbytes.

It runs under the tracer, so it is at once what is measured and the documentation of what was assumed.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.job.kernels import INSTALLED, LIGER_PARTS, liger_parts
from tunecast.job.releases import minor
from tunecast.tape.build.adapters import ATTENTION, MAMBA
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.frozen import is_trained
from tunecast.tape.trace.optimizers import RATE, imported, make_optimizer
from tunecast.tape.trace.recorder import Recorder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def train(job: Job, config: Mapping[str, Any], lengths: Sequence[int], recorder: Recorder) -> None:
    """Build the model of `config` on the card and take one optimizer step for each of `lengths`."""
    job = fill_in(job, config)
    if job.vision.has_images or job.vision.trained is not None:
        told = "the traced engine's own program makes no images, and freezes no parts. To fix: --engine built, or trace"
        raise Unsupported.at("vision", f"{told} your own script, `tunecast trace -- train.py`")
    torch.zeros(1, device="cuda")  # every program touches the card before it loads; the cache keeps that segment
    model = build(job, config)
    model.train()
    if job.loss == "chunked":  # TRL's SFTTrainer, which adds it before adapters
        from trl.trainer.utils import add_fused_lm_head

        add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
    model = adapt(job, model)
    if job.matmul_dtype == "float8":  # as accelerate prepares a model
        imported("torchao.float8", "torchao", "convert_to_float8_training", "matmul_dtype")
        imported("accelerate.utils.ao", "accelerate", "convert_model_to_fp8_ao", "matmul_dtype")(model)
    if job.matmul_dtype == "float4":
        multiply_in_float4(model)
    if job.compile:
        model = torch.compile(model)
    take_steps(job, model, lengths, recorder)


def multiply_in_float4(model: Any) -> None:
    """torchao's NVFP4 training, of the layers accelerate would take for float8; its kernels want multiples of 128."""
    from accelerate.utils.ao import find_first_last_linear_layers

    place = "torchao.prototype.moe_training.nvfp4_training.nvfp4_training"
    config = imported(place, "torchao", "NVFP4TrainingConfig", "matmul_dtype")()
    ends = find_first_last_linear_layers(model)

    def chosen(module: Any, name: str) -> bool:
        if not isinstance(module, torch.nn.Linear) or name in ends:
            return False
        return module.in_features % 128 == 0 and module.out_features % 128 == 0

    imported("torchao.quantization", "torchao", "quantize_", "matmul_dtype")(model, config, filter_fn=chosen)


def take_steps(job: Job, model: Any, lengths: Sequence[int], recorder: Recorder) -> None:
    """The loop, whoever built the model: forward, backward, clip, optimizer, over batches of random tokens."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    gc.collect()
    torch.cuda.empty_cache()
    outer = [m.weight for m in (model.get_input_embeddings(), model.get_output_embeddings()) if m is not None]
    optimizer = make_optimizer(job, parameters, outer, model)
    text = model.config.get_text_config()
    # Gemma 3n looks tokens up in a second table too, which is shorter
    vocabulary = min(text.vocab_size, getattr(text, "vocab_size_per_layer_input", text.vocab_size))
    how = {"fused_lm_head": True} if job.loss == "chunked" else {}
    for length in lengths:
        recorder.scopes.begin_step()
        for _ in range(job.grad_accum):
            ids = torch.randint(0, vocabulary, (job.micro_batch, length), device="cuda")
            mask = torch.ones_like(ids)
            with torch.autocast("cuda", DTYPES[job.autocast or "bfloat16"], enabled=job.autocast is not None):
                loss = model(input_ids=ids, attention_mask=mask, labels=ids, **how).loss / job.grad_accum
            if hasattr(optimizer, "fused_backward"):  # the Trainer's lomo_backward
                optimizer.fused_backward(loss, RATE)
            else:
                loss.backward()
        if job.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(parameters, job.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del loss
    recorder.scopes.begin_step()  # what the end of the program frees belongs to no step


def build(job: Job, raw: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    take_kernels(job)
    raw = without_dtype(raw)
    config = AutoConfig.for_model(raw.pop("model_type"), **raw)
    text = config.get_text_config()
    text.use_cache = False
    longest = max(job.lengths or (job.seq_len,))
    if (getattr(text, "max_position_embeddings", None) or longest) < longest:
        text.max_position_embeddings = longest
    attention: str | None = job.attention
    dtype = DTYPES[job.weights_dtype]
    # this imports the model's code: constants it makes belong on the host
    auto: Any = AutoModelForCausalLM
    if type(config) not in auto._model_mapping:  # models with eyes that have no class for text alone
        auto = AutoModelForImageTextToText
    kind = auto._model_mapping[type(config)]
    if attention == "sdpa" and not getattr(kind, "_supports_sdpa", True):
        attention = "eager"  # which transformers takes by itself for models without sdpa
    elif attention == "sdpa" and getattr(config, "audio_config", None) is not None:
        attention = None  # sdpa for all parts but Gemma 4's audio tower, which refuses it
    if job.quantization.format is not None:
        with default_dtype(dtype), torch.device("meta"):
            model = auto.from_config(config, attn_implementation=attention)
        quantize(job, model, dtype)
    else:
        with default_dtype(dtype), torch.device("cuda"), no_initialisation():
            model = auto.from_config(config, attn_implementation=attention)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 0.02) if parameter.dim() > 1 else parameter.fill_(1)
    widen_kept(model)
    if getattr(text, "tie_word_embeddings", config.tie_word_embeddings):
        model.tie_weights()
    parts = liger_parts(job)
    if parts:
        from liger_kernel.transformers.monkey_patch import _apply_liger_kernel_to_instance

        taken = {name: part in parts for part, names in LIGER_PARTS.items() for name in names}
        _apply_liger_kernel_to_instance(model=model, **taken)
    return model


def take_kernels(job: Job) -> None:
    """Models take kernels of packages that they find when they are imported: of those the job names, and no others."""
    for name, module in INSTALLED.items():
        if name not in job.kernels:
            sys.modules[module] = None  # type: ignore[assignment]
        elif find_spec(module) is None:
            raise UsageError(f"kernels: got {name}, and Python finds no {module}. To fix: install it", field="kernels")


def widen_kept(model: Any) -> None:
    """Parameters that `from_pretrained` loads in float32 whatever the weights' dtype."""
    kept = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    for name, parameter in model.named_parameters():
        if not kept.isdisjoint(name.split(".")):
            parameter.data = parameter.data.float()


def without_dtype(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`from_config` would prefer the dtype a checkpoint was saved in to the one the job loads it in."""
    parts = {name: value for name, value in raw.items() if name not in ("dtype", "torch_dtype")}
    return {name: without_dtype(value) if isinstance(value, Mapping) else value for name, value in parts.items()}


def no_initialisation() -> Any:
    """Loading a checkpoint overwrites every weight, so transformers initialises none then."""
    try:
        from transformers.initialization import no_init_weights
    except ImportError:  # transformers 4
        from transformers.modeling_utils import no_init_weights
    return no_init_weights()


def quantize(job: Job, model: Any, dtype: torch.dtype) -> None:
    """Linear by linear, as a loader does: the weight arrives in `dtype` and leaves quantised. The head stays, what the
    model wants to stay, and since transformers 5.5 what is more than nn.Linear (integrations/bitsandbytes.py)."""
    import bitsandbytes as bnb
    from transformers import __version__ as release

    four_bit = job.quantization.format in ("nf4", "fp4")
    head = model.get_output_embeddings()
    kept = tuple(getattr(model, "_keep_in_fp32_modules", None) or ())
    takes_kin = minor(release) < (5, 5)

    def quantized(linear: torch.nn.Linear) -> Any:
        weight = torch.empty(linear.out_features, linear.in_features, dtype=dtype, device="cuda").normal_(0, 0.02)
        shape = (linear.in_features, linear.out_features)
        bias = linear.bias is not None
        if four_bit:
            options = {"compress_statistics": job.quantization.double_quant, "quant_type": job.quantization.format}
            new = bnb.nn.Linear4bit(*shape, bias=bias, compute_dtype=dtype, device="meta", **options)
            new.weight = bnb.nn.Params4bit(weight, requires_grad=False, module=new, **options).to("cuda")
        else:
            new = bnb.nn.Linear8bitLt(*shape, bias=bias, has_fp16_weights=False, threshold=6.0, device="meta")
            new.weight = bnb.nn.Int8Params(weight.cpu(), requires_grad=False, has_fp16_weights=False).to("cuda")
        if bias:
            zeros = torch.zeros(linear.out_features, dtype=dtype, device="cuda")
            new.bias = torch.nn.Parameter(zeros, requires_grad=False)
        return new

    def replace_in(module: torch.nn.Module, path: str = "") -> None:
        for name, child in list(module.named_children()):
            whole = f"{path}.{name}"
            is_kind = isinstance(child, torch.nn.Linear) if takes_kin else type(child) is torch.nn.Linear
            if is_kind and child is not head and not whole.endswith(kept):
                setattr(module, name, quantized(child))
            else:
                replace_in(child, whole)

    replace_in(model)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.device.type == "meta":
                value = torch.empty(parameter.shape, dtype=dtype, device="cuda")
                value = value.normal_(0, 0.02) if value.dim() > 1 else value.fill_(1)
                setattr(module, name, torch.nn.Parameter(value))
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.device.type == "meta":
                zeros = torch.zeros(buffer.shape, dtype=buffer.dtype, device="cuda")
                module.register_buffer(name, zeros, persistent=False)
    model.is_loaded_in_4bit, model.is_loaded_in_8bit = four_bit, not four_bit
    model.is_quantized = True


def adapt(job: Job, model: Any) -> Any:
    adapters = job.method in ("lora", "qlora")
    if adapters:
        from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

        if job.quantization.format is not None and job.quantization.prepare_kbit:
            model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=job.gradient_checkpointing)
        lora = job.lora
        settings = LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            target_modules=targets(job, model),
            exclude_modules=not_adapted(job, model),
            task_type="CAUSAL_LM",
            use_dora=lora.dora,
            use_rslora=lora.rslora,
        )
        try:
            model = get_peft_model(model, settings, autocast_adapter_dtype=lora.adapter_dtype == "float32")
        except ValueError as error:
            raise UsageError(f"lora: PEFT refuses this model and these settings: {error}", field="lora") from None
    if job.trained is not None:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(is_trained(name, job.trained))
    if job.gradient_checkpointing:
        how = {"use_reentrant": bool(job.checkpoint_reentrant)}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
        if adapters:
            model.enable_input_require_grads()
    return model


def not_adapted(job: Job, model: Any) -> str | None:
    """Towers of Gemma 4, whose projections of the usual names PEFT refuses (`Gemma4ClippableLinear`)."""
    named = job.lora.targets not in (None, "all-linear")
    towers = r".*\.(vision_tower|audio_tower)\..*"
    return towers if named and model.config.model_type == "gemma4" else None


def targets(job: Job, model: Any) -> Any:
    wanted = job.lora.targets
    if wanted is None or wanted == "all-linear":
        return wanted  # None: PEFT knows the usual ones of each architecture
    present = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    usual = ATTENTION - {"out_proj"} if model.config.model_type in MAMBA else ATTENTION  # as paper has it
    names = sorted(usual & present) if wanted == "attention" else list(wanted)
    missing = [name for name in names if name not in present]
    if missing or not names:
        linear = sorted({n.rpartition(".")[2] for n, m in model.named_modules() if hasattr(m, "in_features")})
        raise UsageError(
            f"lora.targets: this model has no {', '.join(missing) or 'such modules'}; it has {', '.join(linear)}",
            field="lora.targets",
        )
    return names


class default_dtype:
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __enter__(self) -> None:
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *exception: Any) -> None:
        torch.set_default_dtype(self.before)
