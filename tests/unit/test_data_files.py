"""Training data in every format, and what is wrong with it: counted, named, never a traceback."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from pathlib import Path
from typing import Any

import pytest

from tunecast.errors import NotResolved, UsageError
from tunecast.job.texts import lines, rows
from tunecast.job.texts.files import files_of
from tunecast.job.texts.scan import Scan, scan, stepped

ROWS = [{"text": "one"}, {"text": "two words"}, {"text": "and three more"}]
SIX = [2, 3, 4]
"""Their lengths: letters a 4.6th of a token each, and one that ends the text."""


def written(path: Path, content: str | bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def as_lines(rows: list[Any]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def lengths(found: Scan) -> list[int]:
    assert found.order is not None
    return list(found.order)


def reasons(found: Scan) -> list[tuple[int, str]]:
    return [(line.line, line.reason) for line in found.first_bad]


CONTENTS = {
    "a.jsonl": as_lines(ROWS),
    "a.ndjson": "\n" + as_lines(ROWS).rstrip(),
    "windows.jsonl": as_lines(ROWS).replace("\n", "\r\n"),
    "mark.jsonl": b"\xef\xbb\xbf" + as_lines(ROWS).encode(),
    "sixteen.jsonl": as_lines(ROWS).encode("utf-16"),
    "thirty_two.jsonl": as_lines(ROWS).encode("utf-32"),
    "list.json": json.dumps(ROWS),
    "pretty.json": json.dumps(ROWS, indent=2),
    "lines.json": as_lines(ROWS),
    "inside.json": json.dumps({"version": 1, "data": ROWS}, indent=1),
    "a.csv": "id,text\n1,one\n2,two words\n\n3,and three more\n",
    "quoted.csv": 'text\n"one"\n"two words"\n"and three\nmore"\n',
    "a.tsv": "text\tid\none\t1\ntwo words\t2\nand three more\t3\n",
    "a.txt": "one\n\ntwo words\nand three more",
    "a.jsonl.gz": gzip.compress(as_lines(ROWS).encode()),
    "a.jsonl.bz2": bz2.compress(as_lines(ROWS).encode()),
    "a.csv.xz": lzma.compress(b"text\none\ntwo words\nand three more\n"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_every_format_has_the_same_samples(tmp_path: Path, name: str) -> None:
    found = scan(written(tmp_path / name, CONTENTS[name]))
    assert lengths(found) == SIX and not found.bad_lines
    assert (found.samples, found.tokens) == (3, sum(SIX)) and dict(found.formats) == {"text": 3}


@pytest.mark.parametrize("name", CONTENTS)
def test_pieces_of_a_byte_are_read_as_one(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a piece ends: inside a line, a character or a value."""
    monkeypatch.setattr(lines, "PIECE_BYTES", 7)
    assert lengths(scan(written(tmp_path / name, CONTENTS[name]))) == SIX


