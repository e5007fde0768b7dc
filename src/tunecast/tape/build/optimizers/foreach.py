"""torch.optim on paper: kernels that take a list of tensors, a list by dtype (torch 2.11, torch/optim).

TransformerEngine's FusedAdam (transformer_engine/pytorch/optimizers/fused_adam.py of 2.20) and FlashOptim's AdamW
(flashoptim/optimizers.py of 0.1.3), both as their source has it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.tape.build.dtypes import BFLOAT16, DTYPES, FLOAT16, FLOAT32, INT8, INT16, INT32, UINT8, Dtype
from tunecast.tape.build.optimizers.state import Optimizer, by_dtype
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.kernels.lists import Lists
from tunecast.tape.op import Role

PAIRS = Lists(2, 1, 2)
"""A list is added to another."""
SCALED = 32
"""Numbers with a scale of their own in FlashOptim's moments (`group_size`)."""
COUNTERS = Lists(0, 0, 1)
"""A number a tensor: next to nothing moves."""


class Foreach(Optimizer):
    """State like the parameter, made when it first has a gradient; then an update a dtype."""

    states = 1
    counts = False
    """The host counts the steps of each parameter in a tensor."""
    held: Sequence[Tensor] = ()
    """What a name of the loop over dtypes holds until the next one's takes its place."""

    def step(self) -> None:
        trained = self.trained()
        for parameter in trained:
            if id(parameter) not in self.state:
                self.state[id(parameter)] = self.first_state(parameter)
        self.machine.module = self.many
        for dtype, group in by_dtype(trained).items():
            self.update(group, dtype)
        self.held = ()

    def first_state(self, parameter: Tensor) -> list[Tensor]:
        if self.counts:
            self.keep_on_host(parameter, ((), FLOAT32))
        return self.made(parameter, *[(parameter.shape, parameter.dtype)] * self.states)

    def update(self, group: list[Tensor], dtype: Dtype) -> None:
        raise NotImplementedError

    def launch(self, group: list[Tensor], dtype: Dtype, *names: str, lists: Lists | None = None) -> None:
        for name in names:
            self.machine.launch(name, group, dtype, 0, lists=lists)

    def copies(self, name: str, group: list[Tensor], dtype: Dtype) -> list[Tensor]:
        """A result for each tensor, each its parameter's module's."""
        machine = self.machine
        out = machine.run_many(name, group, [(p.shape, dtype) for p in group])
        for copy, parameter in zip(out, group, strict=True):
            copy.block.module = self.module_of(parameter)
        return out


class AdamW(Foreach):
    """adam.py, `_multi_tensor_adam`: the square roots are a copy of the second moments."""

    states = 2
    counts = True

    def update(self, group: list[Tensor], dtype: Dtype) -> None:
        self.launch(group, dtype, "_foreach_mul_", "_foreach_lerp_", "_foreach_mul_", "_foreach_addcmul_")
        self.held = self.copies("_foreach_sqrt", group, dtype)
        self.launch(group, dtype, "_foreach_div_", "_foreach_add_", "_foreach_addcdiv_")


class Adam(AdamW):
    """The decay is added to a copy of the gradients, which goes before the square roots come."""

    def update(self, group: list[Tensor], dtype: Dtype) -> None:
        device_grads = self.copies("_foreach_add", group, dtype)
        self.launch(group, dtype, "_foreach_lerp_", "_foreach_mul_", "_foreach_addcmul_")
        del device_grads
        self.held = self.copies("_foreach_sqrt", group, dtype)
        self.launch(group, dtype, "_foreach_div_", "_foreach_add_", "_foreach_addcdiv_")


class FusedAdamW(Foreach):
    """One kernel, nothing borrowed; it counts steps on the card."""

    def first_state(self, parameter: Tensor) -> list[Tensor]:
        like = (parameter.shape, parameter.dtype)
        return self.made(parameter, ((), FLOAT32), like, like)

    def update(self, group: list[Tensor], dtype: Dtype) -> None:
        self.launch(group, FLOAT32, "_foreach_add_", lists=COUNTERS)
        self.launch(group, dtype, "_fused_adamw_")


class SGD(Foreach):
    """Without momentum: no state."""

    states = 0

    def update(self, group: list[Tensor], dtype: Dtype) -> None:
        self.launch(group, dtype, "_foreach_add_", lists=PAIRS)


class RMSprop(Foreach):
    counts = True

    def update(self, group: list[Tensor], dtype: Dtype) -> None:
        self.launch(group, dtype, "_foreach_mul_", "_foreach_addcmul_")
        roots = self.copies("_foreach_sqrt", group, dtype)
        self.launch(group, dtype, "_foreach_add_", "_foreach_addcdiv_")
        del roots


