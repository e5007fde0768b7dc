"""What of a row is text, and how many tokens it has: estimated on paper, or by a tokenizer made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunecast.errors import NotResolved, UsageError
from tunecast.job.lengths import PairTokens
from tunecast.job.texts.characters import CODE, FOREIGN, KINDS, PROSE, characters_of, rates, tokens_by_tokenizer
from tunecast.job.texts.columns import TextSample, sample_of, shared_length
from tunecast.job.texts.scan import Scan, scan
from tunecast.job.texts.tokenizer import Estimated

ENGLISH = "It is the first of the lines, and it goes on to the end of the page and to the next one. " * 5
GERMAN = "Das ist die erste Zeile, und sie geht weiter bis zum Ende der Seite und dann noch auf die Straße. " * 5
PYTHON = "def f(x): return [g(x[i], y=2) for i in range(len(x)) if x[i] != 0]\n" * 5


def counted(text: str) -> dict[str, int]:
    return {kind: count for kind, count in zip(KINDS, characters_of(text).counts, strict=True) if count}


def test_characters_by_script() -> None:
    assert counted("Ab 12, c\n") == {"letters": 3, "digits": 2, "blanks": 3, "punctuation": 1}
    assert counted("é ß ệ ₫") == {"letters": 3, "blanks": 3, "punctuation": 1}
    assert counted("Привет") == {"cyrillic": 6} and counted("καλημέρα") == {"greek": 8}
    assert counted("你好") == {"han": 2} and counted("ひらカナ") == {"kana": 4} and counted("안녕") == {"hangul": 2}
    assert counted("مرحبا") == {"arabic": 5} and counted("नमस्ते") == {"other": 6} and counted("🙂") == {"other": 1}
    assert counted("\ud800") == {"hangul": 1}  # half of a pair, which JSON can hold


@pytest.mark.parametrize("text", [ENGLISH, GERMAN, PYTHON, "Привет, мир! 123 abc", "你好 ひら é\n", ""])
def test_every_character_is_counted_once(text: str) -> None:
    assert sum(characters_of(text).counts) == len(text)


def test_what_latin_letters_are_part_of() -> None:
    kinds = {"english": ENGLISH, "latin": GERMAN, "code": PYTHON}
    assert {name: characters_of(text).kind for name, text in kinds.items()} == {
        "english": PROSE, "latin": FOREIGN, "code": CODE,
    }  # fmt: skip
    assert characters_of(GERMAN[:40]).kind == PROSE, "too short to tell"


def test_rates_are_of_five_tokenizers() -> None:
    """And by each of them, a text of a hundred letters of a kind has a hundred over its rate."""
    for part in (PROSE, FOREIGN, CODE):
        assert len(rates()[part]) == len(KINDS) and all(len(each) == 5 for each in rates()[part])
        assert all(0.2 < rate < 200 for each in rates()[part] for rate in each)
    letters = rates()[PROSE][0]
    assert tokens_by_tokenizer(characters_of("x" * 100)) == pytest.approx([100 / rate for rate in letters])


def test_an_estimate_says_how_it_was_made() -> None:
    counter = Estimated(end_tokens=1)
    (found,) = counter.count([TextSample("text", (ENGLISH,))])
    low, high = counter.range()
    assert not isinstance(found, str) and found.lengths > (0,) and 0.85 < low < 1 < high < 1.2
    assert counter.told().startswith("estimated from characters: ") and "English 100 %" in counter.told()
    mixed = Estimated(end_tokens=1)
    mixed.count([TextSample("text", (text,)) for text in ("Привет, мир. " * 50, PYTHON)])
    assert "Cyrillic" in mixed.told() and "Code" in mixed.told()
    assert mixed.range()[1] - mixed.range()[0] > high - low


CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
SHAREGPT = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]
FORMATS: list[tuple[dict[str, Any], str, list[Any]]] = [
    ({"messages": CHAT}, "messages", [["hi", "ho"]]),
    ({"conversations": SHAREGPT, "id": 1}, "messages", [["hi", "ho"]]),
    ({"system": "be", "conversations": SHAREGPT}, "messages", [["be", "hi", "ho"]]),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image"}]}]}, "messages",
     [["hi"]]),
    ({"prompt": "a", "chosen": "b", "rejected": "c"}, "preference", ["ab", "ac"]),
    ({"prompt": "a", "chosen": CHAT[1:], "rejected": CHAT[1:]}, "preference", [["a", "ho"], ["a", "ho"]]),
    ({"prompt": CHAT[:1], "chosen": CHAT[1:], "rejected": "no"}, "preference", [["hi", "ho"], ["hi", "no"]]),
    ({"chosen": CHAT, "rejected": CHAT[:1]}, "preference", [["hi", "ho"], ["hi"]]),
    ({"prompt": "a", "completion": "b"}, "prompt", ["ab"]),
    ({"prompt": CHAT[:1], "completion": CHAT[1:]}, "prompt", [["hi", "ho"]]),
    ({"instruction": "a", "input": "", "output": "c"}, "instruction", ["a\nc"]),
    ({"instruction": "a", "context": "b", "response": "c"}, "instruction", ["a\nb\nc"]),
    ({"question": "a", "answer": "b"}, "question", ["a\nb"]),
    ({"text": "a", "meta": {}}, "text", ["a"]),
    ({"review": "a", "stars": 4}, "text", ["a"]),
]  # fmt: skip


@pytest.mark.parametrize(("row", "format", "texts"), FORMATS, ids=lambda value: value if isinstance(value, str) else "")
def test_formats(row: dict[str, Any], format: str, texts: list[Any]) -> None:
    found = sample_of(row)
    assert not isinstance(found, str) and found.format == format
    told = [each if isinstance(each, str) else [message["content"] for message in each] for each in found.sequences]
    assert told == texts


PROMPTS: list[tuple[dict[str, Any], Any]] = [
    ({"prompt": "a ", "chosen": "b", "rejected": "c"}, "a "),
    ({"prompt": "", "chosen": "ab", "rejected": "ac"}, ""),
    ({"chosen": "ask: yes", "rejected": "ask: no"}, "ask:"),
    ({"chosen": "yes", "rejected": "no"}, ""),
    ({"chosen": "yes", "rejected": "yes, no"}, "ye"),
    ({"prompt": CHAT[:1], "chosen": CHAT[1:], "rejected": CHAT[1:]}, ["hi"]),
    ({"chosen": CHAT, "rejected": [CHAT[0], {"role": "assistant", "content": "no"}]}, ["hi"]),
    ({"chosen": CHAT, "rejected": CHAT[1:]}, []),
    ({"prompt": "a", "completion": "b"}, "a"),
    ({"text": "a"}, None),
]


@pytest.mark.parametrize(("row", "prompt"), PROMPTS)
def test_what_answers_begin_with(row: dict[str, Any], prompt: Any) -> None:
    """Where a preference names no prompt, all that its answers share, without a space at its end."""
    found = sample_of(row)
    assert not isinstance(found, str)
    is_chat = isinstance(found.prompt, tuple)
    assert ([message["content"] for message in found.prompt or ()] if is_chat else found.prompt) == prompt


@pytest.mark.parametrize("one", ["", "a", "abc", "abcdefgh", "abcdefgx"])
@pytest.mark.parametrize("other", ["", "b", "abd", "abcdefghi"])
def test_how_much_two_share(one: str, other: str) -> None:
    pairs = list(zip(one, other, strict=False))
    assert shared_length(one, other) == next((n for n, (a, b) in enumerate(pairs) if a != b), len(pairs))


@pytest.mark.parametrize(
    "row", [{"messages": [1]}, {"messages": [None]}, {"prompt": None, "completion": [3]}, {"a": "b", "c": "d"}, {},
            {"chosen": 1.5, "rejected": object()}, {"messages": [{"content": b"x"}]}],
)  # fmt: skip
def test_a_row_that_is_none_is_told(row: dict[str, Any]) -> None:
    assert isinstance(sample_of(row), str)


def test_input_ids_are_the_tokens() -> None:
    found = sample_of({"input_ids": [1, 2, 3], "attention_mask": [1, 1, 1], "labels": [1, 2, 3]})
    assert not isinstance(found, str) and found.tokens == 3


def test_a_pair_is_as_long_as_its_longer_answer(tmp_path: Path) -> None:
    row = {"prompt": "", "chosen": "one", "rejected": "and three more"}
    found = counted_rows(tmp_path, [row])
    assert found.counts == ((4, 1),) and found.tokens == 6


PAIR = {"prompt": "one ", "chosen": "two two", "rejected": "one"}


def test_pairs_are_counted_answer_by_answer(tmp_path: Path) -> None:
    """Each with its prompt and the token that ends it; what merges with an answer is the answer's."""
    rows = [PAIR, {"prompt": "one", "chosen": "two", "rejected": " one"}]
    found = counted_rows(tmp_path, rows, word_tokenizer(tmp_path / "t"))
    assert found.pairs == PairTokens((1, 0), (4, 2), (3, 3)) and found.order == (4, 3)
    assert found.prompts is None and found.formats == (("preference", 2),)
    mixed = counted_rows(tmp_path, [PAIR, {"text": "one"}], word_tokenizer(tmp_path / "t"))
    assert mixed.pairs is None and mixed.order == (4, 2)


