"""Matrix products, softmax, dropout and convolutions: copies and scratch memory beside their outputs."""

from __future__ import annotations

from tunecast.tape.kernels.shapes import Shaped, name_of
from tunecast.tape.kernels.steps import KernelCall, Rule, Script, nbytes

GROUP_BYTES = 60
"""Grouped product: three pointers, three strides of 8 bytes and a shape of three 4-byte numbers a group."""
GROUPED_SM_BYTES = 512
"""cutlass keeps three 128-byte tensor maps, padded, for each multiprocessor."""


def matrix_product(first: int) -> Rule:
    """An operand cuBLAS cannot walk (no stride of 1, or rows that overlap, as an expanded gradient's do) is copied
    (aten/src/ATen/native/cuda/Blas.cpp, `prepare_matrix_for_cublas`, `prepare_batch_matrix_for_cublas`)."""

    def write(call: KernelCall, script: Script) -> None:
        script.make(*range(len(call.outputs)))
        for operand in call.args[first : first + 2]:
            if not walkable(operand):
                script.borrow(nbytes(operand))

    return write


def walkable(matrix: Shaped) -> bool:
    if matrix.is_contiguous():
        return True
    (rows, columns), (row_stride, column_stride) = matrix.shape[-2:], matrix.stride()[-2:]
    by_column = row_stride == 1 and column_stride >= max(1, rows)
    by_row = column_stride == 1 and row_stride >= max(1, columns)
    return bool(by_column or by_row)


def grouped_product(call: KernelCall, script: Script) -> None:
    """aten/src/ATen/native/cuda/GroupMM.cu, Hopper: the groups' arguments, then cutlass' workspace. Only bf16 is
    multiplied that way; else one group follows the other and nothing is borrowed."""
    script.make(0)
    offsets = call.argument(2, "offs")
    if call.card.capability != (9, 0) or name_of(call.args[0].dtype) != "bfloat16":
        return
    groups = offsets.shape[0] if offsets is not None else call.args[0].shape[0]
    script.borrow(groups * GROUP_BYTES)
    script.borrow(call.card.sm_count * GROUPED_SM_BYTES)


def softmax_backward(call: KernelCall, script: Script) -> None:
    """The product of gradient and result is made first (aten/src/ATen/native/cuda/SoftMax.cu,
    `softmax_backward_cuda_out`); log_softmax has no such buffer."""
    gradient, result = call.args[:2]
    script.make(0)
    script.borrow(gradient.numel() * max(gradient.element_size(), result.element_size()))


def safe_softmax(call: KernelCall, script: Script) -> None:
    """Rows that are masked altogether become 0: a flag an element, a flag a row, the number 0
    (aten/src/ATen/native/transformers/attention.cpp, `_safe_softmax`)."""
    out = call.outputs[0]
    script.make(0)
    script.borrow(out.numel())
    script.borrow(out.numel() // max(1, out.shape[call.args[1]]))
    script.borrow(out.element_size())


def dropout(call: KernelCall, script: Script) -> None:
    """The mask is made before the result while training (aten/src/ATen/native/cuda/Dropout.cu, `dropout_cuda`)."""
    probability, train = call.args[1], call.argument(2, "train", True)
    script.make(*((1, 0) if probability < 1 and (train or train is None) else (0, 1)))


def convolution(call: KernelCall, script: Script) -> None:
    """An input that is not contiguous is copied. Not modelled: the workspace cuDNN picks for dense convolutions."""
    tensor = call.args[0]
    copy = script.borrow(0 if tensor.is_contiguous() or not _depthwise(call, 8) else nbytes(tensor))
    script.make(0)
    script.give_back(copy)


def convolution_backward(call: KernelCall, script: Script) -> None:
    tensor, wanted = call.args[1], call.args[-1]
    depthwise = _depthwise(call, 9)
    copy = script.borrow(0 if tensor.is_contiguous() or not depthwise else nbytes(tensor))
    order = list(range(len(call.outputs)))
    if depthwise and wanted[0] and wanted[1]:
        order[:2] = [1, 0]  # the weight's gradient is made first
    script.make(*order)
    script.give_back(copy)


def columns(call: KernelCall, script: Script) -> None:
    """An image that is not contiguous is copied (aten/src/ATen/native/cuda/Im2Col.cu, `im2col_out_cuda_template`;
    Col2Im.cu, `col2im_out_cuda_template`)."""
    tensor = call.args[0]
    copy = script.borrow(0 if tensor.is_contiguous() else nbytes(tensor))
    script.make(0)
    script.give_back(copy)


def _depthwise(call: KernelCall, groups_place: int) -> bool:
    groups: int = call.args[groups_place]
    return groups > 1


RULES: dict[str, Rule] = {
    "aten::mm": matrix_product(0), "aten::bmm": matrix_product(0),
    "aten::addmm": matrix_product(1), "aten::baddbmm": matrix_product(1), "aten::_grouped_mm": grouped_product,
    "aten::_softmax_backward_data": softmax_backward, "aten::_safe_softmax": safe_softmax,
    "aten::native_dropout": dropout,
    "aten::im2col": columns, "aten::col2im": columns,
    "aten::convolution": convolution, "aten::convolution_backward": convolution_backward,
}  # fmt: skip
