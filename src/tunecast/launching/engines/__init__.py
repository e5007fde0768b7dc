"""Where a training runs, one file each: rendering is pure, submitting thin.

commands.py    An engine's own command, run here: what it printed, or its words for what went wrong
dstack.py      dstack: a task with the plan's card and providers, of which dstack takes the cheapest
kubernetes.py  Kubernetes: a TrainJob of Kubeflow Trainer with its runtime, queued by Kueue where a queue is named,
               started by `kubectl apply`
local.py       This machine: a process of its own session, which goes on when the terminal is closed
lyceum.py      lyceum: a container on one machine, by lyceum-cli; files go through the account's storage
names.py       What engines call our cards and providers. What is not here is named in a note, and never guessed
options.py     Values of an engine's own options that are numbers: `--option max_price=2.5`
skypilot.py    SkyPilot: a task with the plan's machines in the plan's order, started by `sky launch`, or by `sky jobs
               launch` where a spot machine is among them
slurm.py       Slurm: a batch script with its order, submitted by sbatch
ssh.py         A plain machine, by ssh: files are copied into tunecast/NAME of the user's folder there, and started in
               a session of their own, which goes on when the connection is lost
start.py       What engines with machines of their own run there: which machine it is, where results are kept, and the
               training
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from tunecast.errors import UsageError, nearest_hint
from tunecast.launching.programs import files_of
from tunecast.launching.rendering import Command, Order, Rendering
from tunecast.records import NamedTuple

ENGINES: Mapping[str, str] = {
    **{"local": "local", "slurm": "slurm", "ssh": "ssh", "kubernetes": "kubernetes"},
    **{"skypilot": "skypilot", "dstack": "dstack", "lyceum": "lyceum"},
}
"""What `--on` names, by the file here that does it."""
WITH_HOST = ("ssh",)
HOST = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_.-]*@)?[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
OPTION_VALUE = re.compile(r"[A-Za-z0-9_.,:=@%/+*\[\]][A-Za-z0-9_.,:=@%/+*\[\]-]*")
"""What an engine's own options may hold: nothing that a shell or a comment line takes for more than text, nor a program
for a flag."""


class Engine(NamedTuple):
    """One that was named: `slurm`, or `ssh:gpu-box`."""

    name: str
    host: str
    module: Any
    """With `ELSEWHERE`, `INSTALLS`, `OPTIONS` and `render`; those that start jobs here also `submit`, `state`,
    `log_command` and `cancel`; those that need more than a job to start it `require_options`; one that says when it
    would begin `begins`. An engine that is asked for all its jobs at once has `states`, one that takes several as one
    `render_many` and `submit_many`; of others each job is asked for, and submitted, by itself."""

    @property
    def spelled(self) -> str:
        return f"{self.name}:{self.host}" if self.host else self.name

    @property
    def elsewhere(self) -> bool:
        """It runs on machines that do not see the files of this one."""
        return bool(self.module.ELSEWHERE)

    @property
    def installs(self) -> bool:
        """What trains is installed for the job, on its machines or in its image."""
        return bool(self.module.INSTALLS)

    @property
    def submits(self) -> bool:
        return hasattr(self.module, "submit")

    def require(self, order: Order, options: Mapping[str, str]) -> None:
        """Raises `UsageError` where it cannot be started so."""
        if hasattr(self.module, "require_options"):
            self.module.require_options(order, options)


def engine_of(text: str) -> Engine:
    name, colon, host = text.partition(":")
    allowed = ", ".join(f"{each}:HOST" if each in WITH_HOST else each for each in ENGINES)
    if name in WITH_HOST and not colon:
        raise UsageError(
            f"--on: got {name}, without the machine. To fix: --on {name}:HOST, such as {name}:gpu-box", field="on"
        )
    if name not in ENGINES or (colon and name not in WITH_HOST):
        raise UsageError(f"--on: got {text[:80]!r}; allowed: {allowed}{nearest_hint(name, ENGINES)}", field="on")
    if colon and not HOST.fullmatch(host):
        raise UsageError(f"--on: got the host {host[:80]!r}; allowed: a name such as gpu-box or me@gpu-box", field="on")
    return Engine(name, host, _module_of(name))


def installed_before() -> tuple[str, ...]:
    """Engines whose machines have what trains there already."""
    return tuple(name for name in ENGINES if not _module_of(name).INSTALLS)


def _module_of(name: str) -> Any:
    return import_module(f"{__name__}.{ENGINES[name]}")


def rendering_of(order: Order, engine: Engine, options: Mapping[str, str]) -> Rendering:
    """Files of the training and of the engine, and the commands that start it."""
    for name, value in options.items():
        if name not in engine.module.OPTIONS:
            known = ", ".join(engine.module.OPTIONS) or "none"
            raise UsageError(f"--option: {engine.name} has no {name[:80]!r}; allowed: {known}", field="option")
        if not OPTION_VALUE.fullmatch(value):
            raise UsageError(
                f"--option {name}: got {value[:80]!r}; allowed: letters, digits and .,:=@%/+*[]_-, no - first",
                field="option",
            )
    engines_own: tuple[Mapping[str, str], tuple[Command, ...], tuple[str, ...]]
    engines_own = engine.module.render(order, options, engine.host)
    files, commands, notes = engines_own
    return Rendering(
        order.name,
        engine.spelled,
        order.program.framework,
        {**files_of(order.program, order.job), **files},
        commands,
        order.program.environment,
        notes,
        order.program.placeholders,
    )
