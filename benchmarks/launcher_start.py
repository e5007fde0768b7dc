"""What starting takes before a training's own code runs: Python with the Trainer, with TRL, and through accelerate.

    python benchmarks/launcher_start.py OUT.jsonl [--repeats 2]     on the machine whose starts are asked for

`seconds` is from the start of the first process to the end of the last one; of `accelerate`, `inner_s` is until the
program that it starts begins. Each way is timed in turn, so that the first round shows files that nobody has read yet.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONTEXT = "import torch; torch.zeros(1, device='cuda' if torch.cuda.is_available() else 'cpu')"
WAYS = {
    "python": ("-c", "pass"),
    "context": ("-c", CONTEXT),
    "trainer": ("-c", f"from transformers import Trainer, TrainingArguments; {CONTEXT}"),
    "trl": ("-c", f"from trl import SFTTrainer; from peft import LoraConfig; {CONTEXT}"),
}


def seconds_of(command: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - began


def through_accelerate(folder: Path) -> dict[str, float]:
    """An empty program, started as a rendered training of one card is."""
    config, program, stamp = folder / "accelerate.yaml", folder / "empty.py", folder / "stamp"
    config.write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nnum_machines: 1\nnum_processes: 1\n")
    program.write_text(f"import time\nopen({str(stamp)!r}, 'w').write(str(time.time()))\n")
    began = time.time()
    seconds = seconds_of(
        [str(Path(sys.executable).parent / "accelerate"), "launch", "--config_file", str(config), str(program)]
    )
    return {"seconds": seconds, "inner_s": float(stamp.read_text()) - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, given.out.open("a", encoding="utf-8") as file:
        for turn in range(given.repeats):
            for way, words in WAYS.items():
                row = {"way": way, "turn": turn, "seconds": seconds_of([sys.executable, *words])}
                file.write(json.dumps(row) + "\n")
            file.write(json.dumps({"way": "accelerate", "turn": turn, **through_accelerate(Path(folder))}) + "\n")
            file.flush()
    print(given.out.read_text())


if __name__ == "__main__":
    main()
