"""One field at a time: what it takes, what it refuses, and in which words."""

from __future__ import annotations

import pytest

from tunecast.errors import UsageError
from tunecast.job import Job, Lora, Quantization, job_from_dict


def refusal(**fields: object) -> str:
    with pytest.raises(UsageError) as caught:
        job_from_dict({"model": "gpt2", **fields})
    return caught.value.message


def test_only_the_model_is_required():
    job = job_from_dict({"model": "gpt2"})
    assert (job.method, job.seq_len, job.micro_batch, job.weights_dtype) == ("full", 1024, 8, "auto")
    assert job == Job("gpt2") == Job(model="gpt2")
    with pytest.raises(UsageError, match=r"^model: missing; allowed: bundled name, Hub id"):
        job_from_dict({})


def test_the_contract_s_own_example_is_read():
    job = job_from_dict(
        {
            "id": "my-run",
            "model": "llama-3.1-8b",
            "task": "sft",
            "method": "qlora",
            "stack": "transformers",
            "lora": {"rank": 16, "alpha": 32, "dropout": 0.0, "targets": "all-linear", "dora": False,
                     "adapter_dtype": "float32"},
            "quantization": {"format": "nf4", "double_quant": True, "experts": False, "prepare_kbit": True},
            "weights_dtype": "bfloat16",
            "autocast": "bfloat16",
            "matmul_dtype": None,
            "optimizer": "adamw_torch",
            "max_grad_norm": 1.0,
            "seq_len": 2048,
            "micro_batch": 2,
            "grad_accum": 1,
            "gradient_checkpointing": True,
            "attention": "sdpa",
            "kernels": [],
            "compile": False,
            "allocator": "native",
            "lengths": None,
            "data": {"tokens": 20000000, "epochs": 3, "packing": False},
            "hardware": {"gpu": "h200-sxm-141gb", "gpus": 1, "nodes": 1, "capacity_bytes": None, "reserve_bytes": 0},
            "parallel": {"data": "ddp", "layers": 1, "tensor": 1, "pipeline": 1, "context": 1, "expert": 1,
                         "offload": "none"},
        }
    )  # fmt: skip
    assert job.lora == Lora(rank=16, alpha=32.0, dropout=0.0, targets="all-linear")
    assert job.quantization == Quantization("nf4", double_quant=True)
    assert job.data.epochs == 3.0


def test_a_job_is_a_value():
    one, other = Job("gpt2", kernels=["liger"]), Job("gpt2", kernels=("liger",))  # type: ignore[arg-type]
    assert one == other
    assert len({one, other, Job("gpt2")}) == 2
    with pytest.raises(AttributeError):
        one.seq_len = 5  # type: ignore[misc]


def test_to_dict_is_read_back_as_it_was():
    for job in (
        Job("gpt2"),
        Job("gpt2", method="lora", lora=Lora(targets=("q_proj", "v_proj")), id=7),
        Job("gpt2", method="qlora", quantization=Quantization("int8"), seq_len=64, lengths=(64, 32)),
    ):
        assert job_from_dict(job.to_dict()) == job
    assert Job("gpt2").to_dict()["lora"] is None
    assert Job("gpt2").to_dict()["quantization"]["format"] is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "lroa"}, "method: got 'lroa'; allowed: full, lora, qlora; nearest: lora"),
        ({"autocast": "flaot16"}, "autocast: got 'flaot16'; allowed: bfloat16, float16 or null; nearest: float16"),
        ({"seq_len": 0}, "seq_len: got 0; allowed: a whole number from 1 to 10000000; nearest: 1"),
        ({"seq_len": 10**30}, f"seq_len: got {10**30}; allowed: a whole number from 1 to 10000000; nearest: 10000000"),
        ({"seq_len": 1.5}, "seq_len: got 1.5; allowed: a whole number from 1 to 10000000; nearest: 2"),
        ({"seq_len": True}, "seq_len: got true; allowed: a whole number from 1 to 10000000"),
        ({"seq_len": None}, "seq_len: got null; allowed: a whole number from 1 to 10000000"),
        ({"compile": 2}, "compile: got 2; allowed: true or false"),
        ({"compile": "fasle"}, "compile: got 'fasle'; allowed: true or false; nearest: false"),
        ({"max_grad_norm": float("nan")}, "max_grad_norm: got nan; allowed: a number from 0 to 1000000000"),
        ({"max_grad_norm": -1}, "max_grad_norm: got -1; allowed: a number from 0 to 1000000000; nearest: 0"),
        (
            {"kernels": ["ligre"]},
            "kernels: got 'ligre'; allowed: a list of any of liger, liger_rope, liger_rms_norm, liger_glu, "
            "liger_cross_entropy, liger_fused_linear_cross_entropy, cut_cross_entropy, lora_triton, foak, fla, "
            "causal-conv1d, mamba-ssm; nearest: liger",
        ),
        ({"lengths": []}, "lengths: got []; allowed: a list of whole numbers from 1 to 10000000 or null"),
        ({"lengths": [0]}, "lengths: got 0; allowed: a list of whole numbers from 1 to 10000000 or null; nearest: 1"),
        ({"hardware": {"gpus": 0}}, "hardware.gpus: got 0; allowed: a whole number from 1 to 1024; nearest: 1"),
        (
            {"quantization": 8},
            "quantization: got 8; allowed: a mapping of format, double_quant, experts, prepare_kbit; or null",
        ),
        (
            {"hardware": {"reserve_bytes": "2G"}},
            "hardware.reserve_bytes: got '2G'; allowed: bytes from 0 to 1125899906842624, "
            "or a size such as 2GiB or 2GB; nearest: 2GiB",
        ),
        ({"model": "a\x1b[31m"}, "model: got 'a\\x1b[31m'; allowed: text of 1 to 4096 printable characters"),
        ({"model": 5}, "model: got 5; allowed: text of 1 to 4096 printable characters"),
        ({"id": True}, "id: got true; allowed: text or a whole number or null"),
    ],
)  # fmt: skip
def test_a_wrong_value_names_the_field_what_was_given_what_is_allowed_and_the_nearest(fields, message):
    assert refusal(**fields) == message


