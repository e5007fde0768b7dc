"""Any program, run as it is and looked at from outside; Python programs with transformers' Trainer from inside too.

    python record.py [--folder DIR] -- COMMAND...

Its input, output and errors are the program's own; signals are passed on, and its exit status is kept. Where input is
no terminal the program leads a process group, so that what is sent to this one reaches it once; at a terminal both are
of one group, and Ctrl-C reaches both.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from tunecast.learn.inside.host_memory import host_memory, killed_note
from tunecast.learn.inside.journal import Follower, Journal
from tunecast.learn.inside.live import Live, duration, line, warnings
from tunecast.learn.inside.machine import host, place_of, ram_bytes
from tunecast.learn.inside.merge import RUN, insides_of, merged_folder, state_of
from tunecast.learn.inside.nvml import load
from tunecast.learn.inside.process import FOLDER, STOP, STOP_AT, head, write_whole
from tunecast.learn.inside.sampler import EVERY_S, Sampler
from tunecast.learn.inside.telling import Told, is_terminal

PASSED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGCONT")
"""Signals that schedulers send. SIGINT too, but where a terminal sends it to both."""
WRITE_EVERY_S = 5.0
GRACE_S = 60.0
"""For a training to begin its checkpoint after it was asked to."""
KILL_S = 300.0
"""After SIGTERM, for a program to save in its own way; then SIGKILL, since a limit that is not kept costs on."""
ABOUT_LIMITS = ("stop", "ended", "killed")
"""What is said of a limit, which holds from then on."""
INSIDE, EXPECTED, EARLIER = "inside", "record.json", "earlier"
"""In a run's folder; beside that of a launch; and what a job leaves that is started again."""
PACKAGE = "tunecast_run"
"""What these files are called beside a job, where no tunecast is installed."""
OWN = "tunecast.learn" + ".inside"
PR_SET_PDEATHSIG = 1
"""prctl(2)."""
CANNOT_START, CANNOT_RUN = 127, 126
"""As shells have it."""


class Limits(NamedTuple):
    """When a run is to end."""

    within_s: float | None = None
    budget_usd: float | None = None
    usd_per_hour: float | None = None

    @property
    def ends_s(self) -> float | None:
        by_money = (
            self.budget_usd / self.usd_per_hour * 3600 if self.budget_usd is not None and self.usd_per_hour else None
        )
        return min((each for each in (self.within_s, by_money) if each is not None), default=None)

    def name(self) -> str:
        """As it was given: 90 s are no 2 min."""
        if self.budget_usd is not None and self.ends_s != self.within_s:
            cents = self.budget_usd >= 0.01
            return f"the budget of ${self.budget_usd:,.2f}" if cents else f"the budget of ${self.budget_usd:g}"
        ends_s = self.ends_s or 0.0
        return f"the limit of {f'{ends_s:g} s' if ends_s % 60 else duration(ends_s)}"


class Ended(NamedTuple):
    status: int
    """As `subprocess` has it."""
    record: dict[str, Any] | None

    @property
    def exit_code(self) -> int:
        return self.status if self.status >= 0 else 128 - self.status


def lay_out(folder: str) -> str:
    """These files as programs find them that have no tunecast: a folder for PYTHONPATH."""
    here, place = os.path.dirname(os.path.abspath(__file__)), os.path.join(folder, INSIDE)
    os.makedirs(os.path.join(place, PACKAGE), exist_ok=True)
    for name in sorted(os.listdir(here)):
        if name.endswith(".py"):
            with open(os.path.join(here, name), encoding="utf-8") as file:
                text = file.read().replace(OWN, PACKAGE)
            parts = (name,) if name == "sitecustomize.py" else (PACKAGE, name)
            write_whole(os.path.join(place, *parts), text)
    return place


