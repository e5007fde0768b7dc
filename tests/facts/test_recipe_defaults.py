"""The defaults that readers of trainers' files assume are those of the trainers' own source, which is read, not run.

Each framework's file has a table `DEFAULTS`: a job's field (or a key) to the framework's default and where it stands,

    "max_grad_norm": (1.0, "litgpt/args.py: TrainArgs.max_norm")            an attribute of a class
    "lora.rank": (8, "litgpt/finetune/lora.py: setup.lora_r")               an argument of a function
    "compile": (False, 'recipes/full_finetune_distributed.py: get("compile")')    what `config.get` gives without it

The source is looked for in the folders of TUNECAST_FRAMEWORKS (unpacked wheels, separated by colons), whatever release
lies there, so that a new one's changes are named; and in what is installed, where it is the release of the table.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from tunecast.job.recipes import FRAMEWORKS
from tunecast.job.recipes.frameworks.automodel_inline import CLASS_DEFAULTS
from tunecast.job.registry import bundled_config

FOLDERS = tuple(Path(folder) for folder in os.environ.get("TUNECAST_FRAMEWORKS", "").split(":") if folder)


FURTHER = {
    **dict.fromkeys(("llama_factory_v1", "llama_factory_frozen"), "llama_factory"),
    **dict.fromkeys(("ms_swift_megatron", "ms_swift_tuners"), "ms_swift"),
}
"""Files that read for another, with a table of their own."""

AS_A_FIELD: Mapping[str, tuple[object, object]] = {
    "llamafactory/hparams/model_args.py: ProcessorArguments.image_max_pixels": ("768 * 768", 768 * 768),
    "llamafactory/hparams/model_args.py: ProcessorArguments.video_max_pixels": ("256 * 256", 256 * 256),
    "swift/megatron/arguments/megatron_args.py: MegatronArguments.cross_entropy_loss_fusion": (True, "fused"),
    "swift/rlhf_trainers/args_mixin.py: RolloutTrainerArgumentsMixin.sleep_level": (0, False),
    "swift/rlhf_trainers/args_mixin.py: RolloutTrainerArgumentsMixin.use_vllm": (False, "transformers"),
    "transformers/training_args.py: TrainingArguments.default_optim": ("adamw_torch", "adamw_torch_fused"),
    "transformers/training_args.py: TrainingArguments.train_sampling_strategy": ("random", False),
    "trl/trainer/base_config.py: _BaseConfig.bf16": (None, "bfloat16"),
    "trl/trainer/grpo_config.py: GRPOConfig.use_vllm": (False, "transformers"),
    "trl/trainer/model_config.py: ModelConfig.use_peft": (False, "full"),
    "trl/trainer/rloo_config.py: RLOOConfig.use_vllm": (False, "transformers"),
}
"""What stands there, and the field's value for it: `__post_init__` fuses from torch 2.8 on, and takes bf16 unless fp16
is set."""


def tables() -> Iterator[pytest.ParameterSet]:
    for name in (*FRAMEWORKS, *FURTHER):
        table = import_module(f"tunecast.job.recipes.frameworks.{name}")
        framework = import_module(f"tunecast.job.recipes.frameworks.{FURTHER.get(name, name)}")
        for field, (value, source) in getattr(table, "DEFAULTS", {}).items():
            yield pytest.param(framework.NAME, framework.RELEASE, value, source, id=f"{name}: {field}")


@pytest.mark.parametrize(("name", "release", "value", "source"), list(tables()))
def test_a_default_is_the_frameworks_own(name: str, release: str, value: object, source: str) -> None:
    file, _, place = source.partition(": ")
    path = source_file(file, name, release)
    if path is None:
        pytest.skip(f"{name} {release} is not here: unpack its wheel and name the folder in TUNECAST_FRAMEWORKS")
    found = default_in(parsed(path), place)
    stands, meant = AS_A_FIELD.get(source, (value, value))
    assert (found, value) == (stands, meant), f"{source} is {found!r}; the table has {value!r}"


def source_file(file: str, name: str, release: str) -> Path | None:
    for folder in FOLDERS:
        if (folder / file).is_file():
            return folder / file
    package, _, within = file.partition("/")
    try:
        found = importlib.util.find_spec(package)
        installed = importlib.metadata.version(name)
    except (ImportError, ValueError):
        return None
    if found is None or not found.submodule_search_locations or installed != release:
        return None
    path = Path(found.submodule_search_locations[0]) / within
    return path if path.is_file() else None


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def default_in(module: ast.Module, place: str) -> object:
    """What stands there: a plain value, else the text of the expression."""
    asked = re.fullmatch(r"get\(\"(\w+)\"\)", place)
    if asked:
        return default_of_get(module, asked[1])
    *outer, leaf = place.split(".")
    body: ast.AST = module
    for part in outer:
        body = member(body, part)
    if isinstance(body, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return argument(module, body, leaf)
    found = member(body, leaf)
    assert isinstance(found, (ast.Assign, ast.AnnAssign)) and found.value is not None, f"{place} has no default"
    return plain(module, found.value)


def member(body: ast.AST, name: str) -> ast.AST:
    for each in getattr(body, "body", ()):
        if getattr(each, "name", None) == name:
            return each
        targets = getattr(each, "targets", None) or [getattr(each, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return each
    raise AssertionError(f"there is no {name} any more")


def argument(module: ast.Module, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> object:
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults: Mapping[str, ast.expr | None] = {
        **dict(zip((each.arg for each in reversed(positional)), reversed(given.defaults), strict=False)),
        **dict(zip((each.arg for each in given.kwonlyargs), given.kw_defaults, strict=True)),
    }
    assert defaults.get(name) is not None, f"{function.name} has no default for {name}"
    return plain(module, defaults[name])


def default_of_get(module: ast.Module, key: str) -> object:
    for each in ast.walk(module):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "get":
            first, *rest = each.args or [None]
            if isinstance(first, ast.Constant) and first.value == key:
                return plain(module, rest[0]) if rest else None
    raise AssertionError(f"nobody asks for {key} any more")


def plain(module: ast.Module, value: ast.expr | None) -> object:
    """Through `Field(default=…)` of pydantic, `field(default=…)` of dataclasses and a constant of the same file."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in ("Field", "field"):
        named = {each.arg: each.value for each in value.keywords}
        inner = named.get("default") or named.get("default_factory") or (value.args or [None])[0]
        if isinstance(inner, ast.Lambda):
            inner = inner.body
        return plain(module, inner)
    if isinstance(value, ast.Name):
        try:
            found = member(module, value.id)
        except AssertionError:
            return value.id
        return plain(module, getattr(found, "value", None))
    try:
        return ast.literal_eval(value) if value is not None else None
    except ValueError:
        return ast.unparse(value)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("Args.rate", 0.5), ("Args.size", 3), ("Args.many", [1]), ("Args.name", "a"), ("Args.kind", "Kind.A"),
        ("Args.__init__.depth", 4), ("setup.rank", 8), ("setup.quiet", True), ('get("clip")', 1.0),
        ('get("seed")', None),
    ],
)  # fmt: skip
def test_defaults_are_found_where_people_write_them(place: str, value: object) -> None:
    source = """
SIZE = 3
class Args:
    rate: float = 0.5
    size: int = field(default=SIZE)
    many: list = dataclasses.field(default_factory=lambda: [1])
    name: str | None = Field("a", description="b")
    kind = Kind.A
    def __init__(self, path, depth=4): ...
def setup(path, rank=8, *, quiet=True):
    cfg.get("seed")
    return cfg.train.get("clip", 1.0)
"""
    assert default_in(ast.parse(source), place) == value


def test_what_is_gone_is_named() -> None:
    with pytest.raises(AssertionError, match="no rate any more"):
        default_in(ast.parse("class Args: ..."), "Args.rate")


def test_a_class_that_stands_for_a_model_has_its_sizes() -> None:
    """automodel_inline.py, `CLASS_DEFAULTS`, those that transformers has: whatever number both say is the same."""
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "Glm4MoeLiteConfig"):
        pytest.skip(f"transformers {transformers.__version__} has no Glm4MoeLiteConfig")
    made = transformers.Glm4MoeLiteConfig().to_dict()
    bundled = bundled_config(CLASS_DEFAULTS["Glm4MoeLiteConfig"])
    sizes = {key: value for key, value in bundled.items() if type(value) is int and key in made}
    assert len(sizes) >= 15
    assert {key: made[key] for key in sizes} == sizes
