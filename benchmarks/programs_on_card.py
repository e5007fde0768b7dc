"""Whole training programs of other people, predicted and then run: what they took of the card, and how long.

    python benchmarks/programs_on_card.py make FOLDER --repositories REPOSITORIES    data, tokenizers, configurations
    python benchmarks/programs_on_card.py predict FOLDER OUT.jsonl                   needs no card
    python benchmarks/programs_on_card.py run FOLDER OUT.jsonl [--limit-s 120]       on the card, with random weights
    python benchmarks/programs_on_card.py measure OUT.json SCRIPT ARGS               one of them
    python benchmarks/programs_on_card.py compare PREDICTED.jsonl RAN.jsonl          the two side by side, as Markdown
    python benchmarks/programs_on_card.py record FOLDER                              on the card: FOLDER/NAME.history.gz
    python benchmarks/programs_on_card.py diverge FOLDER                             where traces leave those, no card

The jobs are in data/programs_on_card.toml; no line of the programs is changed. `predict` and `run` leave out what OUT
has. Bytes and seconds. `training_s` is from the end of the first optimizer step to that of the last.

`record` runs each job for its first steps (`RECORDED_STEPS`) and keeps what its allocator did, request by request, with
the line of Python that asked, and every address the driver gave: a few MB a job. `diverge` traces as many steps and
tells the first request that is another, what either side does around it, and what is alive at the card's peak.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pickle
import runpy
import shlex
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent
JOBS = HERE / "data" / "programs_on_card.toml"
CARD = "h200"
Row = dict[str, Any]
RECORDED_STEPS = 3
"""The first makes optimizer states, the second is the first with them, the third is like all others."""
MOST_ENTRIES = 4_000_000
FRAMES = 6
"""Innermost first."""


def told() -> Mapping[str, Any]:
    return tomllib.loads(JOBS.read_text(encoding="utf-8"))


def make(folder: Path, repositories: Path) -> None:
    """What the programs load by name, and the programs that no wheel has."""
    sys.path.insert(0, str(ROOT / "tests" / "system"))
    from programs.manifest import Source  # type: ignore[import-not-found]
    from programs.one import Places, checkout_of  # type: ignore[import-not-found]
    from programs.stand_ins import make_stand_ins  # type: ignore[import-not-found]

    places = Places(repositories, folder / "checkouts", folder / "data")
    make_stand_ins(places)
    for name, source in told()["sources"].items():
        checkout = checkout_of(Source(**source), places)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(checkout.relative_to(folder))
    for split in ("train", "val"):
        tokens = folder / "nanogpt" / "data" / "shakespeare_char" / f"{split}.bin"
        tokens.write_bytes((folder / "data" / "tokens.bin").read_bytes())


def command_of(name: str, folder: Path) -> tuple[list[str], Path]:
    """What is typed, and where."""
    found = find_spec("trl")
    trl = "" if found is None or found.origin is None else str(Path(found.origin).parent)
    places = {source: str((folder / source).resolve()) for source in told()["sources"]}
    words = shlex.split(told()["jobs"][name].format(trl=trl, **places))
    beside_data = "{nanogpt}" in told()["jobs"][name]
    return words, folder / "nanogpt" if beside_data else folder / "data"


def predict(name: str, folder: Path) -> Row:
    words, place = command_of(name, folder)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "tunecast", "trace", "--json", "--gpu", CARD, "--time-limit", "3000", "--", *words],
        cwd=place, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 3):
        return {"error": done.stderr[-2000:]}
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    trace, timed = answer["trace"], answer["time"]
    return {
        **{key: answer["memory"][key] for key in ("allocated_bytes", "reserved_bytes")},
        **{key: trace[key] for key in ("word", "steps", "traced_steps", "finished", "versions")},
        **{key: timed[key] for key in ("step_s", "phases_s", "total_s", "total_range_s")},
        "reasons": answer["reasons"],
        "took_s": round(time.monotonic() - began, 1),
    }


def write_weights(folder: Path) -> None:
    """Random ones beside every configuration that has none, in the number format it names."""
    import torch
    import transformers

    for path in sorted((folder / "data").rglob("config.json")):
        name = str(path.parent.relative_to(folder / "data"))
        if any(path.parent.glob("*.safetensors")) or not any(name in job for job in told()["jobs"].values()):
            continue
        raw = json.loads(path.read_text())
        config = transformers.AutoConfig.from_pretrained(path.parent)
        with torch.device("cuda"):
            model = getattr(transformers, raw["architectures"][0])(config)
        model.to(getattr(torch, raw.get("dtype", "float32"))).save_pretrained(path.parent)


def run(name: str, folder: Path, limit_s: float) -> Row:
    words, place = command_of(name, folder)
    out = (folder / f"{name}.json").resolve()
    out.unlink(missing_ok=True)
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), "measure", str(out), *words],
            cwd=place, timeout=limit_s, capture_output=True, text=True, check=False,
        )  # fmt: skip
        end: Row = {"exit_code": done.returncode, "said": (done.stdout + done.stderr)[-1000:]}
    except subprocess.TimeoutExpired:
        end = {"exit_code": None, "said": f"not done within {limit_s:g} s"}
    measured: Row = json.loads(out.read_text()) if out.exists() else {}
    return {**measured, **end, "process_s": round(time.monotonic() - began, 3)}


def measure(out: Path, words: list[str]) -> None:
    """Runs a script as `python SCRIPT ARGS` does; hooks of the optimizer alone look on."""
    began = time.monotonic()
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    ends: list[float] = []
    register_optimizer_step_post_hook(lambda *_: ends.append(time.monotonic()))
    sys.argv = words
    sys.path[0] = str(Path(words[0]).resolve().parent)
    try:
        runpy.run_path(words[0], run_name="__main__")
    finally:
        torch.cuda.synchronize()
        done = time.monotonic()
        row = {
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "steps": len(ends),
            "training_s": ends[-1] - ends[0] if ends else None,
            "to_first_step_s": ends[0] - began if ends else None,
            "after_last_step_s": done - ends[-1] if ends else None,
            "step_ends_s": [round(each - ends[0], 4) for each in ends],
            "card": torch.cuda.get_device_name(),
            "torch": torch.__version__,
        }
        out.write_text(json.dumps(row))


def record(out: Path, words: list[str]) -> None:
    """The first steps of a script, as torch's allocator saw them, by the entries of its own snapshot."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    steps = iter(range(1, 1 + RECORDED_STEPS))

    def stop(*_: Any) -> None:
        if next(steps) == RECORDED_STEPS:
            raise SystemExit(0)

    register_optimizer_step_post_hook(stop)
    torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=MOST_ENTRIES)
    sys.argv = words
    sys.path[0] = str(Path(words[0]).resolve().parent)
    try:
        runpy.run_path(words[0], run_name="__main__")
    finally:
        torch.cuda.synchronize()
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        with gzip.open(out, "wt", encoding="utf-8") as file:
            for entry in trace:
                frames = [f"{frame['filename']}:{frame['line']} {frame['name']}" for frame in entry["frames"][:FRAMES]]
                file.write(json.dumps([entry["action"], entry["addr"], entry["size"], frames]) + "\n")