def test_the_prompt_of_a_chat_ends_with_what_asks_for_an_answer(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "one one"}, {"role": "assistant", "content": "two"}]
    template = TEMPLATE + "{% if add_generation_prompt %}assistant : {% endif %}"
    rows = [{"prompt": chat[:1], "chosen": chat[1:], "rejected": [chat[1], chat[1]]}]
    found = counted_rows(tmp_path, rows, word_tokenizer(tmp_path / "t", chat_template=template))
    assert found.pairs == PairTokens((7,), (8,), (11,)), "<s> user : one one assistant : two"


def counted_rows(folder: Path, rows: list[Any], tokenizer: str | None = None) -> Scan:
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return scan(str(folder / "rows.jsonl"), tokenizer)


TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['role'] }} : {{ m['content'] }} {% endfor %}"


def word_tokenizer(folder: Path, **config: object) -> str:
    """A token a word."""
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[UNK]", "<s>", "one", "two", "user", "assistant", ":"]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s> ", **config}))
    return str(folder)


def test_a_tokenizer_counts_to_the_token(tmp_path: Path) -> None:
    found = counted_rows(tmp_path, [{"text": "one two three"}, {"text": "one"}], word_tokenizer(tmp_path / "t"))
    assert found.order == (4, 2) and found.is_exact and found.tokenizer == "exact"
    assert found.tokens_range == (6, 6)


