"""What stands before the script on a command line: variables, `python`, `uv run`, `torchrun`, `srun`, a shell script.

A launcher starts processes; the tracer is one process that stands for any of them. So launchers are read, not run: how
many processes they would start and what they tell them is taken over, and what is left is the script with its
arguments. What stands nearer to the script wins.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence

from tunecast.door.accelerate import Accelerate, accelerate_from
from tunecast.door.shell import (
    SHELLS,
    ShellStart,
    is_shell_script,
    program_name,
    require_certain,
    start_of_file,
    start_of_text,
)
from tunecast.errors import UsageError
from tunecast.job.knob import shown
from tunecast.job.recipes.launch.launchers import LAUNCHERS, MODULES, split_options
from tunecast.job.recipes.words import Word
from tunecast.records import NamedTuple, dataclass, field, replace
from tunecast.tape.trace.launch import deepspeed_rank_zero, mpi_rank_zero, rank_zero, slurm_rank_zero
from tunecast.tape.trace.secrets import without_secrets
from tunecast.units import positive

UNDERSTOOD = (
    "train.py ARGS, notebook.ipynb, -m package.module ARGS, run.sh ARGS or an installed program such as trl; each also "
    "after VAR=x, env, python, uv run, poetry run, torchrun, accelerate launch, deepspeed, srun, mpirun, nohup, bash"
)
PYTHON_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
MOST_SCRIPTS = 4
"""Shell scripts that call each other."""
RUNNERS = frozenset({"uv", "poetry", "pipenv", "pixi", "rye", "hatch", "conda"})
ELSEWHERE = {
    **dict.fromkeys(("docker", "podman", "singularity", "apptainer", "enroot"), "inside the container"),
    **dict.fromkeys(("ssh", "kubectl", "sky", "modal", "runpodctl"), "on that machine"),
    **dict.fromkeys(("ray", "horovodrun"), "on one of its workers"),
}
"""Programs that run a command where this interpreter is not."""
TORCHRUN = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch", "ft_launcher"})
ACCELERATE = frozenset({"accelerate", "accelerate-launch", "accelerate.commands.launch"})


@dataclass(frozen=True)
class ScriptLaunch:
    """A script and what its launcher was told."""

    script: str
    args: tuple[str, ...] = ()
    as_module: bool = False
    python: str | None = None
    nproc_per_node: int | None = None
    nnodes: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    """Where it is started; None: here."""
    rank_variables: bool = True
    """Whether several processes are told RANK and WORLD_SIZE, as torchrun does; srun and mpirun have others."""
    notes: tuple[str, ...] = ()
    """What was left out on the way to the script."""

    @property
    def words(self) -> str:
        """`train.py --epochs 3`; secrets are hidden."""
        return " ".join(filter(None, ("-m" if self.as_module else "", self.script, *without_secrets(self.args))))


class _Context(NamedTuple):
    nproc_per_node: int | None
    """Given by the user, and better than what a launcher would count on its machine."""
    scripts: int = MOST_SCRIPTS
    place: str = ""
    """Of the command in a shell script."""


Words = list[Word]


def launch_from(command: Sequence[str], *, nproc_per_node: int | None = None) -> ScriptLaunch:
    """What a command line runs. Raises `UsageError` where that cannot be told."""
    if not command:
        raise UsageError(f"there is no script to trace; allowed after --: {UNDERSTOOD}", field="script")
    return _read([Word(word) for word in command], ScriptLaunch(""), _Context(nproc_per_node))


def with_accelerate(launch: ScriptLaunch, told: Accelerate) -> ScriptLaunch:
    return replace(
        launch,
        nproc_per_node=told.nproc_per_node,
        nnodes=told.nnodes,
        environment={**launch.environment, **told.environment},
    )


def _read(words: Words, around: ScriptLaunch, context: _Context) -> ScriptLaunch:
    while words and (assigned := ASSIGNMENT.fullmatch(words[0])) is not None:
        around = _with(around, {assigned[1]: assigned[2]})
        words = words[1:]
    if not words:
        return _script(words, around, context)
    name = program_name(words[0])
    if name in ELSEWHERE:
        raise UsageError(
            f"{name} runs the script {ELSEWHERE[name]}, and tunecast traces with an interpreter that is here. "
            f"To fix: run tunecast there, or put the training's own command after --: {UNDERSTOOD}",
            field="script",
        )
    if name in SHELLS:
        return _after_shell(words, around, context)
    reader = READERS.get(name)
    if reader is not None:
        return reader(words, around, context)
    launcher = LAUNCHERS.get(name)
    if launcher is not None and not launcher.keeps_name:
        _, rest = split_options(words[1:], launcher)
        return _read(rest[launcher.arguments :], around, context)
    if is_shell_script(os.path.join(around.folder or "", words[0])):
        return _after_shell([Word("bash"), *words], around, context)
    return _script(words, around, context)


def _with(launch: ScriptLaunch, environment: Mapping[str, str]) -> ScriptLaunch:
    return replace(launch, environment={**launch.environment, **environment})


def _script(words: Words, around: ScriptLaunch, context: _Context, as_module: bool = False) -> ScriptLaunch:
    if words and words[0] == "-m":
        words, as_module = words[1:], True
    if not words or words[0].startswith("-"):
        got = f"got {words[0]!r}" if words else "nothing is left"
        raise UsageError(f"{got} where the script should be; allowed after --: {UNDERSTOOD}", field="script")
    if context.place:
        require_certain(words, context.place)
    return replace(around, script=str(words[0]), args=tuple(map(str, words[1:])), as_module=as_module)


# interpreters and environments


def _after_python(words: Words, around: ScriptLaunch, context: _Context) -> ScriptLaunch:
    rest = words[1:]
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        if rest[0] in ("-c", "-"):
            raise UsageError(f"python {rest[0]} gives no script; allowed after --: {UNDERSTOOD}", field="script")
        rest = rest[2 if rest[0] in PYTHON_WITH_VALUE else 1 :]
    named = str(words[0])
    if os.sep in named or around.python is None:  # else that of the environment around: uv run python
        around = replace(around, python=named)
    if rest[:1] == ["-m"] and len(rest) > 1:
        module = rest[1]
        if module in (*TORCHRUN, *ACCELERATE, "deepspeed"):
            return READERS[module](rest[1:], around, context)
        if module == "accelerate.commands.accelerate_cli":
            return _after_accelerate([Word("accelerate"), *rest[2:]], around, context)
    return _script(rest, around, context)


def _after_runner(words: Words, around: ScriptLaunch, context: _Context) -> ScriptLaunch:
    """`uv run`: its project's environment is `.venv`, here or in a folder above."""
    name = program_name(words[0])
    if words[1:2] != ["run"]:
        raise UsageError(f"of {name}'s commands only `{name} run` runs a script", field="script")
    options, rest = split_options(words[2:], LAUNCHERS[name])
    if name == "conda":
        return _read(rest, replace(around, python=_conda_python(options)), context)
    python = project_python(around.folder or os.getcwd())
    around = replace(around, python=python or around.python)
    return _script(rest, around, context, True) if MODULES & set(options) else _read(rest, around, context)


