"""Checks the machine that is to train, before it does: against preflight.json beside this file, with Python alone.

    python preflight.py [--json] [--step] [--only NAME...]      exit code 0: train; 1: stop, and the last line says why

--step runs the first steps in a rehearsal without cards too. What may crash or hang runs as a child, each with a limit.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

OK, WARNING, STOP, LEFT_OUT = "ok", "warning", "stop", "left out"
GB, MIB = 1e9, 1 << 20
MOST_PRINTED_BYTES = 1 << 24
SHORT_S, IMPORT_S, HUB_S, LINKS_S = 20, 180, 120, 150
"""Limits of a child: nvidia-smi, one that imports torch, one that asks the Hub, the all-reduce with its start."""
DRIVERS = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
"""The least driver by CUDA's first number: CUDA Toolkit Release Notes, "CUDA Toolkit and Minimum Required Driver
Version for CUDA Minor Version Compatibility", Linux."""
LEAST_LINK_FRACTION = 0.5
"""Of the predicted rate of an all-reduce. The prediction errs by 12 % at most from 128 MiB on (collectives.py); a
slower way than the assumed one (PCIe for NVLink, TCP for RDMA) has a quarter or less."""
OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED")
FIELDS = ("torch", "transformers", "peft", "trl", "bitsandbytes")
"""Packages whose release a job may say."""
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "spiece.model")


class Finding(NamedTuple):
    check: str
    verdict: str
    text: str
    remedy: str = ""

    def line(self) -> str:
        return f"{self.verdict:<8} {self.check}: {self.text}" + (f". To fix: {self.remedy}" if self.remedy else "")


Expected = Mapping[str, Any]
Checks = Mapping[str, Callable[[Expected], Finding]]


def child(words: list[str], limit_s: float) -> tuple[int | None, str]:
    """Its exit status and all it printed; None where it was not done in time."""
    with tempfile.TemporaryFile() as out:
        try:
            started = start(words, out.fileno())
        except OSError as error:
            return 127, str(error)
        try:
            status: int | None = started.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end(started)
        return status, text_of(out.fileno())


def start(words: list[str], out: int) -> subprocess.Popen[bytes]:
    """It leads a session of its own, and all it prints goes to this file."""
    none, both = subprocess.DEVNULL, subprocess.STDOUT
    return subprocess.Popen(words, stdin=none, stdout=out, stderr=both, start_new_session=True)


def text_of(out: int) -> str:
    """The end of what was printed."""
    begin = max(0, os.fstat(out).st_size - MOST_PRINTED_BYTES)
    return os.pread(out, MOST_PRINTED_BYTES, begin).decode("utf-8", "replace")


def end(started: subprocess.Popen[bytes]) -> None:
    """With all of its session; a launcher is given time to end what it started in others."""
    for sent, grace_s in ((signal.SIGTERM, 20), (signal.SIGKILL, 5)):
        ends = time.monotonic() + grace_s
        try:
            os.killpg(started.pid, sent)
            while time.monotonic() < ends:
                started.poll()
                os.killpg(started.pid, 0)
                time.sleep(0.05)
        except (ProcessLookupError, PermissionError):
            return


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return ((told or lines or ["nothing was printed"])[-1])[:300]


def training_python(expected: Expected) -> str:
    """The Python of the program that trains, by its first line; else this one."""
    found = shutil.which(expected["command"][0])
    if found:
        with open(found, "rb") as file:
            words = file.readline(400).decode("utf-8", "replace").strip()
        named = words[2:].strip().split(" ")[0]
        if words.startswith("#!") and "python" in os.path.basename(named) and os.access(named, os.X_OK):
            return named
    return sys.executable


