"""Counts how many characters of each script a token has, into src/tunecast/job/texts/characters.toml.

    pip download --no-deps mistral-common dashscope llama-models      wheels, unpacked into PACKAGES
    apt-get download debian-handbook libreoffice-help-hi ...          unpacked with dpkg -x into TEXT
    python benchmarks/characters_per_token.py PACKAGES TEXT           needs tiktoken and sentencepiece

Every token belongs to the kind of its first character that is no blank. Text: the Debian Administrator's Handbook (26
languages), LibreOffice's help where the handbook is not translated, and Python's standard library as code. What the
table makes of text it was not counted on (LibreOffice's help, C) is printed and goes into the table as its error.
"""

from __future__ import annotations

import argparse
import base64
import html
import json
import random
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import quantiles

from tunecast.job.texts import characters
from tunecast.job.texts.characters import CODE, FOREIGN, KINDS, PROSE, characters_of

Pieces = Callable[[str], list[bytes]]
TABLE = Path(characters.__file__).with_name("characters.toml")
MOST_CHARACTERS = 400_000
"""Of a language."""
SAMPLE = 1_200
"""Characters of a text whose estimate is compared: some 300 tokens."""
OTHER_LATIN = ("de-DE", "fr-FR", "es-ES", "it-IT", "pl-PL", "pt-BR", "cs-CZ", "tr-TR", "vi-VN", "nl-NL", "id-ID",
               "sv-SE", "ro-RO")  # fmt: skip
SCRIPTS = {"greek": ("el-GR",), "cyrillic": ("ru-RU",), "arabic": ("ar-MA", "fa-IR"), "kana": ("ja-JP",),
           "han": ("zh-CN", "zh-TW"), "hangul": ("ko-KR",)}  # fmt: skip
