"""`nn.LSTM`, `nn.GRU` and `nn.RNN` as cuDNN runs them: weights in one buffer, one call forward, one backward.

Follows aten/src/ATen/native/cudnn/RNN.cpp, allocation for allocation. What cuDNN asks for inside (`reserve`, which
lives until the backward pass, and `workspace`) only `cudnnGetRNNTempSpaceSizes` tells, and no source shows it: taken is
what the gradient formulas need, and the tape says that it was guessed.

    reserve     of every layer and direction, per row and time step: its gates; of an LSTM also its cell and the cell's
                tanh; of all layers but the last the output, and with dropout the mask of it
    workspace   per row and time step, of one layer in both directions: the gates' inputs

A CPU build of torch has no cuDNN and would run every time step by itself, as it does with cuDNN switched off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tunecast.records import NamedTuple
from tunecast.tape.op import Op
from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder, card_of

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
GUESS = (
    "what cuDNN keeps and borrows for a recurrent layer is not published: taken are its gates and cells until the "
    "backward pass, and the gates' inputs of one layer while it runs"
)
DROPOUT_STATE_BYTES = 2 << 20
"""Random states for the mask, made once on each card: "slightly over 2MB" (RNN.cpp, `get_dropout_state`)."""


class Recurrence(NamedTuple):
    """One call."""

    kind: str
    layers: int
    directions: int
    hidden: int
    width: int
    """Of an output: the hidden size, or that of its projection."""
    has_bias: bool
    dropout: float
    train: bool
    batch_first: bool
    rows: int
    """Rows times time steps."""

    @property
    def reserve_elements(self) -> int:
        parts = GATES[self.kind] + (2 if self.kind == "lstm" else 0)
        between = self.width * (2 if self.dropout else 1)
        return self.rows * self.directions * (self.layers * parts * self.hidden + (self.layers - 1) * between)

    @property
    def workspace_elements(self) -> int:
        return self.rows * self.directions * GATES[self.kind] * self.hidden


def install(recorder: Recorder) -> None:
    def run_through_cudnn(module: ModuleType) -> None:
        module.RNNBase.flatten_parameters = flatten_parameters
        for kind in GATES:
            setattr(torch._VF, kind, call_of(kind, getattr(torch._VF, kind), recorder))
        torch._VF._pack_padded_sequence = pack
        torch._VF._pad_packed_sequence = pad

    after_import("torch.nn.modules.rnn", run_through_cudnn)


def call_of(kind: str, on_host: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    with_state: set[int] = set()

    def run(*args: Any) -> Any:
        """`(input, hidden, weights, ...)`, or with the sizes of batches second of all where rows are packed."""
        packed = isinstance(args[1], torch.Tensor) and isinstance(args[3], (list, tuple))
        data, hidden, weights, *rest = (args[0], *args[2:]) if packed else args
        if not takes_cudnn(data):
            return on_host(*args)
        has_bias, layers, dropout, train, bidirectional = rest[:5]
        states = tuple(hidden) if kind == "lstm" else (hidden,)
        call = Recurrence(
            kind, layers, 1 + bidirectional, states[-1].shape[2], states[0].shape[2], has_bias,
            dropout if train else 0.0, train, not packed and rest[5], data.numel() // data.shape[-1],
        )  # fmt: skip
        recorder.guesses[GUESS] += 1
        if call.dropout and card_of(data) not in with_state:
            with_state.add(card_of(data))
            recorder.allocate(DROPOUT_STATE_BYTES, "cudnn_dropout_state", card_of(data))
        return CudnnRnn.apply(recorder, call, data, len(states), *states, *weights)

    return run


def takes_cudnn(tensor: torch.Tensor) -> bool:
    cudnn = torch.backends.cudnn
    dtypes = {*cudnn.CUDNN_TENSOR_DTYPES}
    is_fake = isinstance(tensor, FakeTensor) and tensor.device.type == "cuda"
    return is_fake and cudnn.enabled and tensor.numel() > 0 and (tensor.dtype in dtypes or torch.is_autocast_enabled())


def flatten_parameters(self: Any) -> None:
    """`copy_weights_to_flat_buf_views`: a buffer for all of them, biases included whether or not there are any."""
    weights = self._flat_weights
    if len(weights) != len(self._flat_weights_names) or not all(isinstance(each, torch.Tensor) for each in weights):
        return
    if any(not takes_cudnn(each) or each.dtype != weights[0].dtype for each in weights):
        return
    if len({each.untyped_storage()._cdata for each in weights}) == 1 < len(weights):
        return  # they lie in one buffer already, and would again
    with torch.no_grad():
        biases = 0 if self.bias else bias_elements(weights, self.num_layers, 1 + self.bidirectional)
        flat = weights[0].new_zeros(sum(each.numel() for each in weights) + biases)
        start = 0
        for each in weights:
            part = flat[start : start + each.numel()].view(each.shape)
            part.copy_(each)
            each.data = part
            start += each.numel()


def bias_elements(weights: Sequence[torch.Tensor], layers: int, directions: int) -> int:
    """Two biases for each layer and direction, each as long as a matrix of its gates is high."""
    return 2 * layers * directions * weights[0].shape[0]


class CudnnRnn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recorder: Recorder, call: Recurrence, data: Any, count: int, *tensors: Any) -> Any:
        states, weights = tensors[:count], tensors[count:]
        dtype = torch.float16 if torch.is_autocast_enabled() else data.dtype
        x = (data.transpose(0, 1) if call.batch_first else data).to(dtype).contiguous()
        states = tuple(state.to(dtype) for state in states)
        flat = flat_weights(weights, dtype)
        output = x.new_empty((*x.shape[:-1], call.directions * call.width))
        after = [torch.empty_like(state) for state in states]
        workspace = x.new_empty(call.workspace_elements)
        reserve = x.new_empty(call.reserve_elements if call.train else 0)
        recorder.launched(_op("_cudnn_rnn", call, weights, x), card_of(x))
        del workspace
        ctx.recorder, ctx.call, ctx.dtypes = recorder, call, (data.dtype, [each.dtype for each in weights])
        ctx.save_for_backward(x, output, reserve, flat, *states, *weights)
        ctx.count = count
        shown = output.transpose(0, 1) if call.batch_first else output
        return (shown, *after)

    @staticmethod
    def backward(ctx: Any, grad_output: Any, *grad_after: Any) -> Any:
        call, count = ctx.call, ctx.count
        x, output, _, flat, *tensors = ctx.saved_tensors
        states, weights = tensors[:count], tensors[count:]
        grads = [torch.zeros_like(s) if g is None else g.contiguous() for s, g in zip(states, grad_after, strict=True)]
        dy = torch.zeros_like(output) if grad_output is None else grad_output
        dy = (dy.transpose(0, 1) if call.batch_first and grad_output is not None else dy).contiguous()
        dx = torch.empty_like(x)
        before = [torch.empty_like(state) for state in states]
        workspace = x.new_empty(call.workspace_elements)
        ctx.recorder.launched(_op("_cudnn_rnn_backward", call, weights, x), card_of(x))
        del workspace, grads, dy
        dw = torch.zeros_like(flat)
        workspace = x.new_empty(call.workspace_elements)
        ctx.recorder.launched(_op("_cudnn_rnn_backward", call, weights, x), card_of(x))
        del workspace
        data_dtype, weight_dtypes = ctx.dtypes
        parts, start = [], 0
        for weight, dtype in zip(weights, weight_dtypes, strict=True):
            part = dw[start : start + weight.numel()].view(weight.shape)
            parts.append(
                part.to(dtype) if call.has_bias else part.to(dtype, copy=True)
            )  # a copy: RNN.cpp, `_copyParams`
            start += weight.numel()
        dx = (dx.transpose(0, 1) if call.batch_first else dx).to(data_dtype)
        return (None, None, dx, None, *before, *parts)


def flat_weights(weights: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """The buffer they lie in; else a new one, made for this call alone."""
    storages = {each.untyped_storage()._cdata for each in weights}
    if len(storages) == 1 and weights[0].dtype == dtype:
        whole = weights[0].untyped_storage().nbytes() // weights[0].element_size()
        return weights[0].detach().as_strided((whole,), (1,), 0)
    return weights[0].new_zeros(sum(each.numel() for each in weights), dtype=dtype)


def _op(name: str, call: Recurrence, weights: Sequence[torch.Tensor], x: torch.Tensor) -> Op:
    matrices = sum(each.numel() for each in weights if each.dim() > 1)
    moved = (matrices + x.numel()) * x.element_size()
    dtype = str(x.dtype).removeprefix("torch.")
    return Op(name, flops=2 * call.rows * matrices, read_bytes=moved, dtype=dtype, shapes=(tuple(x.shape),))


def pack(data: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of falling lengths, time step by time step (aten/src/ATen/native/PackedSequence.cpp)."""
    known = [int(length) for length in lengths.tolist()]
    sizes = [sum(length > step for length in known) for step in range(max(known))]
    return Pack.apply(data.transpose(0, 1) if batch_first else data, sizes), torch.tensor(sizes)


class Pack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, data: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        ctx.shape, ctx.sizes = data.shape, sizes
        return torch.cat([data[step, :size] for step, size in enumerate(sizes)])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        whole, start = gradient.new_zeros(ctx.shape), 0
        for step, size in enumerate(ctx.sizes):
            whole[step, :size].copy_(gradient[start : start + size])
            start += size
        return whole, None


def pad(data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, value: float, total: int) -> Any:
    """Packed rows as they were, behind their ends `value`."""
    sizes = [int(size) for size in batch_sizes.tolist()]
    padded = data.new_full((max(total, len(sizes)), sizes[0], *data.shape[1:]), value)
    start = 0
    for step, size in enumerate(sizes):
        padded[step, :size].copy_(data[start : start + size])
        start += size
    lengths = [sum(size > row for size in sizes) for row in range(sizes[0])]
    return (padded.transpose(0, 1) if batch_first else padded), torch.tensor(lengths)
