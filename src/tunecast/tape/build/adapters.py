"""DoRA on paper (peft 0.21.0, tuners/lora/dora.py): a magnitude for each output beside the low-rank change.

Every forward pass makes the whole change as a matrix (the adapters applied to an identity matrix of the inputs),
adds it to the whole weight and takes the norm of each row.

PEFT on paper: which linear layers are adapted, and how an adapted one runs (peft 0.21.0).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.job.releases import minor
from tunecast.job.stacks import stack_of
from tunecast.tape.build import functional as F
from tunecast.tape.build.adapted_by_pattern import held_modules, matching_layers
from tunecast.tape.build.adapted_parameters import (
    ParameterLora,
    insert_parameter_adapters,
    moved_names,
    parameters_named,
)
from tunecast.tape.build.dtypes import FLOAT16, FLOAT32, Dtype
from tunecast.tape.build.frozen import (
    checkpointing_of,
    embeddings_give_gradient,
    freeze_others,
    freeze_parts,
    is_adapted,
)
from tunecast.tape.build.gptq import KeptLinearGPTQ, LinearGPTQ, added_to_view
from tunecast.tape.build.modules import Dropout, Linear, Module, bring
from tunecast.tape.build.packed.awq import LinearAWQ
from tunecast.tape.build.packed.fp8 import LinearFP8
from tunecast.tape.build.packed.torchao import LinearTorchao
from tunecast.tape.build.quantized import Linear4bit, Linear8bit, change_dtype, prepare_kbit
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Role

# ----------------------------------------------------------------------------------------------------------------- DoRA


class DoraLinear(Module):
    """`DoraLinearLayer`."""

    scaling = 1.0

    def __init__(self, base: Linear) -> None:
        super().__init__(base.machine)
        self.weight = self.parameter(base.outputs)

    def begin(self, base_layer: Linear, lora_A: Tensor, lora_B: Tensor) -> None:
        """`update_layer`: the magnitudes start as the norms of the rows. A 4-bit layer is copied first."""
        half = lora_A.dtype == FLOAT16
        if half:
            lora_A, lora_B = lora_A.float(), lora_B.float()
        copied = base_layer.copied() if isinstance(base_layer, Linear4bit) else None
        weight = stored_by_output(base_layer, whole_weight(base_layer))
        lora_weight = F.mm(lora_B, lora_A)
        if half:
            lora_weight = lora_weight.to(FLOAT16)
        self.weight.dtype = weight.dtype
        self.weight.storage = self.weight_norm(weight, lora_weight).storage
        block = self.weight.block
        block.role, block.module = Role.ADAPTERS, self.path
        del copied

    def weight_norm(self, weight: Tensor, lora_weight: Tensor) -> Tensor:
        """`get_weight_norm`; in fp32 under autocast, then back."""
        weight = weight + self.scaling * lora_weight
        dtype = FLOAT32 if self.machine.autocast is not None else weight.dtype
        norm = self.machine.run("linalg_vector_norm", (weight,), weight.shape[:1], dtype, args=(weight, 2.0, (1,)))
        return norm.to(weight.dtype)

    def forward(self, x: Tensor, lora_A: Any, lora_B: Any, base_layer: Linear, base_result: Tensor | None) -> Tensor:
        lora_weight = self.lora_weight(lora_A, lora_B)
        lora_weight = lora_weight.to(x.dtype)
        magnitude = self.weight
        weight = whole_weight(base_layer)
        weight = stored_by_output(base_layer, weight.to(x.dtype))
        weight_norm = self.weight_norm(weight=weight, lora_weight=lora_weight.detach())
        mag_norm_scale = (magnitude / weight_norm).view(1, -1)
        lora_result = lora_B(lora_A(x))
        if base_result is None:
            base_result = F.linear(x, weight)
        elif base_layer.bias is not None:
            base_result = base_result - base_layer.bias
        return (mag_norm_scale - 1) * base_result + mag_norm_scale * lora_result * self.scaling

    def lora_weight(self, lora_A: Any, lora_B: Any) -> Tensor:
        width, dtype = lora_A.weight.shape[1], lora_A.weight.dtype
        x_eye = self.machine.run("eye", (), (width, width), dtype)
        return lora_B(lora_A(x_eye)).t()


def whole_weight(layer: Linear) -> Tensor:
    """peft/utils/integrations.py, `dequantize_module_weight`."""
    return layer.dequantize() if isinstance(layer, Linear4bit | Linear8bit) else layer.weight


def stored_by_output(layer: Linear, weight: Tensor) -> Tensor:
    """PEFT turns the weights of GPT-2's layers round (`fan_in_fan_out`)."""
    return weight.t() if layer.fan_in_fan_out else weight


