"""How many tokens a sample has: by the model's own tokenizer where there is one, else by its characters.

Source  TRL 1.16.0, SFTTrainer._prepare_dataset: a chat goes through the tokenizer's template; text and prompts get the
        token that ends a text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tunecast.errors import NotResolved, TunecastError, UsageError
from tunecast.job.readers.bounds import bounded_text
from tunecast.job.texts.characters import Characters, characters_of, range_of, tokens_of
from tunecast.job.texts.columns import TextSample, shared_length, spoken
from tunecast.records import NamedTuple
from tunecast.units import MIB, percent

MESSAGE_TOKENS = 5
"""Around a message: Llama 3's template has a token before and behind the role, one for the role, a blank line and one
at the end (ChatFormat of llama-models 0.3.0); ChatML as many: <|im_start|>, the role, a new line, <|im_end|>, a new
line."""
ANSWER_TOKENS = 3
"""Of these, those before the words: with them a prompt ends that asks for an answer (`add_generation_prompt`)."""
END_TOKENS = 1
"""TRL ends a text with one."""
MOST_FILE_BYTES = 64 * MIB
"""The largest tokenizer.json seen, Gemma 3's, has 33 MB."""
FIELD = "data.tokenizer"

TextOrChat = Sequence[Mapping[str, Any]] | str


class SampleTokens(NamedTuple):
    lengths: tuple[int, ...]
    """Of each of a sample's sequences."""
    prompt: int = 0
    """That all of them begin with, of its prompt: tokens that merge with an answer's are the answer's
    (trl/data_utils.py, `common_prefix_length`)."""


class TokenCounter(Protocol):
    def count(self, samples: Sequence[TextSample]) -> list[SampleTokens | str]:
        """Of each its tokens, or why they cannot be counted."""

    def told(self) -> str: ...

    def range(self) -> tuple[float, float]:
        """Between which shares of the sum of all lengths so far it really is."""


class Estimated:
    """By characters."""

    def __init__(self, end_tokens: int) -> None:
        self._totals: dict[str, list[int]] = {}
        self._end, self._around = end_tokens, 0

    def count(self, samples: Sequence[TextSample]) -> list[SampleTokens | str]:
        return [self._of_sample(sample) for sample in samples]

    def _of_sample(self, sample: TextSample) -> SampleTokens:
        lengths = tuple([self._length(sequence) for sequence in sample.sequences])
        return SampleTokens(lengths, min(_prompt_length(sample.prompt), *lengths) if sample.prompt else 0)

    def _length(self, sequence: TextOrChat) -> int:
        if isinstance(sequence, str):
            text, around = sequence, self._end
        else:
            text, around = "\n".join(map(spoken, sequence)), MESSAGE_TOKENS * len(sequence)
        found = characters_of(text)
        totals = self._totals.get(found.kind)
        self._totals[found.kind] = list(found.counts if totals is None else map(int.__add__, totals, found.counts))
        self._around += around
        return max(1, round(tokens_of(found))) + around

    def range(self) -> tuple[float, float]:
        text = self._text_tokens()
        if not text:
            return 1.0, 1.0
        found, whole = range_of(self._totals), text + self._around
        return (text * found.low + self._around) / whole, (text * found.high + self._around) / whole

    def _text_tokens(self) -> float:
        return sum(tokens_of(Characters(kind, tuple(counts))) for kind, counts in self._totals.items())

    def told(self) -> str:
        characters, tokens = sum(map(sum, self._totals.values())), self._text_tokens() or 1.0
        low, high = self.range()
        names = {"english": "English", "latin": "another language in Latin letters", "other": "other scripts"}
        shares = [(names.get(name, name.capitalize()), share) for name, share in range_of(self._totals).scripts[:3]]
        scripts = ", ".join(f"{name} {percent(share)}" for name, share in shares if share >= 0.005)
        off = f"{percent(low - 1)} to +{percent(high - 1)} by tokenizer"
        return f"estimated from characters: {characters / tokens:.1f} per token ({scripts}), {off}"


def _prompt_length(prompt: TextOrChat) -> int:
    if isinstance(prompt, str):
        return round(tokens_of(characters_of(prompt)))
    text = "\n".join(map(spoken, prompt))
    return round(tokens_of(characters_of(text))) + MESSAGE_TOKENS * len(prompt) + ANSWER_TOKENS


class _Written(NamedTuple):
    """What a tokenizer gets."""

    text: str
    special: bool = True
    """It adds its own tokens at both ends, where it has any."""
    around: int = 0
    """Tokens that are not in the text."""


