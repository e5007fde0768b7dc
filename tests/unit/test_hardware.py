from __future__ import annotations

import pytest

from tunecast.errors import UsageError
from tunecast.hardware import gpu, gpus, known_gpu
from tunecast.hardware.catalog import Meant, matching, meant_by
from tunecast.units import GIB


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        # the contract's own
        ("4090", "rtx-4090"),
        ("H100", "h100-sxm-80gb"),
        ("A100-80GB SXM", "a100-sxm-80gb"),
        ("NVIDIA H200", "h200-sxm-141gb"),
        # as drivers call them
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
        ("NVIDIA H100 NVL", "h100-nvl-94gb"),
        ("NVIDIA H200 NVL", "h200-nvl-141gb"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("NVIDIA B200", "b200-sxm-180gb"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100-sxm-16gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        # as people do
        ("rtx4090", "rtx-4090"),
        ("RTX_3090", "rtx-3090"),
        ("l40s", "l40s"),
        ("L40", "l40"),
        ("a10", "a10"),
        ("H100 SXM5", "h100-sxm-80gb"),
        ("a100 40g sxm", "a100-sxm-40gb"),
        ("6000 ada", "rtx-6000-ada"),
        ("A6000", "rtx-a6000"),
        ("NVIDIA RTX PRO 4500 Blackwell", "rtx-pro-4500"),
        ("NVIDIA B300 SXM6 AC", "b300-sxm-288gb"),
        ("NVIDIA GB300", "gb300-288gb"),
    ],
)
def test_the_usual_spellings(spelled, name):
    assert gpu(spelled).name == name


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("mi300x", "mi300x"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("MI250X", "mi250x"),
        ("Gaudi 2", "gaudi2"),
        ("HL-225", "gaudi2"),
        ("intel gaudi3", "gaudi3"),
        ("4090", "rtx-4090"),
    ],
)
def test_the_spellings_of_other_vendors(spelled, name):
    assert known_gpu(spelled).name == name


def test_every_card_goes_by_its_own_name():
    for name in gpus():
        assert known_gpu(name).name == name
        assert known_gpu(name.upper().replace("-", " ")).name == name


@pytest.mark.parametrize(
    ("spelled", "candidates"),
    [
        ("A100", "a100-pcie-40gb or a100-pcie-80gb or a100-sxm-40gb or a100-sxm-80gb"),
        ("a100-80gb", "a100-pcie-80gb or a100-sxm-80gb"),
        ("V100", "v100-sxm-16gb or v100-sxm-32gb"),
        ("rtx 6000", "rtx-6000-ada or rtx-pro-6000-workstation or rtx-pro-6000-server or quadro-rtx-6000"),
        ("4060 ti", "rtx-4060-ti-8gb or rtx-4060-ti-16gb"),
    ],
)
def test_an_ambiguous_name_is_answered_with_the_candidates(spelled, candidates):
    with pytest.raises(UsageError) as caught:
        gpu(spelled)
    assert caught.value.message == f"hardware.gpu: got '{spelled}', which could be {candidates}; say which"
    assert caught.value.field == "hardware.gpu"


@pytest.mark.parametrize(
    ("spelled", "near"), [("h100-smx-80gb", "h100-sxm-80gb"), ("rtx-4081", "rtx-4080"), ("l40ss", "l40s")]
)
def test_an_unknown_name_is_answered_with_the_nearest(spelled, near):
    with pytest.raises(UsageError) as caught:
        gpu(spelled)
    allowed = "a card of `tunecast gpus`, or a size such as 24gb"
    assert caught.value.message.startswith(f"hardware.gpu: got '{spelled}'; allowed: {allowed}")
    assert caught.value.message.endswith(f"; nearest: {near}")


def test_a_card_of_another_vendor_is_not_taken_for_a_typing_error():
    for name in ("gaudi2", "mi308x", "TPU v5p"):
        with pytest.raises(UsageError, match=f"got '{name}'; only NVIDIA and AMD cards are modelled yet"):
            gpu(name)


