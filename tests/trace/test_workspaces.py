"""What CUDA kernels allocate, in order: the tracer against an H200, and the rules' arithmetic on paper."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tunecast.tape.card import Card
from tunecast.tape.kernels import cub
from tunecast.tape.kernels.gathered import chunk_cat_table_bytes, mixed_chunk_cat_table_bytes
from tunecast.tape.kernels.launch import Multiprocessors, ReductionKernel, accumulation_bytes, buffers, extent
from tunecast.tape.kernels.steps import Borrow, Make, Return, Script
from tunecast.tape.trace import workspaces

ROOT = Path(__file__).parents[2]
PROVENANCE, *LINES = (ROOT / "tests" / "golden" / "data" / "h200_kernel_temporaries.jsonl").read_text().splitlines()
ROWS = [json.loads(line) for line in LINES]
H200 = Card()
ROOM = Multiprocessors(132, 2048)
"""Of an H200."""
A100 = Card(name="NVIDIA A100", total_bytes=80 << 30, capability=(8, 0), sm_count=108)
L4 = Card(name="NVIDIA L4", total_bytes=23 << 30, capability=(8, 9), sm_count=58)
B200 = Card(name="NVIDIA B200", total_bytes=180 << 30, capability=(10, 0), sm_count=148)


@pytest.fixture(scope="module")
def recorded(run_programs: Callable[..., Any]) -> dict[str, dict[str, str]]:
    command = [sys.executable, str(Path(__file__).with_name("kernel_rows.py"))]
    (done,) = run_programs(command, text="\n".join(LINES), env=os.environ | {"PYTHONPATH": str(ROOT / "src")})
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, dict[str, str]] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['group']}: {row['name']}")
def test_a_call_allocates_what_the_h200_did(row: dict[str, Any], recorded: dict[str, dict[str, str]]) -> None:
    measured = {key: row[key] for key in ("chosen", "forward", "backward") if key in row}
    assert {key: recorded[row["name"]][key] for key in measured} == measured


def test_the_measurements_say_where_they_come_from() -> None:
    provenance = json.loads(PROVENANCE)
    assert "H200" in provenance["provenance"] and provenance["torch"] == "2.11.0+cu130"
    assert len({row["name"] for row in ROWS}) == len(ROWS)


def test_a_script_returns_what_is_left_last_in_first_out() -> None:
    script = Script()
    first, second = script.borrow(10), script.borrow(20)
    script.make(0)
    script.give_back(first)
    script.borrow(30)
    assert script.borrow(0) == -1  # an allocation of nothing is none
    assert script.steps() == (Borrow(10), Borrow(20), Make(0), Return(first), Borrow(30), Return(2), Return(second))


def kept(name: str, bias_shape: tuple[int, ...], card: Card, **kwargs: Any) -> dict[str, int]:
    """The workspaces of a 4-by-8 times 8-by-16 product."""
    args = (torch.empty(bias_shape), torch.empty(4, 8), torch.empty(8, 16))
    return dict(workspaces.kept_for_life(name, args[1:] if name != "aten::addmm" else args, card, kwargs))


@pytest.mark.parametrize(
    ("torch_version", "card", "mebibytes"),
    [
        ("2.11.0", H200, 32),
        ("2.11.0", A100, 8.125),
        ("2.11.0", L4, 8.125),
        ("2.11.0", B200, 8.125),
        ("2.13.0", B200, 32),
    ],
)
def test_cublas_workspace(torch_version: str, card: Card, mebibytes: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", torch_version)
    assert kept("aten::mm", (), card) == {"cublas_workspace": int(mebibytes * 2**20)}
    assert kept("aten::add", (), card) == {}


def test_a_bias_row_takes_cublaslt_and_its_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.11.0")
    assert kept("aten::addmm", (16,), H200)["cublaslt_workspace"] == 2**20
    assert kept("aten::addmm", (1, 16), H200)["cublaslt_workspace"] == 2**20
    assert "cublaslt_workspace" not in kept("aten::addmm", (4, 16), H200)
    assert "cublaslt_workspace" not in kept("aten::addmm", (16,), H200, beta=0.5)
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    assert "cublaslt_workspace" not in kept("aten::addmm", (16,), H200)


def test_the_sum_of_a_bias_gradient_by_hand() -> None:
    """2048 rows of 4096 bf16, summed over rows. Four neighbours a load: 128 threads a block, 32 by 4, because the other
    side has 512/4 = 128 places. Each thread column has 2048/4 = 512 values, above 256, and 4096/4/32 = 32 blocks fill
    too little of 132 * (2048/128) = 2112 places: min(2112/32, 512/16) = 32 blocks a result. Every lane keeps its own
    fp32 sum: 4 * 4096 * 32 * (32 * 4) bytes, and a 4-byte semaphore for each of the 32 columns of blocks."""
    rows = extent((2048, 4096), (4096, 1), reduced=(0,))
    assert list(buffers(rows, ReductionKernel(2, 4), 2, ROOM)) == [(4 * 4096 * 32 * 32 * 4, 4 * 32)]


def test_few_values_need_no_buffer() -> None:
    assert list(buffers(extent((10_000,), (1,), (0,)), ReductionKernel(4, 4), 4, ROOM)) == [(0, 0)]


def test_dimensions_merge_before_a_reduction() -> None:
    """A contiguous [2, 3, 5] reduced over all is one row of 30; over the first two it is 6 rows of 5."""
    assert extent((2, 3, 5), (15, 5, 1), (0, 1, 2)).sizes == (30,)
    rows = extent((2, 3, 5), (15, 5, 1), (0, 1))
    assert (rows.sizes, rows.strides, rows.out_strides) == ((6, 5), (5, 1), (0, 1))


def test_more_than_two_gibibytes_are_halved() -> None:
    """1.5e9 bf16 are 3e9 bytes, beyond 2**31: two halves, which meet in one fp32 number."""
    row = extent((1_500_000_000,), (1,), (0,))
    assert len(list(buffers(row, ReductionKernel(2, 4), 2, ROOM))) == 2
    assert accumulation_bytes(row, ReductionKernel(2, 4), 2) == 4
    assert accumulation_bytes(extent((1_000_000_000,), (1,), (0,)), ReductionKernel(2, 4), 2) == 0


def test_a_radix_sort_by_hand() -> None:
    """5000 pairs of 8 bytes, all 64 bits: 8 passes of 256 counters of 8 bytes (16384), 2 tiles of 4608 with 256 words
    of 4 bytes (2048), second buffers of 40000 rounded up to 40192 twice, 8 words rounded up to 256, 255 to align."""
    assert cub.sort_pairs(5000, 8) == 16384 + 2048 + 2 * 40192 + 256 + 255
    assert cub.sort_pairs(2304, 8) == 1  # one block sorts 256 * 9


def test_a_scan_by_hand() -> None:
    """65536 8-byte numbers: 74 tiles of 896 and 32 spare, 16 bytes each, rounded up to 1792; an empty part; 255."""
    assert cub.scan(65536, 8) == 1792 + 256 + 255


def test_a_table_of_gradients_by_hand() -> None:
    """Parts of 3,000 and 100 bytes: six numbers each, and which block is whose, one for each 2 KiB. Of one dtype two
    of the lists have an end."""
    assert chunk_cat_table_bytes([3000, 100]) == 8 * (2 * 6 + 3 + 2)
    assert mixed_chunk_cat_table_bytes([3000, 100]) == 8 * (2 * 6 + 3)


def test_foreach_launches_follow_tensors_and_chunks() -> None:
    small = [torch.empty(10) for _ in range(111)]
    assert workspaces.kernel_count("aten::_foreach_add", (small, 1.0), small) == 2  # 110 tensors a launch
    assert workspaces.kernel_count("aten::add", (), []) == 1