def _conda_python(options: Mapping[str, Word]) -> str:
    prefix = options.get("p") or options.get("prefix")
    if prefix:
        return os.path.join(os.path.expanduser(prefix), "bin", "python")
    name = options.get("n") or options.get("name") or "base"
    raise UsageError(
        f"conda run -n {name}: where that environment lies is not known here. "
        f"To fix: tunecast trace --python PREFIX/envs/{name}/bin/python -- and what stands behind conda run",
        field="--python",
    )


def project_python(folder: str) -> str | None:
    """Of the nearest `.venv` from this folder upwards."""
    while True:
        python = os.path.join(folder, ".venv", "bin", "python")
        if os.path.exists(python):
            return python
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above


def _after_env(words: Words, around: ScriptLaunch, context: _Context) -> ScriptLaunch:
    rest = words[1:]
    while rest and rest[0].startswith("-"):
        rest = rest[2 if rest[0] in ("-u", "--unset", "-C", "--chdir") else 1 :]
    return _read(rest, around, context)


def _after_shell(words: Words, around: ScriptLaunch, context: _Context) -> ScriptLaunch:
    """`bash [-x] FILE ARGS`, `bash -c TEXT`, `sbatch [options] FILE ARGS`."""
    if not context.scripts:
        raise UsageError(f"more than {MOST_SCRIPTS} shell scripts call each other", field="script")
    rest, is_text = words[1:], False
    while rest and rest[0].startswith("-"):
        is_text = is_text or (rest[0][1:2] != "-" and rest[0].endswith("c") and words[0] != "sbatch")
        takes_value = words[0] == "sbatch" and "=" not in rest[0] and len(rest) > 1 and not rest[1].startswith("-")
        rest = rest[2 if takes_value else 1 :]
    if not rest:
        raise UsageError(f"{words[0]} is given no script; allowed after --: {UNDERSTOOD}", field="script")
    environment, folder = {**os.environ, **around.environment}, around.folder or os.getcwd()
    if context.place:
        require_certain(rest, context.place)
    if is_text:
        start = start_of_text(rest[0], environment, folder)
    else:
        start = start_of_file(rest[0], rest[1:], environment, folder)
    inner = context._replace(scripts=context.scripts - 1, place=start.place)
    return _read([Word(w) for w in start.words], _around(start, around, folder), inner)


