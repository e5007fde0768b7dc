"""Hundreds of launches on a real Slurm: none lost, none doubled.

    ./dev system launches                        start a Slurm on this machine (root, Debian's packages), and try it
    ./dev system launches --out FILE             also write the result (the committed one: results/launches.json)

Rounds      jobs alone and in arrays that end by themselves, are cancelled while they run and while they wait, that
            Slurm refuses, with its controller stopped and started in between
Kills       `tunecast launch` killed (SIGKILL) at a random moment, of all it takes or of what it takes from the entry
            in the ledger on, one job or an array of three; then the same command again, to its end

After each, what Slurm has (squeue) and what `tunecast jobs` says are compared, job by job. The training program is a
stub: it sleeps as many seconds as its configuration has steps.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

from committed import commit

sys.path.insert(0, str(Path(__file__).parents[1] / "trace"))
from slurm_cluster import SlurmCluster, missing

from tunecast.cli.main import main as tunecast
from tunecast.door.launch import launch
from tunecast.door.launched import Launched, cancel, jobs
from tunecast.errors import TunecastError
from tunecast.launching import ledger

ROOT = Path(__file__).parents[2]
ROUNDS, KILLS, SEED = 20, 100, 19
RESTARTS = (4, 9, 14)
"""Rounds in which the controller is gone for a while."""
LONG, QUICK = 600, 1
SUBMISSION_S = 0.2
"""Of every second kill: about as long as a launch takes once it is in the ledger, on a machine that is not busy."""
STUB = """#!/bin/sh
# Stands for accelerate: as many seconds as there are steps.
exec sleep "$(sed -n 's/^max_steps: //p' sft.yaml)"
"""
ENDS = ("done", "failed", "cancelled", "ended", "not started")
SLURM_STATES = {"PENDING": "queued", "CONFIGURING": "queued", "RUNNING": "running", "COMPLETING": "running",
                "COMPLETED": "done", "CANCELLED": "cancelled", "FAILED": "failed"}  # fmt: skip


class Trial:
    """One Slurm, one ledger, and what was found wrong."""

    def __init__(self, folder: Path, cluster: SlurmCluster) -> None:
        self.folder, self.cluster = folder, cluster
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()
        self.random = random.Random(SEED)
        self.limits = iter(range(2, 1400))
        """Minutes, one number for each launch: by it Slurm's jobs are counted."""

    def job(self, steps: int, **fields: Any) -> dict[str, Any]:
        data = {"path": str(self.folder / "train.jsonl"), "samples": 1000}
        return {"model": "llama-3.2-1b", "method": "lora", "stack": "trl", "data": data, "run": {"max_steps": steps},
                "hardware": {"gpu": "h100-sxm-80gb"}, **fields}  # fmt: skip

    def options(self) -> dict[str, str]:
        return {"mem": "10", "time": str(next(self.limits))}

    def start(self, steps: int) -> Launched:
        self.counts["launches"] += 1
        found = launch(self.job(steps), on="slurm", options=self.options(), again=True)
        assert isinstance(found, Launched)
        return found

    def start_array(self, steps: int, several: int) -> list[Launched]:
        self.counts["launches"] += several
        self.counts["in arrays"] += several
        jobs_ = [self.job(steps, id=f"array-{n}") for n in range(several)]
        return list(launch(jobs_, on="slurm", options=self.options(), again=True).jobs)  # type: ignore[arg-type]

    def refuse(self) -> None:
        """More than there is: nothing may be left of it."""
        self.counts["refused"] += 1
        before = len(list(ledger.entries()))
        try:
            launch(self.job(QUICK), on="slurm", options={**self.options(), "gres": "gpu:99"}, again=True)
            self.failures.append("a job that asks for more than there is was taken")
        except TunecastError:
            if len(list(ledger.entries())) != before:
                self.failures.append("a refused launch is in the ledger")

    def cancel(self, launched: Launched, state: str) -> None:
        self.counts[f"cancelled while {state}"] += 1
        cancel(launched.id)

    def states(self) -> dict[str, str]:
        return {each.id: each.state for each in jobs().jobs}

    def wait(self, of: Sequence[Launched], wanted: Sequence[str]) -> None:
        names = {each.id for each in of}
        self.until(lambda: all(state in wanted for name, state in self.states().items() if name in names))

    def until(self, holds: Callable[[], bool], seconds: float = 120) -> None:
        over = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > over:
                raise TimeoutError(f"not in {seconds} s: {Counter(self.states().values())}")
            time.sleep(0.2)

    def compare(self, what: str) -> None:
        """Slurm's jobs of this ledger and the ledger's launches are the same, in the same states."""
        found: list[str] = []

        def agree() -> bool:
            found[:] = self.differences()
            return not found

        with suppress(TimeoutError):  # one of the two is asked first: what ends in between differs for a moment
            self.until(agree, 30)
        self.failures += [f"{what}: {each}" for each in found]

    def differences(self) -> list[str]:
        told = self.cluster.told("squeue", "--array", "--noheader", "--states=all", "--format=%i|%T|%N|%Z")
        known = {}
        for number, state, nodes, place in (row.split("|", 3) for row in told.splitlines()):
            refused = state == "FAILED" and not nodes  # Slurm remembers that it refused one
            if place.startswith(str(ledger.folder())) and not refused:
                known[number] = SLURM_STATES.get(state, state)
        entries = list(jobs().jobs)
        numbers = [each.number or "".join(Path(each.folder, "job_id").read_text().split()) if
                   each.number or Path(each.folder, "job_id").exists() else "" for each in entries]  # fmt: skip
        found = [f"{number} of Slurm is in no launch" for number in known if number not in numbers]
        found += [f"{number} twice" for number, times in Counter(numbers).items() if number and times > 1]
        for each, number in zip(entries, numbers, strict=True):
            if number in known and known[number] != each.state:
                found.append(f"{each.id}: {each.state}, in Slurm {known[number]}")
            if number not in known and each.state in ledger.ACTIVE:
                found.append(f"{each.id}: {each.state}, and Slurm does not know it")
        return found

    def round(self, number: int) -> None:
        """Ten launches: six fill the cluster, four wait behind them."""
        running = [*self.start_array(LONG, 4), *(self.start(LONG) for _ in range(2))]
        self.wait(running, ("running",))
        waiting = [self.start(LONG), *self.start_array(QUICK, 3)]
        self.refuse()
        if number in RESTARTS:
            self.restart()
        if self.states()[waiting[0].id] == "queued":
            self.cancel(waiting[0], "queued")
        else:
            self.failures.append(f"round {number}: the cluster was not full")
        first = running.pop(self.random.randrange(len(running)))
        self.cancel(first, "running")
        self.compare(f"round {number}, in between")
        for each in running:
            self.cancel(each, "running")
        self.wait([first, *running, *waiting], ENDS)
        states = self.states()
        done = Counter(states[each.id] for each in (first, *running, *waiting))
        if done != {"cancelled": 7, "done": 3}:
            self.failures.append(f"round {number} ended as {dict(done)}")
        self.counts["to the end"] += done["done"]
        self.compare(f"round {number}")

    def restart(self) -> None:
        """Gone while something is launched: that is refused, or comes once it is back; never twice."""
        self.counts["controller restarts"] += 1
        self.cluster.stop_controller()
        if set(self.states().values()) - {"unknown"}:
            self.failures.append("states are known while the controller is gone")
        self.cluster.start_controller()
        self.until(lambda: "unknown" not in self.states().values())

    def kill(self, number: int, seconds: float) -> None:
        """One launch killed, then the same to its end: as many jobs of its time limit as it has, all of them found."""
        several = 3 if number % 4 < 2 else 1
        minutes = next(self.limits)
        file = self.folder / f"kill-{number}.jsonl"
        file.write_text("".join(json.dumps(self.job(QUICK, id=f"kill-{number}-{n}")) + "\n" for n in range(several)))
        words = ["launch", str(file), "--on", "slurm", "--option", "mem=10", "--option", f"time={minutes}"]
        child = begin(words)
        if number % 2:
            time.sleep(self.random.uniform(0, 1.1 * seconds))
        else:  # what is between the ledger's entry and its number takes a fraction of that
            self.until(lambda: (ledger.folder() / f"kill-{number}-0").exists())
            time.sleep(self.random.uniform(0, SUBMISSION_S))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        self.counts["killed" if os.WIFSIGNALED(status) else "over before the kill"] += 1
        self.counts[f"jobs after the kill: {self.with_limit(minutes)} of {several}"] += 1
        _, status = os.waitpid(begin(words), 0)
        if status:
            self.failures.append(f"kill {number}: the second launch ends with {os.waitstatus_to_exitcode(status)}")
        if self.with_limit(minutes) != several:
            self.failures.append(f"kill {number}: {self.with_limit(minutes)} jobs of {several}")

    def seconds_of_a_launch(self) -> float:
        """The median of five that nobody kills."""
        file = self.folder / "whole.jsonl"
        taken = []
        for n in range(5):
            file.write_text(json.dumps(self.job(QUICK, id=f"whole-{n}")))
            began = time.monotonic()
            os.waitpid(begin(["launch", str(file), "--on", "slurm", "--option", "mem=10"]), 0)
            taken.append(time.monotonic() - began)
        return sorted(taken)[2]

    def with_limit(self, minutes: int) -> int:
        """Slurm's own count of jobs of that time limit."""
        told = self.cluster.told("squeue", "--array", "--noheader", "--states=all", "--format=%l %Z").splitlines()
        return sum(in_minutes(row.split()[0]) == minutes for row in told)