def check_packages(expected: Expected) -> Finding:
    program = expected["command"][0]
    if shutil.which(program) is None:
        return Finding("packages", STOP, f"{program} is not on the PATH", "pip install -r requirements.txt")
    names = sorted(expected["packages"])
    asked = "import json, sys; from importlib import metadata as m\nfound = {}\nfor name in sys.argv[1:]:\n"
    asked += "    try: found[name] = m.version(name)\n    except m.PackageNotFoundError: pass\nprint(json.dumps(found))"
    status, told = child([training_python(expected), "-c", asked, *names], SHORT_S)
    if status != 0:
        return Finding("packages", STOP, f"the Python that trains does not start: {last_line(told)}")
    found = json.loads(told.splitlines()[-1])
    missing = [name for name in names if name not in found]
    other = [name for name in names if name in found and release(found[name]) != release(expected["packages"][name])]
    far = [name for name in other if release(found[name])[:2] != release(expected["packages"][name])[:2]]
    wrong = missing + (far if not expected["cpu"] else [])
    pins = " ".join(f"{name}=={expected['packages'][name]}" for name in wrong)
    if wrong:
        told = ", ".join(f"{name} {found.get(name, 'is not installed')}" for name in wrong)
        here = " ".join(f"--set {name}_version={found[name]}" for name in wrong if name in found and name in FIELDS)
        fix = f"pip install {pins}" + (f"; or predict with what is here: launch with {here}" if here else "")
        return Finding("packages", STOP, f"{told}; predicted with {pins}", fix)
    if other:
        told = ", ".join(f"{name} {found[name]} (predicted with {expected['packages'][name]})" for name in other)
        return Finding("packages", WARNING, told)
    return Finding("packages", OK, ", ".join(f"{name} {found[name]}" for name in names))


def release(text: str) -> tuple[int, ...]:
    """Without what a build adds: 2.13.0+cpu is 2.13.0."""
    return tuple(int(part) for part in re.findall(r"\d+", text.split("+")[0])[:3])


def check_data(expected: Expected) -> Finding:
    said = expected["data"]
    if said is None:
        return Finding("data", LEFT_OUT, "the training's own file names it")
    path = Path(said["path"])
    if not path.exists():
        return Finding("data", STOP, f"{path} is not there", "copy it there, or launch with --data-path FILE")
    status, told = child([training_python(expected), "preflight_data.py", str(path)], IMPORT_S)
    if status != 0:
        reason = f"not within {IMPORT_S} s" if status is None else last_line(told)
        return Finding("data", STOP, f"{path} does not open: {reason}", "write it again, or --data-path FILE")
    row = json.loads(told.splitlines()[-1])
    if not row:
        return Finding("data", STOP, f"{path} holds no row", "launch with --data-path FILE")
    wanted = said["columns"]
    if wanted and not any(set(names) <= set(row) for names in wanted):
        allowed = "; or ".join(" and ".join(names) for names in wanted)
        return Finding("data", STOP, f"{path} has the columns {', '.join(row)[:200]}", f"rows with {allowed}")
    return Finding("data", OK, f"{path} opens, its first row has {', '.join(row)[:200]}")


def check_model(expected: Expected) -> Finding:
    said = expected["model"]
    name = said["name"]
    if os.path.isdir(name):
        return model_folder(Path(name), said["shape"])
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        return Finding("model", STOP, f"{name} is not there", "copy the folder there, or name a model of the Hub")
    asked = "import sys; from huggingface_hub import hf_hub_download as get\n"
    asked += "for name in ('tokenizer_config.json', 'config.json'): path = get(sys.argv[1], name)\nprint(path)"
    status, told = child([training_python(expected), "-c", asked, name], HUB_S)
    if status != 0:
        reason = "no answer within 2 minutes" if status is None else last_line(told)
        fix = "log in (HF_TOKEN), ask for access on the model's page, or give a folder that has it"
        return Finding("model", STOP, f"{name} is neither in the Hub's cache nor reached there: {reason}", fix)
    return model_config(Path(told.splitlines()[-1]), said["shape"], f"{name} on the Hub")


