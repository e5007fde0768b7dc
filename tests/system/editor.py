"""Whether the language server lives through random edits: 100,000 of them while it answers, memory flat, no fault.

./dev system editor [--edits 100000] [--seed N]   type, paste, delete and undo at random
./dev system editor --out FILE                    also write the result, dated (committed: results/editor.json)

Files of five kinds are open in one `tunecast lsp`. Edits come in bursts of 1 to 100, as from a fast typist or a script,
each sent whole. A burst begins with the file as it was where a die says so (two of three), and half of those change
numbers alone, so that it can be read and is predicted. In half of the bursts something is asked before they are over,
and cancelled in a third of those; after each lenses are asked for and waited for, now and then everything else.

A failure is:

    an answer that is an error, but for what was cancelled; a question without an answer within five minutes
    a traceback or an internal error on stderr or in a message
    a server that ended, or has grown by more than a tenth from the second tenth of the edits to the last
    a worker that held more than it may (1 GiB, and what one answer takes)
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from committed import commit

ROOT = Path(__file__).parents[2]
LONGEST_S = 300.0
MOST_BURST = 100
MOST_GROWTH = 1.1
MOST_WORKER_MIB = 1536
CANCELLED = (-32800, -32801, -32802)
FILES = {
    "job.yaml": """\
model: llama-3.2-1b
method: lora
lora:
  rank: 16
seq_len: 2048
micro_batch: 1
hardware:
  gpu: rtx-4090
""",
    "axolotl.yml": """\
# tunecast: gpu=rtx-4090
base_model: meta-llama/Llama-3.2-1B
adapter: qlora
load_in_4bit: true
lora_r: 16
lora_target_linear: true
sequence_len: 2048
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_torch_fused
bf16: true
gradient_checkpointing: true
datasets:
  - path: some/data
    type: alpaca
""",
    "factory.yaml": """\
# tunecast: gpu=l40s
model_name_or_path: Qwen/Qwen3-0.6B
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
dataset: alpaca
template: qwen3
cutoff_len: 1024
per_device_train_batch_size: 1
bf16: true
""",
    "trl.yaml": """\
# tunecast: gpu=a10g
model_name_or_path: Qwen/Qwen3-0.6B
dataset_name: some/data
max_length: 1024
per_device_train_batch_size: 2
use_peft: true
lora_r: 16
gradient_checkpointing: true
bf16: true
""",
    "args.json": """\
{"model": "llama-3.2-1b", "method": "full", "seq_len": 512, "micro_batch": 1,
 "hardware": {"gpu": "h100-sxm-80gb"}}