def _around(start: ShellStart, around: ScriptLaunch, folder: str) -> ScriptLaunch:
    return replace(
        _with(around, start.environment),
        folder=around.folder if start.folder == folder else start.folder,
        python=start.python or around.python,
        notes=(*around.notes, *(f"not run: {each}" for each in start.skipped)),
    )


# launchers of several processes


def _after_torchrun(words: Words, around: ScriptLaunch, context: _Context) -> ScriptLaunch:
    """torch/distributed/run.py."""
    options, rest = _own_options(words)
    if "no_python" in options:
        raise UsageError("torchrun --no-python runs no script that could be traced", field="script")
    each = context.nproc_per_node or _processes(options.get("nproc_per_node", "1"))
    around = _ranks(around, each, _nodes(options.get("nnodes", "1")))
    return _script(rest, around, context, bool(MODULES & set(options)))


def _ranks(around: ScriptLaunch, nproc_per_node: int, nnodes: int) -> ScriptLaunch:
    """Also one process alone is told its rank."""
    variables = rank_zero(1) if nproc_per_node * nnodes == 1 else {}
    return replace(_with(around, variables), nproc_per_node=nproc_per_node, nnodes=nnodes, rank_variables=True)


def _after_accelerate(words: Words, around: ScriptLaunch, context: _Context) -> ScriptLaunch:
    if words[0].endswith("accelerate"):
        if words[1:2] != ["launch"]:
            raise UsageError("of accelerate's commands only `accelerate launch` runs a script", field="script")
        words = words[1:]
    options, rest = _own_options(words)
    if config := options.get("config_file"):
        options["config_file"] = os.path.join(around.folder or "", os.path.expanduser(config))
    around = replace(with_accelerate(around, accelerate_from(options)), rank_variables=True)
    return _script(rest, around, context, bool(MODULES & set(options)))


def _after_deepspeed(words: Words, around: ScriptLaunch, context: _Context) -> ScriptLaunch:
    """It gives the script `--local_rank=0` first (deepspeed/launcher/launch.py)."""
    options, rest = _own_options(words)
    if "no_python" in options:
        raise UsageError("deepspeed --no_python runs no script that could be traced", field="script")
    each, nnodes = _of_include(options.get("include") or options.get("i") or "")
    if "num_nodes" in options:
        nnodes = _nodes(options["num_nodes"])
    if context.nproc_per_node is not None:
        each = context.nproc_per_node
    elif each is None:
        each = _processes(options.get("num_gpus"), "--num_gpus")
    around = replace(_with(around, deepspeed_rank_zero(each, nnodes)), nproc_per_node=each, nnodes=nnodes)
    made = _script(rest, around, context, bool(MODULES & set(options)))
    return made if "no_local_rank" in options else replace(made, args=("--local_rank=0", *made.args))


def _of_include(text: str) -> tuple[int | None, int]:
    """`localhost:0,1`, or several machines: worker-0:0,1@worker-1:0,1."""
    machines = [machine for machine in text.split("@") if machine]
    cards = {len(machine.partition(":")[2].split(",")) for machine in machines if ":" in machine}
    return (cards.pop() if len(cards) == 1 else None), max(len(machines), 1)


