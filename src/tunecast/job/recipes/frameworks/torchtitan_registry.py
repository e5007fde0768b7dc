"""torchtitan's configurations as it has them since February 2026: functions of torchtitan/models/*/config_registry.py,
followed without running them, and told in the words of the TOML files before.

`--config` of torchtitan names one of them. What the closed form follows is the release before: a loss that makes logits
in chunks, and CUDA graphs, are reported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tunecast.job.recipes.document import Document
from tunecast.job.recipes.scripts import Made, ScriptDocument
from tunecast.job.recipes.scripts.source import statements_of
from tunecast.job.recipes.scripts.statements import Statements
from tunecast.job.recipes.scripts.values import is_known, plain
from tunecast.job.recipes.values import whole
from tunecast.records import NamedTuple

CONFIG = "config"
"""Not a key of the file: the function that `--config` names."""
CONFIGURATION = "Trainer.Config"
TRAINING = {"max_context_length": "seq_len", "num_tokens_per_train_step": "tokens_per_step"}
"""Names of now by those of the TOML files."""
TOKENS = "num_tokens_per_microbatch_per_dp_rank"
DEFAULT_TOKENS, DEFAULT_LENGTH = 16384, 2048
"""Of `TrainingConfig` (torchtitan/config/configs.py)."""
RECOMPUTED: Mapping[str, Mapping[str, str]] = {
    "SelectiveAC": {"mode": "selective", "selective_ac_option": "op"},
    "FullAC": {"mode": "full"},
    "MemoryBudgetAC": {"mode": "memory_budget"},
}
SAME_WORDS = {
    **{name: name for name in ("parallelism", "compile", "checkpoint", "training", "debug", "comm", "lr_scheduler")},
    **{"validator": "validation", "profiler": "profiling", "metrics": "metrics"},
}
"""Arguments of a configuration whose own are named as they were."""
CONVERTERS = {"Float8LinearConverter": "float8", "MXFP8LinearConverter": "mx"}


class Registry(NamedTuple):
    names: tuple[str, ...]
    """Of the functions that make a configuration."""
    document: Document | None
    """The one that was chosen; None where none was, or it is not there."""
    notes: Mapping[str, str]
    """What no key of the TOML files said, by key."""


def is_registry(document: Document) -> bool:
    script = document.script if isinstance(document, ScriptDocument) else None
    return script is not None and script.imports_from("torchtitan") and any(script.of(CONFIGURATION))


def registry_of(document: ScriptDocument) -> Registry:
    assert document.script is not None
    given = dict(document.script.given)
    names = tuple(configurations(Path(document.file)))
    chosen = given.pop(CONFIG, names[0] if len(names) == 1 else None)
    if chosen not in names:
        return Registry(names, None, {})
    made = configuration(Path(document.file), str(chosen))
    if made is None:
        return Registry(names, None, {})
    words = Words(document.file, made)
    return Registry(names, words.document().with_values(given), words.notes)


def configurations(path: Path) -> Iterator[str]:
    """Functions that take nothing and say that they return a configuration."""
    for node in statements_of(path):
        if isinstance(node, ast.FunctionDef) and not node.args.args and makes_configuration(node.returns):
            yield node.name


def makes_configuration(returns: ast.expr | None) -> bool:
    return returns is not None and ast.unparse(returns).strip("'\"").endswith(".Config")


def configuration(path: Path, name: str) -> Made | None:
    reader = Statements()
    reader.run_all(statements_of(path))
    made = reader.value(ast.parse(f"{name}()", mode="eval").body)
    return made if isinstance(made, Made) and made.is_a(CONFIGURATION) else None


class Words:
    """A configuration in the words of the TOML files."""

    def __init__(self, file: str, made: Made) -> None:
        self.file, self.made = file, made
        self.tree: dict[str, dict[str, Any]] = {}
        self.lines: dict[str, int] = {}
        self.notes: dict[str, str] = {}

    def document(self) -> Document:
        for argument, section in SAME_WORDS.items():
            self.take(section, self.made.get(argument))
        self.take_model(self.made.get("model_spec"))
        self.take_batches()
        self.take_recompute(self.made.get("activation_checkpoint"))
        asynchronous = self.tree.get("compile", {}).pop("enable_async_tensor_parallel", None)
        if asynchronous:
            self.put("parallelism", "enable_async_tensor_parallel", True, self.line("compile"))
        loss = self.made.get("loss")
        if isinstance(loss, Made) and loss.is_a("ChunkedLossWrapper.Config"):
            self.put("loss", "chunked", True, self.line("loss"))
            self.notes["loss.chunked"] = "logits are made in chunks; all of them at once are taken here"
        if self.tree["training"].get("disable_cuda_graphs") is not True:
            self.put("training", "disable_cuda_graphs", False, self.line("training"))
            graphs = "a step's passes are one CUDA graph, in memory of its own; kernels are launched one by one here"
            self.notes["training.disable_cuda_graphs"] = graphs
        return Document(self.file, self.tree, self.lines)

    def line(self, argument: str) -> int:
        return self.made.lines.get(argument, self.made.line)

    def put(self, section: str, name: str, value: Any, line: int) -> None:
        self.tree.setdefault(section, {})[name] = plain(value)
        self.lines[f"{section}.{name}"] = line

    def take(self, section: str, made: Any) -> None:
        if not isinstance(made, Made):
            return
        for name, value in made.arguments.items():
            if is_known(value):
                told = TRAINING.get(name, name) if section == "training" else name
                self.put(section, told, value, made.lines.get(name, made.line))

    def take_model(self, made: Any) -> None:
        """The folder says the family."""
        self.put("model", "name", Path(self.file).resolve().parent.name, self.made.line)
        if not isinstance(made, Made):
            return
        flavor, attention = made.get("flavor", 0), made.get("attn_backend")
        if isinstance(flavor, str):
            suffix = f"_{attention}" if attention in ("flex", "varlen") else ""
            self.put("model", "flavor", f"{flavor}{suffix}", made.line)
        converters = made.get("converters")
        for each in converters if isinstance(converters, list) else ():
            kind = each.name.split(".")[-2] if isinstance(each, Made) and "." in each.name else ""
            if kind in CONVERTERS:
                self.put("model", "converters", [CONVERTERS[kind]], made.line)
            else:
                self.put("model", "converted_by", kind or "?", made.line)
                self.notes["model.converted_by"] = (
                    f"{kind or 'a converter'} is not written down: layers are as they were"
                )

    def take_batches(self) -> None:
        """Tokens of a micro-batch, as rows of the longest context."""
        training = self.tree.setdefault("training", {})
        tokens = whole(training.pop(TOKENS, DEFAULT_TOKENS)) or DEFAULT_TOKENS
        length = whole(training.get("seq_len")) or DEFAULT_LENGTH
        line = self.lines.get(f"training.{TOKENS}", self.made.line)
        self.put("training", "local_batch_size", max(1, tokens // length), line)
        step = whole(training.pop("tokens_per_step", -1)) or -1
        if step > 0:
            self.put("training", "global_batch_size", max(1, step // length), line)

    def take_recompute(self, made: Any) -> None:
        kind = made.name.split(".")[-2] if isinstance(made, Made) and "." in made.name else "SelectiveAC"
        if "activation_checkpoint" in self.made.arguments and made is None:
            self.put("activation_checkpoint", "mode", "none", self.line("activation_checkpoint"))
        for name, value in RECOMPUTED.get(kind, {}).items() if made is not None or kind == "SelectiveAC" else ():
            self.tree.setdefault("activation_checkpoint", {}).setdefault(name, value)
            self.lines[f"activation_checkpoint.{name}"] = self.line("activation_checkpoint")
