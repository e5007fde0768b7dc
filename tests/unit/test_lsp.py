"""What the language server knows without a client: settings, places in a text, what may be written, what is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunecast.cli import lsp as command
from tunecast.errors import NotResolved
from tunecast.job.comment import comment_of
from tunecast.lsp import answers, completing, show
from tunecast.lsp.answerer import Answerer
from tunecast.lsp.asked import Asked, EditorSettings, asked_in, both, card_fields, plan_flags, settings_of
from tunecast.lsp.positions import Position, Span, Text, key_path
from tunecast.lsp.reading import NOTHING, reading
from tunecast.lsp.scripts import calls, trace_text, traced_lines
from tunecast.lsp.severity import ERROR
from tunecast.lsp.watched import Watched
from tunecast.units import GIB

AXOLOTL = "base_model: x\nsequence_len: 8192  # tokens\ndatasets:\n  - path: a\n    type: b\n"


def span(*places: int) -> Span:
    return Span(Position(*places[:2]), Position(*places[2:]))


class TestAsked:
    def test_the_comment_wins_over_settings(self) -> None:
        settings = settings_of({"gpu": "h100", "gpus": 8, "within": "6h"})
        comment = comment_of("a: 1\n  # tunecast: gpu=rtx-4090 eu budget=50\n")
        asked = both(settings.asked, asked_in(comment))
        assert asked == Asked("rtx-4090", 8, "6h", eu=True, budget=50.0)
        assert comment.line == 2 and not comment.problems
        assert card_fields(asked) == {"hardware.gpu": "rtx-4090", "hardware.gpus": 8}
        assert plan_flags(asked) == ["--within", "6h", "--max-usd", "50", "--eu"]

    @pytest.mark.parametrize(
        "given", [None, 3, [], "gpu=h100", {"tunecast": None}, {"gpus": -1, "budget": "lots", "within": "soon"}]
    )
    def test_settings_that_are_none_change_nothing(self, given: object) -> None:
        assert settings_of(given) == EditorSettings()

    def test_settings_come_bare_or_in_their_section(self) -> None:
        assert settings_of({"tunecast": {"gpu": "h100", "enable": False}}) == EditorSettings(
            Asked("h100"), enable=False
        )
        assert settings_of({"showResults": False}).show_results is False
        assert settings_of({"gpu": None}, settings_of({"gpu": "h100"})).asked.gpu is None


class TestPositions:
    def test_columns_are_utf16_units(self) -> None:
        text = Text("a: 😀b\nc")
        assert text.position(4) == (0, 5) and text.offset(Position(0, 5)) == 4
        assert text.position(len(text.text)) == (1, 1)
        assert Text("a: 😀b", "utf-8").position(4) == (0, 7)
        assert Text("a: 😀b", "utf-32").position(4) == (0, 4)

    def test_what_lies_behind_the_end_is_the_end(self) -> None:
        text = Text("ab\ncd")
        assert text.offset(Position(0, 99)) == 2 and text.offset(Position(9, 0)) == 5
        assert text.line(9) == ""

    @pytest.mark.parametrize(
        ("content", "line", "key", "found"),
        [
            (AXOLOTL, 2, "sequence_len", (1, 0, 1, 18)),
            (AXOLOTL, 4, "datasets.0.path", (3, 4, 3, 11)),
            ("# 😀\nx: '😀'\n", 2, "x", (1, 0, 1, 7)),
            ('{"a": 1, "seq_len": 512, "b": {}}', 1, "seq_len", (0, 9, 0, 23)),
            ("lora: {rank: 8, alpha: 16}", 1, "lora.alpha", (0, 16, 0, 25)),
            ("- 3", 1, "0", (0, 0, 0, 3)),
            ("", 7, "gone", (0, 0, 0, 0)),
            ("\n\n  a: 1", 0, "", (2, 2, 2, 6)),
            ("  # tunecast: gpu=x # y", 1, "", (0, 2, 0, 23)),
        ],
    )
    def test_a_key_with_its_value(self, content: str, line: int, key: str, found: tuple[int, ...]) -> None:
        assert Text(content).key_span(line, key, yaml=True) == span(*found)

    def test_a_line_of_yaml_is_not_always_one_of_an_editor(self) -> None:
        text = Text("a: 1\u2028b: 2\nc: 3")  # YAML ends a line at U+2028
        assert text.key_span(3, "c", yaml=True) == span(1, 0, 1, 4)
        assert text.key_span(2, "c", yaml=False) == span(1, 0, 1, 4)

    def test_the_key_of_a_line(self) -> None:
        text = Text('  - path: x\n"seq_len": 3\n# no: 1\nplain')
        assert [key_path(text, Position(line, 0)) for line in range(4)] == ["path", "seq_len", None, None]


class TestReading:
    TEXT = (
        "# tunecast: gpu=rtx-4090\nbase_model: meta-llama/Llama-3.2-1B\nadapter: lora\nlora_r: 8\n"
        "datasets:\n  - path: tatsu-lab/alpaca\n    type: alpaca\nsequence_len: 2048\nmicro_batch_size: 2\nbf16: true\n"
    )

    def problems(self, text: str, name: str = "a.yml") -> list[tuple[int, str]]:
        found = reading(Path("/nowhere") / name, text, Asked(), brief=True).look
        return [(each.line, each.message.partition(":")[0]) for each in found.problems]

    def test_what_cannot_be_read_is_told_where_a_comment_is_for_us(self) -> None:
        text = self.TEXT + "bf16: true\n"
        assert self.problems(text) == [(11, "'bf16' is given twice; allowed")]
        assert reading(Path("/nowhere/a.yml"), text.partition("\n")[2], Asked()).look == NOTHING

    def test_a_mistake_is_told_once_and_where_it_is(self) -> None:
        assert self.problems(self.TEXT.replace("size: 2", "size: two")) == [(9, "micro_batch")]
        assert self.problems(self.TEXT.replace("size: 2", "size: -1\nval_set_size: 0.1")) == [(9, "micro_batch")]
        job = "model: llama-3.2-1b\nmethod: lora\nseqlen: 3\nmicro_batch: 1\n"
        assert self.problems(job, "job.yaml") == [(3, "seqlen")]

    def test_a_mark_of_the_byte_order_hides_no_comment(self) -> None:
        assert comment_of("\ufeff# tunecast: gpu=h100").gpu == "h100"

    def test_the_verdict_of_all_of_a_jobs_data_follows_that_of_its_beginning(self) -> None:
        text = self.TEXT.replace("meta-llama/Llama-3.2-1B", "EleutherAI/pythia-70m")
        question = {"path": "/nowhere/a.yml", "text": text, "asked": [*Asked()], "known_before": False}
        at_once = answers.read_asked(question)
        name, look = next(answers.details(question, at_once))
        assert name == "look" and at_once.look.verdict is not None
        assert 0.9 * look["verdict"]["needs_bytes"] < at_once.look.verdict.needs_bytes < look["verdict"]["needs_bytes"]


class TestCompleting:
    KEYS: tuple[dict[str, Any], ...] = (
        {"key": "optimizer", "help": "of the steps", "values": ("adamw_torch", "sgd")},
        {"key": "lora.rank", "help": "", "values": ()},
        {"key": "lora.targets", "help": "", "values": ("all-linear",)},
        {"key": "sequence_len", "help": "", "values": ()},
    )

    def labels(self, content: str, line: int, character: int, ending: str = ".yaml") -> list[str]:
        text, at = Text(content), Position(line, character)
        cursor = completing.cursor_at(text, at, ending)
        written = completing.without_line(text, line, ending)
        found = completing.completions(cursor, self.KEYS, ["rtx-4090"], written, ending)
        return [each.text for each in found]

    def test_keys_that_are_not_there_yet(self) -> None:
        assert self.labels("sequence_len: 1\nop\n", 1, 2) == ["optimizer: ", "lora:"]
        assert self.labels("lora:\n  ra\n", 1, 4) == ["rank: ", "targets: "]
        assert self.labels('{"sequence_len": 1,\n "op\n}', 1, 4, ".json") == ['"optimizer": ', '"lora": ']
        assert self.labels("[lora]\nra\n", 1, 2, ".toml") == ["rank = ", "targets = "]

    def test_values_of_a_key(self) -> None:
        assert self.labels("optimizer: ad", 0, 13) == ["adamw_torch", "sgd"]
        assert self.labels('{"optimizer": ', 0, 14, ".json") == []
        assert self.labels('\n"optimizer": ', 1, 13, ".json") == ['"adamw_torch"', '"sgd"']
        assert self.labels("lora:\n  targets: ", 1, 11) == ["all-linear"]

    def test_words_of_the_comment(self) -> None:
        assert self.labels("# tunecast: ", 0, 12) == ["gpu=", "gpus=", "within=", "eu", "budget="]
        assert self.labels("# tunecast: gpu=", 0, 16) == ["rtx-4090"]
        assert self.labels("# something: ", 0, 13) == []

    def test_it_replaces_what_is_written(self) -> None:
        cursor = completing.cursor_at(Text("a: 1\noptimizer: ad"), Position(1, 13), ".yaml")
        assert cursor.span == span(1, 11, 1, 13)

    def test_a_value_that_is_missing_does_not_hide_the_framework(self) -> None:
        text, at = Text("base_model: \nadapter: lora"), Position(0, 12)
        cursor = completing.cursor_at(text, at, ".yaml")
        assert completing.without_value(text, 0, cursor, ".yaml") == "base_model: x\nadapter: lora"

    def test_behind_the_end(self) -> None:
        assert self.labels("a: 1", 9, 3) == ["optimizer: ", "lora:", "sequence_len: "]


def shown(text: str = AXOLOTL, **known: Any) -> Watched:
    file = Watched(Path("a.yml"), "utf-16", Answerer(), lambda file, what: None)
    file.text = Text(text)
    places = {"seq_len": [2, "sequence_len"], "model": [1, "base_model"]}
    verdict = {
        "verdict": "does not fit", "gpu": "rtx-4090", "cards": 1, "needs_bytes": 30 * GIB, "capacity_bytes": 24 * GIB,
        "message": "needs 30.0 of 24.0 GiB on the rtx-4090",
    }  # fmt: skip
    file.look = {
        "known": True, "framework": "axolotl", "places": places, "problems": [], "verdict": verdict, "unsaid": [],
        "not_understood": {}, "ignored": ["learning_rate"], "line": 1, "key": "base_model", **known,
    }  # fmt: skip
    return file


def other(words: str, more_gib: float, more_time: float, verdict: str = "fits") -> dict[str, Any]:
    return {
        "words": words, "more_bytes": int(more_gib * GIB), "more_time_fraction": more_time, "verdict": verdict,
        "needs_bytes": int((30 + more_gib) * GIB), "time": f"{abs(more_time):.0%} time",
    }  # fmt: skip


class TestShow:
    def test_what_a_file_says_stays_text_on_hover(self) -> None:
        """An editor fetches an image that Markdown names."""
        name, why = "![](https://x/y.png).lora_r", "got ![](https://x/y.png)"
        file = shown("a:\n  lora_r: 3\n", not_understood={name: why}, verdict=None)
        told = show.hover(file, Position(1, 3))
        assert told == "`![](https://x/y.png).lora_r`: got \\!\\[\\]\\(https://x/y.png\\)"

    def test_the_verdict_stands_where_most_is_freed(self) -> None:
        file = shown()
        assert [mark.span for mark in show.marks(file)] == [span(0, 0, 0, 13)]
        file.costs = {"seq_len": [other("4096", -13.4, -0.27)]}
        (mark,) = show.marks(file)
        assert (mark.span, mark.severity, mark.code) == (span(1, 0, 1, 18), ERROR, "does-not-fit")
        assert mark.message == "needs 30.0 of 24.0 GiB on the rtx-4090"

    def test_what_fit_would_do_is_said_there(self) -> None:
        file = shown()
        file.remedies = [{"title": "base_model: y (…)", "text": "", "chosen": True, "field": "model"}]
        (mark,) = show.marks(file)
        assert mark.message.endswith(". To fix: base_model: y (…)") and mark.span == span(0, 0, 0, 13)

    def test_hints_say_what_it_would_free_and_the_time(self) -> None:
        file = shown()
        file.costs = {"seq_len": [other("4096", -13.4, 0.27), other("16384", 20, 0.1)], "model": [other("z", 9, 0.0)]}
        (hint,) = show.hints(file)
        assert hint.text == "  4096: −13.40 GiB, +27 % time"
        assert hint.position == Position(1, 18)

    def test_of_a_job_that_fits_a_hint_saves_time(self) -> None:
        verdict = {**shown().look["verdict"], "verdict": "fits"}  # type: ignore[index]
        file = shown(verdict=verdict)
        file.costs = {
            "seq_len": [other("4096", -13.4, 0.2), other("false", 5, -0.3), other("x", 50, -0.9, "does not fit")]
        }
        assert [hint.text for hint in show.hints(file)] == ["  false: +5.00 GiB, −30 % time"]
        assert not list(show.marks(file))

    def test_where_a_hint_would_be_cut_its_figures_come_first(self) -> None:
        long = other("micro_batch_size: 4, gradient_accumulation_steps: 4", -5, 0.02)
        assert show.hint_words(long).startswith("−5.00 GiB, +2 % time with micro_batch_size: 4, ")
        assert show.hint_words(other("16384", -5, 0.02)) == "16384: −5.00 GiB, +2 % time"

    def test_small_differences_are_no_hint(self) -> None:
        file = shown()
        file.costs = {"seq_len": [other("4096", -0.1, 0.001)]}
        assert not list(show.hints(file))

    def test_lenses(self) -> None:
        file = shown()
        assert [lens.title for lens in show.lenses(file)] == [
            "does not fit the rtx-4090, 6.00 GiB over", "plan", "fit", "launch",
        ]  # fmt: skip
        file = shown(verdict=None, unsaid=["hardware.gpu"])
        assert [(lens.title, lens.command) for lens in show.lenses(file)] == [
            (show.NAME_A_CARD, ""), ("plan", "tunecast.plan"),
        ]  # fmt: skip

    def test_of_an_unknown_file_nothing_is_shown(self) -> None:
        file = shown(known=False)
        assert not [*show.marks(file), *show.lenses(file)] and show.hover(file, Position(1, 2)) is None

    def test_hover(self) -> None:
        file = shown()
        file.costs = {"seq_len": [other("4096", -13.4, -0.27, "fits")]}
        file.time = {"breakdown": [["activations", 20 * GIB]], "step": None, "whole": [], "price": None}
        told = show.hover(file, Position(1, 3)) or ""
        assert "`4096`: 16.60 GiB, fits (−13.40 GiB, 27% time)" in told and "| activations | 20.00 GiB |" in told
        assert show.hover(file, Position(2, 0)) is None
        ignored = shown("learning_rate: 3\n" + AXOLOTL, places={})
        assert show.hover(ignored, Position(0, 0)) == "moves neither memory nor time"

    def test_edits_touch_only_what_differs(self) -> None:
        before = Text("# 😀\na: 1\nb: 2\n")
        assert show.edits(before, "# 😀\na: 3\nb: 2\n") == [(span(1, 0, 2, 0), "a: 3\n")]
        assert show.edits(before, "# 😀\na: 1\nb: 2\nc: 3\n") == [(span(3, 0, 3, 0), "c: 3\n")]

    @pytest.mark.parametrize("after", ["", "x", "a: 1\nb: 2\n", "# 😀\r\na: 1\n\nb: 2"])
    def test_edits_make_the_text(self, after: str) -> None:
        before = Text("# 😀\na: 1\nb: 2")
        made = before.text
        for edit in reversed(show.edits(before, after)):
            made = made[: before.offset(edit.span.start)] + edit.text + made[before.offset(edit.span.end) :]
        assert made == after


SCRIPT = """\
import os
args = SFTConfig(max_length=8)
"TrainingArguments() in a text is none"
trainer = SFTTrainer(model="x", args=args)
trainer.train()
model.train()
"""


class TestScripts:
    def test_calls_that_describe_or_begin_a_training(self) -> None:
        found = [(call.line, call.name, call.trains) for call in calls(SCRIPT)]
        assert found == [(1, "SFTConfig", False), (4, "trainer.train", True)]
        assert [call.line for call in calls("peft.LoraConfig(\n  r=8)\nTrainer(model, args).train()")] == [0, 2]

    def test_of_half_written_code_by_its_lines(self) -> None:
        assert [call.line for call in calls(SCRIPT + "x = (\n")] == [1, 4]

    def test_memory_by_line(self) -> None:
        lines = {"train.py:5": GIB, "/a/train.py:5": GIB, "train.py:2": 5, "other.py:5": 7, "odd": 1}
        told = {
            "trace": {"lines_bytes": lines}, "memory": {"allocated_bytes": 3 * GIB}, "time": {"step_s": 0.25},
            "fits": True, "fits_surely": False, "smallest_capacity_bytes": 4 * GIB, "capacity_bytes": 8 * GIB,
        }  # fmt: skip
        assert traced_lines(told, "train.py") == [(1, 5), (4, 2 * GIB)]
        text = trace_text(told, "train.py").split("\n")
        assert text[0] == "may not fit: needs 4.00 GiB of 8.00 GiB, 0.25 s per step"
        assert text[2:4] == ["  line 5  2.00 GiB", "  line 2  5 B"]
        why = "the script took no optimizer step"
        text = trace_text({**told, "fits": None, "time": None, "reasons": [why, "x"]}, "train.py").split("\n")
        assert text[:2] == ["not resolved, so far it needs 4.00 GiB of 8.00 GiB", why]


def test_without_pygls_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    with pytest.raises(NotResolved, match=r"pip install 'tunecast\[lsp\]'"):
        command.run([])
