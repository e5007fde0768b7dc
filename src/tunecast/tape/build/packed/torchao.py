"""Linear layers over torchao's weight-only formats, int8 and float8, on paper: what they hold and how they run.

Both are made plain in every forward pass, by operations autograd sees: without recomputation every weight is held a
second time, in 16 bits.
Source   torchao 0.18.0, quantization/quantize_/workflows: int8/int8_tensor.py, `Int8Tensor`'s linear;
         float8/float8_tensor.py, `_float8_addmm_impl`; quant_primitives.py, `_dequantize_affine_float8`;
         transformers 5.22.2, quantizers/quantizer_torchao.py, integrations/torchao.py.
"""

from __future__ import annotations

from typing import Any

from tunecast.job.stored import Packing
from tunecast.tape.build import functional as F
from tunecast.tape.build.dtypes import FLOAT8_E4M3, FLOAT32, INT8, Dtype
from tunecast.tape.build.gptq import added_to_view, replace_in
from tunecast.tape.build.modules import Buffer, Linear, Module
from tunecast.tape.build.tensor import Tensor

GUESSED = "torchao: what quantising needs while the checkpoint is loaded is left out"


def replace_linears(model: Any, packing: Packing) -> None:
    kind = LinearInt8 if packing.format == "torchao_int8" else LinearFloat8
    model.machine.guesses[GUESSED] = None
    replace_in(model, model.output_embedding(), kind, packing)


class LinearTorchao(Linear):
    packed_dtype: Dtype

    def __init__(self, linear: Linear) -> None:
        Module.__init__(self, linear.machine)
        self.inputs, self.outputs, self.path = linear.inputs, linear.outputs, linear.path
        self.qdata = self.buffer(linear.outputs, linear.inputs, dtype=self.packed_dtype)
        self.scale = self.buffer(linear.outputs, 1, dtype=FLOAT32)
        self.bias = linear.bias
        self.weight = self.qdata
        self.shown_dtype = linear.machine.weights_dtype
        """What the tensor says of itself, and adapters take."""


class LinearInt8(LinearTorchao):
    packed_dtype = INT8

    def __init__(self, linear: Linear) -> None:
        super().__init__(linear)
        self.zero_point: Buffer = self.buffer(linear.outputs, 1, dtype=INT8)

    def forward(self, x: Tensor) -> Tensor:
        output_dtype, shape = x.dtype, (*x.shape[:-1], self.outputs)
        m = F.mm(x.reshape(-1, self.inputs), self.qdata.t().to(output_dtype))
        y = m * self.scale.to(m.dtype).flatten(0)
        y = y.reshape(*shape) if self.bias is None else added_to_view(y, self.bias, shape)
        return y.to(output_dtype)


class LinearFloat8(LinearTorchao):
    packed_dtype = FLOAT8_E4M3

    def forward(self, x: Tensor) -> Tensor:
        out = F.matmul(x, self.dequantize())
        return out if self.bias is None else out + self.bias

    def dequantize(self) -> Tensor:
        """Of the weight turned round."""
        fp8_tensor = self.qdata.t().to(FLOAT32)
        hp_tensor = fp8_tensor * self.scale.t()
        return hp_tensor.to(self.shown_dtype)