@pytest.mark.parametrize("ending", ["parquet", "arrow", "feather"])
def test_tables(tmp_path: Path, ending: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    table, path = pyarrow.Table.from_pylist([{**row, "id": 1} for row in ROWS]), tmp_path / f"a.{ending}"
    if ending == "parquet":
        parquet.write_table(table, path, row_group_size=2)
    elif ending == "feather":
        feather.write_feather(table, path)
    else:  # a stream, as datasets writes
        with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    found = scan(str(path))
    assert lengths(found) == SIX and found.columns == ("text",)


def test_a_table_of_chats_and_of_tokens(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    chat = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two words"}]
    parquet.write_table(pyarrow.Table.from_pylist([{"messages": chat}] * 5), tmp_path / "chat.parquet")
    assert lengths(scan(str(tmp_path / "chat.parquet"))) == [12] * 5  # 2 tokens, and 5 around each message
    ids = pyarrow.Table.from_pylist([{"input_ids": [7] * n, "labels": [7] * n} for n in (4, 9)])
    parquet.write_table(ids, tmp_path / "ids.parquet")
    found = scan(str(tmp_path / "ids.parquet"))
    assert lengths(found) == [4, 9] and found.is_exact and found.tokenizer.startswith("exact")


def test_what_datasets_saves(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_list(ROWS)
    made.save_to_disk(tmp_path / "one")
    assert lengths(scan(str(tmp_path / "one"))) == SIX
    datasets.DatasetDict({"test": made.select([0]), "train": made}).save_to_disk(tmp_path / "two")
    found = scan(str(tmp_path / "two"))
    assert lengths(found) == SIX and any("another split" in name for name in found.left_out)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.jsonl.gz", "a.jsonl.xz", "a.jsonl.bz2"])
def test_a_damaged_file_is_told(tmp_path: Path, name: str) -> None:
    if name.endswith(("parquet", "arrow")):
        pytest.importorskip("pyarrow")
    for content in (b"", b"PAR1 this is none", gzip.compress(b"x" * 9000)[:30]):
        with pytest.raises((NotResolved, UsageError), match=name):
            scan(written(tmp_path / name, content))


def test_packages_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in ("pyarrow", "tokenizers", "zstandard", "compression.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    tokenizer = written(tmp_path / "tokenizer.json", "{}")
    for name in ("a.parquet", "a.arrow", "a.jsonl.zst"):
        with pytest.raises(NotResolved, match=r"tunecast\[data\]"):
            scan(written(tmp_path / name, "x"))
    with pytest.raises(NotResolved, match=r"tunecast\[data\]"):
        scan(written(tmp_path / "a.txt", "x"), tokenizer)


def test_malformed_lines_are_counted_and_named(tmp_path: Path) -> None:
    bad = ['{"text": "a"', "nothing", "[1]", "7", '"text"', "null", '{"id": 1}', "{}", '{"text": ""}', '{"text": null}']
    found = scan(written(tmp_path / "a.jsonl", "\n".join([*bad, *as_lines(ROWS).splitlines()])))
    assert found.samples == 3 and found.bad_lines == len(bad)
    told = reasons(found)
    assert [line for line, _ in told] == [1, 2, 3, 4, 5]
    assert told[0][1].startswith("not JSON: Expecting ',' delimiter") and told[2][1] == "not an object, but a list"


def test_columns_nobody_knows_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no sample; no column of a known format among x, y \(line 1\)"):
        scan(written(tmp_path / "a.jsonl", as_lines([{"x": "a", "y": "b"}])))


@pytest.mark.parametrize("content", ["", "\n\n", "[]", " [ ] ", "{}"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.txt", "a.tsv"])
def test_an_empty_file_holds_no_sample(tmp_path: Path, name: str, content: str) -> None:
    if name == "a.txt" and content.strip():
        return
    with pytest.raises(UsageError, match="holds no sample"):
        scan(written(tmp_path / name, content))


def test_another_encoding_is_told(tmp_path: Path) -> None:
    latin = '{"text": "Größe"}\n'.encode("latin-1") + as_lines(ROWS).encode()
    found = scan(written(tmp_path / "a.jsonl", latin))
    assert found.samples == 3 and reasons(found)[0][1].startswith("not UTF-8 (byte 13 of the line)")
    found = scan(written(tmp_path / "a.csv", "text\ngut\nGröße\n".encode("latin-1")))
    assert found.samples == 1 and reasons(found) == [(3, reasons(found)[0][1])]
    found = scan(written(tmp_path / "a.json", '[{"text": "gut"}, {"text": "Größe"}]'.encode("latin-1") + b" " * 9))
    assert found.samples == 1 and found.bad_lines == 1


def test_deep_json_is_told(tmp_path: Path) -> None:
    deep = '{"text": ' + "[" * 100_000
    found = scan(written(tmp_path / "a.jsonl", f"{deep}\n{as_lines(ROWS)}"))
    assert found.samples == 3 and reasons(found)[0] == (1, "nested too deeply")
    found = scan(written(tmp_path / "a.json", f"[{json.dumps(ROWS[0])}, {deep}"))
    assert found.samples == 1 and "nested too deeply" in reasons(found)[0][1]


def test_a_list_that_breaks_is_read_up_to_there(tmp_path: Path) -> None:
    for rest in ('{"text": }]', '{"text": "never ends', '{"text": "a"', "oh]" + " " * 99):
        found = scan(written(tmp_path / "a.json", f"[\n{json.dumps(ROWS[0])},\n{rest}"))
        assert found.samples == 1 and found.bad_lines == 1
        assert reasons(found)[0][0] == 3 and reasons(found)[0][1].endswith("nothing after it was read")


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt"])
def test_a_huge_line_is_passed_over(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MOST_LINE_BYTES", 100)
    monkeypatch.setattr(rows, "MOST_LINE_BYTES", 100)
    monkeypatch.setattr(lines, "PIECE_BYTES", 64)
    one = as_lines(ROWS) if name == "a.jsonl" else "one\ntwo words\nand three more\n"
    head = "text\n" if name == "a.csv" else ""
    found = scan(written(tmp_path / name, f"{head}{'x' * 1000}\n{one}{'y' * 500}"))
    assert lengths(found) == SIX and found.bad_lines == 2
    assert "longer than" in reasons(found)[0][1]


def test_a_huge_value_of_a_list_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_LINE_BYTES", 100)
    monkeypatch.setattr(lines, "PIECE_BYTES", 64)
    found = scan(written(tmp_path / "a.json", json.dumps([ROWS[0], {"text": "x" * 1000}, ROWS[1]])))
    assert found.samples == 1 and found.bad_lines == 1


def test_csv_of_another_width_and_an_open_quote(tmp_path: Path) -> None:
    found = scan(written(tmp_path / "a.csv", 'text,id\none,1\ntwo\nand three more,2\n"open,3\n'))
    assert found.samples == 2 and reasons(found)[0] == (3, "1 columns, not 2")


def test_a_folder_takes_the_training_split(tmp_path: Path) -> None:
    for name in ("data/train-00001.jsonl", "data/train-00000.jsonl", "data/test.jsonl", "README.md", "notes.txt"):
        written(tmp_path / name, as_lines(ROWS[:1] if "00000" in name else ROWS[1:]))
    written(tmp_path / "dataset_infos.json", "{}")
    written(tmp_path / ".cache" / "train.jsonl", as_lines(ROWS))
    found = scan(str(tmp_path))
    assert [os.path.basename(name) for name in found.files] == ["train-00000.jsonl", "train-00001.jsonl"]
    assert lengths(found) == SIX
    assert set(found.left_out) == {"notes.txt: jsonl files are read", "data/test.jsonl: another split"}


def test_a_folder_without_data(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("x")
    with pytest.raises(NotResolved, match=r"no file of \.parquet"):
        scan(str(tmp_path))


def test_pipes_devices_and_links(tmp_path: Path) -> None:
    written(tmp_path / "set" / "a.jsonl", as_lines(ROWS))
    os.mkfifo(tmp_path / "set" / "pipe.jsonl")
    (tmp_path / "set" / "loop.jsonl").symlink_to("loop.jsonl")
    (tmp_path / "set" / "again").symlink_to(tmp_path / "set")
    (tmp_path / "set" / "gone.jsonl").symlink_to("nowhere.jsonl")
    found = scan(str(tmp_path / "set"))
    assert lengths(found) == SIX
    told = dict(name.split(": ", 1) for name in found.left_out)
    assert told.keys() == {"pipe.jsonl", "loop.jsonl", "again", "gone.jsonl"}
    assert told["pipe.jsonl"] == "not a plain file" and told["again"] == "a link to a folder"
    for name in ("set/pipe.jsonl", "set/loop.jsonl", "set/gone.jsonl"):
        with pytest.raises(NotResolved):
            scan(str(tmp_path / name))
    with pytest.raises(NotResolved, match="neither a plain file nor a folder"):
        scan("/dev/zero")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "set" / "a.jsonl")
    assert lengths(scan(str(tmp_path / "link.jsonl"))) == SIX


@pytest.mark.parametrize("path", ["nowhere.jsonl", "\0", "a" * 5000])
def test_what_is_not_there(path: str) -> None:
    with pytest.raises(NotResolved):
        files_of(path)


def test_an_ending_nobody_knows(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the ending tells no format; allowed: \.parquet"):
        scan(written(tmp_path / "a.docx", "x"))


def test_long_lengths_are_counted_by_steps() -> None:
    assert [stepped(n) for n in (1, 65_536, 65_537, 10_000_000)] == [1, 65_536, 65_792, 10_027_008]
    assert all(n <= stepped(n) <= n * 1.008 for n in range(65_537, 9_000_000, 12_345))
    assert len({stepped(n) for n in range(65_537, 2_000_000)}) < 1300


def test_order_is_kept_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tunecast.job.texts import scan as module

    monkeypatch.setattr(module, "MOST_IN_ORDER", 2)
    found = scan(written(tmp_path / "a.jsonl", as_lines(ROWS)))
    assert found.order is None and found.counts == ((2, 1), (3, 1), (4, 1))


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", as_lines(ROWS))
    assert scan(path) is scan(path)
    written(tmp_path / "a.jsonl", as_lines(ROWS[:1]))
    assert scan(path).samples == 1
