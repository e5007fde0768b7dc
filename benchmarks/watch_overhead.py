"""What being measured costs a training: the Trainer with and without tunecast's callback, by turns in one process.

    python benchmarks/watch_overhead.py [--device cuda] [--rounds 6] [--steps 30] [--out FILE]

The committed result is results/watch_overhead.json. Three figures:

of_steps         the time of a step with the callback over that without, the median of pairs of rounds: on CPUs the
                 process's CPU time, since others use the machine too; on a card the time on the wall
callback_us      what callback and counted loader take of the thread that trains, per step, timed alone over many calls
thread_us_per_s  the CPU time of the journal's thread per second of training

The last two, which no noise hides, are added up as `fraction` of a step.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from tunecast.learn.inside.batches import CountedBatches  # noqa: E402
from tunecast.learn.inside.callback import InsideCallback  # noqa: E402
from tunecast.learn.inside.machine import processor  # noqa: E402
from tunecast.learn.inside.process import WatchedProcess  # noqa: E402

LENGTH = {"cpu": 64, "cuda": 1024}
WIDTH = {"cpu": 256, "cuda": 2048}
LAYERS = {"cpu": 4, "cuda": 12}
CALLS = 5_000


def model_of(device: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    width = WIDTH[device]
    config = LlamaConfig(
        hidden_size=width, intermediate_size=3 * width, num_hidden_layers=LAYERS[device], num_attention_heads=8,
        vocab_size=2048,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(device)


def rows_of(device: str) -> list[dict[str, Any]]:
    import torch

    length = LENGTH[device]
    ids = torch.arange(length) % 2048
    mask = torch.ones(length, dtype=torch.long)
    return [{"input_ids": ids, "labels": ids, "attention_mask": mask}] * 4096


def train(model: Any, rows: Any, steps: int, device: str, callbacks: list[Any], folder: str) -> tuple[float, float]:
    """Seconds of one step: CPU time of the process, and on the wall; from the third step on."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    marks: list[tuple[float, float]] = []

    class Marks(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step in (2, steps):
                marks.append((time.process_time(), time.perf_counter()))

    arguments = TrainingArguments(
        output_dir=folder, max_steps=steps, per_device_train_batch_size=4, report_to=[], save_strategy="no",
        logging_steps=10, disable_tqdm=True, use_cpu=device == "cpu", bf16=device == "cuda",
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=rows, callbacks=[*callbacks, Marks()]).train()
    (cpu, wall), (cpu_after, wall_after) = marks
    return (cpu_after - cpu) / (steps - 2), (wall_after - wall) / (steps - 2)


def watched(folder: str) -> InsideCallback:
    return InsideCallback(lambda: WatchedProcess(tempfile.mkdtemp(dir=folder), "callback", alone=True))


def callback_seconds(folder: str, rows: Any) -> float:
    """Of one step with one micro-batch, on the thread that trains."""
    import torch

    callback = watched(folder)
    args, state = SimpleNamespace(), SimpleNamespace(global_step=0, max_steps=CALLS)
    control = SimpleNamespace(should_save=False, should_evaluate=False, should_training_stop=False)
    callback.on_train_begin(args, state, control)
    batch = {name: torch.stack([value] * 4) for name, value in rows[0].items()}
    loader = CountedBatches(iter([batch] * CALLS), callback._count)
    began = time.thread_time()
    for step in range(1, CALLS + 1):
        next(loader)
        callback.on_step_begin(args, state, control)
        state.global_step = step
        callback.on_step_end(args, state, control)
    spent = time.thread_time() - began
    callback.on_train_end(args, state, control)
    return spent / CALLS


def journal_thread() -> threading.Thread | None:
    return next((each for each in threading.enumerate() if each.name == "tunecast-journal"), None)


def thread_seconds_per_second(folder: str, seconds: float = 10.0) -> float:
    """Of the journal's thread, while a run with as many step times as it keeps goes on."""
    callback = watched(folder)
    args, state = SimpleNamespace(), SimpleNamespace(global_step=0, max_steps=0)
    control = SimpleNamespace(should_save=False, should_evaluate=False, should_training_stop=False)
    callback.on_train_begin(args, state, control)
    for step in range(5_000):
        state.global_step = step
        callback.on_step_end(args, state, control)
    thread = journal_thread()
    assert thread is not None and thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    began, wall = time.clock_gettime(clock), time.perf_counter()
    time.sleep(seconds)
    spent = (time.clock_gettime(clock) - began) / (time.perf_counter() - wall)
    callback.on_train_end(args, state, control)
    return spent


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out")
    given = parser.parse_args(argv)
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, rows = model_of(given.device), rows_of(given.device)
    which = 1 if given.device == "cuda" else 0
    pairs: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        train(model, rows, 5, given.device, [], folder)
        for number in range(given.rounds):
            order = (False, True) if number % 2 == 0 else (True, False)
            found = {}
            for measured in order:
                callbacks = [watched(folder)] if measured else []
                found[measured] = train(model, rows, given.steps, given.device, callbacks, folder)[which]
            pairs.append((found[False], found[True]))
            print(f"round {number}: {found[False] * 1e3:.2f} ms without, {found[True] * 1e3:.2f} with", flush=True)
        callback_s = callback_seconds(folder, rows)
        thread_s = thread_seconds_per_second(folder)
    step_s = statistics.median(without for without, _ in pairs)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    result = {
        "date": date.today().isoformat(),
        "commit": commit,
        "device": given.device if given.device == "cpu" else torch.cuda.get_device_name(),
        "cpu": processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "steps": given.steps,
        "clock": "wall" if which else "CPU time of the process",
        "step_s": step_s,
        "pairs_s": pairs,
        "of_steps": statistics.median(after / before for before, after in pairs),
        "callback_us": callback_s * 1e6,
        "thread_us_per_s": thread_s * 1e6,
        "fraction": callback_s / step_s + thread_s,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if given.out:
        Path(given.out).write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
