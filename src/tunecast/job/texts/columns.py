"""What of a row is trained on: which format its columns tell, and its text.

    messages      messages or conversations: a list of {role, content} or {from, value}
    preference    chosen and rejected, each text or messages, with or without a prompt
    prompt        prompt and completion (or response), text or messages
    instruction   instruction, output, and input where there is one
    question      question and answer
    tokenized     input_ids: the tokens themselves
    text          text, or the only column of text

Source  TRL 1.16.0, docs/source/dataset_formats.md; Alpaca's, ShareGPT's and GSM8K's columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tunecast.records import NamedTuple

CHATS = ("messages", "conversations", "conversation", "dialog")
ANSWERS = ("completion", "response", "output", "answer")
TEXTS = ("text", "content", "code")
READ = frozenset({*CHATS, *ANSWERS, *TEXTS, "prompt", "instruction", "input", "context", "question", "chosen",
                  "rejected", "input_ids", "tools", "system"})  # fmt: skip
"""Columns that hold what is trained on; others of a table are not read."""


class TextSample(NamedTuple):
    """What is to be counted of one row: sequences, of which a preference has two."""

    format: str
    sequences: tuple[Sequence[Mapping[str, Any]] | str, ...]
    """Each the messages of a chat, or text."""
    tokens: int | None = None
    """Where it is tokenised already."""
    prompt: Sequence[Mapping[str, Any]] | str | None = None
    """With which each of them begins, and that has no labels: text or messages, as they are."""


def format_of(row: Mapping[str, Any]) -> str | None:
    if any(isinstance(row.get(name), list) for name in CHATS):
        return "messages"
    if "chosen" in row and "rejected" in row:
        return "preference"
    if isinstance(row.get("input_ids"), list):
        return "tokenized"
    if "prompt" in row and any(name in row for name in ANSWERS):
        return "prompt"
    if "instruction" in row and any(name in row for name in ANSWERS):
        return "instruction"
    if "question" in row and "answer" in row:
        return "question"
    return "text" if _text_column(row) is not None else None


def sample_of(row: Mapping[str, Any]) -> TextSample | str:
    """What is to be counted, or why nothing can be."""
    format = format_of(row)
    if format is None:
        names = ", ".join(map(str, list(row)[:8]))
        return f"no column of a known format among {names or 'none'}"
    try:
        return _SAMPLES[format](row)
    except (TypeError, AttributeError, KeyError, ValueError, RecursionError):
        return f"its columns are not as those of format {format} are"


def _messages(row: Mapping[str, Any]) -> TextSample:
    name = next(name for name in CHATS if isinstance(row.get(name), list))
    before = [{"role": "system", "content": row["system"]}] if isinstance(row.get("system"), str) else []
    tools = row.get("tools")
    if tools:
        told = tools if isinstance(tools, str) else json.dumps(tools, ensure_ascii=False)
        before.append({"role": "system", "content": told})
    return TextSample("messages", ((*before, *_chat(row[name])),))


def _preference(row: Mapping[str, Any]) -> TextSample:
    """As TRL's DPOTrainer has them (trl/trainer/dpo_trainer.py, `tokenize_fn`): an answer follows its prompt without
    anything between. Without a prompt it is what both answers begin with (trl/data_utils.py, `extract_prompt`)."""
    prompt, answers = row.get("prompt"), [row[name] for name in ("chosen", "rejected")]
    if any(isinstance(each, list) for each in (prompt, *answers)):
        chats = tuple(_joined(prompt, answer) for answer in answers)
        asked = chats[0][: _parting(*chats)] if prompt is None else _said(prompt)
        return TextSample("preference", chats, prompt=asked)
    before, texts = _plain(prompt or ""), [_plain(answer) for answer in answers]
    if prompt is None:
        parting = _parting(texts[0], texts[1])
        before = texts[0][: parting - (parting > 0 and texts[0][parting - 1] == " ")]
        return TextSample("preference", tuple(texts), prompt=before)
    return TextSample("preference", tuple(before + text for text in texts), prompt=before)


def _parting(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Where two answers part; the last place of the shorter where they do not."""
    return min(shared_length(one, other), max(0, min(len(one), len(other)) - 1))


def shared_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many items two sequences have in common at their beginning."""
    same, most = 0, min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    while most - same > 1:
        middle = (same + most) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            most = middle
    return same


def _prompt(row: Mapping[str, Any]) -> TextSample:
    prompt, answer = row["prompt"], next(row[name] for name in ANSWERS if name in row)
    if isinstance(prompt, str) and isinstance(answer, str):  # as TRL's tokenize_fn has them
        return TextSample("prompt", (prompt + answer,), prompt=prompt)
    return TextSample("prompt", (_joined(prompt, answer),))


def _instruction(row: Mapping[str, Any]) -> TextSample:
    parts = [row["instruction"], row.get("input") or row.get("context")]
    parts.append(next(row[name] for name in ANSWERS if name in row))
    return TextSample("instruction", ("\n".join(_plain(part) for part in parts if part),))


def _question(row: Mapping[str, Any]) -> TextSample:
    return TextSample("question", (_joined(row["question"], row["answer"]),))


def _tokenized(row: Mapping[str, Any]) -> TextSample:
    return TextSample("tokenized", (), len(row["input_ids"]))


def _plain_text(row: Mapping[str, Any]) -> TextSample:
    name = _text_column(row)
    assert name is not None
    return TextSample("text", (_plain(row[name]),))


_SAMPLES = {"messages": _messages, "preference": _preference, "prompt": _prompt, "instruction": _instruction,
            "question": _question, "tokenized": _tokenized, "text": _plain_text}  # fmt: skip


def _text_column(row: Mapping[str, Any]) -> str | None:
    for name in TEXTS:
        if isinstance(row.get(name), str):
            return name
    texts = [name for name, value in row.items() if isinstance(value, str)]
    return texts[0] if len(texts) == 1 else None


def _joined(prompt: Any, answer: Any) -> Sequence[Mapping[str, Any]] | str:
    """Two chats are one, and so are two texts."""
    if isinstance(answer, list):
        return (*_said(prompt), *_chat(answer))
    if isinstance(prompt, list):
        return (*_chat(prompt), {"role": "assistant", "content": _plain(answer)})
    return "\n".join(_plain(part) for part in (prompt, answer) if part)


def _said(prompt: Any) -> tuple[Mapping[str, Any], ...]:
    if isinstance(prompt, list):
        return tuple(_chat(prompt))
    return ({"role": "user", "content": _plain(prompt)},) if prompt else ()


def _chat(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """In the words of chat templates: ShareGPT's are from, value, human and gpt."""
    roles = {"human": "user", "gpt": "assistant", "bot": "assistant", "chatgpt": "assistant"}
    for message in messages:
        role = message.get("role") or message.get("from") or "user"
        content = message.get("content", message.get("value", message.get("text")))
        yield {**message, "role": roles.get(role, role), "content": content_of(content)}


def spoken(message: Mapping[str, Any]) -> str:
    """All of a message that becomes text."""
    calls = message.get("tool_calls")
    if not calls:
        return str(message["content"])
    return f"{message['content']}{calls if isinstance(calls, str) else json.dumps(calls, ensure_ascii=False)}"


def content_of(content: Any) -> str:
    """Text, or parts of which some are text; an image has none."""
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if isinstance(part, Mapping) and part.get("text"))
    return "" if content is None else _plain(content)


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float, dict)):
        return json.dumps(value, ensure_ascii=False)
    raise TypeError(value)
