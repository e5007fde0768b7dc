"""Which layers NeMo Automodel adapts: those whose whole names are like a pattern.

    ("*_proj",)                                    its own default
    ("all-linear", "lm_head", "!*.out_proj")       every linear layer, the head too, but those
    ("*",)                                         and experts, which no other word means

Source   nemo_automodel/components/_peft/module_matcher.py, `ModuleMatcher`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from typing import Any

from tunecast.errors import Unsupported, UsageError
from tunecast.job.job import Job
from tunecast.tape.build.experts import Experts
from tunecast.tape.build.modules import Linear, Module


def held_modules(module: Module) -> Iterator[tuple[Module, str, Module]]:
    for name, child in module.children.items():
        yield module, name, child
        yield from held_modules(child)


def matching_layers(job: Job, model: Any, attention: Collection[str]) -> list[tuple[Module, str, Linear]]:
    """components/_peft/module_matcher.py, `ModuleMatcher`: by patterns of whole names. `!` leaves a pattern's out."""
    head, found = model.output_embedding(), []
    listed = sorted(attention) if job.lora.targets == "attention" else _listed(job)
    if any(part.isdecimal() for each in listed for part in each.split(".")):
        raise Unsupported.at("lora.targets", "got a pattern of one layer's name; known where all are adapted alike")
    for parent, name, module in held_modules(model):
        if isinstance(module, Linear) and _is_meant(listed, module.path, name, module is head):
            found.append((parent, name, module))
    if not found:
        raise UsageError.at("lora.targets", f"this model has no layer like {', '.join(listed)}")
    return found


def matching_experts(job: Job, model: Any) -> list[Experts]:
    """Which no kind of layer means, but a pattern may."""
    patterns = tuple(each for each in _listed(job) if "*" in each)
    experts = [module for module in model.modules() if isinstance(module, Experts)]
    return [each for each in experts if _is_meant(patterns, each.path, "", False)]


def _listed(job: Job) -> tuple[str, ...]:
    given = job.lora.targets
    assert given is not None, "targets follow from the model: fill_in comes first"
    return (given,) if isinstance(given, str) else given


def _is_meant(listed: Collection[str], path: str, name: str, is_head: bool) -> bool:
    if any(each.startswith("!") and fnmatchcase(path, each[1:]) for each in listed):
        return False
    if "all-linear" in listed and name and not is_head:
        return True
    return any(each == name or ("*" in each and fnmatchcase(path, each)) for each in listed if each[:1] != "!")
