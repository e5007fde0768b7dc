"""The defaults, against the packages they are said to come from, where those very releases are installed.

Their source is parsed and not imported: importing them takes half a minute and a torch.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest

from tunecast.job.job import VERSIONS, all_knobs
from tunecast.job.optimizers import OF_TRANSFORMERS

DISTRIBUTIONS = {"TRL": "trl", "transformers": "transformers", "PEFT": "peft", "accelerate": "accelerate"}
SOURCES = {
    "SFTConfig": ("trl", ("trainer/sft_config.py", "trainer/base_config.py")),
    "DPOConfig": ("trl", ("trainer/dpo_config.py",)),
    "GRPOConfig": ("trl", ("trainer/grpo_config.py",)),
    "ModelConfig": ("trl", ("trainer/model_config.py",)),
    "TrainingArguments": ("transformers", ("training_args.py",)),
    "LoraConfig": ("peft", ("tuners/lora/config.py",)),
    "FullyShardedDataParallelPlugin": ("accelerate", ("utils/dataclasses.py",)),
    "GradientAccumulationPlugin": ("accelerate", ("utils/dataclasses.py",)),
    "get_peft_model": ("peft", ("mapping_func.py",)),
}
FROM_UPSTREAM = {name: knob for name, knob in all_knobs().items() if knob.origin.package in VERSIONS}
# written in code and not as a default: looked at by hand for these releases
BY_HAND = {"optimizer", "attention", "weights_dtype"}


def installed(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    version = importlib.metadata.version(package)
    wanted = next(VERSIONS[name] for name, distribution in DISTRIBUTIONS.items() if distribution == package)
    if version != wanted:
        pytest.skip(f"{package} {version} is installed; the defaults are those of {wanted}")
    return Path(spec.origin).parent


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def defaults_called(name: str, module: ast.Module) -> Iterator[ast.expr]:
    """What stands as the default of every field, or last overload's argument, of that name."""
    for node in ast.walk(module):
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call) and ast.unparse(node.target) == name:
            yield from (keyword.value for keyword in node.value.keywords if keyword.arg == "default")
        elif isinstance(node, ast.FunctionDef):
            arguments = node.args.args + node.args.kwonlyargs
            values = [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
            for argument, value in zip(arguments[::-1], values[::-1], strict=False):
                if argument.arg == name:
                    yield value


@pytest.mark.parametrize("field", sorted(FROM_UPSTREAM.keys() - BY_HAND))
def test_a_default_is_the_package_s_own(field):
    origin = FROM_UPSTREAM[field].origin
    owner, _, name = origin.name.partition(".")
    package, paths = SOURCES[owner]
    folder = installed(package)
    found = [
        ast.literal_eval(value)
        for path in paths
        for value in defaults_called(name, tree(folder / path))
        if not (isinstance(value, ast.Constant) and value.value is ...)  # an overload's
    ]
    assert found, f"{origin.name} is not in {package}"
    assert found[0] == origin.value


@pytest.mark.parametrize("field", sorted(BY_HAND))
def test_a_default_that_is_code_is_still_there(field):
    folder = installed("transformers")
    path = "training_args.py" if field == "optimizer" else "modeling_utils.py"
    line = {
        "optimizer": 'default_optim = "adamw_torch_fused"',
        "attention": 'applicable_attention = "sdpa" if requested_attention is None',
        "weights_dtype": 'if dtype is None:\n            dtype = "auto"',
    }[field]
    assert line in (folder / path).read_text("utf-8")


def test_our_value_is_theirs_in_our_words():
    """Where a field is spelled in another way: a bool of theirs is a choice of ours."""
    spelled = {
        "method": (False, "full"),
        "quantization.format": (False, None),
        "autocast": (None, "bfloat16"),  # "defaults to `True` if `fp16` is not set"
        "kernels": (False, ()),
        "lora.adapter_dtype": (True, "float32"),
        "lora.dropout": (0.05, None),  # filled in, but for experts (tape/build/fill_in.py)
        "data.group_by_length": ("random", False),
        "data.pad_to_multiple_of": ("auto", None),  # "does not pad elsewhere" than on Neuron
        "run.max_steps": (-1, None),
        "data.num_proc": (None, 1),
        "rl.engine": (False, "transformers"),
        "data.completion_only": (None, True),  # "the loss is computed on the completion" of prompts that have one
        "parallel.cpu_ram_efficient_loading": (None, False),  # of the environment, where nothing is false
    }
    for name, knob in FROM_UPSTREAM.items():
        theirs, ours = spelled.get(name, (knob.origin.value, knob.origin.value))
        assert (knob.origin.value, knob.default) == (theirs, ours), name


def test_the_optimizers_are_transformers_own():
    module = tree(installed("transformers") / "training_args.py")
    [names] = [n for n in ast.walk(module) if isinstance(n, ast.ClassDef) and n.name == "OptimizerNames"]
    values = [ast.literal_eval(node.value) for node in names.body if isinstance(node, ast.Assign)]
    assert tuple(values) == OF_TRANSFORMERS


def test_the_architectures_are_transformers_own():
    module = tree(installed("transformers") / "models" / "auto" / "modeling_auto.py")
    [mapping] = [
        node.value
        for node in ast.walk(module)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
    ]
    assert isinstance(mapping, ast.Call)
    known = tomllib.loads((files("tunecast.job") / "architectures.toml").read_text("utf-8"))
    assert sorted({name for name, _ in ast.literal_eval(mapping.args[0])}) == known["native"]
    assert set(known["tied_by_default"]) <= set(known["native"])
