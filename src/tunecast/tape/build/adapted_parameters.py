"""LoRA on stacked experts and routers, which are parameters and no linear layers (peft/tuners/lora/layer.py,
`ParamWrapper`; peft/utils/transformers_weight_conversion.py says which names of a target list mean them).

The adapted parameter is the whole stack again, W + B A: made once to check its type when the wrapper is entered, and
once more when the experts read it, which then keep it for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from tunecast.errors import UsageError
from tunecast.job.job import Job
from tunecast.job.stacks import stack_of
from tunecast.tape.build import functional as F
from tunecast.tape.build.adapted_by_pattern import held_modules
from tunecast.tape.build.dtypes import Dtype
from tunecast.tape.build.experts import Experts
from tunecast.tape.build.modules import Linear, Module, bring
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import EXCHANGE, Role

MIXTRAL = {"gate": "gate.weight", "w1": "gate_up_proj", "w3": "gate_up_proj", "w2": "down_proj"}
QWEN = {
    "gate": "gate.weight", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "down_proj": "down_proj",
}  # fmt: skip
PARAMETERS: Mapping[str, Mapping[str, str]] = {
    "mixtral": MIXTRAL, "minimax_m2": MIXTRAL, "qwen3_moe": QWEN, "qwen3_next": QWEN, "olmoe": QWEN, 
    "deepseek_v2": QWEN, "deepseek_v3": QWEN, "deepseek_v32": QWEN, "glm4_moe": QWEN, "glm4_moe_lite": QWEN,
    "glm_moe_dsa": QWEN, "minimax": MIXTRAL,
}  # fmt: skip
"""Names of linear layers in transformers 4 that are parameters in transformers 5, by architecture."""


def moved_names(model_type: str) -> Mapping[str, str]:
    return PARAMETERS.get(model_type, {})


def parameters_named(job: Job, model: Any) -> set[str]:
    """Targets that mean experts' stacked weights themselves, as `experts.down_proj`: PEFT's `target_parameters`, which
    it compares with the end of a parameter's name."""
    given = job.lora.targets
    paths = [
        f".{module.path}.{name}"
        for module in model.modules()
        if isinstance(module, Experts)
        for name in (*module.own, *module.packed)
    ]
    names = () if given is None or isinstance(given, str) else given
    return {name for name in names if "." in name and any(path.endswith(f".{name}") for path in paths)}


def insert_parameter_adapters(job: Job, model: Any, wanted: Collection[str] | None) -> list[ParameterLora]:
    """After all linear layers; `wanted` None means every one."""
    moved = moved_names(model.model_type)
    names = {new for old, new in moved.items() if wanted is None or old in wanted}
    asked = {name.rpartition(".")[2] for name in parameters_named(job, model)}
    drops = bool(job.lora.dropout) and (bool(asked) or not stack_of(job).drops_before_experts)
    if names | asked and (drops or job.lora.dora):
        what = "dropout" if drops else "dora"
        raise UsageError.at(
            f"lora.{what}",
            f"PEFT refuses it for experts and routers, which are parameters here. To fix: lora.{what} 0, "
            "or lora.targets attention.",
        )
    out = []
    for parent, child, module in list(held_modules(model)):
        packed = module.packed if isinstance(module, Experts) else {}
        for parameter in (*module.own, *packed):
            is_asked = parameter in asked and isinstance(module, Experts)
            if is_asked or parameter in names or f"{child}.{parameter}" in names:
                doubled = parameter == "gate_up_proj" and not is_asked  # two layers in one
                rank = job.lora.rank * (2 if doubled else 1)
                base = parent.children[child]
                adapted = ParameterLora(base, module, parameter, rank, scaling(job))
                adapted.name_all(base.path)
                for part in (adapted.lora_A, adapted.lora_B):
                    bring(part.weight, part.path, Role.ADAPTERS, adapted.adapter_dtype())
                setattr(parent, child, adapted)
                out.append(adapted)
    return out


def scaling(job: Job) -> float:
    return job.lora.alpha / (job.lora.rank**0.5 if job.lora.rslora else job.lora.rank)


class ParameterLora(Module):
    is_off = False
    """`disable_adapters`."""

    def __init__(self, base: Module, holder: Module, parameter: str, rank: int, scaling: float) -> None:
        super().__init__(base.machine)
        self.base_layer = base
        self.holder: list[Any] = [holder]  # in a list: it is no child of this module
        self.parameter_name, self.scaling = parameter, scaling
        shape = self.held().shape
        self.experts = shape[0] if len(shape) == 3 else 1
        self.stored_by_input = getattr(holder, "transposed", False)
        outputs, inputs = reversed(shape[-2:]) if self.stored_by_input else shape[-2:]
        self.lora_A = Linear(base.machine, inputs, rank * self.experts)
        self.lora_B = Linear(base.machine, rank * self.experts, outputs)

    def held(self) -> Any:
        """The parameter, or how it is packed."""
        holder, name = self.holder[0], self.parameter_name
        return holder.own[name] if name in holder.own else holder.packed[name]

    def adapter_dtype(self) -> Dtype:
        found: Dtype = self.held().dtype
        return found

    def adapter_parameters(self) -> list[Tensor]:
        return [self.lora_A.weight, self.lora_B.weight]

    def forward(self, *args: Any) -> Any:
        if self.is_off:
            return self.base_layer(*args)
        self.machine.of_host(EXCHANGE)
        holder, name = self.holder[0], self.parameter_name
        held = self.held()
        weight = held if isinstance(held, Tensor) else held.dequantize()
        proxy = self.by_factors(weight) if self.experts > 1 else self.by_sum(weight)
        proxy()  # whether it changes shape or type
        holder.__dict__.pop(name, None)
        holder.computed[name] = proxy
        try:
            return self.base_layer(*args)
        finally:
            holder.computed.clear()
            if isinstance(held, Tensor):
                object.__setattr__(holder, name, weight)

    def by_sum(self, weight: Tensor) -> Callable[[], Tensor]:
        a = F.cast_for_product(self.lora_A.weight)
        b = F.cast_for_product(self.lora_B.weight)
        delta_weight = F.mm(b, a) * self.scaling
        delta_weight = delta_weight.to(weight.dtype)
        return lambda: weight + delta_weight

    def by_factors(self, weight: Tensor) -> Callable[[], Tensor]:
        weight_a, weight_b = self.lora_A.weight, self.lora_B.weight
        weight_a = weight_a.reshape(self.experts, -1, weight_a.shape[-1])
        weight_b = weight_b.reshape(weight_b.shape[0], -1, self.experts).permute(2, 0, 1)
        if self.stored_by_input:
            lhs, rhs = weight_a.transpose(1, 2), weight_b.transpose(1, 2)
        else:
            lhs, rhs = weight_b, weight_a
        lhs = lhs.to(weight.dtype)
        rhs = rhs.to(weight.dtype)

        def folded() -> Tensor:
            with self.machine.autocasting(None):
                return F.baddbmm(weight, lhs, rhs, self.scaling)

        return folded