def watch(
    command: Sequence[str],
    folder: str,
    *,
    source: str = "watch",
    expected: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    told: TextIO | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Ended:
    """Runs it to its end. `folder`: of this run alone; its journal is there."""
    expected, limits = expected or {}, limits or Limits()
    say = Told(told)
    paths = [lay_out(folder), *filter(None, [environ.get("PYTHONPATH")])]
    nvml, why = load(environ)
    if why:
        say.once("nvml", why)
    began = time.time()
    own_group = not is_terminal(sys.stdin)
    try:
        started = subprocess.Popen(
            list(command),
            env={**environ, "PYTHONPATH": os.pathsep.join(paths), FOLDER: folder},
            preexec_fn=lambda: _before_it_runs(own_group),
        )
    except OSError as error:
        print(f"tunecast: {command[0]}: {error.strerror}", file=sys.stderr)
        return Ended(CANNOT_START if isinstance(error, FileNotFoundError) else CANNOT_RUN, None)
    with _signals_passed_on(started.pid, own_group):
        run = _WatchedProgram(started, folder, expected, limits, say, Sampler(nvml, started.pid), began)
        described = {name: expected.get(name) for name in ("job", "model_shape", "predicted")}
        run.journal.begin(
            {"event": "begin", "at": began, "record": {**head(source, began, described), "hardware": host()}}
        )
        while (status := run.wait()) is None:
            for act in (run.look, run.keep_limits):
                try:
                    act()
                except Exception as error:  # a training is never ended by what watches it: without us it gets SIGTERM
                    say.once("fault", f"not all of it is measured ({type(error).__name__}: {error})")
        return run.end(status)


class _WatchedProgram:
    def __init__(
        self,
        started: subprocess.Popen[bytes],
        folder: str,
        expected: Mapping[str, Any],
        limits: Limits,
        say: Told,
        sampler: Sampler,
        began: float,
    ) -> None:
        self.started, self.folder, self.expected, self.limits, self.say = started, folder, expected, limits, say
        self.sampler, self.began = sampler, began
        self.inside: dict[str, Any] = {}
        self.stop_acknowledged = False
        self._asked: float | None = None
        self._ended_it: float | None = None
        self._killed_it = False
        self._memory = host_memory(ram_bytes=ram_bytes())
        self._written = 0.0
        self._outside: dict[str, Any] = {}
        self._warned: dict[str, str] = {}
        self._followers: dict[str, Follower] = {}
        node = place_of()["rank"] if "NODE_RANK" not in os.environ else os.environ["NODE_RANK"]
        self.journal = Journal(os.path.join(folder, RUN if str(node) == "0" else f"run-{node}.jsonl"))

    def wait(self) -> int | None:
        try:
            return self.started.wait(EVERY_S)
        except subprocess.TimeoutExpired:
            return None

    def look(self) -> None:
        self._follow()
        self.sampler.sample(str(self.inside.get("phase", "start")))
        now = time.time()
        if now - self._written >= WRITE_EVERY_S:
            self._written, self._outside = now, self.sampler.summary()
            self.journal.append({"event": "seen", "at": now, "outside": self._outside, **self._line_and_warnings()})
        live = self.live(now)
        self._warned = warnings(live)
        for about, text in self._warned.items():
            self.say.once(about, text)
        self.say.now(line(live))

    def keep_limits(self) -> None:
        now = time.time()
        self._limit(now - self.began, self.live(now))

    def live(self, now: float) -> Live:
        return Live(self.expected, self.inside, self._outside, now - self.began, self.limits.usd_per_hour)

    def _line_and_warnings(self) -> dict[str, Any]:
        """Warnings that hold now: what was said of a rate that is in its range again would contradict the line."""
        limits = {about: self.say.texts[about] for about in ABOUT_LIMITS if about in self.say.texts}
        return {"line": self.say.last, "warnings": [*self._warned.values(), *limits.values()]}

    def _follow(self) -> None:
        """The first rank's newest line."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.folder):
                if name.startswith("rank-") and name not in self._followers:
                    self._followers[name] = Follower(os.path.join(self.folder, name))
        for name in sorted(self._followers):
            for each in self._followers[name].new_lines():
                if each.get("event") == "stop":
                    self.stop_acknowledged = True
                if name.startswith("rank-0-") and each.get("event") in ("steps", "end"):
                    self.inside = each

    def _limit(self, elapsed_s: float, live: Live) -> None:
        ends_s = self.limits.ends_s
        if self._ended_it is not None and not self._killed_it and elapsed_s - self._ended_it >= KILL_S:
            self._killed_it = True
            self.say.once("killed", f"it goes on {duration(KILL_S)} after SIGTERM: SIGKILL is sent")
            _send(self.started.pid, signal.SIGKILL, not is_terminal(sys.stdin))
        if ends_s is None or self._ended_it is not None or self.stop_acknowledged:
            return
        spans = (self.inside.get("time") or {}).get("phases_s") or {}
        lead_s = spans.get("save", self.expected.get("save_s") or 0.0) + 4 * (live.step_s or 0.0)
        if self._asked is None and self.inside.get("step") and elapsed_s >= ends_s - lead_s:
            self._asked = elapsed_s
            write_whole(os.path.join(self.folder, STOP), "stop\n")
            self.say.once("stop", f"{self.limits.name()} is near: the training is asked to save and to end")
        waits_s = 0.0 if self._asked is None else GRACE_S + lead_s
        if elapsed_s >= ends_s and elapsed_s - (self._asked or 0.0) >= waits_s:
            self._ended_it = elapsed_s
            what = "nothing in it can be asked to save" if self._asked is None else "it did not save when asked to"
            self.say.once("ended", f"{self.limits.name()} is reached, and {what}: SIGTERM is sent")
            _send(self.started.pid, signal.SIGTERM, not is_terminal(sys.stdin))

    def end(self, status: int) -> Ended:
        self._follow()
        self._outside = self.sampler.summary()
        now = time.time()
        self.say.end(line(self.live(now), over=True))
        self.journal.append({"event": "seen", "at": now, "outside": self._outside, **self._line_and_warnings()})
        record = merged_folder(self.folder, status, now)
        insides = insides_of(self.folder)
        if record is None:  # not even its first line
            self.say.once("journal", f"not kept: {self.folder} could not be written")
        else:
            if self._ended_it is not None and state_of(insides, status) == "killed":
                record["note"] = f"ended at {self.limits.name()} without a checkpoint"
            elif _was_killed(status, insides):
                after, needs_bytes = host_memory(ram_bytes=ram_bytes()), self.expected.get("ram_bytes")
                record["note"] = killed_note(self._memory, after, needs_bytes) or record.get("note")
            total = {"steps": None, "step_s": None, "total_s": now - self.began}
            record["time"] = {**total, **(record.get("time") or {}), "total_s": now - self.began}
            self.journal.end({"event": "end", "at": now, "state": record["state"], "record": record})
        return Ended(status, record)


def _was_killed(status: int, insides: Sequence[Mapping[str, Any]]) -> bool:
    """By SIGKILL: itself, as a shell tells it, or a rank without a last line whose launcher then ended with 1."""
    lost_a_rank = status == 1 and any(each.get("state") is None for each in insides)
    return status in (-signal.SIGKILL, 128 + signal.SIGKILL) or lost_a_rank


def _before_it_runs(own_group: bool) -> None:
    """In the child: it does not outlive this process, as it would not outlive its terminal."""
    if own_group:
        os.setpgid(0, 0)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _send(process: int, number: int, group: bool) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(process, number)


@contextlib.contextmanager
def _signals_passed_on(process: int, own_group: bool) -> Any:
    def pass_on(number: int, frame: object) -> None:
        if number != signal.SIGINT or own_group:
            _send(process, number, own_group)

    names = [name for name in (*PASSED, "SIGINT") if hasattr(signal, name)]
    before = {}
    for name in names:
        with contextlib.suppress(ValueError):  # not the main thread
            before[name] = signal.signal(getattr(signal, name), pass_on)
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def expected_in(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def set_aside(folder: str) -> None:
    """The journals of a job that was interrupted, before it begins again."""
    if not os.path.exists(os.path.join(folder, RUN)):
        return
    number = 1
    while os.path.exists(place := os.path.join(folder, f"{EARLIER}-{number}")):
        number += 1
    os.makedirs(place)
    for name in os.listdir(folder):
        if name.endswith((".jsonl", ".txt")) or name in (STOP, STOP_AT):
            os.replace(os.path.join(folder, name), os.path.join(place, name))


def main(argv: Sequence[str]) -> int:
    """Of a launch: what was predicted lies beside it."""
    words = list(argv)
    if "--" not in words or words.index("--") + 1 == len(words):
        print("usage: python record.py [--folder DIR] -- COMMAND...", file=sys.stderr)
        return 2
    options, command = words[: words.index("--")], words[words.index("--") + 1 :]
    folder = os.path.abspath(options[1]) if options[:1] == ["--folder"] and len(options) == 2 else os.getcwd()
    os.makedirs(folder, exist_ok=True)
    if os.environ.get("NODE_RANK", "0") == "0":
        set_aside(folder)
    expected = expected_in(os.path.join(os.path.dirname(folder), EXPECTED))
    price = Limits(usd_per_hour=expected.get("usd_per_hour"))
    ended = watch(command, folder, source="launch", expected=expected, limits=price, told=sys.stderr)
    if ended.status < 0:  # as the program itself would have ended
        signal.signal(-ended.status, signal.SIG_DFL) if -ended.status != signal.SIGKILL else None
        os.kill(os.getpid(), -ended.status)
    return ended.exit_code
