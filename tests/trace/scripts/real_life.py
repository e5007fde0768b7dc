"""Does what training scripts do beside training: prints tensors, maps data in processes, looks at the card.

`real_life.py [fork-on-card | exit | download]`
"""

from __future__ import annotations

import importlib
import io
import multiprocessing
import os
import shutil
import subprocess
import sys
import urllib.request
from concurrent.futures import ProcessPoolExecutor

import torch

how = sys.argv[1] if len(sys.argv) > 1 else ""


def tokens(row: int) -> tuple[int, torch.Tensor]:
    return row * row, torch.full((2,), row)


def on_card(row: int) -> torch.Tensor:
    return torch.zeros(row, device="cuda")


def first_line(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]


def save_and_load(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The best checkpoint, under another name by then, goes where it came from or to the host."""
    tied = torch.nn.Linear(8, 8, bias=False).cuda()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "ids": torch.arange(3), "epoch": 7}
    torch.save({**saved, "ties": [tied.weight, tied.weight.T]}, "last.tmp")
    os.replace("last.tmp", "last.pt")
    shutil.copyfile("last.pt", "best.pt")
    before = torch.cuda.memory_allocated()
    loaded = torch.load("best.pt", map_location="cpu", weights_only=True)
    assert loaded["epoch"] == 7 and loaded["ids"].tolist() == [0, 1, 2] and torch.cuda.memory_allocated() == before
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    with open("best.pt", "rb") as file:
        again = torch.load(file)
    assert torch.cuda.memory_allocated() - before == (4 << 20) + 512, "the model, and weights that are one"
    assert isinstance(again["ties"][0], torch.nn.Parameter) and again["ties"][1].shape == (8, 8)
    packed = io.BytesIO()
    torch.save(model, packed)
    packed.seek(0)
    copied = torch.load(packed, map_location={"cuda:0": "cpu"}, weights_only=False)
    assert isinstance(copied, torch.nn.Linear) and copied.weight.device.type == "cpu"


def main() -> None:
    if how == "exit":
        sys.exit("the data is missing:\n  run \x1b[1mprepare.py\x1b[0m first; No module named 'pandas' is no reason")
    if how == "download":
        urllib.request.urlopen("http://example.org/mnist.gz", timeout=5)
    if how == "fork-on-card":
        with multiprocessing.Pool(1) as pool:
            pool.map(on_card, [1])
    for context in ("fork", "spawn"):
        with multiprocessing.get_context(context).Pool(2) as pool:
            rows = pool.map(tokens, range(3))
        assert [row for row, _ in rows] == [0, 1, 4] and rows[2][1].tolist() == [2, 2]
    with ProcessPoolExecutor(1) as executor:
        assert list(executor.map(abs, [-1])) == [1]
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    model = torch.nn.Linear(1024, 1024, bias=False).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(torch.randn(2, 1024, device="cuda")).mean()
        loss.backward()
        optimizer.step()
        right = (loss > 0).sum()
        text = f"{loss:.4f} {loss} {right} {right:>3} {rows[1][1].float().mean():.1f} {loss!r} {right!r}"
        assert "%.3f" % loss == "1.000"  # noqa: UP031  the way of older scripts
        assert text.startswith("1.0000 1.0 1   1 1.0 FakeTensor"), text
    save_and_load(model, optimizer)
    smi = first_line("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    name, _, total = smi.rpartition(", ")
    assert name == torch.cuda.get_device_name() and int(total) == torch.cuda.get_device_properties(0).total_memory >> 20
    used = os.popen("nvidia-smi --query-gpu=memory.used --format=csv,noheader | head -n 1").read()
    assert int(used.split()[0]) >= 4, "the weights"
    assert os.system("nvidia-smi -L") == 0
    import pynvml  # a stand-in that finds no library, as the real one without a driver

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    assert memory.used >= 4 << 20 and memory.total == memory.used + memory.free
    assert pynvml.nvmlDeviceGetName(handle) == name and pynvml.nvmlDeviceGetCount() == 1
    sys.path.append(os.environ["HF_MODULES_CACHE"])
    assert importlib.import_module("evaluate_modules.accuracy").compute([1], [1]) == 1.0


if __name__ == "__main__":
    main()