@pytest.mark.parametrize("name", ["", " ", "nvidia", "x" * 10_000, "\x1b[31m", "h100-sxm-80gb; rm -rf /"])
def test_what_is_no_name_at_all(name):
    with pytest.raises(UsageError) as caught:
        gpu(name)
    assert "\x1b" not in caught.value.message
    assert len(caught.value.message) < 1000


def test_the_card_the_measurements_were_made_on():
    card = gpu("h200-sxm-141gb")
    assert card.compute_capability == (9, 0)
    assert card.sm_count == 132
    assert f"{card.memory_bytes / GIB:.2f}" == "139.80"  # as its OOM messages print it
    assert card.context_bytes == 650_969_088
    assert card.training_context_bytes == 804_061_184
    assert gpu("l4").context_bytes is None


def test_what_a_card_can_do():
    card = known_gpu("h100-sxm-80gb")
    assert card.memory_bytes_per_s == 3350e9
    assert card.dense_flop_per_s["bf16"] == pytest.approx(989.4e12)  # the data sheet prints 1979, with sparsity
    assert card.link_bytes_per_s == 450e9  # 900 GB/s both ways
    assert (card.memory_type, card.tdp_w, card.nominal_bytes) == ("HBM3", 700, 80 * 10**9)
    assert "bf16" not in known_gpu("t4").dense_flop_per_s


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("2080ti", "rtx-2080-ti"),
        ("4070tisuper", "rtx-4070-ti-super"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx-4070-ti-super"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090-laptop"),
        ("4090", "rtx-4090"),  # a laptop's, a Ti or a Super has to be said
        ("4080", "rtx-4080"),
        ("Tesla P100-PCIE-16GB", "p100-pcie-16gb"),
        ("Quadro RTX 6000", "quadro-rtx-6000"),
        ("NVIDIA RTX 4000 Ada Generation", "rtx-4000-ada"),
    ],
)
def test_home_and_workstation_cards_by_their_usual_names(spelled, name):
    assert meant_by(spelled) == Meant(gpus()[name])


def test_what_a_short_name_is_taken_for_is_told():
    meant = meant_by("h100")
    assert (meant.card.name, meant.is_size) == ("h100-sxm-80gb", False)
    assert meant.note("h100") == (
        "h100 is taken as h100-sxm-80gb; others: h100-pcie-80gb, h100-sxm-96gb, h100-nvl-94gb"
    )
    assert meant_by("3060").card.name == "rtx-3060-12gb"
    assert meant_by("h100-sxm-80gb").note("h100-sxm-80gb") is None


def test_a_size_is_the_slowest_geforce_of_it_and_names_the_others():
    meant = meant_by("24gb")
    assert meant.card.name == "rtx-3090"
    assert {"rtx-4090", "a10", "l4", "titan-rtx"} <= set(meant.others)
    note = meant.note("24gb")
    assert note.startswith("24gb is taken as rtx-3090 (23.69 GiB); others: rtx-4090, ")
    assert f" and {len(meant.others) - 6} more (tunecast gpus 24gb); " in note
    assert note.endswith("; the least memory has a10, 22.03 GiB")
    assert {card.name for card in matching(["24gb"])} == {meant.card.name, *meant.others}
    assert meant_by("24 GB").card is meant_by("24GiB").card is meant.card
    assert meant_by("80gb").card.name == "a100-pcie-80gb"
    for size in (8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 80, 96, 141):
        card = meant_by(f"{size}gb").card
        assert card.nominal_bytes == size * 10**9
        assert "bf16" in card.dense_flop_per_s or size == 11  # the 2080 Ti alone
    with pytest.raises(UsageError, match=r"got '23gb'; allowed: .*; nearest: 24gb, or hardware.capacity_bytes: 23GB"):
        meant_by("23gb")
