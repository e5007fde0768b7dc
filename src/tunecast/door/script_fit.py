"""The smallest changes to a script's own arguments after which it fits its card, each verified by tracing it again."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from pathlib import Path

from tunecast.advise.script_ladder import ALLOWED_OF_SCRIPTS, ScriptSet, Sets, rungs_of
from tunecast.door.filters import Names, split_names
from tunecast.door.trace import ScriptTrace
from tunecast.errors import NotResolved, TunecastError, UsageError
from tunecast.planning.fit.script import MOST_TRACES, Failed, ScriptFit, fit_script
from tunecast.prediction.prediction import Prediction
from tunecast.records import replace
from tunecast.tape.trace.facts import ScriptSetting, SettingOverride

Tell = Callable[[Sets], None]


def fit_trace(
    found: ScriptTrace,
    *,
    allow: Names = (),
    traces: int | None = None,
    tell: Tell = lambda sets: None,
    progress: Callable[[float], None] | None = None,
) -> ScriptFit:
    """`traces`: further ones at most. `tell` is called with the changes before each.

    Raises `NotResolved` of a script of which too little was seen to say that it fits.
    """
    if found.fits is None:
        raise NotResolved(str(found.stop), field="script")

    def attempt(sets: Sets) -> Prediction:
        tell(sets)
        try:
            made = traced_with(found, sets, progress)
        except TunecastError as error:
            raise Failed(error.message.splitlines()[0]) from None
        if made.answer.error is not None:
            raise Failed(made.answer.error)
        for each in sets:
            if not was_taken(each, made.answer.facts.settings):
                raise Failed(f"the script does not take {each.name}")
        return made

    settings = [located(each) for each in found.answer.facts.settings]
    most = MOST_TRACES if traces is None else traces
    return fit_script(found, rungs_of(settings), attempt, allowed(allow), most)


def allowed(given: Names) -> tuple[str, ...]:
    """Groups of changes to what is trained. Raises `UsageError` for others."""
    found = split_names(given)
    for name in found:
        if name not in ALLOWED_OF_SCRIPTS:
            told = f"got {name!r}; allowed of a script: {', '.join(ALLOWED_OF_SCRIPTS)}"
            raise UsageError(f"--allow: {told}", field="--allow")
    return found


def traced_with(found: ScriptTrace, sets: Sets, progress: Callable[[float], None] | None) -> ScriptTrace:
    """Options go on the command line, where the last one counts; the rest is put in its place in the traced process."""
    words = [word for each in sets if each.setting.place == "option" for word in each.words]
    overrides = [
        SettingOverride(each.setting.place, each.setting.spelled, each.setting.name, each.value)
        for each in sets
        if each.setting.place != "option"
    ]
    return found.tracer.trace(found.traced_on, more_args=words, overrides=overrides, progress=progress, again=True)


def was_taken(change: ScriptSet, settings: Sequence[ScriptSetting]) -> bool:
    """Whether the script had the new value."""
    wanted = change.setting
    return any(
        (each.place, each.spelled, each.name) == (wanted.place, wanted.spelled, wanted.name)
        and str(each.value).lower() == str(change.value).lower()
        for each in settings
    )


def located(setting: ScriptSetting) -> ScriptSetting:
    """Of an argument of a call, the line it is written on, where it is; else the line of the call."""
    path, _, number = setting.line.rpartition(":")
    if setting.place != "call" or not number.isdigit():
        return setting
    line = keyword_line(Path(path), int(number), setting.name)
    return setting if line is None else replace(setting, line=f"{path}:{line}")


def keyword_line(path: Path, call_line: int, name: str) -> int | None:
    """Where `name=` stands in the call that runs on this line."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.lineno <= call_line <= (node.end_lineno or node.lineno)
    ]
    lines = [each.value.lineno for call in calls for each in call.keywords if each.arg == name]
    return lines[-1] if lines else None