# -------------------------------------------------------------------------------------------------------- linear layers


ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "c_attn", "query_key_value", "Wqkv", "out_proj"}
QUERY_AND_VALUE = (
    "bart", "opt", "gptj", "gpt_neo", "llama", "llama4", "mistral", "mixtral", "stablelm", "gemma", "gemma2",
    "gemma3_text", "qwen2", "qwen3",
)  # fmt: skip
USUAL_TARGETS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(QUERY_AND_VALUE, ("q_proj", "v_proj")),
    **dict.fromkeys(("bloom", "gpt_neox", "falcon"), ("query_key_value",)),
    **dict.fromkeys(("gpt2", "gpt_bigcode"), ("c_attn",)),
    "mpt": ("Wqkv",),
    "codegen": ("qkv_proj",),
    "phi": ("q_proj", "v_proj", "fc1", "fc2"),
    "gemma4_text": ("q_proj", "v_proj"),
    "nemotron_h": ("q_proj", "k_proj", "v_proj", "o_proj"),
}
"""peft/utils/constants.py, `TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING`: decoders."""


NOT_CAST = ("gptq", "torchao_int8", "torchao_float8")
"""peft/utils/other.py, `prepare_model_for_kbit_training`: formats whose other parameters stay as they are."""


def adapt(job: Job, model: Any) -> None:
    """What `adapt` of tape/trace/recipe.py does: freeze, insert adapters, switch checkpointing on."""
    if job.method != "full":
        if job.quantization.format not in (None, *NOT_CAST) and job.quantization.prepare_kbit:
            prepare_kbit(model)
        for parameter in model.parameters():
            parameter.requires_grad = False
        insert_adapters(job, model)
    elif job.trained is not None:
        freeze_others(job, model, job.trained)
    else:
        freeze_parts(job, model)
    if job.gradient_checkpointing:
        for owner in (model, *model.towers()):
            for layer in owner.layers():
                layer.checkpoint, layer.wants_input = checkpointing_of(job, layer)
            if job.method != "full" or embeddings_give_gradient(job, model.machine.era):
                embedding = owner.input_embedding()
                if embedding is not None:
                    embedding.gives_gradient = True


def insert_adapters(job: Job, model: Any) -> None:
    """Each comes in its layer's dtype; at the end all become fp32 in the order of the tree, unless
    `autocast_adapter_dtype` is off."""
    order = {module.path: place for place, module in enumerate(model.modules())}
    adapted: list[Any] = [adapter(job, parent, name, child) for parent, name, child in list(targets(job, model))]
    if not stack_of(job).matches_paths:
        adapted += insert_parameter_adapters(job, model, wanted_names(job, model))
    if job.lora.adapter_dtype == "float32":
        for module in sorted(adapted, key=lambda module: order[module.path.removesuffix(".base_layer")]):
            for tensor in module.adapter_parameters():
                if tensor.dtype != FLOAT32:
                    change_dtype(tensor, FLOAT32)


