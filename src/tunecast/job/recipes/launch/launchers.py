"""What starts a training and is none itself: torchrun, accelerate launch, deepspeed, srun, mpirun, uv run, python.

`launched` takes launchers off the front of a command, one by one, and gathers what they say of processes and machines.
Options: torch/distributed/run.py, `get_args_parser`; accelerate/commands/launch.py, `launch_command_parser`;
deepspeed/launcher/runner.py, `parse_args`; srun(1); mpirun(1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any

from tunecast.job.recipes.commands import ShellCommand
from tunecast.job.recipes.document import Document, scalar
from tunecast.job.recipes.recipe import Place
from tunecast.job.recipes.request import Launch, ReadRequest
from tunecast.job.recipes.words import Word, is_open
from tunecast.records import NamedTuple, replace

FIELDS = {"gpu": "hardware.gpu", "gpus": "hardware.gpus", "nodes": "hardware.nodes"}
"""What a launch says, by the field of a job."""
Options = Mapping[str, Word]
"""By name, without dashes and with _; '' where an option takes no value."""
Said = Mapping[str, tuple[Any, str, int]]
"""By `FIELDS`: the value, the option that says it and its line."""


class Launcher(NamedTuple):
    switches: frozenset[str] = frozenset()
    """Options that take no value."""
    subcommands: tuple[str, ...] = ()
    """What stands between it and its options."""
    arguments: int = 0
    """Words behind its options that are its own: an image, a duration."""
    keeps_name: bool = False
    """What follows is an argument of its own, as in `tune run RECIPE`."""


def _switches(names: str) -> frozenset[str]:
    return frozenset(names.split())


TORCHRUN = Launcher(_switches("standalone no_python run_path m module use_env help"))
ACCELERATE = Launcher(
    _switches(
        "cpu multi_gpu tpu ipex quiet q use_deepspeed use_fsdp use_megatron_lm use_xpu use_parallelism_config module m "
        "no_python debug tpu_use_cluster tpu_use_sudo no_tpu_cluster enable_cpu_affinity dynamo_use_fullgraph "
        "dynamo_use_dynamic dynamo_use_regional_compilation same_network"
    ),
    ("launch",),
)
PYTHON = Launcher(_switches("u O OO B s S I E v i b q d m"))
"""The module behind -m is what is run: `python -m torch.distributed.run` is a launcher itself."""
RUNNER = Launcher(
    _switches(
        "no_sync frozen active isolated locked all_extras no_project script v quiet q no_dev dev no_cache offline "
        "no_capture_output live_stream all_groups exact native_tls m module no_editable all_packages refresh upgrade U "
        "reinstall no_progress no_config managed_python no_managed_python no_env_file s gui_script"
    ),
    ("run",),
)
LAUNCHERS: Mapping[str, Launcher] = {
    "torchrun": TORCHRUN,
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "ft_launcher": TORCHRUN,
    "tune": TORCHRUN._replace(subcommands=("run",), keeps_name=True),
    "accelerate": ACCELERATE,
    "accelerate.commands.launch": ACCELERATE._replace(subcommands=()),
    "accelerate-launch": ACCELERATE._replace(subcommands=()),
    "deepspeed": Launcher(
        _switches("no_python no_local_rank module force_multi save_pid bind_cores_to_rank elastic_training no_ssh help")
    ),
    "srun": Launcher(
        _switches("l label u unbuffered exclusive overlap K k Q q no_kill kill_on_bad_exit verbose v")
    ),
    "mpirun": Launcher(_switches("allow_run_as_root tag_output oversubscribe display_map q v report_bindings")),
    "python": PYTHON,
    "composer": Launcher(_switches("module m v verbose")),
    **dict.fromkeys(("uv", "poetry", "pixi", "pipenv", "conda", "rye", "hatch"), RUNNER),
    **dict.fromkeys(("singularity", "apptainer"), Launcher(
        _switches("nv rocm cleanenv e contain c writable_tmpfs no_home"), ("exec",), arguments=1
    )),
    **dict.fromkeys(("nohup", "exec", "time", "command", "setsid", "unbuffer", "sudo", "env", "xvfb-run"), Launcher(
        _switches("E i S p l f v")
    )),
    **dict.fromkeys(("nice", "ionice", "numactl", "proxychains4"), Launcher(_switches("q localalloc l"))),
    "stdbuf": Launcher(_switches("oL eL iL o0 e0 i0")),
    **dict.fromkeys(("timeout", "taskset"), Launcher(_switches("foreground v c"), arguments=1)),
}  # fmt: skip
TWO_VALUES = frozenset({"mca"})
MODULES = frozenset({"m", "module"})


class Started(NamedTuple):
    """A command without what starts it."""

    words: list[Word]
    launch: Launch


def launched(command: ShellCommand, request: ReadRequest, file: str) -> Started:
    """`request`: of the script, with the launch around it; what stands nearer to the training wins."""
    words, launch = list(command.words), request.launch
    environment = {**launch.environment, **command.environment}
    launch = _with(launch, file, cards_of_environment(environment), environment=environment)
    while words:
        name = _program(words[0])
        kept: list[Word] = []
        launcher = LAUNCHERS.get(name)
        if launcher is None:
            break
        rest = words[1:]
        if launcher.subcommands:
            if not rest or rest[0] not in launcher.subcommands:
                break
            kept = words[:2] if launcher.keeps_name else []
            rest = rest[1:]
        options, rest = split_options(rest, launcher)
        words = [*kept, *rest[launcher.arguments :]]
        if name in READERS:
            launch = READERS[name](launch, options, request, file)
        if kept or not rest:
            break
        if name == "python" and not MODULES & set(options):  # a script: what follows is no launcher
            break
    return Started(words, launch)


def split_options(words: list[Word], launcher: Launcher) -> tuple[dict[str, Word], list[Word]]:
    """Options up to the first word that is none, or to a --."""
    options: dict[str, Word] = {}
    at = 0
    while at < len(words) and words[at].startswith("-") and len(words[at]) > 1:
        word = words[at]
        at += 1
        if word == "--":
            break
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not equals and name not in launcher.switches and not name.isdecimal() and at < len(words):  # nice -10
            value = words[at]
            at += 2 if name in TWO_VALUES else 1
        options[name] = Word(value, word.line)
    return options, words[at:]


VISIBLE = ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""The cards a process sees, Huawei's and NVIDIA's."""


