from __future__ import annotations

import argparse

import pytest

from tunecast.errors import UsageError
from tunecast.job import Job, read_jobs
from tunecast.job.flags import add_job_flags, assignments, job_flags, overrides_from
from tunecast.job.job import all_knobs


def overrides(line: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs", nargs="+")
    parser.add_argument("--json", action="store_true")
    add_job_flags(parser)
    return overrides_from(parser.parse_args(line.split()))


def test_every_field_has_one_flag_and_no_flag_two_fields():
    flags = job_flags()
    assert [flag.field for flag in flags] == list(all_knobs())
    assert len({flag.flag for flag in flags}) == len(flags)
    by_field = {flag.field: flag.flag for flag in flags}
    assert by_field["lora.rank"] == "--rank"
    assert by_field["seq_len"] == "--seq-len"
    assert by_field["lengths"] == "--lengths"
    # ambiguous: a section is called data, and the job has lengths of its own
    assert by_field["parallel.data"] == "--parallel-data"
    assert by_field["data.lengths"] == "--data-lengths"


def test_the_contract_s_command_line():
    line = "llama-3.1-8b --method lora --rank 16 --seq-len 4096 --gpu h100-sxm-80gb --gpus 2 --json"
    [job] = read_jobs("llama-3.1-8b", overrides(line))
    assert isinstance(job, Job)
    assert (job.model, job.method, job.lora.rank, job.seq_len) == ("llama-3.1-8b", "lora", 16, 4096)
    assert (job.hardware.gpu, job.hardware.gpus) == ("h100-sxm-80gb", 2)


def test_only_what_was_typed_is_set():
    assert overrides("m") == {}
    assert overrides("m --no-compile --dora --lengths 1,2") == {
        "compile": False,
        "lora.dora": True,
        "lengths": "1,2",
    }


def test_set_reaches_any_field_and_wins():
    assert overrides("m --dropout 0.2 --set lora.dropout=0.1 --set seq-len=8") == {
        "lora.dropout": "0.1",
        "seq_len": "8",
    }
    assert assignments(["lora=null", "autocast=null"]) == {"lora": None, "autocast": "null"}
    with pytest.raises(UsageError, match="allowed: FIELD=VALUE"):
        assignments(["lora.rank"])


def test_a_wrong_flag_is_told_before_anything_is_read():
    with pytest.raises(UsageError, match=r"^lora.rank: got '0'; allowed: a whole number from 1 to 65536; nearest: 1"):
        read_jobs("/nowhere/jobs.jsonl", {"lora.rank": "0"})
    with pytest.raises(UsageError, match=r"^lora.rnak: unknown field; .*nearest: lora.rank"):
        read_jobs("/nowhere/jobs.jsonl", {"lora.rnak": "8"})
    with pytest.raises(UsageError, match=r"^lora: "):
        read_jobs("m", {"lora": "5"})


def test_help_can_be_printed():
    parser = argparse.ArgumentParser()
    add_job_flags(parser)
    assert "--parallel-data" in parser.format_help()
