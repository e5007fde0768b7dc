"""Whatever is typed, a parser answers or refuses; it never breaks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tunecast.cli import compare, plan, predict
from tunecast.errors import UsageError
from tunecast.job.flags import overrides_from
from tunecast.job.foreign import MEANINGS, POINTERS, WITHOUT_EFFECT, called
from tunecast.job.knob import Wrong
from tunecast.job.mapping import check_overrides

PARSERS = [predict.parser(), plan.parser(), compare.parser()]
NAMES = sorted({*called(), *MEANINGS, *POINTERS, *WITHOUT_EFFECT})

flags = st.builds(
    lambda name, dash, no, value: [f"--{no}{name.replace('_', dash)}{value}"],
    st.sampled_from(NAMES) | st.text(min_size=1, max_size=12),
    st.sampled_from("-_"),
    st.sampled_from(["", "no-", "no_"]),
    st.sampled_from(["", "=1", "=true", "=4k", "="]) | st.text(max_size=6).map(lambda text: f"={text}"),
)
words = st.sampled_from(["gpt2", "true", "0", "bf16", "4k", "--", "-1"]) | st.text(max_size=8)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(PARSERS), st.lists(flags.map(lambda flag: flag[0]) | words, max_size=6))
def test_an_answer_or_a_refusal(parser, argv):
    try:
        overrides = overrides_from(parser.read(["gpt2", *argv]))
        check_overrides(overrides)
    except (UsageError, SystemExit):
        return
    assert set(overrides) <= set(called().values()) | {"lora", "quantization", "data", "run", "hardware", "parallel"}


@given(st.sampled_from(sorted(MEANINGS)), st.text(max_size=10) | st.sampled_from(["true", "False", "YES", "4", "bf16"]))
def test_a_meaning_is_fields_with_values_they_can_hold(name, value):
    from tunecast.job.flags import assignments
    from tunecast.job.job import all_knobs

    try:
        fields = assignments([f"{name}={value}"])
    except UsageError:
        return
    for field, meant in fields.items():
        try:
            all_knobs()[field].read(meant)
        except Wrong as wrong:  # pragma: no cover
            raise AssertionError(f"{name}={value}: {field}: {wrong}") from wrong