def test_a_chat_goes_through_the_template(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    chat = {"messages": [{"role": "user", "content": "one two"}, {"role": "assistant", "content": "two"}]}
    found = counted_rows(tmp_path, [chat], word_tokenizer(tmp_path / "t", chat_template=TEMPLATE))
    assert found.order == (1 + 4 + 3,) and found.tokenizer == "exact"
    without = counted_rows(tmp_path, [chat], word_tokenizer(tmp_path / "u"))
    assert without.order == (3 + 10,) and without.tokenizer.startswith("exact but for chats, 5 tokens a message")


def test_what_a_template_refuses_is_told(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    template = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('user first') }}{% endif %}one"
    rows = [{"messages": [{"role": role, "content": "one"}]} for role in ("user", "assistant")]
    found = counted_rows(tmp_path, rows, word_tokenizer(tmp_path / "t", chat_template=template))
    assert found.samples == 1 and found.first_bad[0].reason == "the chat template refuses it: user first"
    evil = word_tokenizer(tmp_path / "e", chat_template="{{ messages.__class__.__mro__ }}{{ ''.__class__() }}")
    with pytest.raises(UsageError, match="refuses it"):
        counted_rows(tmp_path, rows, evil)


def test_a_tokenizer_that_is_none(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "t").mkdir()
    with pytest.raises(NotResolved, match="no such file"):
        counted_rows(tmp_path, [{"text": "one"}], str(tmp_path / "t"))
    (tmp_path / "t" / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="no tokenizer"):
        counted_rows(tmp_path, [{"text": "one"}], str(tmp_path / "t"))