def begin(words: Sequence[str]) -> int:
    """The command in a process of its own, with what takes a second to load loaded already."""
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_RDWR)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os._exit(tunecast(list(words)))
    return child


def in_minutes(text: str) -> int:
    """Of Slurm's D-HH:MM:SS, HH:MM:SS or MM:SS."""
    days, _, rest = text.rpartition("-")
    hours, minutes = (["0", *rest.split(":")[:-1]])[-2:]
    return int(days or 0) * 1440 + int(hours) * 60 + int(minutes)


def try_all(folder: Path, rounds: int, kills: int) -> Trial:
    """In a folder of its own, with a Slurm of its own."""
    (folder / "bin").mkdir()
    (folder / "bin" / "accelerate").write_text(STUB)
    (folder / "bin" / "accelerate").chmod(0o755)
    (folder / "train.jsonl").write_text('{"text": "a b c"}\n')
    (folder / "slurm").mkdir()
    os.environ |= {
        "XDG_DATA_HOME": str(folder / "data"),
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "SLURM_CONF": str(folder / "slurm" / "slurm.conf"),
    }
    cluster = SlurmCluster(folder / "slurm")
    cluster.start()
    trial = Trial(folder, cluster)
    try:
        for number in range(rounds):
            trial.round(number)
            print(f"round {number + 1} of {rounds}: {trial.failures or 'all as it should be'}", flush=True)
        seconds = trial.seconds_of_a_launch()
        for number in count():
            if trial.counts["killed"] == kills:
                break
            trial.kill(number, seconds)
        print(f"{kills} kills: {len(trial.failures)} failures", flush=True)
        trial.until(lambda: not set(trial.states().values()) & {"queued", "running"}, 300)
        trial.compare("at the end")
        if set(trial.states().values()) - {"done", "cancelled", "ended"}:
            trial.failures.append(f"at the end: {Counter(trial.states().values())}")
    finally:
        cluster.stop()
    return trial


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev system launches", description=__doc__)
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the dated result goes")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--kills", type=int, default=KILLS)
    arguments = parser.parse_args(argv)
    if missing() is not None:
        sys.exit(f"no Slurm can be started here: {missing()}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended from outside, its Slurm ends too
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        trial = try_all(Path(folder), arguments.rounds, arguments.kills)
    result = {"date": date.today().isoformat(), "commit": commit(), "inputs": dict(sorted(trial.counts.items())),
              "seconds": round(time.monotonic() - began), "failures": trial.failures}  # fmt: skip
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(f"{text}\n", encoding="utf-8")
    return int(bool(trial.failures))


if __name__ == "__main__":
    sys.exit(main())