class Did(NamedTuple):
    """A request of so many bytes, or the end of the how-manieth request."""

    bytes_or_request: int
    is_request: bool
    where: tuple[str, ...]


def requests_and_ends(entries: Iterable[tuple[str, int, int, Sequence[str]]]) -> list[Did]:
    """What a program asked of its allocator, wherever that put it."""
    found: list[Did] = []
    alive: dict[int, int] = {}
    asked = 0
    for action, address, nbytes, frames in entries:
        if action == "alloc":
            alive[address] = asked
            found.append(Did(nbytes, True, tuple(frames)))
            asked += 1
        elif action == "free_requested" and address in alive:
            found.append(Did(alive.pop(address), False, tuple(frames)))
    return found


def first_difference(one: Sequence[Did], other: Sequence[Did]) -> int | None:
    """Where they part; None where one is the beginning of the other."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (mine, theirs) in pairs if mine[:2] != theirs[:2]), None)


def alive_at_peak(done: Sequence[Did]) -> Counter[tuple[int, str]]:
    """Requests alive where most bytes were, by size and the line that asked."""
    asked = [each for each in done if each.is_request]
    held = most = number = peak = 0
    for at, each in enumerate(done):
        held += each.bytes_or_request if each.is_request else -asked[each.bytes_or_request].bytes_or_request
        if held > most:
            most, peak = held, at
    alive: dict[int, Did] = {}
    for each in done[: peak + 1]:
        if each.is_request:
            alive[number] = each
            number += 1
        else:
            alive.pop(each.bytes_or_request, None)
    return Counter((each.bytes_or_request, each.where[0] if each.where else "") for each in alive.values())


def diverge(name: str, folder: Path) -> Iterator[str]:
    words, place = command_of(name, folder)
    snapshot, history = (folder / f"{name}.snapshot").resolve(), folder / f"{name}.history.gz"
    subprocess.run(
        [sys.executable, "-m", "tunecast", "trace", "--json", "--gpu", CARD, "--steps", str(RECORDED_STEPS),
         "--snapshot", str(snapshot), "--time-limit", "3000", "--", *words],
        cwd=place, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, check=False,
    )  # fmt: skip
    with gzip.open(history, "rt", encoding="utf-8") as file:
        card = requests_and_ends(json.loads(line) for line in file)
    entries = pickle.loads(snapshot.read_bytes())["device_traces"][0]  # our own file
    ours = requests_and_ends(
        (each["action"], each["addr"], each["size"], [f"{f['filename']}:{f['line']}" for f in each["frames"][:FRAMES]])
        for each in entries
    )
    at = first_difference(ours, card)
    yield f"{name}: {len(ours)} events traced, {len(card)} on the card; they part at {at}"
    for side, done in (("traced", ours), ("card", card)):
        around = [] if at is None else done[max(0, at - 6) : at + 6]
        yield from (
            f"  {side} {'asks' if e.is_request else 'ends'} {e.bytes_or_request:,} {e.where[:3]}" for e in around
        )
    mine, theirs = alive_at_peak(ours), alive_at_peak(card)
    sizes: Counter[int] = Counter()
    for found, sign in ((theirs, 1), (mine, -1)):
        for (nbytes, _), times in found.items():
            sizes[nbytes] += sign * times
    for nbytes, times in sorted(sizes.items(), key=lambda each: -abs(each[0] * each[1])):
        if times:
            lines = sorted({line for (size, line) in (theirs if times > 0 else mine) if size == nbytes})
            yield f"  at the peak the card has {times:+} of {nbytes:,} bytes {lines[:4]}"


def compare(predicted: Path, ran: Path) -> Iterator[str]:
    """`training`: from the end of the first step to that of the last, evaluations and checkpoints in between."""
    known = {row["name"]: row for row in map(json.loads, predicted.read_text().splitlines())}
    yield "| job | says | allocated | reserved | training | process |"
    yield "|---|---|---|---|---|---|"
    for run in map(json.loads, ran.read_text().splitlines()):
        row = known[run["name"]]
        phases = row.get("phases_s") or {"evaluation": row["evaluation_s"]}
        around = sum(phases.get(name, 0.0) for name in ("evaluation", "new_lengths", "checkpoints"))
        training = (run["steps"] - 1) * row["step_s"] + around
        cells = [
            f"{row['allocated_bytes'] - run['allocated_bytes']:+,} B",
            f"{row['reserved_bytes'] / run['reserved_bytes'] - 1:+.2%}",
            f"{training:.1f} of {run['training_s']:.1f} s, {training / run['training_s'] - 1:+.0%}",
            "" if "total_s" not in row else f"{row['total_s']:.0f} of {run['process_s']:.0f} s",
        ]
        yield f"| {run['name']} | {row['word']} | {' | '.join(cells)} |"


def each_job(out: Path, answer: Callable[[str], Row]) -> None:
    """One after another; what OUT has is left as it is."""
    known = {json.loads(line)["name"] for line in out.read_text().splitlines()} if out.exists() else set()
    for name in told()["jobs"]:
        if name not in known:
            row = {"name": name, **answer(name)}
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print({key: value for key, value in row.items() if key not in ("said", "step_ends_s")}, flush=True)


def main() -> None:
    one = {"measure": measure, "record-one": record}.get("".join(sys.argv[1:2]))
    if one is not None:
        one(Path(sys.argv[2]), sys.argv[3:])
        return
    if sys.argv[1:2] == ["compare"]:
        print("\n".join(compare(Path(sys.argv[2]), Path(sys.argv[3]))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("make", "predict", "run", "measure", "compare", "record", "diverge"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--repositories", type=Path, help="bare clones, OWNER/NAME each")
    parser.add_argument("--limit-s", type=float, default=120.0)
    given = parser.parse_args()
    if given.action == "make":
        make(given.folder, given.repositories)
    elif given.action == "record":
        write_weights(given.folder)
        for name in told()["jobs"]:
            words, place = command_of(name, given.folder)
            out = (given.folder / f"{name}.history.gz").resolve()
            command = [sys.executable, str(Path(__file__).resolve()), "record-one", str(out), *words]
            done = subprocess.run(
                command, cwd=place, timeout=given.limit_s, capture_output=True, text=True, check=False
            )
            print(name, done.returncode, out.stat().st_size if out.exists() else done.stderr[-500:], flush=True)
    elif given.action == "diverge":
        for name in told()["jobs"]:
            if (given.folder / f"{name}.history.gz").exists():
                print("\n".join(diverge(name, given.folder)), flush=True)
    elif given.action == "predict":
        each_job(given.out, lambda name: predict(name, given.folder))
    else:
        write_weights(given.folder)
        each_job(given.out, lambda name: run(name, given.folder, given.limit_s))


if __name__ == "__main__":
    main()
