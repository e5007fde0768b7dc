"""In a folder first on PYTHONPATH: every Python that a watched program starts runs this, then the sitecustomize it
would have run. Once `transformers.trainer` is imported, its `DEFAULT_CALLBACKS` have one more; an exception that nobody
catches is looked at before Python shows it, and kept where the card had no memory left. Nothing else is changed."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TRAINER = "transformers.trainer"


class TrainerImport(importlib.abc.MetaPathFinder):
    """Finds the Trainer as others do, and lets it be executed; then adds the callback."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != TRAINER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):  # type: ignore[no-untyped-def]
            execute(module)
            try:
                from tunecast.learn.inside.callback import InsideCallback

                if isinstance(module.DEFAULT_CALLBACKS, list):
                    module.DEFAULT_CALLBACKS.append(InsideCallback)
            except Exception as error:
                print(f"tunecast: the Trainer is not measured from inside ({type(error).__name__})", file=sys.stderr)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def keep_out_of_memory(folder: str) -> None:
    """Of a program without a Trainer nothing else knows why it ended."""
    before = sys.excepthook

    def hook(kind, error, trace):  # type: ignore[no-untyped-def]
        if issubclass(kind, RuntimeError):  # torch.OutOfMemoryError is one
            try:
                from tunecast.learn.inside.process import keep_out_of_memory as keep

                keep(folder, error)
            except Exception:
                pass
        before(kind, error, trace)

    sys.excepthook = hook


def run_the_next() -> None:
    """The sitecustomize that this one stands before, where there is one."""
    others = [each for each in sys.path if os.path.abspath(each or os.curdir) != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if os.environ.get("TUNECAST_RUN"):
        sys.meta_path.insert(0, TrainerImport())
        keep_out_of_memory(os.environ["TUNECAST_RUN"])
    run_the_next()
