"""flash-attn: a stand-in for the package, whose CUDA extensions neither install nor run without a GPU.

The stand-in (`flash_interface.py`, `flash_kernels.py`) is given to whoever imports flash-attn on purpose. Code that
merely looks whether it is there is told the truth about this environment, because such code (Unsloth, xformers, models
with code of their own) takes another path where it is missing.

Not here  fused norms and dense layers, generation with a cache, and kernels from the Hugging Face hub (the `kernels`
          package downloads them, and a trace uses no network): each refuses by name.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from tunecast.errors import Unsupported
from tunecast.tape.kernels.flash import VERSION
from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.packages.flash_interface import MODULES, installed_version
from tunecast.tape.trace.recorder import Recorder
from tunecast.tape.trace.scopes import LIBRARY_FOLDERS

ROOTS = {name.partition(".")[0] for name in MODULES}
REPLACED = {"flash_attn", "flash_attn.flash_attn_interface", "flash_attn.bert_padding", "flash_attn_interface"}
"""Modules the stand-in gives also where the real package is installed: they lead to compiled code."""
PACKAGES = {"flash_attn", "flash_attn.layers", "flash_attn.losses"}
HUB_KERNELS = (
    "kernels from the Hugging Face hub cannot be traced: they are compiled code that is downloaded when it runs. "
    'To fix: attn_implementation="flash_attention_2" or "sdpa", which are traced'
)


def install(recorder: Recorder) -> None:
    StandIns.recorder = recorder
    sys.meta_path.insert(0, StandIns())

    def say_available(module: ModuleType) -> None:
        for name in ("is_flash_attn_2_available", "is_flash_attn_3_available"):
            if hasattr(module, name):
                setattr(module, name, lambda *args, **kwargs: True)
        if hasattr(module, "is_flash_attn_greater_or_equal"):
            module.is_flash_attn_greater_or_equal = newer_than  # type: ignore[attr-defined]
        if hasattr(module, "is_flash_attn_greater_or_equal_2_10"):
            module.is_flash_attn_greater_or_equal_2_10 = lambda: newer_than("2.1.0")  # type: ignore[attr-defined]

    def prefer_two(module: ModuleType) -> None:
        """Both are available; code that names none (models written before there was a choice) means the second."""
        say_available(module)
        table = getattr(module, "FLASH_ATTENTION_COMPATIBILITY_MATRIX", {})
        for number in (2, 3):
            if number in table:
                table[number]["general_availability_check"] = lambda *args, **kwargs: True
        if not hasattr(module, "_lazy_imports"):  # transformers before 4.54 knows one flash-attn
            return
        imports: Callable[..., Any] = module._lazy_imports

        def _lazy_imports(implementation: Any, *args: Any, **kwargs: Any) -> Any:
            return imports(implementation or "flash_attention_2", *args, **kwargs)

        module._lazy_imports = _lazy_imports  # type: ignore[attr-defined]

    def refuse_hub_kernels(module: ModuleType) -> None:
        def load(*args: Any, **kwargs: Any) -> Any:
            raise Unsupported(f"{HUB_KERNELS} (asked for: {args[0] if args else kwargs})")

        for name in ("load_and_register_attn_kernel", "load_and_register_kernel", "get_kernel"):
            if hasattr(module, name):
                setattr(module, name, load)

    for name in ("utils.import_utils", "utils", "modeling_utils"):
        after_import(f"transformers.{name}", say_available)
    after_import("transformers.modeling_flash_attention_utils", prefer_two)
    after_import("transformers.integrations.hub_kernels", refuse_hub_kernels)


def newer_than(version: str) -> bool:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(".") if part.isdigit()]

    return numbers(installed_version() or VERSION) >= numbers(version)


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the stand-in modules to importers, and the truth to those who only ask (`importlib.util.find_spec`)."""

    recorder: Recorder
    pretend = False
    """True: also those who only ask are told that flash-attn is there (a job says so)."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in ROOTS:
            return None
        installed = installed_version() is not None
        if installed and name not in REPLACED:
            return None  # the Triton and pure Python parts of the real package (rotary, losses) run as they are
        if name not in MODULES:
            raise ModuleNotFoundError(f"{name} is a part of flash-attn that tunecast does not model", name=name)
        if not installed and not self.pretend and not wanted():
            return None
        spec = importlib.machinery.ModuleSpec(name, self, is_package=name in PACKAGES)
        if installed and name == "flash_attn":
            spec.submodule_search_locations = real_folder()
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(MODULES[module.__name__](self.recorder))


def wanted() -> bool:
    """The import statement stands in transformers or in the user's own code, and is no probe."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        file: str = frame.f_code.co_filename
        if file.endswith(("importlib/util.py", "importlib.util>")):
            return False
        if not file.startswith("<frozen importlib") and "/importlib/" not in file and file != __file__:
            return "/transformers/" in file or not file.startswith(LIBRARY_FOLDERS)
        frame = frame.f_back
    return False


def real_folder() -> list[str]:
    found = [f"{folder}/flash_attn" for folder in sys.path if folder]
    return [folder for folder in found if importlib.machinery.PathFinder.find_spec("flash_attn", [folder[:-11]])]