""",
}
PASTES = (
    *("😀 a comment\n", "\n\n\n", "seq_len: 4096\n", "  - nested: {a: [1, 2\n", "\t", "\r\n", "key: &a *a\n", "\u2028"),
    *("\x00", "# tunecast: gpu=h100 eu\n", "gradient_checkpointing: false\n", "'", '"', "{", "}", "ключ: значение\n"),
    *("- " * 40, "\ud83d"),
)
ASKED = tuple(f"textDocument/{name}" for name in ("hover", "completion", "inlayHint", "codeLens", "codeAction"))


class Client:
    """One server, spoken to as an editor does."""

    def __init__(self) -> None:
        self.said = tempfile.TemporaryFile()  # noqa: SIM115  as long as the server
        words = [sys.executable, "-m", "tunecast", "lsp"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, env=environment
        )
        self.answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.messages: list[str] = []
        self.seen: Counter[str] = Counter()
        self.number = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while head := self.process.stdout.readline():
            length = 0
            while head.strip():
                name, _, value = head.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
                head = self.process.stdout.readline()
            told = json.loads(self.process.stdout.read(length))
            if "method" not in told:
                self.answers.put(told)
                continue
            self.seen[told["method"]] += 1
            if told["method"] in ("window/showMessage", "window/logMessage"):
                self.messages.append(told["params"]["message"])
            if "id" in told:
                self.send({"id": told["id"], "result": None})
        self.answers.put(None)

    def send(self, message: dict[str, Any]) -> None:
        content = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(content), content))
        self.process.stdin.flush()

    def tell(self, method: str, params: Any) -> None:
        self.send({"method": method, "params": params})

    def ask(self, method: str, params: Any) -> int:
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})
        return self.number

    def answer(self, number: int) -> dict[str, Any]:
        """Of this question; those of others on the way are looked at too."""
        while True:
            told = self.answers.get(timeout=LONGEST_S)
            if told is None:
                raise ConnectionError(f"the server ended: {self.process.wait()}")
            if "error" in told and told["error"]["code"] not in CANCELLED:
                self.messages.append(f"internal error: {json.dumps(told['error'])[:1500]}")
            if told.get("id") == number:
                return told

    def rss_mib(self) -> tuple[float, float]:
        """Of the server, and of the largest of the processes it started."""
        others = [rss_mib_of(pid) for pid in descendants(self.process.pid)]
        return rss_mib_of(self.process.pid), max(others, default=0.0)


def descendants(pid: int) -> Iterator[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield int(child)
        yield from descendants(int(child))


def rss_mib_of(pid: int) -> float:
    try:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def edited(text: str, draw: random.Random) -> str:
    """One keystroke, paste or deletion more."""
    at = draw.randrange(len(text) + 1)
    kind = draw.random()
    if kind < 0.5:
        return text[:at] + draw.choice("abcdefghijklmnopqrstuvwxyz0123456789:-_#{}[]'\", \n.") + text[at:]
    if kind < 0.75:
        return text[: max(0, at - draw.choice((1, 1, 1, 1, 8, 60)))] + text[at:]
    if kind < 0.85:
        return text[:at] + draw.choice(PASTES) + text[at:]
    return renumbered(text, draw)


def renumbered(text: str, draw: random.Random) -> str:
    numbers = [found.span() for found in re.finditer(r"(?<=: )\d+", text)]
    if not numbers:
        return text
    start, end = draw.choice(numbers)
    return f"{text[:start]}{draw.choice((1, 2, 4, 8, 16, 512, 1000, 4096, 10**9))}{text[end:]}"


def run(edits: int, seed: int, folder: Path) -> dict[str, Any]:
    draw, client = random.Random(seed), Client()
    refreshes = {"refreshSupport": True}
    capabilities = {"workspace": {"inlayHint": refreshes, "codeLens": refreshes}}
    number = client.ask("initialize", {"processId": None, "rootUri": None, "capabilities": capabilities})
    client.answer(number)
    client.tell("initialized", {})
    texts = {(folder / name).as_uri(): text for name, text in FILES.items()}
    first, versions = dict(texts), dict.fromkeys(texts, 1)
    for uri, text in texts.items():
        document = {"uri": uri, "languageId": "yaml", "version": 1, "text": text}
        client.tell("textDocument/didOpen", {"textDocument": document})
    sent, bursts, asked, waits_s, memory = 0, 0, Counter[str](), [], []
    began_s = time.monotonic()
    while sent < edits:
        bursts += 1
        uri = draw.choice(list(texts))
        again, gentle = draw.random() < 2 / 3, draw.random() < 0.5
        if again:
            texts[uri] = first[uri]
        count = min(draw.randint(1, MOST_BURST), edits - sent)
        for place in range(count):
            texts[uri] = (renumbered if again and gentle else edited)(texts[uri], draw)[:20_000]
            versions[uri] += 1
            change(client, uri, versions[uri], texts[uri])
            if place == count // 2 and draw.random() < 0.5:
                method = draw.choice(ASKED)
                number = client.ask(method, params_of(method, uri, texts[uri], draw))
                asked[method] += 1
                if draw.random() < 1 / 3:
                    client.tell("$/cancelRequest", {"id": number})
        sent += count
        begun_s = time.monotonic()
        method = "textDocument/codeLens" if draw.random() < 0.9 else draw.choice(ASKED)
        asked[method] += 1
        client.answer(client.ask(method, params_of(method, uri, texts[uri], draw)))
        waits_s.append(time.monotonic() - begun_s)
        if bursts % 10 == 0:
            memory.append(client.rss_mib())
    seconds = time.monotonic() - began_s
    client.answer(client.ask("shutdown", None))
    client.tell("exit", None)
    code = client.process.wait(LONGEST_S)
    return result_of(client, memory, code, {
        "edits": sent, "bursts": bursts, "seed": seed, "files": sorted(FILES), "asked": dict(sorted(asked.items())),
    }, seconds, waits_s)  # fmt: skip


def change(client: Client, uri: str, version: int, text: str) -> None:
    document = {"uri": uri, "version": version}
    client.tell("textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": text}]})


def params_of(method: str, uri: str, text: str, draw: random.Random) -> dict[str, Any]:
    lines = text.split("\n")
    line = draw.randrange(len(lines) + 1)
    place = {"line": line, "character": draw.randrange(40)}
    document = {"textDocument": {"uri": uri}}
    if method in ("textDocument/hover", "textDocument/completion"):
        return {**document, "position": place}
    whole = {"start": {"line": 0, "character": 0}, "end": {"line": len(lines), "character": 0}}
    if method == "textDocument/inlayHint":
        return {**document, "range": whole}
    return {**document, "range": whole, "context": {"diagnostics": []}} if method.endswith("codeAction") else document


def result_of(
    client: Client,
    memory: list[tuple[float, float]],
    code: int,
    inputs: dict[str, Any],
    seconds: float,
    waits_s: list[float],
) -> dict[str, Any]:
    client.said.seek(0)
    said = client.said.read().decode("utf-8", "replace")
    failures = [text[:1500] for text in client.messages if "internal error" in text or "Traceback" in text]
    if "Traceback" in said or "internal error" in said:
        failures.append(said[:3000])
    if code:
        failures.append(f"the server ended with exit code {code}")
    tenth = max(1, len(memory) // 10)
    early, late = memory[tenth : 2 * tenth] or memory, memory[-tenth:]
    server = [statistics.median(each[0] for each in part) for part in (early, late)]
    worker = [statistics.median(each[1] for each in part) for part in (early, late)]
    most = max(each[1] for each in memory)
    if server[1] > server[0] * MOST_GROWTH:
        failures.append(f"the server grew from {server[0]:.0f} to {server[1]:.0f} MiB")
    if most > MOST_WORKER_MIB:
        failures.append(f"a worker held {most:.0f} MiB")
    parts = [memory[place * len(memory) // 10 : (place + 1) * len(memory) // 10] for place in range(10)]
    return {
        "date": date.today().isoformat(),
        "commit": commit(),
        "inputs": inputs,
        "failures": failures,
        "memory_mib": {
            "server": [round(statistics.median(each[0] for each in part), 1) for part in parts if part],
            "worker": [round(statistics.median(each[1] for each in part), 1) for part in parts if part],
            "worker_grew": round(worker[1] / worker[0], 3) if worker[0] else None,
            "worker_most": round(most, 1),
        },
        "seconds": round(seconds, 1),
        "after_a_burst_s": {
            "median": round(statistics.median(waits_s), 4),
            "most": round(max(waits_s), 3),
        },
        "diagnostics": client.seen["textDocument/publishDiagnostics"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="./dev system editor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--edits", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = run(arguments.edits, arguments.seed, Path(folder))
    print(json.dumps(result, indent=2))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    sys.exit(bool(result["failures"]))


if __name__ == "__main__":
    main()
