"""Does to files, programs and the network what training scripts do; run in a folder that must not change.

The folder holds `keep.txt` ("as it was"), `notes.txt` ("old") and `data.json`. Everything the script writes it must
be able to read back; everything it may not do must fail as an OSError.
"""

from __future__ import annotations

import glob
import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import numpy as np
import torch
from tiny import tokenizer


def refused(action) -> bool:
    try:
        action()
    except OSError:
        return True
    return False


# written, read back, listed, appended to, moved, deleted
Path("out/logs").mkdir(parents=True)
Path("out/logs/a.txt").write_text("one")
with open("out/logs/a.txt", "a") as file:
    file.write(" two")
assert Path("out/logs/a.txt").read_text() == "one two"
assert os.listdir("out") == ["logs"] and glob.glob("out/**/*.txt", recursive=True) == ["out/logs/a.txt"]
assert sorted(path.name for path in Path().iterdir()) == ["data.json", "keep.txt", "notes.txt", "out"]
with open("notes.txt", "a") as file:
    file.write(" and new")
assert Path("notes.txt").read_text() == "old and new"
os.rename("out/logs/a.txt", "out/b.txt")
shutil.copy("out/b.txt", "out/c.txt")
shutil.move("out/c.txt", "out/logs/c.txt")
assert os.path.getsize("out/logs/c.txt") == 7 and not os.path.exists("out/c.txt")
os.remove("keep.txt")
assert not os.path.exists("keep.txt") and "keep.txt" not in os.listdir(".")
assert refused(lambda: Path("keep.txt").read_text())
shutil.rmtree("out/logs")
assert os.listdir("out") == ["b.txt"]
os.makedirs("out/logs", exist_ok=True)

# what libraries write, also those that open files in C++ or Rust
np.save("out/array.npy", np.arange(3))
assert np.load("out/array.npy").tolist() == [0, 1, 2]
with open("out/object.pkl", "wb") as file:
    pickle.dump({"a": 1}, file)
torch.save({"step": 3}, "out/state.pt")
assert torch.load("out/state.pt") == {"step": 3}
torch.save({"weight": torch.ones(4)}, "out/weights.pt")
assert os.path.exists("out/weights.pt")
tokenizer().save_pretrained("out/tokenizer")
assert Path("out/tokenizer/tokenizer.json").exists()
from transformers import AutoTokenizer  # noqa: E402

assert len(AutoTokenizer.from_pretrained("out/tokenizer")) == 512
from safetensors.torch import load_file, save_file  # noqa: E402

save_file({"weight": torch.ones(4, 2)}, "out/model.safetensors")
assert load_file("out/model.safetensors")["weight"].shape == (4, 2)
from datasets import load_dataset, load_from_disk  # noqa: E402

rows = load_dataset("json", data_files="data.json", split="train")
rows = rows.map(lambda row: {"length": len(row["text"])}, num_proc=2)
rows.save_to_disk("out/rows")
assert load_from_disk("out/rows")["length"] == [3, 4] or list(load_from_disk("out/rows")["length"]) == [3, 4]

# programs and the network
assert refused(lambda: subprocess.run(["touch", "touched"]))
assert refused(lambda: os.system("touch touched"))
assert refused(lambda: subprocess.run([sys.executable, "-c", "1"]))
assert refused(lambda: os.system("hostname > name.txt"))
assert refused(lambda: urllib.request.urlopen("http://192.0.2.1/", timeout=5))
assert refused(lambda: socket.create_connection(("example.org", 443), timeout=5))
subprocess.run(["uname"], check=True, stdout=subprocess.DEVNULL)
with tempfile.NamedTemporaryFile() as file:
    file.write(b"x")
    file.flush()
    kept = subprocess.run(["cat", file.name], check=True, capture_output=True)
    assert kept.stdout == b"x"

# C code that opens files itself: the kernel refuses, where it can
import ctypes  # noqa: E402

libc = ctypes.CDLL(None)
libc.creat(os.path.abspath("by-c").encode(), 0o644)
print(json.dumps({"done": True}), file=sys.stderr)