class Adagrad(Foreach):
    """Its sums exist from the start; a step copies them as square roots and the gradients, scaled."""

    counts = True

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        super().__init__(parameters)
        for parameter in parameters:
            self.state[id(parameter)] = self.first_state(parameter)

    def update(self, group: list[Tensor], dtype: Dtype) -> None:
        self.launch(group, dtype, "_foreach_addcmul_")
        roots = self.copies("_foreach_sqrt", group, dtype)
        self.launch(group, dtype, "_foreach_add_")
        scaled = self.copies("_foreach_mul", group, dtype)
        self.launch(group, dtype, "_foreach_addcdiv_")
        del roots, scaled


class ScheduleFreeSGD(Foreach):
    """schedulefree 1.4.1: `z`, a copy of the weights that takes the steps; the weights themselves are averages."""

    def update(self, group: list[Tensor], dtype: Dtype) -> None:
        self.launch(group, dtype, "_foreach_lerp_", "_foreach_add_", "_foreach_sub_")


class ScheduleFreeAdamW(Foreach):
    """adamw_schedulefree.py, and radam_schedulefree.py from its fifth step on: the denominators are a copy of the
    second moments."""

    states = 2

    def update(self, group: list[Tensor], dtype: Dtype) -> None:
        self.launch(group, dtype, "_foreach_mul_", "_foreach_addcmul_")
        denom = self.copies("_foreach_div", group, dtype)
        self.launch(group, dtype, "_foreach_sqrt_", "_foreach_add_", "_foreach_div_", "_foreach_lerp_")
        self.launch(group, dtype, "_foreach_add_", "_foreach_sub_")
        del denom


# ------------------------------------------------------------------------------------------ of other packages, as read

READ = "optimizer {}: its step follows its source and was not traced"


def lists_of(dtype: Dtype, state_bytes: int) -> Lists:
    """Weights and gradients are read with their state, weights and state written: in lists as large as the weights."""
    state = -(-state_bytes // dtype.itemsize)
    return Lists(2 + state, 1 + state, 4)


class TransformerEngineAdam(Foreach):
    """`FusedAdam`: moments in a dtype of their own, whatever the parameter's; `initialize_state`."""

    def __init__(self, parameters: Sequence[Tensor], state_dtype: str = "float32", masters: str = "none") -> None:
        super().__init__(parameters)
        self.machine.guesses[READ.format("te_fused_adam")] = None
        self.moments, self.masters = DTYPES[state_dtype], masters
        self.overflow = self.machine.run("_to_copy", (), (1,), INT32).as_role(Role.OPTIMIZER)

    def first_state(self, parameter: Tensor) -> list[Tensor]:
        shape, master = parameter.shape, self.master_of(parameter)
        scales = [((1,), FLOAT32)] if self.moments is not FLOAT32 else []
        kinds = [(shape, self.moments), *scales, (shape, self.moments), *scales]
        made = self.made(parameter, *kinds, *([] if master is None else [(shape, master)]))
        if master is FLOAT32:
            copy = self.machine.run("clone", (parameter,), shape, parameter.dtype)
            copy.float()
        return made

    def master_of(self, parameter: Tensor) -> Dtype | None:
        if self.masters == "none":
            return None
        return INT16 if self.masters == "remainders" and parameter.dtype is BFLOAT16 else FLOAT32

    def update(self, group: list[Tensor], dtype: Dtype) -> None:
        master = self.master_of(group[0])
        state_bytes = 2 * self.moments.itemsize + (0 if master is None else master.itemsize)
        self.launch(group, dtype, "multi_tensor_adam", lists=lists_of(dtype, state_bytes))


class FlashAdamW(Foreach):
    """Moments of a byte with a scale for each 32; of 16-bit weights a byte more (`master_weight_bits` 24), two (32), or
    none; `_ensure_state_initialized`."""

    def __init__(self, parameters: Sequence[Tensor], masters: str = "") -> None:
        super().__init__(parameters)
        self.machine.guesses[READ.format("flash_adamw")] = None
        self.correction = {"none": None, "remainders": INT16}.get(masters, INT8)

    def first_state(self, parameter: Tensor) -> list[Tensor]:
        shape, scales = parameter.shape, ((-(-parameter.numel() // SCALED),), FLOAT16)
        correction = self.correction_of(parameter.dtype)
        kinds = [(shape, INT8), scales, (shape, UINT8), scales]
        return self.made(parameter, *kinds, *([] if correction is None else [(shape, correction)]))

    def correction_of(self, dtype: Dtype) -> Dtype | None:
        return None if dtype is FLOAT32 else self.correction

    def update(self, group: list[Tensor], dtype: Dtype) -> None:
        correction = self.correction_of(dtype)
        state_bytes = 2 + (0 if correction is None else correction.itemsize)
        self.launch(group, dtype, "flash_adamw", lists=lists_of(dtype, state_bytes))