@pytest.mark.parametrize(
    ("fields", "field", "near"),
    [
        ({"sequence_len": 1}, "sequence_len", "seq_len"),
        ({"batch_size": 1}, "batch_size", "micro_batch"),
        ({"lora_r": 8}, "lora_r", "lora.rank"),
        ({"rank": 8}, "rank", "lora.rank"),
        ({"gpu": "l4"}, "gpu", "hardware.gpu"),
        ({"optimiser": "sgd"}, "optimiser", "optimizer"),
        ({"method": "lora", "lora": {"rnak": 8}}, "lora.rnak", "lora.rank"),
        ({"hardwear": {}}, "hardwear", "hardware"),
        ({"lora.rank": 8}, "lora.rank", "lora.rank"),
    ],
)
def test_an_unknown_field_points_at_the_one_that_was_meant(fields, field, near):
    message = refusal(**fields)
    assert message.startswith(f"{field}: unknown field; allowed: ")
    assert message.endswith(f"; nearest: {near}")


def test_all_problems_are_told_at_once_and_the_first_is_named():
    with pytest.raises(UsageError) as caught:
        job_from_dict(
            {"seq_len": 0, "method": "x", "hardware": {"gpus": "many"}, "speed": 1, "task": "dpo", "stack": "litgpt"}
        )
    lines = caught.value.message.splitlines()
    assert [line.split(":")[0] for line in lines] == ["speed", "model", "method", "seq_len", "hardware.gpus", "task"]
    assert caught.value.field == "speed"
    assert caught.value.exit_code == 2


def test_a_file_that_is_no_job_is_not_recited():
    lines = refusal(**{f"x{i}": i for i in range(1000)}).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "job: 980 more unknown fields"


def test_numbers_as_text_are_read_as_pyyaml_leaves_them():
    job = job_from_dict({"model": "m", "max_grad_norm": "1e-4", "data": {"tokens": "2e7"}, "seq_len": 2048.0})
    assert (job.max_grad_norm, job.data.tokens, job.seq_len) == (1e-4, 20_000_000, 2048)
    assert refusal(max_grad_norm="inf").startswith("max_grad_norm: got 'inf'")
    assert refusal(max_grad_norm="1e999").startswith("max_grad_norm: got '1e999'")


def test_none_is_null_where_null_is_allowed():
    job = job_from_dict({"model": "m", "autocast": "none", "lengths": "null", "max_grad_norm": None})
    assert (job.autocast, job.lengths, job.max_grad_norm) == (None, None, 0.0)
    assert job_from_dict({"model": "m", "parallel": {"offload": "none"}}).parallel.offload == "none"


def test_targets_are_a_word_or_names():
    def targets(given: object) -> object:
        return job_from_dict({"model": "m", "method": "lora", "lora": {"targets": given}}).lora.targets

    assert targets("all-linear") == "all-linear"
    assert targets(["q_proj", "v_proj", "q_proj"]) == ("q_proj", "v_proj")
    assert targets("q_proj, v_proj") == ("q_proj", "v_proj")
    assert targets(None) is None
    assert targets("all_linear") == targets("all") == "all-linear"
    assert refusal(method="lora", lora={"targets": "all-linaer"}).endswith("; nearest: all-linear")
    assert refusal(method="lora", lora={"targets": ["q proj"]}).startswith("lora.targets: got 'q proj'")


def test_a_job_made_in_python_is_checked_too():
    with pytest.raises(UsageError, match=r"^lora.rank: got 0"):
        Lora(rank=0)
    with pytest.raises(UsageError, match=r"^seq_len: got -1"):
        Job("gpt2", seq_len=-1)
    with pytest.raises(UsageError, match=r"^lora: got 5; allowed: a Lora"):
        Job("gpt2", method="lora", lora=5)  # type: ignore[arg-type]


def test_a_number_too_long_to_print_is_refused_all_the_same():
    assert refusal(seq_len=1 << 100_000).startswith("seq_len: got a value of type int")


@pytest.mark.parametrize(
    ("given", "nbytes"),
    [("2GiB", 2 * 2**30), ("2 GB", 2 * 10**9), ("1.5gib", 3 * 2**29), ("512MiB", 2**29), ("4096", 4096), (4096, 4096),
     (None, 0), ("0", 0)],
)  # fmt: skip
def test_a_size_with_its_unit_or_in_bytes(given, nbytes):
    assert job_from_dict({"model": "gpt2", "hardware": {"reserve_bytes": given}}).hardware.reserve_bytes == nbytes


@pytest.mark.parametrize("given", ["2G", "-1", "1e30GiB", "GiB", "2 GiB GiB", 2.5, True, "9" * 100 + "GiB"])
def test_what_is_no_size(given):
    assert refusal(hardware={"reserve_bytes": given}).startswith("hardware.reserve_bytes: got ")
