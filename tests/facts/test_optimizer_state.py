"""What real optimizers keep of a parameter, against what is read off their step on paper."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.job.optimizers import OPTIMIZERS
from tunecast.tape.build.optimizers import package_of, state_of

ON_PAPER = [name for name, kind in OPTIMIZERS.items() if kind.paper]

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

SHAPES = ((64, 128), (96,), (512, 256))
"""Of 8-bit optimizers the second is too small, of paged ones only the third large enough."""
CODE_BOOKS = ("qmap1", "qmap2")


def real_optimizer(name: str, parameters: list[Any], folder: str) -> Any:
    arguments = transformers.TrainingArguments(output_dir=folder, optim=name, use_cpu=True, report_to="none")
    kind, options = transformers.Trainer.get_optimizer_cls_and_kwargs(arguments)
    return kind(parameters, **options)


def real_state_bytes(name: str, shape: tuple[int, ...], folder: str) -> list[int]:
    """Of every tensor of its state but the code books; bitsandbytes makes them before its kernels, which want a card,
    would run."""
    parameter = torch.nn.Parameter(torch.zeros(shape))
    parameter.grad = torch.zeros(shape)
    optimizer = real_optimizer(name, [parameter], folder)
    if package_of(name) == "bitsandbytes":
        optimizer.check_overrides()
        optimizer.is_paged = False  # managed memory is a card's
        optimizer.init_state(optimizer.param_groups[0], parameter, 0, 0)
    else:
        optimizer.step()
    kept = {key: value for key, value in optimizer.state[parameter].items() if key not in CODE_BOOKS}
    return sorted(value.untyped_storage().nbytes() for value in kept.values() if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [name for name in ON_PAPER if not OPTIMIZERS[name].projection and name != "muon"])
def test_the_state_of_a_parameter(name: str, shape: tuple[int, ...], tmp_path: Any) -> None:
    try:
        real = real_state_bytes(name, shape, str(tmp_path))
    except (ImportError, ValueError, NotImplementedError) as error:
        pytest.skip(str(error))
    assert sorted(state.nbytes for state in state_of(name, shape, "float32") if not state.shared) == real


def test_every_optimizer_that_can_be_built_says_what_it_keeps() -> None:
    for name in ON_PAPER:
        states = state_of(name, (512, 256), "float32", "linear")
        assert (not states) == (name in ("sgd", "lomo")), name
        assert any(state.paged for state in states) == OPTIMIZERS[name].is_paged
        assert all(state.on_host for state in states if state.paged)