def adapter(job: Job, parent: Module, name: str, base: Linear) -> LoraLinear:
    if getattr(base, "returns_many", False):
        raise UsageError.at(
            "lora.targets",
            f"PEFT adapts {name} of this model and then fails on what it returns. To fix: lora.targets"
            " attention, or a list without it.",
        )
    kind: type[LoraLinear] = LoraLinear
    if isinstance(base, Linear4bit | Linear8bit):
        kind = LoraLinear4bit if isinstance(base, Linear4bit) else LoraLinear8bit
    elif isinstance(base, LinearGPTQ):
        kind = LoraLinearGPTQ if isinstance(base, KeptLinearGPTQ) else LoraQuantLinear
    elif isinstance(base, LinearAWQ | LinearTorchao | LinearFP8):
        kind = LoraLinearAWQ if isinstance(base, LinearAWQ) else LoraLinearPacked
    adapted = kind(base, job.lora.rank, job.lora.dropout_fraction, job.lora.dora)
    adapted.name_all(base.path)
    lora_A, lora_B = adapted.lora_A, adapted.lora_B
    for part in (lora_A, lora_B):
        bring(part.weight, part.path, Role.ADAPTERS, adapted.adapter_dtype())
    if adapted.lora_magnitude_vector is not None:
        adapted.lora_magnitude_vector.begin(base, lora_A.weight, lora_B.weight)
    setattr(parent, name, adapted)
    return adapted


MAMBA = ("falcon_h1", "nemotron_h")
"""peft/tuners/tuners_utils.py, `_check_lora_target_modules_mamba`: those written down."""


def raise_if_of_mamba(job: Job, model_type: str) -> None:
    older = ", or peft_version before 0.20, which did not look" if model_type == "nemotron_h" else ""
    if older and job.peft_version is not None and minor(job.peft_version) < (0, 20):
        return
    refusal = f"PEFT refuses out_proj of {model_type} (\"Module 'out_proj' is incompatible with Mamba-based models\")."
    raise UsageError.at("lora.targets", f"{refusal} To fix: attention, or a list without it{older}.")


@contextlib.contextmanager
def adapters_off(model: Module) -> Iterator[None]:
    """peft/peft_model.py, `disable_adapter`: adapted layers run as the ones they hold."""
    adapted: list[Any] = [module for module in model.modules() if isinstance(module, LoraLinear | ParameterLora)]
    for module in adapted:
        module.is_off = True
    try:
        yield
    finally:
        for module in adapted:
            module.is_off = False


def targets(job: Job, model: Any) -> Iterator[tuple[Module, str, Linear]]:
    """The layers that get an adapter, in the order of the tree, with who holds them and under which name."""
    if stack_of(job).matches_paths:
        return iter(matching_layers(job, model, ATTENTION))
    wanted = wanted_names(job, model)
    moved = moved_names(model.model_type)
    if model.model_type in MAMBA and (wanted is None or "out_proj" in wanted):
        raise_if_of_mamba(job, model.model_type)
    if wanted is not None:
        wanted = set(wanted) - set(moved)
    found = _within(model, wanted, moved, model.output_embedding())
    return (each for each in found if is_adapted(job, model, each[2]))


TEXT_ALONE = "adapters are on layers of the language model: PEFT refuses the towers' of the same names"


def _within(
    module: Module, wanted: Collection[str] | None, moved: Collection[str], head: Module
) -> Iterator[tuple[Module, str, Linear]]:
    for name, child in module.children.items():
        if wanted is None and isinstance(child, Linear) and child is not head and name not in moved:
            yield module, name, child
        elif wanted is not None and name in wanted:
            if getattr(child, "holds_linear", False):
                module.machine.assumptions[TEXT_ALONE] = None
                continue
            if not isinstance(child, Linear):
                raise Unsupported.at("lora.targets", f"the closed form adapts linear layers; {name} is none")
            yield module, name, child
        else:
            yield from _within(child, wanted, moved, head)


PASSED_OVER = "lora.targets: this model has no {}, which PEFT passes over where it has others of them"
"""peft/tuners/tuners_utils.py, `BaseTuner.inject_adapter`: only where none is found it raises."""


