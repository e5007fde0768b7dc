"""What a run ran on: card, processor, memory and the releases of what trains. No name of a host or a user."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from collections.abc import Iterable
from typing import Any

PACKAGES = (
    *("torch", "transformers", "peft", "trl", "accelerate", "bitsandbytes", "liger_kernel", "unsloth", "deepspeed"),
    *("axolotl", "llamafactory", "torchtune", "torchtitan", "lightning", "litgpt", "flash_attn", "vllm", "datasets"),
)
"""As they are imported: a package counts where the program has loaded it."""
RELEASE = re.compile(r"[0-9][0-9A-Za-z.+!-]{0,39}")
MOST_NAME = 80


def short_text(text: object) -> str | None:
    """A device's or processor's name: printable ASCII on one line; None where nothing is left."""
    plain = re.sub(r"[^A-Za-z0-9 .,_@()+-]", "", str(text))
    return " ".join(plain.split())[:MOST_NAME] or None


def software(loaded: Iterable[str] | None = None) -> dict[str, str]:
    """Releases of the packages that this program has loaded."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        if name not in (sys.modules if loaded is None else loaded):
            continue
        version = getattr(sys.modules.get(name), "__version__", None) or installed_release(name)
        if version is not None and RELEASE.fullmatch(str(version)):
            found[name] = str(version)
    torch = sys.modules.get("torch")
    cuda = getattr(getattr(torch, "version", None), "cuda", None)
    if cuda:
        found["cuda"] = str(cuda)[:40]
    return found


def installed_release(name: str) -> str | None:
    from importlib import metadata

    for spelled in (name, name.replace("_", "-")):
        with contextlib.suppress(Exception):
            return metadata.version(spelled)
    return None


def host() -> dict[str, Any]:
    return {"cpu": processor(), "cpu_cores": cores(), "ram_bytes": ram_bytes()}


def processor() -> str | None:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.lower().startswith("model name"):
                return short_text(line.partition(":")[2])
    return short_text(platform.machine())


def cores() -> int | None:
    """That this process may use."""
    with contextlib.suppress(AttributeError, OSError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def ram_bytes() -> int | None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def card() -> dict[str, Any]:
    """As torch knows it, where the program has loaded torch and started CUDA: nothing is started for it."""
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized():
            return {}
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        return {"device": short_text(properties.name), "memory_bytes": int(properties.total_memory)}
    except Exception:  # whatever a release of torch raises: a training goes on without
        return {}


def place_of() -> dict[str, int]:
    """This process among all that train, as torchrun, accelerate and Slurm say it."""

    def number(*names: str) -> int | None:
        found = next((os.environ[name] for name in names if os.environ.get(name, "").isdecimal()), None)
        return None if found is None else int(found)

    world, rank = number("WORLD_SIZE") or 1, number("RANK") or 0
    local = number("LOCAL_WORLD_SIZE") or world
    return {"rank": rank, "world": world, "per_node": local, "nodes": max(1, world // max(1, local))}
