"""Unmodified scripts under the tracer. Each of `scripts/` is run by a child process; several things a child, since one
needs six seconds to import what it trains with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tunecast.errors import NotResolved, TunecastError, Unsupported
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Begin, Free, Op, Phase, Tape
from tunecast.tape.trace.request import Answer
from tunecast.tape.trace.run import trace_script
from tunecast.tape.trace.script import explained

SCRIPTS = Path(__file__).parent / "scripts"
sys.path.insert(0, str(SCRIPTS))
from tiny import CONFIG  # noqa: E402

VOCABULARY = CONFIG["vocab_size"]
SCALAR_BYTES = 8
"""Trainers keep sums and counts as tensors of one value; those are not what this is about."""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Scripts run in a folder of their own, with a Hub cache of their own."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    return folder


def trace(name: str, *args: str, steps: int = 0, **options: object) -> tuple[Tape, Answer]:
    return trace_script(str(SCRIPTS / name), args, Card(), steps=steps, **options)  # type: ignore[arg-type]


def phases(tape: Tape) -> list[tuple[int, Phase]]:
    seen = [(event.step, event.phase) for event in tape.events if isinstance(event, Begin)]
    return [now for before, now in zip([None, *seen], seen, strict=False) if now != before]


def allocations(tape: Tape, step: int, phase: Phase) -> Counter[int]:
    found: Counter[int] = Counter()
    now = (0, Phase.LOAD)
    for event in tape.events:
        if isinstance(event, Begin):
            now = (event.step, event.phase)
        elif isinstance(event, Alloc) and now == (step, phase) and event.nbytes > SCALAR_BYTES:
            found[event.nbytes] += 1
    return found


# ---------------------------------------------------------------------- how a script ends


@pytest.mark.parametrize("how", ["forever", "eval", "save", "swallow"])
def test_stops_after_the_steps_asked_for(how: str, own_folder: Path) -> None:
    tape, answer = trace("loop.py", how, steps=2)
    assert (answer.steps, answer.finished, answer.error) == (2, False, None)
    of_a_step = [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER]
    trained = [(step, phase) for step, phase in phases(tape) if phase is not Phase.LOAD and step < 2]
    assert [p for s, p in trained if s == 1 and p is not Phase.CLIP] == of_a_step
    # weight 8 x 4, bias 4, input 2 x 8, output 2 x 4: what the second step still holds is freed by the end
    freed = {e.block for e in tape.events if isinstance(e, Free)}
    alive = {e.block for e in tape.events if isinstance(e, Alloc)} - freed
    sizes = sorted(e.nbytes for e in tape.events if isinstance(e, Alloc) and e.block in alive and e.nbytes < 1 << 20)
    sources = [op.source.rpartition("/")[2] for op in tape.ops() if op.source]
    assert sources[0] == "loop.py:10" and {source.partition(":")[0] for source in sources} == {"loop.py"}
    assert sizes in ([], [16, 128]), "only the model outlives the loop, and only where the process is left at once"
    assert os.listdir(own_folder) == []


def test_a_mistake_after_a_whole_step_keeps_the_tape() -> None:
    tape, answer = trace("loop.py", "mistake", steps=2)
    assert answer.error == "ValueError: my own mistake" and answer.steps == 1 and not answer.finished
    assert "loop.py" in answer.detail and "tunecast/tape" not in answer.detail
    assert any(isinstance(event, Op) for event in tape.events)


def test_an_exit_code_is_an_error() -> None:
    _, answer = trace("loop.py", "exit", steps=2)
    assert answer.error == "the script ended with code 3"


def test_leaving_at_once_keeps_the_tape(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LEAVES)
    tape, answer = trace_script(str(script), ["0"], Card())
    assert (answer.steps, answer.finished, answer.error) == (1, True, None)
    assert any(isinstance(event, Alloc) for event in tape.events)
    assert trace_script(str(script), ["3"], Card())[1].error == "the script ended with os._exit(3)"


LEAVES = """
import os, sys, torch
model = torch.nn.Linear(8, 4).cuda()
model(torch.ones(2, 8, device="cuda")).sum().backward()
torch.optim.SGD(model.parameters(), 0.1).step()
os._exit(int(sys.argv[1]))
"""


def test_what_fails_before_a_step_is_an_error_with_its_place(tmp_path: Path) -> None:
    for text, error, told in (
        ("import there_is_no_such_package", NotResolved, "there_is_no_such_package"),
        (IMPORTS_LATE, NotResolved, "imports there_is_no_such_package, which"),
        ("1 / 0", TunecastError, "line 1"),
        (WITHOUT_SHAPES, Unsupported, "mine::twice"),
    ):
        script = tmp_path / "script.py"
        script.write_text(text)
        with pytest.raises(error, match=told):
            trace_script(str(script), [], Card(), steps=1)
    with pytest.raises(NotResolved, match=r"no script nowhere\.py"):
        trace_script("nowhere.py", [], Card(), steps=1)


IMPORTS_LATE = """
try:
    import there_is_no_such_package
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("Could not import module 'AutoModel'") from error
"""
WITHOUT_SHAPES = """
import torch
@torch.library.custom_op("mine::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2
twice(torch.ones(3, device="cuda"))
"""


def test_inference_mode_reads_values_and_moves_known_tensors(own_folder: Path) -> None:
    """Below autograd, where inference mode is, `to`, `item` and `where` come whole. Lightning evaluates so."""
    (own_folder / "script.py").write_text(
        "import torch\n"
        "with torch.inference_mode():\n"
        "    three = torch.tensor(3, device='cuda')\n"
        "    assert three.device.type == 'cuda' and three.item() == 3\n"
        "    mean = torch.ones(8, 1024).to('cuda').mean()\n"
        "    assert isinstance(mean.item(), float)\n"
        "    assert torch.where(torch.tensor([0, 3, 4], device='cuda') > 2)[0].tolist() == [1, 2]\n"
    )
    tape, answer = trace_script("script.py", [], Card())
    assert answer.error is None and answer.finished
    assert [op.name for op in tape.ops()] == ["_to_copy", "_to_copy", "mean", "_to_copy", "gt", "nonzero"]
    assert 8 * 1024 * 4 in [event.nbytes for event in tape.events if isinstance(event, Alloc)]


def test_what_torchscript_would_compile_runs_as_it_is_written(own_folder: Path) -> None:
    """A tensor that its interpreter made on the card ended the process. torch.distributed.optim compiles when it is
    imported, as Axolotl does; a function that is compiled and never called is worth no word."""
    (own_folder / "script.py").write_text(
        "import torch, torch.distributed.optim\n"
        "@torch.jit.script\n"
        "def shift(x):\n"
        "    return x + torch.tensor([1.0, 2.0, 3.0], device=x.device)\n"
        "@torch.jit.script\n"
        "def unused(x):\n"
        "    return x * 2\n"
        "layer = torch.nn.Linear(3, 3, device='cuda')\n"
        "optimizer = torch.optim.SGD(layer.parameters())\n"
        "shift(layer(torch.ones(2, 3, device='cuda'))).sum().backward()\n"
        "optimizer.step()\n"
    )
    tape, answer = trace_script("script.py", [], Card())
    assert answer.error is None and answer.finished and answer.steps == 1
    assert list(tape.guesses) == ["shift is compiled by TorchScript, which may fuse it; traced as written"]


def test_kernels_of_xformers_are_refused_with_the_way_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unsloth takes them on a card like the H200, where xformers is installed."""
    error = RuntimeError("There was no fake impl registered for <CustomOpDef(flash_attn_3.fwd)>.")
    found = explained(error)
    assert found is not None and "torch.library.register_fake" in str(found)
    monkeypatch.setitem(sys.modules, "xformers", ModuleType("xformers"))
    found = explained(error)
    assert found is not None and "an environment without xformers" in str(found)


def test_lines_are_named_from_the_working_folder_and_packages_of_any_environment_are_no_ones_own(
    own_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package may lie in another environment's folder: the user's site, or one that a .pth file adds."""
    packages = tmp_path / "other" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "layers.py").write_text("def relu(x):\n    return x.relu()\ndef is_small(x):\n    return x < 5\n")
    (own_folder / "models").mkdir()
    (own_folder / "models" / "net.py").write_text("import layers\ndef forward(x):\n    return layers.relu(x)\n")
    (own_folder / "script.py").write_text(
        "import torch, layers\n"
        "from models.net import forward\n"
        "x = forward(torch.ones(1024, 1024, device='cuda'))\n"
        "layers.is_small(x.sum().item())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(packages))
    tape, answer = trace_script("script.py", [], Card())
    assert answer.error is None and answer.finished
    assert f"models/net.py:3 > {packages}/layers.py:2" in [op.source for op in tape.ops()]
    assert not tape.guesses


def test_flags_drawn_on_the_host_select_as_many_as_a_real_run(own_folder: Path) -> None:
    """As transformers' collator of masked language modelling does: the flags of a seed are the same here and there."""
    torch.manual_seed(0)
    count = int(torch.bernoulli(torch.full((8, 64), 0.15)).sum())
    (own_folder / "script.py").write_text(
        "import torch\n"
        "torch.manual_seed(0)\n"
        "flags = torch.bernoulli(torch.full((8, 64), 0.15)).bool()\n"
        f"assert len(torch.randint(9, (8, 64))[flags]) == {count}\n"
    )
    _, answer = trace_script("script.py", [], Card())
    assert answer.error is None and answer.finished


def test_a_module_runs_as_python_m_would(own_folder: Path) -> None:
    package = own_folder / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(
        "import sys\nfrom mine import __name__ as parent\n"
        "assert __name__ == '__main__' and parent == 'mine' and sys.argv[1:] == ['--a', 'b']\n"
    )
    _, answer = trace_script("mine.train", ["--a", "b"], Card(), as_module=True)
    assert answer.finished and answer.error is None


# ---------------------------------------------------------------------- what a script may touch


def test_nothing_outside_changes(own_folder: Path, tmp_path: Path) -> None:
    rows = json.dumps([{"text": "abc"}, {"text": "abcd"}])
    contents = {"keep.txt": "as it was", "notes.txt": "old", "data.json": rows}
    for name, text in contents.items():
        (own_folder / name).write_text(text)
    tape, answer = trace("writes.py")
    assert answer.error is None and answer.finished
    assert {path.name: path.read_text() for path in own_folder.iterdir()} == contents
    assert not (tmp_path / "hub").exists()
    told = "\n".join(answer.untraced)
    for refused in ("'touch touched'", "a second Python process", "192.0.2.1", "example.org"):
        assert refused in told
    assert any("saving tensors was skipped" in text for text in tape.assumptions), "no byte depends on it"
    assert "uname" not in told


def test_data_come_in_the_order_torch_draws() -> None:
    real = subprocess.run([sys.executable, str(SCRIPTS / "order.py")], check=True, capture_output=True, text=True)
    _, answer = trace("order.py", real.stdout.strip())
    assert answer.error is None


# ---------------------------------------------------------------------- models


def test_models_by_name_need_only_their_configuration(tmp_path: Path, own_folder: Path) -> None:
    snapshot = tmp_path / "hub/hub/models--some--cached-model/snapshots/1234"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(CONFIG))
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs/main").write_text("1234")
    wider = CONFIG | {"hidden_size": 96}
    with pytest.raises(NotResolved, match=r"nobody/nothing.*--model nobody/nothing=path/to/config\.json"):
        trace("names.py", models={"some/offered-model": wider})
    assert os.listdir(own_folder) == []


# ---------------------------------------------------------------------- trainers


def test_the_trainer_does_what_a_loop_does_and_widens_the_logits() -> None:
    """Steps 0, 1 are the Trainer's and 2, 3 a loop's with the same model and batch; the rest only has to run."""
    tape, answer = trace("trainers.py", "--all")
    assert (answer.error, answer.finished, answer.steps) == (None, True, 16)
    assert not tape.guesses
    logits = 2 * 32 * VOCABULARY * 4
    trainer, loop = (allocations(tape, step, Phase.FORWARD) for step in (1, 3))
    # accelerate hands outputs of an autocast forward back in float32 (`convert_outputs_to_fp32`)
    assert trainer[logits] == loop[logits] + 1
    assert trainer - loop == Counter({logits: 1})
    for phase in (Phase.BACKWARD, Phase.OPTIMIZER):
        assert allocations(tape, 1, phase) == allocations(tape, 3, phase)
    assert any("no float16 gradient overflows" in text for text in tape.assumptions)
    assert any("saving tensors was skipped" in text for text in tape.assumptions) and not answer.untraced


def test_trl_trains() -> None:
    tape, answer = trace("trl_trainers.py")
    assert (answer.error, answer.finished, answer.steps) == (None, True, 6)
    assert not tape.guesses and not answer.untraced


def test_accelerate_and_fabric_train() -> None:
    pytest.importorskip("bitsandbytes")
    tape, answer = trace("loops.py")
    assert (answer.error, answer.finished) == (None, True) and answer.steps in (4, 6)
    assert all("LLM.int8" in guess for guess in tape.guesses)