def wanted_names(job: Job, model: Any) -> Collection[str] | None:
    """None: every linear layer but the head."""
    given = job.lora.targets
    if given == "all-linear":
        return linear_names(job, model) if stack_of(job).lists_linear else None
    assert given is not None, "targets follow from the model: fill_in comes first"
    present = {name for module in model.modules() for name in module.children} | set(moved_names(model.model_type))
    usual = ATTENTION - {"out_proj"} if model.model_type in MAMBA else ATTENTION  # it is Mamba's there
    asked = parameters_named(job, model)
    names = usual & present if given == "attention" else {last_part(name, model) for name in given if name not in asked}
    if asked and not names:
        return names
    missing = ", ".join(sorted(names - present))
    if not names & present or any("." in name for name in names - present):
        raise UsageError.at("lora.targets", f"this model has no {missing or 'such modules'}")
    if missing:
        model.machine.assumptions[PASSED_OVER.format(missing)] = None
    return names & present


def linear_names(job: Job, model: Any) -> set[str]:
    """Of every linear layer but the head (axolotl/loaders/adapter.py, `find_all_linear_names`), and of parts that stay
    as they are (llamafactory/model/model_utils/misc.py, `find_all_linear_modules`)."""
    head = model.output_embedding()
    linear = [(name, child) for _, name, child in held_modules(model) if isinstance(child, Linear)]
    return {name for name, child in linear if child is not head and is_adapted(job, model, child)}


def last_part(name: str, model: Any) -> str:
    """Of `mlp.up_proj`, which PEFT takes for the end of a path: `up_proj` where all of that name are in an `mlp`."""
    outer, _, last = name.rpartition(".")
    holders = [module.path for module in model.modules() if last in module.children] if outer else []
    return last if holders and all(f".{path}".endswith(f".{outer}") for path in holders) else name


