"""Whether a launch that is killed leaves no job, or one that is found again: SIGKILL at random moments.

    ./dev system kills [--kills 120] [--seed N]       launch a job on this machine, kill the launch, look what is left
    ./dev system kills --out FILE                     also write the result, dated (committed: results/kills.json)

The job is rendered for TRL and CPUs; in the place of torchrun a stand-in waits, so that what was started is there to be
found. Of every two moments one is drawn from all of a launch, one from what comes after its folder is there, which is
short; a launch that was over by then is counted apart. After every kill, of the processes that carry this run's mark
in their environment (/proc):

    every one belongs to a launch that `tunecast jobs` calls running, and every such launch has one
    `tunecast jobs` answers, whatever was left half-written
    the same launch once more is refused (exit code 2, --again) where one runs, and starts where none does
    `tunecast cancel` ends all of them
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

from committed import commit

from tunecast.door.launch import cancel, jobs

ROOT = Path(__file__).parents[2]
MARK = "TUNECAST_KILLS"
WAITING = "#!/bin/sh\nexec sleep 3600\n"
OVER = "over"
SETTLED_S = 10.0
"""Within which a process that was started has said its number, or ended."""
Row = dict[str, Any]


class Place:
    """A folder of launches of its own, with a stand-in for torchrun."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "bin" / "torchrun").write_text(WAITING)
        (folder / "bin" / "torchrun").chmod(0o755)
        (folder / "train.jsonl").write_text('{"text": "a row"}\n')
        self.mark = f"{MARK}={folder}"
        os.environ["XDG_DATA_HOME"] = str(folder / "data")
        self.environment = {
            **os.environ,
            MARK: str(folder),
            "PYTHONPATH": str(ROOT / "src"),
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        }

    def words(self, *given: str) -> list[str]:
        return [sys.executable, "-m", "tunecast", *given]

    def launch_words(self, seed: int) -> list[str]:
        """Another job for another seed."""
        job = ("llama-3.2-1b", "--stack", "trl", "--gpu", "h100", "--max-steps", "10", "--set", f"data.seed={seed}")
        data = ("--data-path", str(self.folder / "train.jsonl"))
        return self.words("launch", *job, *data, "--on", "local", "--cpu", "--no-preflight", "--json")

    def run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )

    def jobs(self) -> list[Row]:
        """As `tunecast jobs --json` has them, without starting a Python each time."""
        found: list[Row] = jobs().to_dict()["jobs"]
        return found

    def command_lists_the_same(self) -> None:
        done = self.run(self.words("jobs", "--json"))
        if done.returncode or json.loads(done.stdout)["jobs"] != self.jobs():
            raise Broken(f"tunecast jobs: exit code {done.returncode}, {done.stderr[-500:]}")

    def processes(self) -> dict[int, str]:
        """Those of this run, but for what it asks itself: their sessions, and where they work."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                marked = self.mark.encode() in (entry / "environ").read_bytes().split(b"\0")
                if marked and os.getsid(int(entry.name)) != os.getsid(0):
                    found[int(entry.name)] = os.readlink(entry / "cwd")
            except (OSError, ProcessLookupError):
                continue
        return found


class Broken(Exception):
    """What must not be."""


def kill_one(place: Place, seed: int, after_s: float, *, of_folder: bool) -> str:
    """What was left: `nothing`, `no job` (a folder, and nothing was started), or `a job`. `of_folder`: seconds after
    the launch's folder is there."""
    known = {each["id"] for each in place.jobs()}
    folders = set(launches(place))
    started = subprocess.Popen(
        place.launch_words(seed), cwd=place.folder, env=place.environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while of_folder and set(launches(place)) == folders and started.poll() is None:
        time.sleep(0.0005)
    time.sleep(after_s)
    if started.poll() is not None:
        end_all(place)
        return OVER
    started.send_signal(signal.SIGKILL)
    started.wait()
    agree(place)
    left = [each for each in place.jobs() if each["id"] not in known]
    running = [each for each in left if each["state"] == "running"]
    if len(left) > 1:
        raise Broken(f"one launch left {len(left)} jobs")
    again = place.run(place.launch_words(seed))
    if running and (again.returncode != 2 or "--again" not in again.stderr):
        raise Broken(f"the same was started twice: exit code {again.returncode}, {again.stderr[-300:]}")
    if not running and again.returncode:
        raise Broken(f"nothing runs, and the same is refused: {again.stderr[-300:]}")
    agree(place)
    end_all(place)
    if running:
        return "a job"
    return "no job" if set(launches(place)) - folders - {folder_of(again)} else "nothing"


def end_all(place: Place) -> None:
    for each in place.jobs():
        if each["state"] == "running":
            cancel(each["id"])
    wait_until(lambda: not place.processes(), "what was cancelled still runs")
    if any(each["state"] == "running" for each in place.jobs()):
        raise Broken("a job without a process is said to run")


def launches(place: Place) -> list[str]:
    folder = place.folder / "data" / "tunecast" / "launches"
    return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []


def folder_of(done: subprocess.CompletedProcess[str]) -> str:
    return str(json.loads(done.stdout)["id"]) if done.returncode == 0 else ""


def agree(place: Place) -> None:
    """Processes and what is listed as running, once what was just started has said its number."""

    def same() -> bool:
        working = set(place.processes().values())
        listed = {each["folder"] for each in place.jobs() if each["state"] == "running"}
        return working == listed

    wait_until(same, "what runs is not what is listed")


def wait_until(holds: Any, told: str) -> None:
    ends = time.monotonic() + SETTLED_S
    while not holds():
        if time.monotonic() > ends:
            raise Broken(told)
        time.sleep(0.05)


def launch_seconds(place: Place, seed: int) -> tuple[float, float]:
    """Of one that nobody kills: the whole, and from the moment its folder is there."""
    began, folders = time.monotonic(), launches(place)
    started = subprocess.Popen(
        place.launch_words(seed), cwd=place.folder, env=place.environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    while launches(place) == folders and started.poll() is None:
        time.sleep(0.0005)
    made = time.monotonic()
    if started.wait():
        sys.exit("the launch failed by itself")
    ended = time.monotonic()
    for each in place.jobs():
        cancel(each["id"])
    return ended - began, ended - made


def measure(kills: int, seed: int) -> Row:
    draw, left, failures = random.Random(seed), Counter[str](), []
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        took = [launch_seconds(place, 10**6 + number) for number in range(3)]
        launch_s, of_folder_s = sorted(whole for whole, _ in took)[1], sorted(part for _, part in took)[1]
        spans = [launch_s, of_folder_s]
        number = 0
        while sum(left.values()) - left[OVER] + len(failures) < kills:
            number += 1
            late = number % 2
            after_s = spans[late] * draw.random()
            try:
                found = kill_one(place, number, after_s, of_folder=bool(late))
                left[found] += 1
                spans[late] *= 0.9 if found == OVER else 1.02  # others use the machine too
                if number % 10 == 0:
                    place.command_lists_the_same()
            except Broken as error:
                failures.append(f"kill {number} after {after_s:.3f} s: {error}")
                for process in place.processes():
                    os.kill(process, signal.SIGKILL)
            print(f"{number}: {dict(left)}, {len(failures)} failures", flush=True)
    return {
        "date": date.today().isoformat(),
        "commit": commit(),
        "inputs": {"kills": kills, "seed": seed, "launch_s": round(launch_s, 3), "of_folder_s": round(of_folder_s, 3)},
        "over": left.pop(OVER, 0),
        "left": dict(sorted(left.items())),
        "failures": failures,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    result = measure(given.kills, given.seed)
    print(json.dumps(result, indent=1))
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(bool(result["failures"]))


if __name__ == "__main__":
    main()
