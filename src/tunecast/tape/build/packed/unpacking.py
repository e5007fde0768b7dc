"""Checkpoints whose weights are taken apart as they are loaded, on paper: MXFP4 and FP8 with `dequantize=True`.

What arrives is packed, what stays is a plain weight: training sees a model that was never quantised.
Source   transformers 5.17.0 and 5.22.2: integrations/mxfp4.py, `Mxfp4Dequantize`, `_convert_moe_packed_tensors`;
         integrations/finegrained_fp8.py, `Fp8Dequantize._dequantize_one`.
Checked  the tracer's from_pretrained, request by request (tests/trace/test_loading.py).
Ignored  before torch 2.13 `ldexp` was several kernels: a power of two for each block of MXFP4, less than an eighth of
         what was there a moment before.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tunecast.errors import UsageError
from tunecast.job.stored import Packing
from tunecast.tape.build.dtypes import BFLOAT16, FLOAT8_E4M3, FLOAT32, INT32, UINT8, Dtype, Shape
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Linear, Module
from tunecast.tape.build.packed.choice import dequantized_assumption
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.op import Role

VALUES_PER_SCALE, VALUES_PER_BYTE = 32, 2
ROWS_AT_ONCE = 32768 * 1024
"""`rows_per_chunk`: so many blocks are looked up at a time."""


class Unpacking:
    """How what a checkpoint holds packed becomes a plain weight."""

    suffix = ""
    """Of the first packed tensor's name in the checkpoint."""

    def __init__(self, packing: Packing, model: Any) -> None:
        self.packing, self.head = packing, model.output_embedding()

    def takes(self, module: Module, name: str, tensor: Tensor) -> bool:
        raise NotImplementedError

    def unpack(self, tensor: Tensor, path: str) -> None:
        """Memory for a parameter, and all that was needed on the way there."""
        with tensor.machine.within(path):
            tensor.storage = self.unpacked(tensor).storage
        tensor.block.role = Role.WEIGHTS

    def unpacked(self, tensor: Tensor) -> Tensor:
        raise NotImplementedError


class UnpackingMXFP4(Unpacking):
    """A layer's experts, whatever the other weights are loaded in: bfloat16."""

    suffix = "_blocks"

    def __init__(self, packing: Packing, model: Any) -> None:
        super().__init__(packing, model)
        if model.machine.weights_dtype != BFLOAT16:
            raise UsageError.at(
                "weights_dtype",
                f"got {model.machine.weights_dtype} with a checkpoint in MXFP4, whose experts become bfloat16 whatever"
                " the others are loaded in. To fix: weights_dtype bfloat16",
            )

    def takes(self, module: Module, name: str, tensor: Tensor) -> bool:
        return name in ("gate_up_proj", "down_proj") and tensor.dim() == 3

    def unpacked(self, tensor: Tensor) -> Tensor:
        machine, (experts, inputs, outputs) = tensor.machine, tensor.shape
        blocks_of = (experts, outputs, inputs // VALUES_PER_SCALE)
        blocks = arrived(machine, (*blocks_of, VALUES_PER_SCALE // VALUES_PER_BYTE), UINT8)
        stored_scales = arrived(machine, blocks_of, UINT8)
        wide = machine.run("_to_copy", (stored_scales,), blocks_of, INT32)
        scales = machine.run("sub", (wide,), blocks_of, INT32)
        del wide
        lut = machine.run("_to_copy", (), (16,), tensor.dtype)
        rows, width = prod(blocks_of), blocks.shape[-1]
        out = machine.run("empty", (), (rows, VALUES_PER_SCALE), tensor.dtype)
        for first in range(0, rows, ROWS_AT_ONCE):
            part = min(rows - first, ROWS_AT_ONCE), width
            for shift in ("bitwise_and", "__rshift__"):
                nibbles = machine.run(shift, (blocks,), part, UINT8)
                places = machine.run("_to_copy", (nibbles,), part, INT32)
                del nibbles
                values = machine.run("index", (lut, places), part, tensor.dtype)
                machine.launch("copy_", (out, values), tensor.dtype, values.nbytes)
                del values, places
            machine.launch("ldexp", (out, scales), tensor.dtype, out.nbytes)
        return machine.run("clone", (out,), tensor.shape, tensor.dtype)


class UnpackingFP8(Unpacking):
    """Linear layers and experts, in blocks with a scale each."""

    def takes(self, module: Module, name: str, tensor: Tensor) -> bool:
        """The head and routers are stored as they are."""
        if tensor.dim() == 3:
            return name in ("gate_up_proj", "down_proj")
        packs = isinstance(module, Linear) and module is not self.head and not module.stays and name == "weight"
        return packs and not self.packing.skips(module.path)

    def unpacked(self, tensor: Tensor) -> Tensor:
        """A weight of its own; releases before 5.21 cast it on the host before it comes."""
        machine = tensor.machine
        quantized = arrived(machine, tensor.shape, FLOAT8_E4M3 if machine.era.keeps_packed_dtype else tensor.dtype)
        scales = self.scales(machine, tensor.shape)
        return self.times_scales(quantized, scales, tensor.dtype)

    def unpacked_experts(
        self, machine: Machine, shape: Shape, dtype: Dtype, experts: int, sources: int
    ) -> list[list[Tensor]]:
        """Those of a layer, one by one once all have come: for each projection its weights."""
        packed = []
        for _ in range(sources):
            weights = [arrived(machine, shape, FLOAT8_E4M3) for _ in range(experts)]
            packed.append((weights, [self.scales(machine, shape) for _ in range(experts)]))
        return [
            [self.times_scales(weight, scale, dtype) for weight, scale in zip(weights, scales, strict=True)]
            for weights, scales in packed
        ]

    def scales(self, machine: Machine, shape: Shape) -> Tensor:
        rows, columns = shape[-2:]
        scale_rows, scale_columns = self.packing.scales(rows, columns)
        if rows % scale_rows or columns % scale_columns:
            raise UsageError.at(
                "model",
                f"a weight of {rows} x {columns} with {scale_rows} x {scale_columns} scales, which transformers refuses"
                " to dequantise. To fix: a checkpoint in bfloat16",
            )
        return arrived(machine, (scale_rows, scale_columns), FLOAT32)

    def times_scales(self, quantized: Tensor, scales: Tensor, dtype: Dtype) -> Tensor:
        wide = quantized.to(FLOAT32)
        scaled = quantized.machine.run("mul", (wide, scales), wide.shape, FLOAT32)
        return scaled.to(dtype)


def arrived(machine: Machine, shape: Shape, dtype: Dtype) -> Tensor:
    """From the checkpoint."""
    return machine.run("_to_copy", (), shape, dtype)


UNPACKINGS: dict[str, type[Unpacking]] = {"mxfp4": UnpackingMXFP4, "fp8": UnpackingFP8}
"""By `quant_method`."""


def unpacking_of(packing: Packing, model: Any) -> Unpacking | None:
    """None where nobody wrote down what loading does, which is then guessed: as of plain weights."""
    machine = model.machine
    machine.assumptions[dequantized_assumption(packing)] = None
    if packing.method in UNPACKINGS:
        return UNPACKINGS[packing.method](packing, model)
    machine.guesses[f"{packing.title}: what dequantising needs while the checkpoint is loaded is left out"] = None
    return None