class LoraLinear(Module):
    """peft/tuners/lora/layer.py, `Linear.forward`."""

    scaling = 1.0
    """alpha / rank; factors move no memory, so any number does here as everywhere."""
    is_off = False
    """`disable_adapters`."""

    def __init__(self, base: Linear, rank: int, dropout: float, dora: bool) -> None:
        super().__init__(base.machine)
        self.base_layer = base
        self.lora_dropout = Dropout(base.machine, dropout)
        self.has_dropout = dropout > 0
        """Else it is an nn.Identity; a trainer may set its probability to 0 all the same."""
        self.lora_A = Linear(base.machine, base.inputs, rank)
        self.lora_B = Linear(base.machine, rank, base.outputs)
        self.lora_magnitude_vector = DoraLinear(base) if dora else None

    def adapter_dtype(self) -> Dtype:
        """As it comes: the layer's, where that is a floating one."""
        return self.base_layer.weight.dtype

    def adapter_parameters(self) -> list[Tensor]:
        magnitude = [] if self.lora_magnitude_vector is None else [self.lora_magnitude_vector.weight]
        return [self.lora_A.weight, self.lora_B.weight, *magnitude]

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) if self.is_off else self.adapted(x)

    def adapted(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        torch_result_dtype = result.dtype
        lora_A, lora_B, dropout = self.lora_A, self.lora_B, self.lora_dropout
        x = x.to(lora_A.weight.dtype)
        if self.lora_magnitude_vector is None:
            result = result + lora_B(lora_A(dropout(x))) * self.scaling
        else:
            result = self.with_magnitude(x, result)
        return result.to(torch_result_dtype)

    def with_magnitude(self, x: Tensor, result: Tensor) -> Tensor:
        """peft/tuners/lora/variants.py, `DoraLinearVariant.forward`: with dropout the layer's result is made anew."""
        base_result = None if self.has_dropout else result
        if base_result is None:
            x = self.lora_dropout(x)
        assert self.lora_magnitude_vector is not None
        return result + self.lora_magnitude_vector(
            x, lora_A=self.lora_A, lora_B=self.lora_B, base_layer=self.base_layer, base_result=base_result
        )


class LoraLinear8bit(LoraLinear):
    """peft/tuners/lora/bnb.py, `Linear8bitLt.forward`: conversions only where autocast makes none."""

    def adapter_dtype(self) -> Dtype:
        return FLOAT32

    def adapted(self, x: Tensor) -> Tensor:
        result = self.base_result(x)
        lora_A, lora_B, dropout = self.lora_A, self.lora_B, self.lora_dropout
        expected_dtype = None
        if self.machine.autocast is None:
            expected_dtype = result.dtype
            x = x.to(lora_A.weight.dtype)
        if self.lora_magnitude_vector is not None:
            result = self.with_magnitude(x, result)
            return result.to(expected_dtype or result.dtype)
        output = lora_B(lora_A(dropout(x))) * self.scaling
        output = output.to(expected_dtype or output.dtype)
        return result + output

    def base_result(self, x: Tensor) -> Tensor:
        return self.base_layer(x)


class LoraLinear4bit(LoraLinear8bit):
    """The same, and the result is copied before it is added to."""

    def adapter_dtype(self) -> Dtype:
        assert isinstance(self.base_layer, Linear4bit)
        return self.base_layer.compute_dtype

    def base_result(self, x: Tensor) -> Tensor:
        return self.base_layer(x).clone()


class LoraLinearGPTQ(LoraLinear):
    """peft/tuners/lora/gptq.py, `GPTQLoraLinear.forward`: as for plain layers."""

    def adapter_dtype(self) -> Dtype:
        """gptqmodel's layer shows its scales' dtype as its weight's (`_LinearWeightMetadata`)."""
        assert isinstance(self.base_layer, LinearGPTQ)
        return self.base_layer.scales.dtype


class LoraLinearAWQ(LoraLinear):
    """peft/tuners/lora/awq.py, `AwqLoraLinear.forward`: the change is brought to the result's dtype, then scaled."""

    def adapter_dtype(self) -> Dtype:
        assert isinstance(self.base_layer, LinearAWQ)
        return self.base_layer.scales.dtype

    def adapted(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        lora_A, lora_B, dropout = self.lora_A, self.lora_B, self.lora_dropout
        expected_dtype = None
        if self.machine.autocast is None:
            expected_dtype = result.dtype
            x = x.to(lora_A.weight.dtype)
        output = lora_B(lora_A(dropout(x)))
        output = output.to(expected_dtype or output.dtype)
        output = output * self.scaling
        return result + output


class LoraLinearPacked(LoraLinear):
    """peft/tuners/lora/torchao.py, `TorchaoLoraLinear`, and plain adapters over transformers' FP8 layers."""

    def adapter_dtype(self) -> Dtype:
        """FP8 is a dtype of weights to PEFT too: adapters come in it, and become float32."""
        base = self.base_layer
        return base.shown_dtype if isinstance(base, LinearTorchao) else base.weight.dtype


class LoraQuantLinear(LoraLinear):
    """The same file in PEFT 0.13, `QuantLinear.forward`: added to the layer's result in place."""

    def adapter_dtype(self) -> Dtype:
        """Packed weights have none to take."""
        return FLOAT32

    def adapted(self, x: Tensor) -> Tensor:
        base = self.base_layer
        assert isinstance(base, LinearGPTQ)
        with self.machine.within(base.path):
            result = base.flat(x) if base.bias is None else base.forward(x)
        lora_A, lora_B, dropout = self.lora_A, self.lora_B, self.lora_dropout
        expected_dtype = None
        if self.machine.autocast is None:
            expected_dtype = result.dtype
            x = x.to(lora_A.weight.dtype)
        output = lora_B(lora_A(dropout(x)))
        output = output.to(expected_dtype or output.dtype) * self.scaling
        return added_to_view(result, output, output.shape) if base.bias is None else result.add_(output)
