"""`tunecast data`, and jobs that name their data: the same as with its lengths in a list."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import tunecast
from tunecast.cli.main import main
from tunecast.job import Job, job_from_dict, read_jobs
from tunecast.job.lengths import sample_lengths
from tunecast.job.model import resolve_model
from tunecast.job.texts import scan as scanning
from tunecast.prediction.data.batches import batches_of, counts_answers
from tunecast.prediction.data.torch_random import Generator
from tunecast.prediction.on_card import ANSWERS_GUESS, answers_guess
from tunecast.records import replace
from tunecast.tape.build.fill_in import fill_in_of

LETTERS = 100
"""Of a word, so that no rounding hides what is counted."""


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    rng = random.Random(3)
    rows = [{"text": " ".join(["x" * LETTERS] * rng.choice((1, 2, 3, 5, 8, 20)))} for _ in range(60)]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture
def ids_file(tmp_path: Path) -> Path:
    """Tokens themselves, so that nothing is estimated."""
    rng = random.Random(4)
    path = tmp_path / "ids.jsonl"
    path.write_text("".join(f"{json.dumps({'input_ids': [1] * rng.randint(5, 300)})}\n" for _ in range(60)))
    return path


def job(**data: Any) -> Job:
    return job_from_dict({
        "model": "gpt2", "method": "lora", "seq_len": 256, "micro_batch": 4, "data": data,
        "hardware": {"gpu": "rtx-4090"},
    })  # fmt: skip


def listed(path: Path) -> list[int]:
    found = sample_lengths(job(path=str(path)).data)
    assert found is not None and found.order is not None
    return list(found.order)


@pytest.mark.whole
def test_memory_and_time_are_those_of_the_same_lengths(ids_file: Path) -> None:
    told = tunecast.predict(job(path=str(ids_file))).to_dict()
    same = tunecast.predict(job(lengths=listed(ids_file))).to_dict()
    assert told["exactness"] == same["exactness"] and told["reasons"] == same["reasons"]
    for part in ("memory", "time", "fits", "smallest_capacity_bytes", "outside", "energy"):
        assert told[part] == same[part]
    extra = set(told["assumptions"]) - set(same["assumptions"])
    assert extra == {f"lengths of 60 samples were counted in {ids_file}; tokens: exact: the data is tokenized already"}


@pytest.mark.whole
def test_lengths_that_are_estimated_make_an_estimate(data_file: Path) -> None:
    told = tunecast.predict(job(path=str(data_file)))
    same = tunecast.predict(job(lengths=listed(data_file)))
    assert told.memory.allocated_bytes == same.memory.allocated_bytes
    assert told.time is not None and same.time is not None and told.time.step_s == same.time.step_s
    assert told.exactness == "estimate"
    assert told.reasons[0].startswith("lengths of the samples are estimated from characters")
    assert set(told.reasons[1:]) == set(same.reasons)


def test_samples_may_be_more_than_the_file_has(ids_file: Path) -> None:
    found = sample_lengths(job(path=str(ids_file), samples=600).data)
    assert found is not None and found.samples == 600 and found.listed == 60 and found.is_sample


def test_a_path_in_a_job_file_starts_there(ids_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("model: gpt2\ndata: {path: ./ids.jsonl, tokenizer: ./t}\n")
    monkeypatch.chdir("/")
    (read,) = read_jobs(str(tmp_path / "job.yaml"))
    assert isinstance(read, Job)
    assert read.data.path == str(tmp_path / "ids.jsonl") and read.data.tokenizer == str(tmp_path / "t")


@pytest.mark.parametrize(
    ("data", "told"),
    [({"path": "a.jsonl", "lengths": [3]}, "one of the two"), ({"path": "a.jsonl", "tokens": 5}, "got 5 and samples")],
)
def test_what_says_the_same_twice_is_refused(data: dict[str, Any], told: str) -> None:
    with pytest.raises(tunecast.UsageError, match=told):
        job(**data)
    with pytest.raises(tunecast.UsageError, match="padded micro-batches"):
        job_from_dict({"model": "gpt2", "lengths": [64], "data": {"path": "a.jsonl"}})


def test_other_names_of_it(data_file: Path) -> None:
    for name in ("dataset_path", "data_path"):
        assert tunecast.read("gpt2", **{name: str(data_file)}).data.path == str(data_file)  # type: ignore[arg-type]


def test_a_file_is_read_once_for_all_who_ask(data_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = []
    real = scanning._read
    monkeypatch.setattr(scanning, "_read", lambda *given: times.append(1) or real(*given))
    made = job(path=str(data_file)).data
    assert sample_lengths(made) == sample_lengths(made) and len(times) == 1


def test_a_tokenizer_without_data_is_said_to_change_nothing() -> None:
    from tunecast.prediction.modelled import unused_fields

    assert any("data.tokenizer" in line for line in unused_fields(job(tokenizer="t"), resolve_model("gpt2")))


def test_rows_and_batches_on_paper(tmp_path: Path) -> None:
    """Lengths 10, 20, 30, 40 and two cards of one row each: two steps, at seq_len 25 two samples are cut."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{json.dumps({'input_ids': [1] * n})}\n" for n in (10, 20, 30, 40)))
    found = tunecast.data(path, seq_len=25, micro_batch=1, gpus=2, grad_accum=1)
    assert (found.samples, found.tokens, found.tokens_range, found.exactness) == (4, 100, (100, 100), "exact")
    assert found.lengths.quantiles["50"] == 20 and found.lengths.longest == 40 and found.lengths.mean == 25
    assert [tuple(each) for each in found.lengths.histogram] == [(9, 16, 1), (17, 32, 2), (33, 64, 1)]
    rows = found.rows
    assert rows is not None and (rows.ranks, rows.rows, rows.steps) == (2, 4, 2)
    assert (rows.truncated_fraction, rows.cut_tokens_fraction) == (0.5, 0.2)
    assert (rows.real_tokens, rows.padded_tokens, rows.padding_fraction) == (80, 80, 0.0)
    assert tuple(rows.largest_batch) == (1, 25, True)
    assert rows.preparation_s == pytest.approx(80 / 330_000)
    packed = tunecast.data(path, seq_len=50, micro_batch=1, packing=True, stack="trl").rows
    assert packed is not None and packed.rows == 2 and packed.padding_fraction == 0.0  # 40 + 10, 30 + 20


