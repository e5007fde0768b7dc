"""Modules on paper: named, nested, with parameters that come to the card when loading puts them there.

Calling a module holds its arguments until it returns, as `torch.nn.Module.__call__` does: a temporary passed in lives
until then. Forward passes are written with the same local names as the code they follow for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tunecast.tape.build import functional as F
from tunecast.tape.build.dtypes import FLOAT32, Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.tensor import Storage, Tensor
from tunecast.tape.op import Role


class Buffer(Tensor):
    __slots__ = ()


class Module:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.path = ""
        self.children: dict[str, Module] = {}
        self.own: dict[str, Tensor] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Module):
            self.children[name] = value
        elif isinstance(value, Tensor):
            self.own[name] = value
        object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        machine = self.machine
        before, machine.module = machine.module, self.path
        if machine.graph is None:
            machine.calls += 1
        try:
            return self.forward(*args, **kwargs)
        finally:
            machine.module = before

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def draw_initial_weights(self) -> None:
        """What `_init_weights` makes for it on the card, needed or not."""

    def parameter(self, *shape: int) -> Tensor:
        """A weight; it has no memory yet."""
        out = Tensor(self.machine, None, shape, self.machine.weights_dtype)  # type: ignore[arg-type]
        out.requires_grad = True
        return out

    def buffer(self, *shape: int, dtype: Dtype = FLOAT32) -> Buffer:
        """Loaded with the module, never trained."""
        return Buffer(self.machine, None, shape, dtype)  # type: ignore[arg-type]

    def modules(self) -> Iterator[Module]:
        yield self
        for child in self.children.values():
            yield from child.modules()

    def parameters(self) -> Iterator[Tensor]:
        """Each once, in the order of registration."""
        seen: set[int] = set()
        for module in self.modules():
            for tensor in module.own.values():
                if id(tensor) not in seen and not isinstance(tensor, Buffer):
                    seen.add(id(tensor))
                    yield tensor

    def name_all(self, path: str = "") -> None:
        self.path = path or type(self).__name__
        for name, child in self.children.items():
            child.name_all(f"{path}.{name}" if path else name)


class ModuleList(Module):
    def __init__(self, machine: Machine, modules: Iterable[Module] = ()) -> None:
        super().__init__(machine)
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> None:
        setattr(self, str(len(self.children)), module)

    def __iter__(self) -> Iterator[Module]:
        return iter(self.children.values())


def bring(tensor: Tensor, module: str, role: Role = Role.WEIGHTS, dtype: Dtype | None = None) -> None:
    """Memory for a parameter."""
    machine = tensor.machine
    tensor.dtype = dtype or tensor.dtype
    before, machine.module = machine.module, module
    machine.launch("empty", (), tensor.dtype, tensor.nbytes, kernels=0)
    tensor.storage = Storage(machine, machine.allocate(tensor.nbytes))
    machine.module = before
    tensor.block.role = role


def bring_all(model: Module) -> None:
    """What has no memory yet, in the order of the tree."""
    for module in model.modules():
        for tensor in module.own.values():
            if tensor.storage is None:
                bring(tensor, module.path)


class Linear(Module):
    fan_in_fan_out = False
    """PEFT's word for a weight stored by input."""
    stays = False
    """Its model wants it never quantised (`_keep_in_fp32_modules`)."""

    def __init__(self, machine: Machine, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__(machine)
        self.inputs, self.outputs = inputs, outputs
        self.weight = self.parameter(outputs, inputs)
        self.bias: Any = self.parameter(outputs) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class PlainMLP(Module):
    """A layer up, an activation, a layer down, by the names a family gives them."""

    up, activation, down = "fc1", "act", "fc2"
    linear_class: Any = Linear

    def __init__(self, machine: Machine, hidden: int, inner: int, activation: str, bias: bool = True) -> None:
        super().__init__(machine)
        setattr(self, self.up, self.linear_class(machine, hidden, inner, bias))
        setattr(self, self.down, self.linear_class(machine, inner, hidden, bias))
        setattr(self, self.activation, Activation(machine, activation))

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.children[self.up](hidden_states)
        hidden_states = self.children[self.activation](hidden_states)
        hidden_states = self.children[self.down](hidden_states)
        return hidden_states


class Embedding(Module):
    def __init__(self, machine: Machine, rows: int, width: int) -> None:
        super().__init__(machine)
        self.weight = self.parameter(rows, width)
        self.gives_gradient = False
        """PEFT's `enable_input_require_grads`."""

    def forward(self, ids: Tensor) -> Tensor:
        out = F.embedding(self.weight, ids)
        if self.gives_gradient:
            out.requires_grad = True
        return out


class RMSNorm(Module):
    """Llama's: in fp32, back, then the weight."""

    variance_epsilon = 1e-6

    def __init__(self, machine: Machine, width: int) -> None:
        super().__init__(machine)
        self.weight = self.parameter(width)

    def forward(self, hidden_states: Tensor) -> Tensor:
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.float()
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * F.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


class LayerNorm(Module):
    def __init__(self, machine: Machine, width: int, bias: bool = True) -> None:
        super().__init__(machine)
        self.weight = self.parameter(width)
        self.bias: Any = self.parameter(width) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight, self.bias)


def relu_squared(x: Tensor) -> Tensor:
    relu_applied = F.relu(x)
    return relu_applied.pow(2)


def quick_gelu(x: Tensor) -> Tensor:
    return x * (1.702 * x).sigmoid()


def sqrt_softplus(x: Tensor) -> Tensor:
    return F.softplus(x).sqrt()


ACTIVATIONS: dict[str, Any] = {
    "silu": F.silu, "swish": F.silu, "gelu": F.gelu, "gelu_pytorch_tanh": F.gelu, "relu": F.relu,
    "gelu_new": F.gelu_new, "gelu_fast": F.gelu_fast, "relu2": relu_squared,
    "sqrtsoftplus": sqrt_softplus, "quick_gelu": quick_gelu,
}  # fmt: skip
"""transformers/activations.py."""


class NoActivation(Exception):
    """A config.json names a function that is not written down; its argument is the name."""


class Activation(Module):
    def __init__(self, machine: Machine, name: str) -> None:
        super().__init__(machine)
        if name not in ACTIVATIONS:
            raise NoActivation(name)
        self.function = ACTIVATIONS[name]

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Dropout(Module):
    def __init__(self, machine: Machine, probability: float) -> None:
        super().__init__(machine)
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.probability)
