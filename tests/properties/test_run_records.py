"""Whatever a record holds, it is read or refused; and what was read holds no path."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tunecast.errors import UsageError
from tunecast.learn.publishing import anonymised
from tunecast.learn.record import MeasuredRun, run_from
from tunecast.learn.recordable import strings
from tunecast.records import fields

LEAST = {
    "schema": "tunecast.run/1", "id": "0" * 32, "source": "loop", "state": "done", "began": "2026-11-18T07:00:00Z",
}  # fmt: skip
NAMES = [each.name for each in fields(MeasuredRun)]
PATHS = st.sampled_from(["/home/joe/train.py", "~/data", "../models/llama", "C:\\Users\\joe", "/", "a/b/c"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | PATHS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["model", "data", "lengths", "path", "gpu", "load", "torch", "x"]), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6))
def test_a_record_is_read_or_refused(changes: dict[str, Any]) -> None:
    try:
        run = run_from({**LEAST, **changes})
    except UsageError:
        return
    told = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    assert run_from(told) == run
    assert run_from(anonymised(run).to_dict()).began.endswith("T00:00:00Z")
    assert not [text for text in strings(told) if text.startswith(("/", "~", "..")) or "\\" in text]


@settings(max_examples=30, deadline=None)
@given(VALUES)
def test_what_is_no_record_is_refused(value: Any) -> None:
    try:
        run_from(value)
    except UsageError:
        return
    raise AssertionError("read as a run")