def test_every_batch_is_looked_at_for_the_largest(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{json.dumps({'input_ids': [1] * n})}\n" for n in range(1, 41)))
    rows = tunecast.data(path, seq_len=64, micro_batch=4).rows
    assert rows is not None and tuple(rows.largest_batch) == (4, 40, True)
    drawn = tunecast.data(path, seq_len=64, micro_batch=4, samples=1000).rows
    assert drawn is not None and tuple(drawn.largest_batch) == (4, 40, False)


def test_the_json_is_the_value(data_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", str(data_file), "--seq-len", "64", "--micro-batch", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    value = tunecast.data(data_file, seq_len=64, micro_batch=2)
    assert told == json.loads(json.dumps(value.to_dict())) and told["schema"] == "tunecast.data/1"
    assert told["format"] == "text" and told["columns"] == ["text"] and told["bad_lines"] == {"count": 0, "first": []}
    assert told["exactness"] == "estimate" and told["tokenizer"].startswith("estimated from characters")
    assert "seq_len 64" in value._repr_html_() and "<script" not in value._repr_html_()


def test_the_verdict_comes_first_and_without_colours(data_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with data_file.open("a") as file:
        file.write("{oh\n\x1b[31m\n")
    assert main(["data", str(data_file)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("60 texts, about ") and "\x1b" not in text
    assert "line 61: not JSON: Expecting property name" in text and "█" in text
    assert "--seq-len 2048" in text
    assert main(["data", str(data_file), "--seq-len", "64"]) == 0
    text = capsys.readouterr().out
    assert "of the samples are longer than seq_len 64 and are cut" in text.splitlines()[0]
    assert "Rows and batches, an epoch" in text


@pytest.mark.parametrize(
    ("content", "code"), [("", 2), ("{}\n", 2), (None, 5)], ids=["empty", "no known column", "not there"]
)
def test_what_cannot_be_answered(tmp_path: Path, content: str | None, code: int, capsys: Any) -> None:
    path = tmp_path / "a.jsonl"
    if content is not None:
        path.write_text(content)
    assert main(["data", str(path)]) == code
    told = capsys.readouterr().err
    assert told.startswith("tunecast: error: ") and "Traceback" not in told


def test_an_interrupt_ends_it(data_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(scanning, "rows_of", interrupted)
    assert main(["data", str(data_file)]) == 130
    assert capsys.readouterr().err == "tunecast: interrupted\n"


def test_names_of_files_move_no_cursor(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "\x1b[2Ja.jsonl"
    path.write_text('{"text": "a", "\x1b[31m": 1}\n'.replace("\x1b", "\\u001b"))
    assert main(["data", str(path)]) in (0, 2)
    told = capsys.readouterr()
    assert "\x1b" not in told.out + told.err


PROMPTS = [{"prompt": "x" * (20 + 7 * n), "completion": "y" * (30 + 11 * (n % 5))} for n in range(12)]


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A model with a tokenizer of its own beside it, which has a token per letter."""
    tokenizers = pytest.importorskip("tokenizers")
    letters = {letter: number for number, letter in enumerate("xyz </s>")}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=letters, merges=[]))
    folder = tmp_path / "own-model"
    folder.mkdir()
    inner.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(resolve_model("gpt2").raw))
    return folder


def filled(path: Path, folder: Path, **fields: Any) -> Job:
    made = job_from_dict({"model": str(folder), "seq_len": 64, "micro_batch": 3, "data": {"path": str(path)}, **fields})
    return fill_in_of(made, resolve_model(str(folder)))


def written(tmp_path: Path, rows: list[dict[str, str]]) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_tokens_are_counted_by_the_models_own_tokenizer_where_it_is_here(tmp_path: Path, model_folder: Path) -> None:
    path = written(tmp_path, [{"text": "x" * n} for n in (5, 9, 14)])
    for stack, ends in (("trl", 1), ("transformers", 0)):
        made = filled(path, model_folder, stack=stack)
        assert made.data.tokenizer == str(model_folder)
        found = sample_lengths(made.data)
        assert found is not None and found.order == (5 + ends, 9 + ends, 14 + ends), "TRL ends each text with a token"


def test_prompts_have_no_labels(tmp_path: Path, model_folder: Path) -> None:
    """Of the tokens that follow another (a row's first follows none): padding and prompts, each cut where its row is.
    TRL drops what a prompt fills."""
    path = written(tmp_path, PROMPTS)
    made = filled(path, model_folder, stack="trl")
    lengths = sample_lengths(made.data)
    assert lengths is not None and lengths.prompts == tuple(len(row["prompt"]) for row in PROMPTS)
    found = batches_of(made, lengths, most_steps=100)
    assert found is not None
    trained = [row for row in PROMPTS if len(row["prompt"]) < 64]
    rows = Generator(made.data.seed).shuffled(range(len(trained)))
    assert len(trained) == 7 and [step[0].rows for step in found.steps[:3]] == [3, 3, 1]
    for number, (micro,) in enumerate(found.steps[:3]):
        own = [trained[row] for row in rows[number * 3 : number * 3 + 3]]
        whole = [min(64, len(row["prompt"]) + len(row["completion"]) + 1) for row in own]
        labelled = sum(length - len(row["prompt"]) for length, row in zip(whole, own, strict=True))
        assert micro.length == max(whole) and micro.rows * (micro.length - 1) - micro.padding == labelled
    without = sample_lengths(replace(made.data, completion_only=False))
    assert without is not None and without.prompts is None


PAIRS = [{"prompt": "x" * (9 * n), "chosen": "y" * (4 + 3 * n), "rejected": "z" * (30 - 3 * n)} for n in range(9)]


def test_labels_of_pairs_are_those_of_their_answers(tmp_path: Path, model_folder: Path) -> None:
    """Cut where their row is; the first token of a row without a prompt is no label. TRL drops what a prompt fills."""
    made = filled(written(tmp_path, PAIRS), model_folder, stack="trl", task="dpo")
    assert counts_answers(made)
    found = batches_of(made, sample_lengths(made.data), most_steps=100)
    assert found is not None and found.known
    trained = [row for row in PAIRS if len(row["prompt"]) < 64]
    rows = Generator(made.data.seed).shuffled(range(len(trained)))
    assert len(trained) == 8 and [step[0].rows for step in found.steps[:3]] == [3, 3, 2]
    for number, (micro,) in enumerate(found.steps[:3]):
        own = [trained[row] for row in rows[number * 3 : number * 3 + 3]]
        prompts = [len(row["prompt"]) for row in own]
        sides = [[min(64, at + len(row[side]) + 1) for at, row in zip(prompts, own, strict=True)]
                 for side in ("chosen", "rejected")]  # fmt: skip
        labels = [sum(length - max(1, at) for length, at in zip(side, prompts, strict=True)) for side in sides]
        assert micro.answers == tuple(labels) and micro.length == max(map(max, sides))
        assert micro.masked == (min(map(min, sides)) < micro.length)


@pytest.mark.parametrize(
    "fields",
    [{"task": "kto"}, {"task": "reward"}, {"stack": "llama-factory"}, {"trl_version": "1.9.0"},
     {"data": {"path": "{rows}", "samples": 100}}],
    ids=str,
)  # fmt: skip
def test_answers_are_counted_where_the_head_computes_on_them_alone(
    tmp_path: Path, model_folder: Path, fields: dict[str, Any]
) -> None:
    path = written(tmp_path, PAIRS)
    given = {"stack": "trl", "task": "dpo", **fields}
    if "data" in given:
        given["data"] = {**given["data"], "path": str(path)}
    assert not counts_answers(filled(path, model_folder, **given))


def test_what_is_not_counted_is_a_guess(tmp_path: Path, model_folder: Path) -> None:
    path = written(tmp_path, PAIRS)
    assert answers_guess(filled(path, model_folder, stack="trl", task="dpo")) is None
    for fields in ({"preference": {"reference": "precomputed"}}, {"data": {"lengths": [20, 60]}}):
        made = filled(path, model_folder, stack="trl", task="dpo", **fields)
        assert answers_guess(made) == ANSWERS_GUESS
