"""Experts' stacked weights in bitsandbytes' 4 or 8 bits, as Axolotl's `quantize_moe_experts` puts them.

bitsandbytes/nn/parametrize.py, `replace_parameter_4bit`: the packed weight takes the parameter's place, and reading it
gives a dequantised copy, which the products keep for their backward pass. Source: axolotl/monkeypatch/moe_quant.py.
"""

from __future__ import annotations

from tunecast.tape.build.dtypes import FLOAT16, FLOAT32, INT8
from tunecast.tape.build.experts import Experts
from tunecast.tape.build.quantized import Quantizer, QuantState, kept, made
from tunecast.tape.build.tensor import Tensor

READ = "experts in 4 or 8 bits (quantize_moe_experts) follow Axolotl's source and were not traced"


class RowState:
    """8 bits, with a scale a row (`Bnb8bitParametrization`)."""

    def __init__(self, weight: Tensor) -> None:
        machine, (experts, rows, _) = weight.machine, weight.shape
        self.shape, self.dtype = weight.shape, weight.dtype
        half = made(machine, "_to_copy", weight.shape, FLOAT16)
        self.scales = kept(made(machine, "int8_vectorwise_quant", (experts * rows,), FLOAT32))
        self.packed = kept(made(machine, "empty", weight.shape, INT8))
        del half

    def tensors(self) -> list[Tensor]:
        return [self.scales]

    def dequantize(self) -> Tensor:
        return self.packed.machine.run("int8_vectorwise_dequant", (self.packed, self.scales), self.shape, self.dtype)


def quantize(experts: Experts, quantizer: Quantizer) -> None:
    """`_patched_set_param_for_module`: as each arrives, whatever has three dimensions; biases stay."""
    machine, options = experts.machine, quantizer.options
    machine.guesses[READ] = None
    for name in (experts.first, "down_proj"):
        with machine.within(experts.path):
            weight = made(machine, "empty", experts.own[name].shape, machine.weights_dtype)
            if options.format == "int8":
                state: QuantState | RowState = RowState(weight)
            else:
                state = QuantState(weight, options.double_quant, quantizer.tables)
        del weight
        experts.own.pop(name)
        delattr(experts, name)
        setattr(experts, f"{name}_packed", state.packed)
        experts.packed[name] = state
