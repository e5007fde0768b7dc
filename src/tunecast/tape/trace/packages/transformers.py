"""transformers: fake tensors are to it what they stand for."""

from __future__ import annotations

from types import ModuleType

from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.recorder import Recorder


def install(recorder: Recorder) -> None:
    def not_compiling(module: ModuleType) -> None:
        """On fake tensors transformers believes it is being compiled and keeps masks a real run would drop."""
        module.is_fake_tensor = lambda tensor: False  # type: ignore[attr-defined]

    after_import("transformers.utils.import_utils", not_compiling)
