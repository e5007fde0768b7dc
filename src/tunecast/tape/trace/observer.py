"""Watches a script that is traced: what it parses, what it builds its trainer with, how long its data is.

Nothing here changes what the script does, except where another value was asked for (`SettingOverride`): it then takes
the place of the argument of a call, or of a key of a file, before the script sees it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import dataloader

from tunecast.tape.trace.attention import masks_seen
from tunecast.tape.trace.facts import KNOWN, ScriptFacts, ScriptSetting, SettingOverride, Takes, plain_name
from tunecast.tape.trace.packages import after_import
from tunecast.tape.trace.scopes import LIBRARY_FOLDERS, TRACER_FOLDER, Scopes

CALLS: Mapping[str, tuple[str, ...]] = {
    "transformers.training_args": ("TrainingArguments",),
    "peft.tuners.lora.config": ("LoraConfig",),
}
"""Where classes live whose arguments decide memory and time; what derives from them is watched too."""
NOT_SETTINGS = ("config.json", "generation_config.json", "adapter_config.json")
"""Files that describe a model, not a training."""
SCALARS = (str, int, float, bool)


class Observer:
    def __init__(self, scopes: Scopes, asked: Iterable[str], overrides: Sequence[SettingOverride] = ()) -> None:
        self.scopes, self.asked = scopes, asked
        self.overrides = overrides
        self.settings: dict[tuple[str, str, str], ScriptSetting] = {}
        self.total_steps: int | None = None
        self.total_steps_from = ""
        self.trainers: list[Any] = []
        self.readings: list[LoaderReading] = []

    def install(self) -> None:
        self._watch_parsers()
        for module, names in CALLS.items():
            after_import(module, partial(self._watch_classes, names))
        after_import("yaml", lambda module: self._watch_reader(module, "load"))
        self._watch_reader(json, "load")
        after_import("transformers.trainer_callback", self._watch_trainer)
        for name in ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"):
            after_import(name, self._watch_lightning)
        self._watch_loaders()

    def facts(self) -> ScriptFacts:
        self._ask_lightning()
        reading = max(self.readings, key=lambda each: len(each.at_steps), default=None)
        return ScriptFacts(
            self.total_steps,
            self.total_steps_from,
            None if reading is None else reading.batches,
            None if reading is None else reading.per_step,
            tuple(self.settings.values()),
            tuple(sorted(self.asked)),
            masked_attention="cudnn" in masks_seen,
        )

    # ------------------------------------------------------------------ settings

    def note(self, setting: ScriptSetting) -> None:
        if plain_name(setting.name) in KNOWN and (setting.value is None or isinstance(setting.value, SCALARS)):
            self.settings[setting.place, setting.spelled, setting.name] = setting

    def _override(self, place: str, spelled: str) -> dict[str, Any]:
        return {each.name: each.value for each in self.overrides if (each.place, each.spelled) == (place, spelled)}

    def _watch_parsers(self) -> None:
        parse = argparse.ArgumentParser.parse_known_args

        def parse_known_args(
            parser: argparse.ArgumentParser, args: Sequence[str] | None = None, namespace: Any = None
        ) -> Any:
            found = parse(parser, args, namespace)
            if args is None or set(map(str, args)) <= set(sys.argv[1:]):  # else it parses something else
                for action in parser._actions:
                    self._note_option(action, found[0])
            return found

        argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[method-assign,assignment]

    def _note_option(self, action: argparse.Action, namespace: Any) -> None:
        spelled = next((each for each in action.option_strings if each.startswith("--")), "")
        takes = how_given(action)
        if spelled and takes is not None:
            value = getattr(namespace, action.dest, None)
            self.note(ScriptSetting(action.dest, getattr(value, "value", value), "option", spelled, takes=takes))

    def _watch_classes(self, names: Sequence[str], module: ModuleType) -> None:
        for name in names:
            self._watch_class(getattr(module, name))

    def _watch_class(self, watched: type) -> None:
        """Python looks `__init__` up after `__new__` has run, so this sees each class that derives from it in time:
        dataclasses write an `__init__` for each."""
        seen: set[type] = set()

        def __new__(cls: type, *args: Any, **kwargs: Any) -> Any:
            if cls not in seen:
                seen.add(cls)
                self._watch_init(cls)
            return object.__new__(cls)

        watched.__new__ = __new__  # type: ignore[method-assign,assignment]

    def _watch_init(self, cls: type) -> None:
        init = cls.__init__  # type: ignore[misc]
        fields = getattr(cls, "__dataclass_fields__", {})

        def __init__(this: Any, *args: Any, **kwargs: Any) -> None:
            if type(this) is not cls:  # a class that derives from it builds its own part
                init(this, *args, **kwargs)
                return
            others = self._override("call", cls.__name__)
            init(this, *args, **kwargs | {name: value for name, value in others.items() if name in fields})
            line = user_line()
            for name in sorted(KNOWN.intersection(fields)) if line else ():
                value = getattr(this, name, None)
                self.note(ScriptSetting(name, getattr(value, "value", value), "call", cls.__name__, line))

        cls.__init__ = __init__  # type: ignore[misc]

    def _watch_reader(self, module: ModuleType, name: str) -> None:
        read: Callable[..., Any] = getattr(module, name)

        def load(stream: Any, *args: Any, **kwargs: Any) -> Any:
            found = read(stream, *args, **kwargs)
            path = getattr(stream, "name", None)
            if isinstance(path, str) and isinstance(found, dict) and is_users(path):
                self._note_keys(os.path.realpath(path), found, found, "")
            return found

        setattr(module, name, load)

    def _note_keys(self, path: str, whole: dict[str, Any], part: dict[Any, Any], before: str) -> None:
        others = self._override("file", path)
        for key, value in part.items():
            name = f"{before}{key}"
            if isinstance(value, dict):
                self._note_keys(path, whole, value, f"{name}.")
                continue
            if name in others:
                part[key] = value = others[name]
            self.note(ScriptSetting(name, value, "file", path))

    # ------------------------------------------------------------------ how long it is

    def _watch_trainer(self, module: ModuleType) -> None:
        begin = module.CallbackHandler.on_train_begin

        def on_train_begin(handler: Any, args: Any, state: Any, control: Any) -> Any:
            if isinstance(state.max_steps, int) and state.max_steps > 0:
                self.total_steps, self.total_steps_from = state.max_steps, "transformers' Trainer"
            return begin(handler, args, state, control)

        module.CallbackHandler.on_train_begin = on_train_begin  # type: ignore[attr-defined]

    def _watch_lightning(self, module: ModuleType) -> None:
        fit = module.Trainer.fit

        def trained(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            self.trainers.append(trainer)
            return fit(trainer, *args, **kwargs)

        module.Trainer.fit = trained  # type: ignore[attr-defined]

    def _ask_lightning(self) -> None:
        """It knows once its loaders are made, which is after `fit` begins; after `test` it may no longer."""
        for trainer in self.trainers:
            try:
                steps = trainer.estimated_stepping_batches
            except Exception:  # the script's own loaders may be asked here, which raise what they like
                continue
            if isinstance(steps, (int, float)) and 0 < steps < float("inf"):
                self.total_steps, self.total_steps_from = int(steps), "Lightning's Trainer"

    def _watch_loaders(self) -> None:
        kind = dataloader._BaseDataLoaderIter
        begin, advance = kind.__init__, kind.__next__

        def __init__(this: Any, loader: Any) -> None:
            begin(this, loader)
            try:
                batches = len(loader)
            except (TypeError, NotImplementedError):  # of an iterable data set
                batches = None
            this._tunecast_reading = LoaderReading(batches)
            self.readings.append(this._tunecast_reading)

        def __next__(this: Any) -> Any:
            found = advance(this)
            this._tunecast_reading.note_batch(self.scopes.steps_done)
            return found

        kind.__init__ = __init__  # type: ignore[method-assign,assignment]
        kind.__next__ = __next__  # type: ignore[method-assign]


class LoaderReading:
    """One pass through a data loader: how many batches were read after how many steps."""

    def __init__(self, batches: int | None) -> None:
        self.batches = batches
        self.at_steps: dict[int, int] = {}

    def note_batch(self, steps_done: int) -> None:
        self.at_steps[steps_done] = self.at_steps.get(steps_done, 0) + 1

    @property
    def per_step(self) -> float | None:
        """Without the first step, before which loaders that look ahead read one more, and the last, which the end of
        the trace cuts short."""
        counts = [count for _, count in sorted(self.at_steps.items())]
        if not counts:
            return None
        later = counts[1:-1] or counts[:1]
        return sum(later) / len(later)


def how_given(action: argparse.Action) -> Takes | None:
    """None of what cannot be given another value alone: lists, counters, version and help."""
    kinds: Mapping[type, Takes] = {
        argparse._StoreTrueAction: "flag",
        argparse._StoreFalseAction: "no flag",
        argparse.BooleanOptionalAction: "switch",
    }
    found = next((takes for kind, takes in kinds.items() if isinstance(action, kind)), None)
    if found is not None:
        return found
    return "value" if isinstance(action, argparse._StoreAction) and action.nargs in (None, "?", 1) else None


def is_users(path: str) -> bool:
    """A file of the user's own that may hold settings."""
    full = os.path.realpath(path)
    return os.path.basename(full) not in NOT_SETTINGS and not full.startswith((*LIBRARY_FOLDERS, TRACER_FOLDER))


def user_line() -> str:
    """The innermost line outside all installed packages."""
    frame: Any = sys._getframe(1)
    skipped = (os.path.dirname(torch.__file__), TRACER_FOLDER, "<", *LIBRARY_FOLDERS)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(skipped):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
