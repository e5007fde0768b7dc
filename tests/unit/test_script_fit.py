"""Changes to a script by its own arguments: the ladder of what it says; the climb, with traces that are formulas."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunecast.advise.ladder import Harm
from tunecast.advise.script_ladder import MOST_PIECES, ScriptRung, ScriptSet, Sets, rungs_of
from tunecast.door.script_fit import keyword_line, located, was_taken
from tunecast.hardware.catalog import gpu
from tunecast.planning.fit.script import Failed, ScriptFit, fit_script
from tunecast.prediction.on_card import allocator_settings, on_card
from tunecast.prediction.prediction import Prediction
from tunecast.tape.op import Alloc, Begin, Free, Phase, Role, Tape
from tunecast.tape.trace.facts import ScriptFacts, ScriptSetting
from tunecast.units import GIB, MIB

CARD = gpu("h200")


def option(name: str, value: object, takes: str = "value") -> ScriptSetting:
    return ScriptSetting(name, value, "option", f"--{name.replace('_', '-')}", takes=takes)  # type: ignore[arg-type]


def told(rungs: list[ScriptRung]) -> dict[str, list[dict[str, object]]]:
    return {rung.group: [{each.name: each.value for each in sets} for sets in rung.settings] for rung in rungs}


def test_the_batch_is_split_and_the_rows_per_step_stay() -> None:
    found = rungs_of([option("batch_size", 8), option("accumulation_steps", 2)])
    assert told(found) == {
        "micro_batch": [
            {"--batch-size": 4, "--accumulation-steps": 4},
            {"--batch-size": 2, "--accumulation-steps": 8},
            {"--batch-size": 1, "--accumulation-steps": 16},
        ]
    }
    assert found[0].harm is Harm.SAME


def test_without_accumulation_a_smaller_batch_is_other_training() -> None:
    (rung,) = rungs_of([option("batch_size", 4)])
    assert (rung.harm, rung.group) == (Harm.OTHER, "micro_batch")
    assert rung.note is not None and "fewer rows per step" in rung.note


def test_no_more_pieces_than_can_be_traced() -> None:
    (rung,) = rungs_of([option("batch_size", 4096), option("accumulation_steps", 1)])
    assert max(sets[1].value for sets in rung.settings) <= MOST_PIECES


def test_the_command_line_comes_before_the_call_it_feeds() -> None:
    call = ScriptSetting("per_device_train_batch_size", 4, "call", "TrainingArguments", "train.py:9")
    (rung,) = rungs_of([call, option("batch_size", 4)])
    assert rung.settings[0][0].name == "--batch-size"


def test_least_harm_first_and_only_what_is_off() -> None:
    call = [
        ScriptSetting(name, value, "call", "TrainingArguments", "train.py:9")
        for name, value in (
            ("optim", "adamw_torch"), ("gradient_checkpointing", False), ("bf16", True), ("use_liger_kernel", False),
        )
    ]  # fmt: skip
    found = rungs_of([*call, option("max_seq_length", 2048)])
    assert [(rung.group, rung.harm.name) for rung in found] == [
        ("gradient_checkpointing", "SAME"), ("liger", "SAME"), ("optimizer", "SAME"), ("optimizer", "ROUNDED"),
        ("seq_len", "OTHER"),
    ]  # fmt: skip
    assert found[0].settings[0][0].name == "TrainingArguments.gradient_checkpointing"
    assert [sets[0].value for sets in found[-1].settings] == [1024, 512]


@pytest.mark.parametrize(
    ("takes", "value", "words"),
    [("value", 4, ["--x", "4"]), ("flag", True, ["--x"]), ("switch", True, ["--x"]), ("switch", False, ["--no-x"])],
)
def test_words_of_an_option(takes: str, value: object, words: list[str]) -> None:
    assert ScriptSet(option("x", None, takes), value).words == words


# ---------------------------------------------------------------- the climb


def needing(gibibytes: float, capacity_gib: float = 10) -> Prediction:
    """A script that needs so much of a card that gives so much."""
    block = Alloc(0, int(gibibytes * GIB) // (2 * MIB) * 2 * MIB, Role.ACTIVATIONS)
    tape = Tape((Begin(Phase.FORWARD, 0), block, Free(0)), versions={"torch": "2.11.0"})
    settings = allocator_settings("native", CARD, tape, pretended=True)
    return Prediction(None, None, on_card(tape, CARD, settings, int(capacity_gib * GIB)))


class Script:
    """Needs 4 GiB and 1 for each row, half of the latter with checkpointing."""

    def __init__(self, *without: str) -> None:
        self.asked: list[dict[str, object]] = []
        self.refuses = without

    def __call__(self, sets: Sets) -> Prediction:
        values = {each.name: each.value for each in sets}
        self.asked.append(values)
        if any(name in self.refuses for name in values):
            raise Failed("no such kernel")
        rows = values.get("--batch-size", 16)
        assert isinstance(rows, int)
        return needing(4 + rows * (0.5 if "--gradient-checkpointing" in values else 1))


SETTINGS = [
    option("gradient_checkpointing", False, "flag"), option("batch_size", 16), option("accumulation_steps", 1),
]  # fmt: skip


def fit(script: Script, settings: list[ScriptSetting], most: int = 10, allow: tuple[str, ...] = ()) -> ScriptFit:
    return fit_script(script(()), rungs_of(settings), script, allow, most)


def test_one_change_where_one_does() -> None:
    # 20 GiB; checkpointing 12; with 8 rows 8, which is enough; 8 rows alone 12, 4 rows alone 8: one change, not two
    script = Script()
    found = fit(script, SETTINGS)
    assert [change.set for change in found.changes] == [{"--batch-size": 4, "--accumulation-steps": 4}]
    assert found.fits and found.chosen is not None and found.chosen.fits_surely
    assert found.chosen.frees_bytes == pytest.approx(12 * GIB, rel=0.01)
    assert found.predictions == len(script.asked), "each set is traced once"
    assert found.to_dict()["schema"] == "tunecast.fit/1"


def test_two_changes_where_one_is_not_enough() -> None:
    settings = [option("gradient_checkpointing", False, "flag"), option("batch_size", 2), option("grad_accum", 1)]

    def attempt(sets: Sets) -> Prediction:
        """Each of the two changes frees 6 GiB."""
        return needing(20 - 6 * sum(each.setting is not settings[2] for each in sets))

    found = fit_script(needing(20), rungs_of(settings), attempt)
    assert [list(change.set) for change in found.changes] == [
        ["--gradient-checkpointing"], ["--batch-size", "--grad-accum"],
    ]  # fmt: skip
    assert [change.frees_bytes for change in found.changes] == pytest.approx([6 * GIB, 6 * GIB], rel=0.01)


def test_what_the_script_does_not_run_with_is_told() -> None:
    found = fit(Script("--batch-size"), SETTINGS)
    assert found.chosen is None and not found.fits
    assert "no such kernel" in found.failures.values()
    assert found.would_do is not None and found.would_do.least_cards[0].least_card is not None


def test_traces_are_counted() -> None:
    script = Script()
    found = fit(script, SETTINGS, most=1)
    assert len(script.asked) == 2, "the script as it is, and one change"
    assert found.exhausted and found.chosen is None


def test_other_training_only_where_nothing_else_fits() -> None:
    found = fit_script(needing(12), rungs_of([option("seq_len", 2048)]), lambda sets: needing(7), (), 5)
    assert found.forced and found.chosen is not None and found.chosen.harm is Harm.OTHER
    allowed = fit_script(needing(12), rungs_of([option("seq_len", 2048)]), lambda sets: needing(7), ("seq_len",), 5)
    assert not allowed.forced and allowed.chosen is not None


def test_a_script_that_fits_is_left_alone() -> None:
    script = Script()
    found = fit_script(needing(2), rungs_of(SETTINGS), script)
    assert found.fits and found.changes == () and found.predictions == 1 and not script.asked


# ---------------------------------------------------------------- where a value stands


def test_the_line_of_an_argument(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("x = TrainingArguments(\n    'out',\n    bf16=True,\n    optim='adamw_torch',\n)\n")
    assert keyword_line(path, 1, "optim") == 4
    assert keyword_line(path, 1, "fp16") is None
    setting = ScriptSetting("bf16", True, "call", "TrainingArguments", f"{path}:1")
    assert located(setting).line == f"{path}:3"
    assert located(ScriptSetting("fp16", False, "call", "TrainingArguments", f"{path}:1")).line == f"{path}:1"


def test_a_change_counts_only_where_the_script_had_it() -> None:
    setting = option("batch_size", 8)
    assert was_taken(ScriptSet(setting, 4), [option("batch_size", 4)])
    assert not was_taken(ScriptSet(setting, 4), [option("batch_size", 8)])


def test_steps_of_an_epoch() -> None:
    assert ScriptFacts(epoch_batches=125, batches_per_step=2.0).epoch_steps == 63
    assert ScriptFacts(epoch_batches=None, batches_per_step=2.0).epoch_steps is None