PARAGRAPH = re.compile(r'(?:<p\b[^>]*>|<div class="para">)(.*?)</(?:p|div)>', re.S)
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
"""llama_models/llama3/tokenizer.py, `Tokenizer.pat_str`; Qwen's differs in digits (dashscope, PAT_STR)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("packages", type=Path)
    parser.add_argument("text", type=Path)
    arguments = parser.parse_args()
    tokenizers = dict(tokenizers_of(arguments.packages))
    handbook = {path.name: path for path in arguments.text.rglob("debian-handbook/html/*") if path.is_dir()}
    helps = {path.name: path for path in arguments.text.rglob("libreoffice/help/*") if path.is_dir()}
    english = set(paragraphs(handbook["en-US"]))
    stdlib = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    corpora = {
        PROSE: cut(english),
        FOREIGN: [text for name in OTHER_LATIN for text in cut(translated(handbook[name], english), 60_000)],
        CODE: [path.read_text(encoding="utf-8", errors="replace")[:8_000] for path in stdlib],
        **{kind: [text for name in names for text in cut(of_script(handbook[name], kind))]
           for kind, names in SCRIPTS.items()},
        "other": [text for name in ("hi", "km") for text in cut(of_script(helps[name], "other"))],
    }  # fmt: skip
    rates = {name: rates_of(pieces, corpora) for name, pieces in tokenizers.items()}
    for kind, texts in corpora.items():
        print(
            f"{kind:9} {sum(map(len, texts)):9,} characters, kinds told:", Counter(characters_of(t).kind for t in texts)
        )
    TABLE.write_text(table_text(rates, {}), encoding="utf-8")
    characters.rates.cache_clear()
    errors = dict(errors_of(tokenizers, helps, stdlib))
    TABLE.write_text(table_text(rates, errors), encoding="utf-8")
    print(TABLE.read_text(encoding="utf-8"))


def tokenizers_of(packages: Path) -> Iterator[tuple[str, Pieces]]:
    llama_4 = re.search(r'O200K_PATTERN = r"""(.*?)"""', one(packages, "llama4/tokenizer.py").read_text())
    assert llama_4 is not None
    yield "Llama 3", byte_level(ranks_of(one(packages, "llama3/tokenizer.model")), LLAMA_3)
    yield "Llama 4", byte_level(ranks_of(one(packages, "llama4/tokenizer.model")), llama_4[1])
    yield "Qwen", byte_level(ranks_of(one(packages, "qwen.tiktoken")), LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}"))
    tekken = json.loads(one(packages, "tekken_240911.json").read_text(encoding="utf-8"))
    size = tekken["config"]["default_vocab_size"] - tekken["config"]["default_num_special_tokens"]
    entries = {base64.b64decode(each["token_bytes"]): each["rank"] for each in tekken["vocab"][:size]}
    yield "Mistral Tekken", byte_level(entries, tekken["config"]["pattern"])
    yield "Mistral 7B v0.3", by_sentencepiece(one(packages, "mistral_instruct_tokenizer_240323.model.v3"))


def one(folder: Path, ending: str) -> Path:
    return next(path for path in sorted(folder.rglob("*")) if path.as_posix().endswith(ending))


def ranks_of(path: Path) -> dict[bytes, int]:
    pairs = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def byte_level(ranks: dict[bytes, int], pattern: str) -> Pieces:
    import tiktoken

    encoding = tiktoken.Encoding("measured", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return lambda text: encoding.decode_tokens_bytes(encoding.encode_ordinary(text))


def by_sentencepiece(path: Path) -> Pieces:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))

    def piece_bytes(piece: str) -> bytes:
        byte = re.fullmatch("<0x([0-9A-F]{2})>", piece)
        return bytes([int(byte[1], 16)]) if byte else piece.replace("\u2581", " ").encode()

    return lambda text: list(map(piece_bytes, processor.encode(text, out_type=str)))


def paragraphs(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.html")):
        for inner in PARAGRAPH.findall(path.read_text(encoding="utf-8")):
            text = " ".join(html.unescape(re.sub(r"<[^>]*>", "", inner)).split())
            if len(text) > 80:
                yield text


def translated(folder: Path, english: set[str]) -> Iterator[str]:
    """Without what was left in English."""
    return (text for text in paragraphs(folder) if text not in english and characters_of(text).kind != PROSE)


def of_script(folder: Path, kind: str) -> Iterator[str]:
    """Paragraphs most of whose letters are of that script; of kana those with kanji between them, as Japanese is."""
    for text in paragraphs(folder):
        counts = dict(zip(KINDS, characters_of(text).counts, strict=True))
        own = counts[kind] + (counts["han"] if kind == "kana" else 0)
        if own > 2 * counts["letters"]:
            yield text


def cut(texts: Sequence[str] | Iterator[str] | set[str], most: int = MOST_CHARACTERS) -> list[str]:
    """Samples of some paragraphs each, as many as have so many characters."""
    found, size = [""], 0
    for text in sorted(set(texts)):
        found[-1] += f"{text}\n"
        size += len(text)
        if len(found[-1]) > SAMPLE:
            found.append("")
        if size > most:
            break
    return [text for text in found if text]


def rates_of(pieces: Pieces, corpora: Mapping[str, Sequence[str]]) -> dict[str, dict[str, float]]:
    """By corpus and kind of character: characters a token. Of a script's own corpus, that script alone."""
    found: dict[str, dict[str, float]] = {}
    for corpus, texts in corpora.items():
        seen, tokens = Counter[str](), Counter[str]()
        for text in texts:
            seen.update(dict(zip(KINDS, characters_of(text).counts, strict=True)))
            tokens.update(map(kind_of_token, with_whole_characters(pieces(text))))
        kinds = KINDS[:4] if corpus in (PROSE, FOREIGN, CODE) else (corpus,)
        found[corpus] = {kind: seen[kind] / max(1, tokens[kind]) for kind in kinds}
    return found


def with_whole_characters(pieces: list[bytes]) -> Iterator[bytes]:
    """A token that begins inside a character, told by that character."""
    first = b""
    for piece in pieces:
        for place, byte in enumerate(piece):
            if byte < 0x80 or byte >= 0xC0:
                first = piece[place : place + 2]
                break
        yield piece if piece[:1] < b"\x80" or piece[:1] >= b"\xc0" else first


