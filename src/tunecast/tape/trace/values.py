"""Small integers and flags keep their values.

Fake tensors have shapes but no contents, yet training code reads some: is the mask all ones, how long is this
sequence, which tokens belong to expert 3. Integer and boolean tensors up to a limit (and small float ones on the host)
are therefore computed for real beside their fake twin, on the CPU. What is read and not known is
guessed, and every guess is written down.
"""

from __future__ import annotations

import contextlib
import linecache
import math
import operator
import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from tunecast.tape.trace.chance import DRAWS, Chance
from tunecast.tape.trace.scopes import TORCH_FOLDER, TRACER_FOLDER

if TYPE_CHECKING:
    from tunecast.tape.trace.recorder import Recorder

INTEGERS = {torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64}
MOST_INTEGERS = 1 << 22
MOST_FLOATS = 1 << 16
CONSTANTS = {"aten::ones_like": 1, "aten::zeros_like": 0}
MADE_FROM_NOTHING = ("aten::arange",)
CHOICES = ("aten::multinomial", "aten::argmax")
COMPARISONS = {f"aten::{name}": getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
EMPTY = ("aten::empty", "aten::empty_strided", "aten::new_empty")


class KnownValues:
    def __init__(self, assumptions: Counter[str]) -> None:
        self._assumptions = assumptions
        self.chance = Chance(assumptions)
        self._next_token: int | None = None
        """While a model generates: what it draws from scores that nobody knows."""
        self.gave_sizes = 0
        """How often known values decided how large something is, or were read as whole numbers."""

    def evaluate(self, func: Any, args: Any, kwargs: dict[str, Any], inputs: list[torch.Tensor]) -> Any:
        """The real result where every input is known and it is small; else None."""
        name = func._schema.name
        if name in DRAWS:
            if func._schema.is_mutable and isinstance(args[0], FakeTensor):
                forget(args[0])
            return self.chance.draw(func, name, args, kwargs)
        unknown = next((tensor for tensor in inputs if not _is_readable(tensor)), None)
        if unknown is not None:
            is_fake = isinstance(unknown, FakeTensor)
            return self._without_input_values(func, name, args, kwargs) if is_fake else None
        if not inputs and not _makes_little(name, args, kwargs):
            return None
        if any(word in name for word in ("rand", "dropout", "bernoulli")):
            return None
        result = _compute(func, args, kwargs)
        results = [x for x in tree_flatten(result)[0] if isinstance(x, torch.Tensor)]
        if not all(map(_small, results)):
            return None
        guess = next((g for g in map(guess_behind, inputs) if g), None)
        for tensor in results if guess else ():
            tensor._tunecast_guess = guess
        return result

    def _without_input_values(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        if func._schema.is_mutable and isinstance(args[0], FakeTensor):
            forget(args[0])  # unknown data was written into it
        finite = _if_finite(name, args)
        if finite is not None and args[0].numel() <= MOST_INTEGERS:
            self._assumptions["losses, gradients and weights are taken as finite: no NaN, no infinity"] = 1
            with _disable_current_modes():
                return torch.full(tuple(args[0].shape), finite)
        compared = _compared_as_ones(name, args)
        if compared is not None:
            return compared
        if name in (*CONSTANTS, "aten::full_like") and isinstance(args[0], FakeTensor):
            dtype = kwargs.get("dtype") or args[0].dtype
            most = MOST_INTEGERS if dtype in INTEGERS else 1  # the scalar 1.0 a backward pass starts from
            if args[0].numel() <= most:
                fill = CONSTANTS[name] if name in CONSTANTS else args[1]
                with _disable_current_modes():
                    return torch.full(tuple(args[0].shape), fill, dtype=dtype)
        return None

    def remember(self, out: Any, result: Any) -> None:
        fakes, reals = tree_flatten(out)[0], tree_flatten(result)[0]
        if len(fakes) != len(reals):
            return
        for fake, real in zip(fakes, reals, strict=True):
            if isinstance(fake, FakeTensor) and isinstance(real, torch.Tensor) and real.device.type == "cpu":
                set_known(fake, real)

    def suppose(self, name: str, args: Any, out: Any) -> None:
        """Values nobody can know, made up so that code which reads them can go on: which experts a router picks.

        Balanced, every entry picked equally often: what routers are trained towards. It counts as a guess only where a
        size or a branch depends on it."""
        if name == "aten::topk" and isinstance(out[1], FakeTensor) and known(out[1]) is None:
            indices = out[1]
            if indices.dim() and indices.numel() <= MOST_INTEGERS:
                with _disable_current_modes():
                    choices = torch.arange(indices.numel()) % args[0].shape[-1]
                    indices._tunecast_known = choices.view(indices.shape)  # type: ignore[attr-defined]
                    indices._tunecast_known._tunecast_guess = (  # type: ignore[attr-defined]
                        f"which of {args[0].shape[-1]} entries torch.topk picks at {_reader()} is not known; "
                        "taken as each equally often"
                    )

        if name in CHOICES and self._next_token is not None and known(out) is None:
            with _disable_current_modes():
                out._tunecast_known = torch.full(tuple(out.shape), self._next_token)

    @contextlib.contextmanager
    def drawing(self, token: int) -> Iterator[None]:
        before, self._next_token = self._next_token, token
        try:
            yield
        finally:
            self._next_token = before

    def item(self, tensor: torch.Tensor, recorder: Recorder) -> Any:
        self.relied_on(tensor, recorder)
        with _disable_current_modes():
            if not isinstance(tensor, FakeTensor):
                return tensor.item()
            value = known(tensor)
            if value is not None:
                self.gave_sizes += value.dtype in INTEGERS and value.dtype is not torch.bool
                return value.item()
        where = _reader()
        if tensor.dtype.is_floating_point:
            recorder.assumptions[f"a {tensor.dtype} value read at {where} is taken as 1.0"] += 1
            return 1.0
        answer = False if tensor.dtype == torch.bool else 1
        recorder.guesses[f"a {tensor.dtype} value read at {where} is not known; taken as {answer}"] += 1
        return answer

    def relied_on(self, tensor: Any, recorder: Recorder) -> None:
        """A size or a branch depends on this value: if it was supposed, that is now a guess."""
        guess = guess_behind(tensor)
        if guess:
            recorder.guesses[guess] += 1

    def indices_of_masks(self, indices: Any, recorder: Recorder) -> list[Any]:
        """`x[mask]` runs `nonzero(mask)` on the card; do so with the mask's own count of True."""
        expanded: list[Any] = []
        for index in indices:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                expanded.append(index)
                continue
            with recorder:  # an operation of its own on the card
                positions = torch.nonzero(index)
            expanded += [positions[:, d] for d in range(index.dim())]
        return expanded

    def guess_output(self, name: str, args: Any, recorder: Recorder) -> Any:
        if name == "aten::nonzero":
            recorder.guesses[f"a mask of unknown content at {_reader()} is taken as all True"] += 1
            return torch.empty((args[0].numel(), args[0].dim()), dtype=torch.int64, device="meta")
        raise NotImplementedError(
            f"{name} makes a result whose size depends on data that is not known before the job runs ({_reader()})"
        )

    def as_fake(self, result: Any, device: torch.device) -> Any:
        return tree_map(
            lambda x: torch.empty(tuple(x.shape), dtype=x.dtype, device=device) if isinstance(x, torch.Tensor) else x,
            result,
        )


def _if_finite(name: str, args: Any) -> bool | None:
    """What a test for NaN or infinity answers of ordinary numbers; None for other operations.

    `isfinite(x)` is `(x == x) * (x.abs() != inf)` (aten/src/ATen/native/TensorCompare.cpp).
    """
    if name in ("aten::isnan", "aten::isinf", "aten::isposinf", "aten::isneginf"):
        return False
    if name in ("aten::eq", "aten::ne") and args[0].dtype.is_floating_point:
        if args[1] is args[0]:
            return name == "aten::eq"
        if isinstance(args[1], float) and math.isinf(args[1]):
            return name == "aten::ne"
    return None


def _compared_as_ones(name: str, args: Any) -> torch.Tensor | None:
    """What a comparison of single numbers answers, of which the unknown ones are 1.0, as where a script reads them.
    A loop that goes on while one is too large would never end: it ends at once."""
    compare = COMPARISONS.get(name)
    if compare is None:
        return None
    sides = [_as_one(side) for side in args[:2]]
    if None in sides:
        return None
    place, line = _reading_line()
    answer = compare(*sides) and not line.startswith("while ")
    with _disable_current_modes():
        result = torch.full(tuple(args[0].shape), bool(answer))
    result._tunecast_guess = f"a number compared at {place} is not known; taken as 1"  # type: ignore[attr-defined]
    return result


def _as_one(side: Any) -> float | None:
    if not isinstance(side, torch.Tensor):
        return float(side) if isinstance(side, (int, float)) else None
    if side.numel() != 1 or not (side.dtype.is_floating_point or known(side) is not None):
        return None
    value = known(side) if isinstance(side, FakeTensor) else side
    with _disable_current_modes():
        return 1.0 if value is None else float(value)


def known(tensor: torch.Tensor) -> torch.Tensor | None:
    value = getattr(tensor, "_tunecast_known", None)
    if value is None and isinstance(tensor, FakeTensor):
        value = tensor.constant
    return value


def set_known(tensor: torch.Tensor, value: torch.Tensor | None) -> None:
    tensor._tunecast_known = value  # type: ignore[attr-defined]


def guess_behind(tensor: Any) -> str | None:
    return getattr(known(tensor), "_tunecast_guess", None) if isinstance(tensor, FakeTensor) else None


def forget(tensor: FakeTensor) -> None:
    set_known(tensor, None)
    tensor.constant = None


def _is_readable(tensor: torch.Tensor) -> bool:
    if isinstance(tensor, FakeTensor):
        return known(tensor) is not None and not _many_floats_on_the_card(tensor)
    return _small(tensor) and tensor.device.type == "cpu"


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The result of the known values, on the host; None of an operation the CPU lacks: its value stays unknown."""
    try:
        with _disable_current_modes(), torch.no_grad():
            real_args, real_kwargs = tree_map(_real, args), tree_map(_real, kwargs)
            real_kwargs.pop("pin_memory", None)
            return func(*real_args, **real_kwargs)
    except (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError):
        return None


def _real(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        return known(value)
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _small(tensor: torch.Tensor) -> bool:
    return tensor.numel() <= (MOST_INTEGERS if tensor.dtype in INTEGERS else MOST_FLOATS)


def _many_floats_on_the_card(tensor: torch.Tensor) -> bool:
    """Programs read floats on the host, and single ones; computing a model's own a second time would be in vain."""
    return tensor.dtype not in INTEGERS and tensor.device.type != "cpu" and tensor.numel() > 1


def _makes_little(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Integers anywhere and floats on the host, made from nothing and few."""
    whole = kwargs.get("dtype") in INTEGERS or name in MADE_FROM_NOTHING
    on_host = torch.device(kwargs.get("device") or "cpu").type == "cpu"
    if name in EMPTY or not (whole or on_host):
        return False
    sizes = [a for a in args if isinstance(a, (list, tuple)) and all(isinstance(n, int) for n in a)]
    most = MOST_INTEGERS if whole else MOST_FLOATS
    return all(math.prod(size) <= most for size in sizes)


def _reader() -> str:
    return _reading_line()[0]


def _reading_line() -> tuple[str, str]:
    """The line that reads the value, the innermost one outside torch and the tracer: its place and its text."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((TORCH_FOLDER, TRACER_FOLDER, "<")):
            return f"{file.rpartition('/')[2]}:{frame.f_lineno}", linecache.getline(file, frame.f_lineno).strip()
        frame = frame.f_back
    return "an unknown line", ""