def cards_of_environment(environment: Mapping[str, str]) -> dict[str, tuple[Any, str, int]]:
    """What variables that launchers and frameworks read say: NPROC_PER_NODE of ms-swift and LLaMA-Factory."""
    found: dict[str, tuple[Any, str, int]] = {}
    for name in VISIBLE:
        visible = environment.get(name)
        if visible and not is_open(visible) and any(each.strip().isdecimal() for each in visible.split(",")):
            count = sum(1 for each in visible.split(",") if each.strip())
            found["gpus"] = (count, name, getattr(visible, "line", 0))
    for name, what in (("NPROC_PER_NODE", "gpus"), ("NNODES", "nodes")):
        value = environment.get(name)
        if value is not None and (given := count_of(value)) is not None:
            found[what] = (given, name, getattr(value, "line", 0))
    return found


def count_of(text: str | None) -> int | None:
    """A whole number above 0; None where the script does not say it."""
    if text is None or not text.strip().isdecimal() or len(text) > 6:
        return None
    return int(text) or None


def _program(word: Word) -> str:
    name = PurePath(word).name
    if (name.startswith("python") and name[6:].replace(".", "").isdecimal()) or name == "python":
        return "python"
    return "mpirun" if name in ("mpiexec", "orterun") else name


def _with(launch: Launch, file: str, said: Said, **others: Any) -> Launch:
    values = {what: value for what, (value, _, _) in said.items()}
    places = {FIELDS[what]: Place(file, line, key) for what, (_, key, line) in said.items()}
    return replace(launch, **values, places={**launch.places, **places}, **others)


def _said(options: Options, what: str, names: Iterable[str]) -> dict[str, tuple[Any, str, int]]:
    for name in names:
        if name in options and (count := count_of(options[name])) is not None:
            return {what: (count, f"--{name}", options[name].line)}
    return {}


def _of_torchrun(launch: Launch, options: Options, request: ReadRequest, file: str) -> Launch:
    """Where nothing is said, torchrun starts one process on one machine; `gpu` and `auto` are what is visible."""
    said = _said(options, "gpus", ("nproc_per_node", "nproc-per-node")) | _said(options, "nodes", ("nnodes",))
    return _with(launch, file, said)