def kind_of_token(piece: bytes) -> str:
    visible = piece.lstrip(b" \t\n\r\f\v")
    if not visible:
        return "blanks"
    if visible[:2] in characters.VIETNAMESE:
        return "letters"
    return next(kind for kind, own in characters.BY_BYTE.items() if visible[0] in own)


def errors_of(
    tokenizers: Mapping[str, Pieces], helps: Mapping[str, Path], stdlib: Sequence[Path]
) -> Iterator[tuple[str, tuple[float, float]]]:
    """Of text that was not counted: (error of the sum, error within which 4 of 5 samples lie), by each tokenizer's own
    rates, and so without what tokenizers differ by; the largest."""
    for name, texts in {
        PROSE: cut(paragraphs(helps["en-US"])),
        FOREIGN: cut(translated(helps["de"], set(paragraphs(helps["en-US"])))),
        "cyrillic": cut(of_script(helps["ru"], "cyrillic")),
        "han": cut(of_script(helps["zh-CN"], "han")),
        "kana": cut(of_script(helps["ja"], "kana")),
        CODE: [path.read_text(encoding="utf-8", errors="replace")[:4_000]
              for path in sorted(Path(sysconfig.get_path("include")).glob("*.h"))],
    }.items():  # fmt: skip
        random.Random(0).shuffle(texts)
        sums, spreads = [], []
        for place, pieces in enumerate(tokenizers.values()):
            real = [len(pieces(text)) for text in texts[:200]]
            guessed = [characters.tokens_by_tokenizer(characters_of(text))[place] for text in texts[:200]]
            sums.append(sum(guessed) / sum(real) - 1)
            off = sorted(abs(guess / true - 1) for guess, true in zip(guessed, real, strict=True))
            spreads.append(quantiles(off, n=10)[7])
        told = ", ".join(f"{tokenizer} {off:+.1%}" for tokenizer, off in zip(tokenizers, sums, strict=True))
        print(f"{name:9} {told}; of 4 in 5 samples within {max(spreads):.1%}")
        yield name, (max(map(abs, sums)), max(spreads))


def table_text(
    rates: Mapping[str, Mapping[str, Mapping[str, float]]], errors: Mapping[str, tuple[float, float]]
) -> str:
    lines = [HEAD, "[measured]", f"tokenizers = {json.dumps(list(rates))}"]
    first = next(iter(rates.values()))
    for corpus, kinds in first.items():
        lines += ["", f"[{corpus}]"]
        lines += [f"{kind} = {[round(rates[name][corpus][kind], 2) for name in rates]}" for kind in kinds]
        if corpus in errors:
            total, sample = errors[corpus]
            lines.append(f"error = [{total:.3f}, {sample:.3f}]")
    return "\n".join(lines) + "\n"


HEAD = """\
# Characters a token, by the kind of characters and by tokenizer: written by benchmarks/characters_per_token.py.
#
# Tokenizers: llama-models 0.3.0 (Llama 3: 128,000 entries; Llama 4: 200,000), dashscope 2.0.2 (Qwen: 151,643),
# mistral-common 1.13.0 (Tekken: 130,072; Mistral 7B v0.3, SentencePiece: 32,768). Text: debian-handbook 11.20220922 in
# English, 13 other languages in Latin letters (latin), Greek, Russian, Arabic and Persian, Japanese, Chinese (both) and
# Korean; libreoffice-help 7.4.7 in Hindi and Khmer (other); Python 3.11's standard library (code). Up to 400,000
# characters each; of Greek and Korean, of which little is translated, 8,000.
#
# error: of text that was not counted (libreoffice-help in English, German, Russian, Chinese, Japanese; Python's C
# headers), with each tokenizer's own rates: the largest error of the sum over 200 samples, and the error that 4 of 5
# samples of 1,200 characters stay within.
"""


if __name__ == "__main__":
    main()
