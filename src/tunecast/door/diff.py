"""What changed training files of a git repository needed and cost before, and what they do now."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from tunecast.door import revisions
from tunecast.door.revisions import ChangedPath, States
from tunecast.job.recipes import ENDINGS, SCRIPTS
from tunecast.planning.file_changes import (
    CHANGED,
    DELETED,
    NAMES_ANOTHER,
    NEW,
    FieldChange,
    FileChange,
    FileChanges,
    FileState,
    PlannedRun,
)

MOST_FILES = 60
"""Looked at in full; the others are counted."""
MOST_FILE_S = 1800.0
"""Waited for one file, which may compute for a part of that (`diff_file.MOST_CPU_S`): a machine may be busy."""
MOST_S = 3600.0
"""Waited for all of them."""
MOST_ANSWER_BYTES = 2**20


def diff(
    base: str | None = None,
    paths: Sequence[str] = (),
    *,
    staged: bool = False,
    gpu: str | None = None,
    gpus: int | None = None,
    plan: bool = False,
    within: str | float | None = None,
    eu: bool = False,
    quick: bool = False,
) -> FileChanges:
    """`base`: a branch, tag or commit, and the working tree is compared with where it left that; `A..B` or `A...B`, as
    git has them; None: the last commit. Of the repository the current folder is in.

    staged  the index in the place of the working tree
    gpu     the card of files that do not name theirs in a comment (`# tunecast: gpu=rtx-4090`)
    plan    what the cheapest machines would cost, too: `within` a deadline, in the `eu`
    quick   the memory of files as they are now alone: no time, no cost, nothing of what they were
    """
    states = revisions.states_of(base, staged=staged)
    changed = revisions.changed_paths(states, paths)
    asked = {"gpu": gpu, "gpus": gpus, "plan": plan, "within": within, "eu": eu, "quick": quick}
    if not any(name is not None and is_candidate(name) for each in changed for name in each):
        return FileChanges(states.base_words, states.head_words, (), 0)
    with TemporaryDirectory(prefix="tunecast-") as folder:
        found, left_out = _file_changes(states, changed, asked, Path(folder).resolve())
    return FileChanges(states.base_words, states.head_words, tuple(found), left_out)


def is_candidate(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in ENDINGS


def _file_changes(
    states: States, changed: Iterable[ChangedPath], asked: Mapping[str, Any], folder: Path
) -> tuple[list[FileChange], int]:
    before, after = folder / "before", folder / "after"
    (folder / "nowhere").mkdir()
    changed = list(changed)
    revisions.write_states(states, [name for each in changed for name in each if name is not None], before, after)
    questions = [
        {"folder": str(folder), "old": each.old, "new": each.new, "kind": kind, **asked}
        for each, kind in (*((each, kind_of(each)) for each in changed), *_naming(changed, after))
        if may_train(each, before, after)
    ]
    deadline_s = time.monotonic() + MOST_S
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
        answers = list(threads.map(lambda asked: _ask(asked, deadline_s), questions[:MOST_FILES]))
    found = [answer for answer in answers if isinstance(answer, FileChange)]
    return found, len(questions[MOST_FILES:]) + sum(answer is LATE for answer in answers)


def kind_of(each: ChangedPath) -> str:
    return NEW if each.old is None else DELETED if each.new is None else CHANGED


def _naming(changed: Sequence[ChangedPath], after: Path) -> list[tuple[ChangedPath, str]]:
    """Files that did not change and name one that did: a DeepSpeed file, a configuration that a script starts."""
    own = {each.new for each in changed}
    names = {PurePosixPath(name).name for each in changed for name in each if name is not None and is_candidate(name)}
    words = [name.encode() for name in names if PurePosixPath(name).suffix not in (".py", ".ipynb")]
    found = []
    for path in sorted(after.rglob("*")) if words else ():
        name = path.relative_to(after).as_posix()
        if is_candidate(name) and name not in own and path.is_file():
            content = path.read_bytes()
            if any(word in content for word in words):
                found.append((ChangedPath(name, name), NAMES_ANOTHER))
    return found


def may_train(each: ChangedPath, before: Path, after: Path) -> bool:
    """A glance that saves a process: what trains names a model, or is a script that starts something."""
    for folder, name in ((before, each.old), (after, each.new)):
        if name is None or not is_candidate(name) or not (folder / name).is_file():
            continue
        if PurePosixPath(name).suffix.lower() in SCRIPTS or b"model" in (folder / name).read_bytes().lower():
            return True
    return False


LATE = object()
"""Nobody looked at it: the time of all was over."""


def _ask(question: dict[str, Any], deadline_s: float) -> FileChange | object | None:
    """In a process of its own; None where the file trains nothing."""
    left_s = min(MOST_FILE_S, deadline_s - time.monotonic())
    if left_s <= 0:
        return LATE
    command = [sys.executable, "-P", "-m", "tunecast.door.diff_file"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            command, input=json.dumps(question).encode(), capture_output=True, timeout=left_s, env=environment,
            cwd=f"{question['folder']}/nowhere",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _unanswered(question, "took too long to predict")
    if done.returncode or len(done.stdout) > MOST_ANSWER_BYTES:
        return _unanswered(question, "takes more time or memory to predict than a training file may")
    answer = json.loads(done.stdout)
    return None if answer is None else _change_from(answer)


def _unanswered(question: dict[str, Any], problem: str) -> FileChange:
    name = question["new"] or question["old"]
    return FileChange(name, question["old"] or name, question["kind"], None, None, (), None, problem, None)


def _change_from(answer: dict[str, Any]) -> FileChange:
    states = {name: None if answer[name] is None else _state_from(answer[name]) for name in ("before", "after")}
    changes = tuple(FieldChange(**each) for each in answer["changes"])
    return FileChange(**{**answer, **states, "changes": changes})


def _state_from(answer: dict[str, Any]) -> FileState:
    plan = answer["plan"]
    return FileState(**{**answer, "plan": None if plan is None else PlannedRun(**plan)})