def model_folder(folder: Path, shape: Mapping[str, Any]) -> Finding:
    weights = [each for pattern in WEIGHTS for each in folder.glob(pattern)]
    for index in folder.glob("*.index.json"):
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        absent = sorted(each for each in named if not (folder / each).is_file())
        if absent:
            return Finding("model", STOP, f"{folder} lacks {len(absent)} of its weight files: {absent[0]}", "copy them")
    if not weights:
        return Finding("model", STOP, f"{folder} has no weights", "a folder with weights, or a model of the Hub")
    if not any((folder / each).is_file() for each in TOKENIZERS):
        return Finding("model", STOP, f"{folder} has no tokenizer", "tokenizer.save_pretrained(the folder)")
    return model_config(folder / "config.json", shape, str(folder))


def model_config(path: Path, shape: Mapping[str, Any], told: str) -> Finding:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return Finding("model", STOP, f"{path}: {error}"[:300], "the model's own config.json")
    raw = {**raw, **(raw.get("text_config") or {})}
    other = {name: raw.get(name) for name, value in shape.items() if raw.get(name) != value}
    if other:
        words = ", ".join(f"{name} {value} (predicted {shape[name]})" for name, value in other.items())
        return Finding("model", STOP, f"{told} is not the model that was predicted: {words}", "launch with this one")
    return Finding("model", OK, f"{told}, with the shape that was predicted")


def check_disk(expected: Expected) -> Finding:
    said = expected["disk"]
    folder = expected["folder"] or "."
    needs = {os.path.abspath(folder): said["saved_bytes"] or 0}
    home = os.environ.get("HF_HOME", Path.home() / ".cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub"))
    name = expected["model"]["name"]
    cached = any(cache.glob(f"models--{name.replace('/', '--')}/snapshots/*/*.safetensors"))
    if not os.path.isdir(name) and not cached:
        needs[str(cache)] = said["download_bytes"] or 0
    room: dict[int, list[float]] = {}
    for place, nbytes in needs.items():
        there = next(each for each in (Path(place), *Path(place).parents) if each.exists())
        sums = room.setdefault(there.stat().st_dev, [0.0, float(shutil.disk_usage(there).free)])
        sums[0] += nbytes
    for need, free in room.values():
        if need > free:
            fix = said["remedy"] or "more disk"
            words = f"{need / GB:.1f} GB needed, {free / GB:.1f} GB free: {(need - free) / GB:.1f} GB are missing"
            return Finding("disk", STOP, words, fix)
    words = " and ".join(f"{need / GB:.2f} GB of {free / GB:.1f} GB free" for need, free in room.values())
    return Finding("disk", OK, f"needs {words}")


