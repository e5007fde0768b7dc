"""Files that hold jobs, from people and from anyone."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tunecast.job import Job, JobError, read_jobs
from tunecast.job.readers import bounds

EXAMPLES = Path(__file__).parents[2] / "examples"


def written(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def only(source: str, **overrides: object) -> Job | JobError:
    [job] = read_jobs(source, {name.replace("__", "."): value for name, value in overrides.items()})
    return job


def refused(source: str) -> JobError:
    job = only(source)
    assert isinstance(job, JobError), job
    return job


def test_a_job_in_toml_is_predicted_as_it_is_read(tmp_path):
    """`tunecast read` understood it and named `tunecast predict`, which refused its ending."""
    text = 'model = "gpt2"\nmethod = "lora"\n\n[lora]\nrank = 4\n'
    assert only(written(tmp_path, "job.toml", text)) == only(
        written(tmp_path, "job.yaml", "{model: gpt2, method: lora, lora: {rank: 4}}")
    )
    assert refused(written(tmp_path, "no.toml", "model = ")).message.endswith(
        "not TOML: Invalid value (at end of document)"
    )


def test_yaml_and_json_say_the_same(tmp_path):
    yaml = written(tmp_path, "job.yaml", "model: gpt2\nmethod: lora\nlora: {rank: 4}\nmax_grad_norm: 1e-1\n")
    text = '{"model": "gpt2", "method": "lora", "lora": {"rank": 4}, "max_grad_norm": 1e-1}'
    one = only(yaml)
    assert isinstance(one, Job) and one.lora.rank == 4 and one.max_grad_norm == 0.1
    assert one == only(written(tmp_path, "job.json", text)) == only(written(tmp_path, "bom.json", "\ufeff" + text))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_are_jobs(path):
    assert isinstance(only(str(path)), Job)


def test_a_model_s_name_is_a_job():
    job = only("llama-3.1-8b", method="lora", lora__rank="8")
    assert isinstance(job, Job)
    assert (job.model, job.lora.rank) == ("llama-3.1-8b", 8)
    # a Hub id and a folder too; whether they exist is asked later
    assert isinstance(only("org/name"), Job)


def test_a_config_json_is_a_model_and_not_a_job(tmp_path):
    config = written(tmp_path, "config.json", '{"model_type": "llama"}')
    other = written(tmp_path, "other.json", '{"model_type": "llama", "hidden_size": 8}')
    for path in (config, other):
        job = only(path)
        assert isinstance(job, Job) and job.model == path


def test_flags_win_over_the_file(tmp_path):
    path = written(tmp_path, "job.yaml", "model: gpt2\nseq_len: 64\nhardware: {gpus: 2}\n")
    job = only(path, seq_len="128", hardware__nodes="3")
    assert isinstance(job, Job)
    assert (job.seq_len, job.hardware.gpus, job.hardware.nodes) == (128, 2, 3)


def test_another_method_drops_what_the_file_says_of_its_own(tmp_path):
    path = written(
        tmp_path, "job.yaml", "model: m\nmethod: qlora\nlora: {rank: 4}\nquantization: {double_quant: true}\n"
    )
    full, lora = only(path, method="full"), only(path, method="lora")
    assert isinstance(full, Job) and full == Job("m")
    assert isinstance(lora, Job) and (lora.lora.rank, lora.quantization.format) == (4, None)
    emptied = only(path, lora=None)
    assert isinstance(emptied, Job) and emptied.lora.rank == 16


def test_a_path_written_with_a_dot_starts_at_the_file(tmp_path):
    job = only(written(tmp_path, "job.yaml", "model: ./models/tiny\n"))
    assert isinstance(job, Job)
    assert job.model == f"{tmp_path}/models/tiny"
    plain = only(written(tmp_path, "plain.yaml", "model: models/tiny\n"))
    assert isinstance(plain, Job) and plain.model == "models/tiny"


def test_many_jobs_go_on_after_a_bad_one(tmp_path):
    path = written(
        tmp_path,
        "jobs.jsonl",
        '{"id": "a", "model": "gpt2"}\n'
        "\n"
        '{"id": "b", "model": "gpt2", "seq_len": 0}\n'
        "{not json\n"
        "[1]\n"
        '{"id": 4, "model": "gpt2", "seq_len": 8}',
    )
    a, b, broken, listed, last = read_jobs(path)
    assert isinstance(a, Job) and a.id == "a"
    assert isinstance(last, Job) and (last.id, last.seq_len) == (4, 8)
    assert isinstance(b, JobError)
    assert b.to_dict() == {
        "id": "b",
        "error": {
            "code": "usage",
            "field": "seq_len",
            "message": f"{path} line 3: seq_len: got 0; allowed: a whole number from 1 to 10000000; nearest: 1",
        },
    }
    assert b.exit_code == 2
    assert isinstance(broken, JobError) and broken.id is None and f"{path} line 4, column 2: not JSON" in broken.message
    assert isinstance(listed, JobError) and listed.field == "job"


def test_json_lines_are_read_as_they_are_asked_for(tmp_path, monkeypatch):
    path = written(tmp_path, "jobs.jsonl", '{"model": "gpt2"}\n' * 1000)
    jobs = read_jobs(path)
    next(jobs)
    # what is asked for later has not been read yet
    monkeypatch.setattr("tunecast.job.readers.jsonlines.parsed", lambda *_, **__: {"model": "other"})
    job = next(jobs)
    assert isinstance(job, Job) and job.model == "other"


def test_a_line_too_long_is_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr("tunecast.job.readers.jsonlines.MOST_LINE_BYTES", 100)
    path = written(tmp_path, "jobs.jsonl", "x" * 950 + '\n{"model": "gpt2"}\n' + "y" * 300)
    first, second, third = read_jobs(path)
    assert isinstance(first, JobError) and first.message.endswith(
        "line 1: longer than 100 bytes, the most that is read"
    )
    assert isinstance(second, Job)
    assert isinstance(third, JobError)


@pytest.mark.parametrize("content", ["", "\n", "  \n\n"])
def test_a_file_without_jobs_is_an_error(tmp_path: Path, content: str) -> None:
    (error,) = read_jobs(str(written(tmp_path, "jobs.jsonl", content)))
    assert isinstance(error, JobError)
    assert error.exit_code == 2 and 'got no job; allowed: one a line, such as {"model"' in error.message


@pytest.mark.parametrize("name", ["no.yaml", "no.yml", "no.json", "no.jsonl"])
def test_a_file_that_is_not_there(tmp_path, name):
    error = refused(str(tmp_path / name))
    assert (error.code, error.exit_code) == ("not_resolved", 5)
    assert error.message == f"{tmp_path / name}: no such file"


def test_files_that_are_no_files(tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    os.mkfifo(tmp_path / "pipe.jsonl")
    for name in ("folder.yaml", "pipe.yaml", "pipe.jsonl"):
        assert refused(str(tmp_path / name)).exit_code == 5
    assert refused(written(tmp_path, "job.ini", "x = 1")).message.endswith(
        "unknown ending '.ini'; allowed: .yaml, .yml, .json, .toml, .jsonl, or a folder with config.json"
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.yaml", "", "got null; allowed: a mapping of fields"),
        ("a.yaml", "- model: x", "got a list; allowed: a mapping of fields; many jobs go into a .jsonl file"),
        ("a.yaml", "just text", "got 'just text'; allowed: a mapping"),
        ("a.yaml", "model: x\nmodel: y", "line 2: 'model' is given twice; allowed: once"),
        ("a.yaml", "model: x\nlora: {rank: 1, rank: 2}", "line 2: 'rank' is given twice; allowed: once"),
        ("a.yaml", "model: [", "line 1, column 9: not YAML"),
        ("a.yaml", 'model: gpt2\nid: "a\nmethod: lora\n', "line 2, column 5: not YAML: while scanning a quoted scalar"),
        ("a.yaml", "a: 1\n---\nb: 2", "several documents; allowed: one job a file"),
        ("a.yaml", "model: !!python/object/apply:os.system [true]", "not YAML: could not determine a constructor"),
        ("a.yaml", "model: \x00", "a character that YAML does not allow"),
        ("a.yaml", "model: 2024-99-99", "a number or a date that cannot be"),
        ("a.yaml", "model: !!float", "a number or a date that cannot be"),
        ("a.yaml", "model: &a [*a]", "an alias to what it is part of"),
        ("a.yaml", "? [1]\n: 2", "not YAML"),
        ("a.yaml", "a: " + "[" * 40 + "]" * 40, "nested more than 16 deep"),
        ("a.yaml", "[" * 100_000, "nested too deep"),
        ("a.yaml", b"model: \xff", "not UTF-8 (byte 7)"),
        ("a.yaml", "model: m\nmax_grad_norm: .nan", "max_grad_norm: got nan"),
        ("a.yaml", "model: m\nmax_grad_norm: .inf", "max_grad_norm: got inf"),
        ("a.yaml", "model: m\nseq_len: 0x" + "f" * 20_000, "seq_len: got a value of type int"),
        ("a.json", "", "line 1, column 1: not JSON"),
        ("a.json", "[]", "got a list; allowed: a mapping"),
        ("a.json", '{"model": "x", "model": "y"}', "'model' is given twice; allowed: once"),
        ("a.json", '{"model": "x", "max_grad_norm": NaN}', "NaN is not a JSON number"),
        ("a.json", '{"model": "x", "max_grad_norm": -Infinity}', "-Infinity is not a JSON number"),
        ("a.json", '{"model": "x", "max_grad_norm": 1e999}', "max_grad_norm: got inf"),
        ("a.json", '{"model": "x", "seq_len": ' + "9" * 10_000 + "}", "a number is too long"),
        ("a.json", "[" * 100_000, "nested too deep"),
        ("a.json", '{"a": ' + "[" * 40 + "]" * 40 + "}", "nested more than 16 deep"),
    ],
)
def test_content_that_is_refused(tmp_path, name, content, message):
    error = refused(written(tmp_path, name, content))
    assert message in error.message
    assert error.message.startswith(str(tmp_path))
    assert (error.code, error.exit_code) == ("usage", 2)


def test_an_alias_bomb_is_refused_before_it_is_built(tmp_path):
    # nine levels of nine: 9**9 values from a few hundred bytes
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    started = time.process_time()
    error = refused(written(tmp_path, "bomb.yaml", "\n".join(levels)))
    assert f"more than {bounds.MOST_NODES} values" in error.message
    assert time.process_time() - started < 5


def test_size_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("tunecast.job.readers.json.MOST_FILE_BYTES", 50)
    assert isinstance(only(written(tmp_path, "a.json", json.dumps({"model": "x" * 10}))), Job)
    error = refused(written(tmp_path, "b.json", json.dumps({"model": "x" * 100})))
    assert error.message.endswith("b.json: larger than 50 bytes, the most that is read")


@pytest.mark.parametrize("row", ['{"text": "a"}', '{"messages": []}', '{"prompt": "a", "chosen": "b"}'])
def test_training_data_is_told_from_jobs(tmp_path, row):
    error = only(written(tmp_path, "data.jsonl", f"{row}\n" * 300))
    assert isinstance(error, JobError)
    assert "this looks like training data" in error.message
    assert "tunecast data PATH" in error.message and "data.path" in error.message