def _after_composer(words: Words, around: ScriptLaunch, context: _Context) -> ScriptLaunch:
    options, rest = _own_options(words)
    each = context.nproc_per_node or _processes(options.get("n") or options.get("nproc"), "--nproc")
    return _script(rest, _ranks(around, each, 1), context, bool(MODULES & set(options)))


def _after_srun(words: Words, around: ScriptLaunch, context: _Context) -> ScriptLaunch:
    """As many processes as tasks; sbatch's order is inherited through the environment."""
    options, rest = split_options(words[1:], LAUNCHERS["srun"])
    env = {**os.environ, **around.environment}

    def whole(*names: str) -> int | None:
        found = (options.get(name) or (env.get(name) if name.isupper() and len(name) > 1 else None) for name in names)
        return next((count for text in found if text and (count := positive(text)) is not None), None)

    nnodes = whole("N", "nodes", "SLURM_NNODES") or 1
    tasks = whole("n", "ntasks")
    each = whole("ntasks_per_node") or (max(tasks // nnodes, 1) if tasks else whole("SLURM_NTASKS_PER_NODE"))
    if each is None:
        each = max((whole("SLURM_NTASKS") or nnodes) // nnodes, 1)
    each = context.nproc_per_node or each
    around = replace(
        _with(around, slurm_rank_zero(each, nnodes)), nproc_per_node=each, nnodes=nnodes, rank_variables=False
    )
    return _read(rest, around, context)


def _after_mpirun(words: Words, around: ScriptLaunch, context: _Context) -> ScriptLaunch:
    """`-np` counts the processes of all machines, `-H a:8,b:8` names those."""
    options, rest = split_options(words[1:], LAUNCHERS["mpirun"])
    hosts = (options.get("H") or options.get("host") or "").split(",")
    nnodes = len(hosts)
    world = next((n for name in ("np", "n", "c") if (n := positive(options.get(name, ""))) is not None), nnodes)
    each = context.nproc_per_node or positive(options.get("npernode", "")) or max(world // nnodes, 1)
    around = replace(
        _with(around, mpi_rank_zero(each, nnodes)), nproc_per_node=each, nnodes=nnodes, rank_variables=False
    )
    return _read(rest, around, context)


READERS: Mapping[str, Callable[[Words, ScriptLaunch, _Context], ScriptLaunch]] = {
    "python": _after_python,
    "env": _after_env,
    **dict.fromkeys(RUNNERS, _after_runner),
    **dict.fromkeys(TORCHRUN, _after_torchrun),
    **dict.fromkeys(ACCELERATE, _after_accelerate),
    "deepspeed": _after_deepspeed,
    "composer": _after_composer,
    "srun": _after_srun,
    "mpirun": _after_mpirun,
}


def _own_options(words: Words) -> tuple[dict[str, str], Words]:
    """A launcher's options, and what stands behind them."""
    launcher = LAUNCHERS["accelerate-launch" if words[0] == "launch" else program_name(words[0])]
    options, rest = split_options(words[1:], launcher)
    last = words[-1]
    if (
        not rest
        and last.startswith("-")
        and "=" not in last
        and last.lstrip("-").replace("-", "_") not in launcher.switches
    ):
        raise UsageError(f"the launcher's {last} has no value", field="script")
    return {name: str(value) for name, value in options.items()}, rest


def _processes(text: str | None, flag: str = "--nproc-per-node") -> int:
    if (number := positive(text)) is not None:
        return number
    said = f"is {shown(text)}" if text is not None else "is not given: it starts a process for each GPU it finds"
    raise UsageError(
        f"the launcher's {flag} {said}, and there is no GPU here to count. To fix: tunecast trace --nproc-per-node N",
        field="--nproc-per-node",
    )


def _nodes(text: str) -> int:
    """`4`, or `1:4` of an elastic run, which is taken at its largest."""
    most = text.rpartition(":")[2]
    if (number := positive(most)) is not None:
        return number
    raise UsageError(f"the launcher's --nnodes is {shown(text)}; allowed: a whole number, or MIN:MAX", field="--nnodes")
