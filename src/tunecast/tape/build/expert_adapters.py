"""LoRA on stacked experts and routers, which are parameters and no linear layers (peft/tuners/lora/layer.py,
`ParamWrapper`; peft/utils/transformers_weight_conversion.py says which names of a target list mean them).

The adapted parameter is the whole stack again, W + B A: made once to check its type when the wrapper is entered, and
once more when the experts read it, which then keep it for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from tunecast.errors import UsageError
from tunecast.job.job import Job
from tunecast.tape.build import functional as F
from tunecast.tape.build.dtypes import Dtype
from tunecast.tape.build.modules import Linear, Module, bring
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import EXCHANGE, Role

MIXTRAL = {"gate": "gate.weight", "w1": "gate_up_proj", "w3": "gate_up_proj", "w2": "down_proj"}
QWEN = {
    "gate": "gate.weight", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "down_proj": "down_proj",
}  # fmt: skip
PARAMETERS: Mapping[str, Mapping[str, str]] = {
    "mixtral": MIXTRAL, "qwen3_moe": QWEN, "olmoe": QWEN, "deepseek_v2": QWEN, "deepseek_v3": QWEN,
}  # fmt: skip
"""Names of linear layers in transformers 4 that are parameters in transformers 5, by architecture."""


def moved_names(model_type: str) -> Mapping[str, str]:
    return PARAMETERS.get(model_type, {})


def insert_parameter_adapters(job: Job, model: Any, wanted: Collection[str] | None) -> list[ParameterLora]:
    """After all linear layers; `wanted` None means every one."""
    moved = moved_names(model.model_type)
    names = {new for old, new in moved.items() if wanted is None or old in wanted}
    if names and (job.lora.dropout or job.lora.dora):
        what = "dropout" if job.lora.dropout else "dora"
        raise UsageError(
            f"lora.{what}: PEFT refuses it for experts and routers, which are parameters here. To fix: lora.{what} 0, "
            "or lora.targets attention.",
            field=f"lora.{what}",
        )
    out = []
    for parent, child, module in list(held_modules(model)):
        for parameter in module.own:
            if parameter in names or f"{child}.{parameter}" in names:
                rank = job.lora.rank * (2 if parameter == "gate_up_proj" else 1)  # two layers in one
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


def held_modules(module: Module) -> Iterator[tuple[Module, str, Module]]:
    for name, child in module.children.items():
        yield module, name, child
        yield from held_modules(child)


class ParameterLora(Module):
    def __init__(self, base: Module, holder: Module, parameter: str, rank: int, scaling: float) -> None:
        super().__init__(base.machine)
        self.base_layer = base
        self.holder: list[Any] = [holder]  # in a list: it is no child of this module
        self.parameter_name, self.scaling = parameter, scaling
        shape = holder.own[parameter].shape
        self.experts = shape[0] if len(shape) == 3 else 1
        self.stored_by_input = getattr(holder, "transposed", False)
        outputs, inputs = reversed(shape[-2:]) if self.stored_by_input else shape[-2:]
        self.lora_A = Linear(base.machine, inputs, rank * self.experts)
        self.lora_B = Linear(base.machine, rank * self.experts, outputs)

    def adapter_dtype(self) -> Dtype:
        return self.holder[0].own[self.parameter_name].dtype

    def adapter_parameters(self) -> list[Tensor]:
        return [self.lora_A.weight, self.lora_B.weight]

    def forward(self, *args: Any) -> Any:
        self.machine.of_host(EXCHANGE)
        holder, name = self.holder[0], self.parameter_name
        weight = holder.own[name]
        proxy = self.by_factors(weight) if self.experts > 1 else self.by_sum(weight)
        proxy()  # whether it changes shape or type
        del holder.__dict__[name]
        holder.computed[name] = proxy
        try:
            return self.base_layer(*args)
        finally:
            holder.computed.clear()
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