class Exact:
    """By tokenizer.json, with the chat template beside it where jinja2 is there."""

    def __init__(self, folder: str, end_tokens: int) -> None:
        self._encoded, self._end = _encoder(folder), end_tokens
        self._render, self._without = _template(folder)
        self._chats = False

    def count(self, samples: Sequence[TextSample]) -> list[SampleTokens | str]:
        written = [self._written(sample) for sample in samples]
        encoded = iter(self._encode([text for texts in written if not isinstance(texts, str) for text in texts]))
        found: list[SampleTokens | str] = []
        for sample, texts in zip(samples, written, strict=True):
            if isinstance(texts, str):
                found.append(texts)
                continue
            wholes = [next(encoded) for _ in sample.sequences]
            lengths = tuple([len(whole) + text.around for whole, text in zip(wholes, texts, strict=False)])
            prompt = 0
            if sample.prompt:
                asked = next(encoded).ids
                prompt = texts[-1].around + min(shared_length(asked, whole.ids) for whole in wholes)
            found.append(SampleTokens(lengths, prompt))
        return found

    def _written(self, sample: TextSample) -> list[_Written] | str:
        """Of a sample's sequences, and last of its prompt; or why they cannot be."""
        try:
            wholes = [self._of_whole(sequence) for sequence in sample.sequences]
            return [*wholes, self._of_prompt(sample.prompt)] if sample.prompt else wholes
        except Exception as error:  # whatever a template raises
            return f"the chat template refuses it: {str(error).splitlines()[0] if str(error) else error}"

    def _of_whole(self, sequence: TextOrChat) -> _Written:
        if isinstance(sequence, str):
            return _Written(sequence, around=self._end)
        self._chats = True
        if self._render is None:
            return _Written("\n".join(map(spoken, sequence)), False, MESSAGE_TOKENS * len(sequence))
        return _Written(self._render(sequence, False), False)

    def _of_prompt(self, prompt: TextOrChat) -> _Written:
        if isinstance(prompt, str):
            return _Written(prompt)
        if self._render is None:
            around = MESSAGE_TOKENS * len(prompt) + ANSWER_TOKENS
            return _Written("\n".join(map(spoken, prompt)), False, around)
        return _Written(self._render(prompt, True), False)

    def _encode(self, written: Sequence[_Written]) -> list[Any]:
        """In their order; those with special tokens and those without go through together."""
        found: list[Any] = [None] * len(written)
        for special in (True, False):
            places = [place for place, each in enumerate(written) if each.special is special]
            texts = [written[place].text for place in places]
            for place, each in zip(places, self._encoded(texts, special) if texts else (), strict=True):
                found[place] = each
        return found

    def range(self) -> tuple[float, float]:
        return 1.0, 1.0

    def told(self) -> str:
        if self._render is not None or not self._chats:
            return "exact"
        return f"exact but for chats, {MESSAGE_TOKENS} tokens a message: {self._without}"


def counter_of(tokenizer: str | None, append_eos: bool = True) -> TokenCounter:
    end_tokens = END_TOKENS if append_eos else 0
    return Estimated(end_tokens) if tokenizer is None else Exact(tokenizer, end_tokens)


def _encoder(folder: str) -> Callable[[list[str], bool], list[Any]]:
    """The tokens of texts, each as tokenizers' `Encoding`."""
    path = Path(folder)
    path = path / "tokenizer.json" if path.is_dir() else path
    text = bounded_text(path, MOST_FILE_BYTES)
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise NotResolved(
            f"{FIELD}: tokenizer.json is read by the package tokenizers, which is not here. To fix: pip install "
            "'tunecast[data]', or leave it out: tokens are then estimated from characters",
            field=FIELD,
        ) from None
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the package raises plain ones
        raise UsageError(f"{FIELD}: {path}: no tokenizer: {error}", field=FIELD) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(texts: list[str], special: bool) -> list[Any]:
        whole = [text if text.isascii() else text.encode("utf-8", "replace").decode() for text in texts]
        found: list[Any] = tokenizer.encode_batch(whole, add_special_tokens=special)
        return found

    return encode


def _template(folder: str) -> tuple[Callable[[Sequence[Mapping[str, Any]], bool], str] | None, str]:
    """The chat template, of messages and whether an answer is to follow; or why there is none."""
    place = folder if os.path.isdir(folder) else os.path.dirname(folder)
    config = _config(os.path.join(place, "tokenizer_config.json"))
    own = os.path.join(place, "chat_template.jinja")
    source = bounded_text(Path(own), MIB) if os.path.isfile(own) else config.get("chat_template")
    if isinstance(source, list):  # several by name
        named = {each.get("name"): each.get("template") for each in source if isinstance(each, dict)}
        source = named.get("default") or next(iter(named.values()), None)
    if not isinstance(source, str):
        return None, "the tokenizer has no chat template"
    try:
        from jinja2.exceptions import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        return None, "the chat template needs the package jinja2"

    def refuse(message: str) -> None:
        raise TemplateError(message)

    # as transformers 5.17.0 compiles it (utils/chat_template_utils.py)
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, indent=None, **_: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: "01 Jan 2026"
    try:
        compiled = environment.from_string(source)
    except TemplateError as error:
        return None, f"the chat template cannot be read: {error}"
    words = {name: _word(config.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}

    def render(messages: Sequence[Mapping[str, Any]], answered: bool) -> str:
        return str(compiled.render(messages=list(messages), add_generation_prompt=answered, **words))

    return render, ""


def _config(path: str) -> Mapping[str, Any]:
    try:
        found = json.loads(bounded_text(Path(path), MOST_FILE_BYTES))
    except (TunecastError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _word(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, Mapping) else str(token or "")