def check_ram(expected: Expected) -> Finding:
    need = expected["ram_bytes"]
    if need is None:
        return Finding("ram", LEFT_OUT, "not predicted")
    told = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(told[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    total = min([total, *memory_limits()])
    words = f"{need / GB:.1f} GB of {total / GB:.1f} GB, {min(free, total) / GB:.1f} GB are free"
    if need > total:
        lacks = f"a machine with {(need - total) / GB:.1f} GB more, or fewer processes on one"
        return Finding("ram", WARNING if expected["cpu"] else STOP, f"needs {words}", lacks)
    return Finding("ram", WARNING if need > free else OK, f"needs {words}")


def memory_limits(root: Path = Path("/")) -> Iterator[int]:
    """Bytes that this process's control group may use, and those above it: a Slurm job's limit is not its step's."""
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        if not kinds or "memory" in kinds.split(","):
            top = root / ("sys/fs/cgroup/memory" if kinds else "sys/fs/cgroup")
            place, name = top / path.strip("/"), "memory.limit_in_bytes" if kinds else "memory.max"
            for folder in (each for each in (place, *place.parents) if each.is_relative_to(top)):
                with contextlib.suppress(OSError, ValueError):
                    yield int((folder / name).read_text())


class SmiCard(NamedTuple):
    number: str
    name: str
    total_bytes: int
    used_bytes: int
    driver: str
    uuid: str


def cards_of(text: str) -> list[SmiCard]:
    """Of what nvidia-smi prints as CSV without units."""
    rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if len(row) == 6]
    known = [row for row in rows if row[2].isdecimal() and row[3].isdecimal()]
    return [SmiCard(a, b, int(c) * MIB, int(d) * MIB, e, f) for a, b, c, d, e, f in known]


QUERY = "--query-gpu=index,name,memory.total,memory.used,driver_version,uuid"
CSV = "--format=csv,noheader,nounits"


def visible_cards() -> tuple[list[SmiCard], str]:
    """Those that CUDA_VISIBLE_DEVICES shows, and why there are none."""
    status, told = child(["nvidia-smi", QUERY, CSV], SHORT_S)
    if status != 0:
        return [], f"nvidia-smi: {'no answer' if status is None else last_line(told)}"
    found = cards_of(told)
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None or shown == "":
        return found, "nvidia-smi lists none"
    wanted = [each.strip() for each in shown.split(",")]
    some = [card for each in wanted for card in found if each in (card.number, card.uuid) or card.uuid.startswith(each)]
    return some, f"CUDA_VISIBLE_DEVICES={shown} shows none"


def check_cards(expected: Expected) -> Finding:
    if expected["cpu"]:
        return Finding("cards", LEFT_OUT, "a rehearsal without cards")
    said = expected["cards"]
    cards, why = visible_cards()
    if len(cards) < said["count"]:
        words = f"{len(cards)} of {said['count']} x {said['name']} are here" + ("" if cards else f" ({why})")
        without = "--no-preflight, as your file is" if expected["folder"] else "--cpu, as a rehearsal"
        fix = f"launch with --gpus {len(cards)}" if cards else f"a machine with cards; or {without}"
        return Finding("cards", STOP, words, fix)
    cards = cards[: said["count"]]
    other = [card.name for card in cards if not set(said["words"]) <= set(re.findall(r"[a-z0-9]+", card.name.lower()))]
    if other:
        words = f"predicted for {said['name']}, and here is {other[0]}"
        return Finding("cards", STOP, words, "launch with --gpu of this one")
    need = expected["memory"]["device_bytes"]
    for card in cards:
        free = card.total_bytes - card.used_bytes
        if need > free:
            words = f"card {card.number}: {free / GB:.1f} of {card.total_bytes / GB:.1f} GB free, needs {need / GB:.1f}"
            others = other_processes(cards)
            fix = f"end what runs there ({others})" if others else expected["memory"]["remedy"] or "a larger card"
            return Finding("cards", STOP, words, fix)
    others = other_processes(cards)
    words = f"{len(cards)} x {cards[0].name}, {cards[0].total_bytes / GB:.1f} GB, driver {cards[0].driver}"
    return Finding("cards", WARNING if others else OK, words + (f"; others compute there: {others}" if others else ""))


def other_processes(cards: list[SmiCard]) -> str:
    status, told = child(["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", CSV], SHORT_S)
    if status != 0:
        return ""
    ours = {card.uuid for card in cards}
    rows = [[cell.strip() for cell in row] for row in csv.reader(told.splitlines())]
    return ", ".join(f"{row[2]} (process {row[1]}, {row[3]} MiB)" for row in rows if len(row) == 4 and row[0] in ours)


def check_driver(expected: Expected) -> Finding:
    if expected["cpu"] or "torch" not in expected["packages"]:
        return Finding("driver", LEFT_OUT, "a rehearsal without cards" if expected["cpu"] else "no torch is predicted")
    asked = "import torch; print(torch.version.cuda, torch.cuda.is_available(), torch.cuda.device_count())"
    status, told = child([training_python(expected), "-c", asked], IMPORT_S)
    if status != 0:
        return Finding("driver", STOP, f"torch does not import: {last_line(told)}", "pip install -r requirements.txt")
    cuda, works, count = told.splitlines()[-1].split()
    cards, _ = visible_cards()
    driver = cards[0].driver if cards else "none"
    least = DRIVERS.get(release(cuda)[0]) if cuda != "None" else None
    if cuda == "None":
        return Finding("driver", STOP, "the torch that is installed has no CUDA", "pip install torch's CUDA wheel")
    if cards and least and release(driver)[:2] < least:
        fix = f"a driver from {least[0]}.{least[1]} on, or a torch wheel of an older CUDA"
        return Finding("driver", STOP, f"driver {driver} is too old for CUDA {cuda}", fix)
    if works != "True" or int(count) < expected["cards"]["count"]:
        return Finding("driver", STOP, f"torch sees {count} cards (driver {driver}, CUDA {cuda})", "see nvidia-smi")
    return Finding("driver", OK, f"{driver} runs CUDA {cuda} of the torch that is installed")


def check_links(expected: Expected) -> Finding:
    said, cpu = expected["links"], expected["cpu"]
    if said is None:
        return Finding("links", LEFT_OUT, "one card")
    words = [training_python(expected), "-m", "torch.distributed.run", "--nproc-per-node", str(said["gpus"])]
    if said["nodes"] > 1:
        rank, place = os.environ.get("NODE_RANK", "0"), os.environ.get("MASTER_ADDR", "localhost")
        words += ["--nnodes", str(said["nodes"]), "--node-rank", rank, "--master-addr", place]
        words += ["--master-port", os.environ.get("MASTER_PORT", "29500")]
    nbytes = said["message_bytes"] if not cpu else 1 << 24
    words += [os.path.abspath("preflight_links.py"), "gloo" if cpu else "nccl", str(nbytes)]
    status, told = child(words, LINKS_S)
    found = re.search(r"^bus_bytes_per_s ([0-9.e+]+)$", told, re.M)
    many = said["gpus"] * said["nodes"]
    if status != 0 or (found is None and os.environ.get("NODE_RANK", "0") == "0"):
        reason = f"not done in {LINKS_S} s" if status is None else last_line(told)
        told = f"{many} processes did not reach each other: {reason}"
        return Finding("links", STOP, told, "NCCL_DEBUG=INFO says more")
    if found is None or cpu:
        by = ", by gloo; no card's link was tried" if cpu else ""
        return Finding("links", OK, f"{many} processes reach each other{by}")
    rate, assumed = float(found[1]), said["bus_bytes_per_s"]
    told = f"all-reduce at {rate / GB:.1f} GB/s, predicted {assumed / GB:.1f} GB/s ({said['name']})"
    slow = rate < LEAST_LINK_FRACTION * assumed
    fix = f"nvidia-smi topo -m; or launch with --set {said['field']} as it is here"
    return Finding("links", STOP if slow else OK, told, fix if slow else "")


def check_step(expected: Expected, *, rehearsed: bool) -> Finding:
    """The training's own command for two steps: from the second on the optimizer's state is there too."""
    said = expected["first_steps"]
    if said is None:
        return Finding("step one", LEFT_OUT, "the training takes no number of steps from its command line")
    if expected["cpu"] and not rehearsed:
        return Finding("step one", LEFT_OUT, "a rehearsal is one itself")
    output, alone = Path(expected["folder"] or ".", said["output"]), (expected["links"] or {}).get("nodes", 1) == 1
    before, _ = visible_cards() if not expected["cpu"] else ([], "")
    with Meter(before) as meter, tempfile.TemporaryFile() as out:
        began, started = time.monotonic(), start(["bash", "train.sh", *said["words"]], out.fileno())
        try:
            status, text = watch(started, out.fileno(), said["limit_s"], alone=alone)
        finally:
            end(started)
            shutil.rmtree(output, ignore_errors=True)
    took = time.monotonic() - began
    memory = expected["memory"]
    if OUT_OF_MEMORY.search(text):
        used = f", {meter.peak_bytes / GB:.1f} GB in use" if meter.peak_bytes else ""
        words = f"out of memory{used}; predicted {memory['device_bytes'] / GB:.1f} GB"
        return Finding("step one", STOP, words, memory["remedy"])
    if status is None:
        return Finding("step one", STOP, f"not done in {said['limit_s']:.0f} s: {last_line(text)}")
    if status != 0:
        return Finding("step one", STOP, f"the training ended with {status}: {last_line(text)}")
    if meter.peak_bytes:
        low, high = memory["range_bytes"]
        words = f"{meter.peak_bytes / GB:.2f} GB on a card at most in {took:.0f} s"
        told = f"predicted {memory['device_bytes'] / GB:.2f} ({low / GB:.2f} to {high / GB:.2f})"
        return Finding("step one", WARNING if meter.peak_bytes > high else OK, f"fits: {words}, {told}")
    return Finding("step one", OK, f"trains, in {took:.0f} s")


def watch(started: subprocess.Popen[bytes], out: int, limit_s: float, *, alone: bool) -> tuple[int | None, str]:
    """Until it ends; on one machine until it says how long it trained: what it would write then is not needed."""
    ends = time.monotonic() + limit_s
    while time.monotonic() < ends:
        status = started.poll()
        text = text_of(out)
        if status is not None or (alone and "train_runtime" in text):
            return status or 0, text
        time.sleep(0.2)
    return None, text_of(out)


class Meter:
    """The most that is in use on any card beyond what was before, as nvidia-smi says it five times a second."""

    def __init__(self, before: list[SmiCard]) -> None:
        self.before, self.peak_bytes = {card.number: card.used_bytes for card in before}, 0

    def __enter__(self) -> Meter:
        self.process: subprocess.Popen[str] | None = None
        if self.before:
            words = ["nvidia-smi", "--query-gpu=index,memory.used", CSV, "--loop-ms=200"]
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            threading.Thread(target=self.read, daemon=True).start()
        return self

    def read(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        for line in self.process.stdout:
            index, _, used = (word.strip() for word in line.partition(","))
            if index in self.before and used.isdecimal():
                self.peak_bytes = max(self.peak_bytes, int(used) * MIB - self.before[index])

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def findings(expected: Expected, only: list[str], step: bool) -> Iterator[Finding]:
    """The quick ones first; what takes a card's time only where nothing stops before."""
    quick = {"packages": check_packages, "data": check_data, "model": check_model, "disk": check_disk, "ram": check_ram,
             "cards": check_cards, "driver": check_driver}  # fmt: skip
    slow: Checks = {"links": check_links, "step": lambda expected: check_step(expected, rehearsed=step)}
    stopped = False
    for name, check in {**quick, **slow}.items():
        if only and name not in only:
            continue
        if stopped and name in slow:
            found = Finding({"step": "step one"}.get(name, name), LEFT_OUT, "after what is wrong above")
        else:
            found = check(expected)
        stopped = stopped or found.verdict == STOP
        yield found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--step", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that children are ended too
    expected = json.loads(Path("preflight.json").read_text(encoding="utf-8"))
    found = []
    for each in findings(expected, given.only, given.step):
        found.append(each)
        if not given.json:
            print(each.line(), flush=True)
    stop = next((each for each in found if each.verdict == STOP), None)
    verdict = "preflight: passed" if stop is None else f"preflight: stopped by {stop.line()[len(STOP) :].strip()}"
    whole = {"passed": stop is None, "verdict": verdict, "checks": [each._asdict() for each in found]}
    print(json.dumps(whole) if given.json else verdict, flush=True)
    if not given.only:
        Path("preflight.txt").write_text(verdict + "\n", encoding="utf-8")
    return 0 if stop is None else 1


if __name__ == "__main__":
    sys.exit(main())