def _of_accelerate(launch: Launch, options: Options, request: ReadRequest, file: str) -> Launch:
    """The flags are the keys of the file, and win over it."""
    name = options.get("config_file")
    document = request.open(str(name)) if name is not None else None
    if document is None:
        missing = {"config_file": str(name)} if name is not None else {}
        document = Document(file, missing, {"config_file": name.line if name is not None else 0})
    values: dict[str, Any] = {}
    places: dict[str, tuple[str, int]] = {}
    for option, value in options.items():
        key, read = _accelerate_key(option, value)
        if key and not is_open(value):
            values[key], places[key] = read, (file, value.line)
    document = document.with_values(values, places)
    processes, machines = document.get("num_processes"), document.get("num_machines")
    said: dict[str, tuple[Any, str, int]] = {}
    if type(processes) is int and processes > 0:
        nodes = machines if type(machines) is int and 0 < machines <= processes else 1
        said = {"gpus": (processes // nodes, "num_processes", 0), "nodes": (nodes, "num_machines", 0)}
    made = _with(launch, file, said, accelerate=document if document.tree else None)
    places_of_cards = {
        field: Place(*document.place(key), key)
        for field, key in (("hardware.gpus", "num_processes"), ("hardware.nodes", "num_machines"))
        if said
    }
    return replace(made, places={**made.places, **places_of_cards})


KINDS = {"multi_gpu": "MULTI_GPU", "use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP", "use_megatron_lm": "MEGATRON_LM"}
OF_DEEPSPEED = _switches(
    "zero_stage offload_optimizer_device offload_param_device offload_optimizer_nvme_path offload_param_nvme_path "
    "gradient_accumulation_steps gradient_clipping zero3_init_flag zero3_save_16bit_model deepspeed_hostfile "
    "deepspeed_exclusion_filter deepspeed_inclusion_filter deepspeed_multinode_launcher"
)


def _accelerate_key(option: str, value: Word) -> tuple[str, Any]:
    """Of the file, for a flag; '': it says nothing there."""
    if option in KINDS:
        return "distributed_type", KINDS[option]
    if option == "deepspeed_config_file":
        return f"deepspeed_config.{option}", str(value)
    if option in OF_DEEPSPEED:
        return f"deepspeed_config.{option}", scalar(value)
    if option.startswith("fsdp_"):
        return f"fsdp_config.{option}", scalar(value)
    if option.startswith("parallelism_config_"):
        return f"parallelism_config.{option}", scalar(value)
    keys = ("num_processes", "num_machines", "mixed_precision", "dynamo_backend", "cpu")
    if option not in keys:
        return "", None
    return ("use_cpu", True) if option == "cpu" else (option, scalar(value))


def _of_deepspeed(launch: Launch, options: Options, request: ReadRequest, file: str) -> Launch:
    """`--include localhost:0,1`, which may name several machines: worker-0:0,1@worker-1:2,3."""
    said = _said(options, "gpus", ("num_gpus",)) | _said(options, "nodes", ("num_nodes",))
    include = options.get("include", options.get("i"))
    if include and not is_open(include):
        machines = include.split("@")
        cards = {len(machine.partition(":")[2].split(",")) for machine in machines if ":" in machine}
        if len(cards) == 1:
            said["gpus"] = (cards.pop(), "--include", include.line)
            said["nodes"] = (len(machines), "--include", include.line)
    return _with(launch, file, said)


def _of_srun(launch: Launch, options: Options, request: ReadRequest, file: str) -> Launch:
    from tunecast.job.recipes.launch.schedulers import slurm_cards

    return _with(launch, file, slurm_cards(options))


def _of_mpirun(launch: Launch, options: Options, request: ReadRequest, file: str) -> Launch:
    """`-np` counts the processes of all machines."""
    processes = _said(options, "gpus", ("np", "n", "c"))
    each = _said(options, "gpus", ("npernode", "N"))
    if each or not processes:
        return _with(launch, file, each)
    count, key, line = processes["gpus"]
    nodes = launch.nodes or 1
    return _with(launch, file, {"gpus": (max(count // nodes, 1), key, line)})


def _of_composer(launch: Launch, options: Options, request: ReadRequest, file: str) -> Launch:
    return _with(launch, file, _said(options, "gpus", ("n", "nproc")))


READERS: Mapping[str, Callable[[Launch, Options, ReadRequest, str], Launch]] = {
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch", "ft_launcher"), _of_torchrun),
    "tune": _of_torchrun,
    **dict.fromkeys(("accelerate", "accelerate.commands.launch", "accelerate-launch"), _of_accelerate),
    "deepspeed": _of_deepspeed,
    "srun": _of_srun,
    "mpirun": _of_mpirun,
    "composer": _of_composer,
}
