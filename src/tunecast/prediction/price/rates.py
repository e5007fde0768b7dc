"""What a card's arithmetic and memory reach, as opposed to what its data sheet prints."""

from __future__ import annotations

from collections.abc import Mapping

from tunecast.errors import Unsupported
from tunecast.hardware.spec import Gpu
from tunecast.prediction.price.offload import HostLink, host_link
from tunecast.records import dataclass

ACHIEVABLE = 0.85
"""Of the dense rate, where nobody measured the card: A100 0.87, H100 and H200 0.80, GH200 0.84 (stas00/ml-engineering,
best of many shapes)."""
PER_JOULE = {"Ampere GA102": 0.41e12, "Ada": 0.77e12}
"""FLOP of bfloat16 products a joule, on chips that could do more than their boards may draw: where nobody measured a
card, it does no more than its power limit pays for. Large products by others (zzc0721/torch-performance-test-data):
GA10x 0.41 on an RTX A6000 of 300 W, 0.40 on an A4000 of 140 W, 0.41 on an A2000 of 70 W; Ada 0.77 on an L40S of 350 W
and 0.81 on an L4 of 72 W."""
OF_CHIP = {"CDNA4": 0.626}
"""Of the dense rate, where nobody measured the card but another with its chip: the MI355X's 1565 of 2500 TFLOP/s."""
USUALLY_SUSTAINED = 0.88
SUSTAINED = {
    **{"Hopper": 0.845, "Ampere": 0.92, "Blackwell": 0.78, "CDNA3": 0.77, "CDNA4": 0.77},
    **dict.fromkeys(("Pascal", "Volta", "Turing", "Ada", "CDNA2", "RDNA", "Gaudi2", "Gaudi3"), USUALLY_SUSTAINED),
}
"""Of the best product anyone measured on a card, what products reach in the middle of a training step, where memory
takes its share of the power. Hopper: 38 steps of one H200; published ones of H100s agree. Ampere: 65 published steps of
an A100. Blackwell: five of GB200s. The more of its power a card needs at full rate, the less. CDNA: 74 to 81 % of the
best in products of models (AMD's typical attained FLOPs of an MI325X, ROCm blogs, taf-blog). Of the others nobody
published enough steps. Every architecture of gpus.toml has to be here (tests/facts/test_gpu_facts.py)."""
LOW_PRECISION = {"fp8": 0.93, "fp4": 0.80}
"""Of as much of their dense rate as of bfloat16's: scales are carried along, and power again (published steps of
Megatron, NeMo and MLPerf on H100, H200 and B200; torchao's lose more)."""
FULL_SUMS = 0.945
"""Of float8's rate on Hopper where sums leave the tensor cores for float32 every 128 products, which the backward pass
of torchao (`Float8GemmConfig`) and of Transformer Engine (its split accumulator) asks for: median of five shapes on an
H200 (benchmarks/data/host_copies.jsonl, float8_tensorwise beside _fast). Later cards always sum in full."""
BACKWARD = " backward"
NVIDIA, AMD = "NVIDIA", "AMD"
HOPPER = 9
GEFORCE_BLACKWELL = "Blackwell GB"
AMPLE_POWER = 2.0
"""Times what products at full rate draw: such a card is not held back by its power. GeForce Ada sums in float32 at half
its rate, so that two RTX 4090 that train draw 375 to 400 W at most, of 450 (AnswerDotAI/fsdp_qlora,
benchmarks_03_2024.md)."""
FLOAT32_ACHIEVABLE = 0.75
"""Of the float32 rate without tensor cores: cuBLAS' SGEMM."""
RATE_OF_DTYPE = {
    "bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "int8": "int8", "int32": "int8", "tf32": "tf32",
    "float8": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", f"float8{BACKWARD}": f"fp8{BACKWARD}",
    "float4": "fp4", "float4_e2m1fn_x2": "fp4",
}  # fmt: skip
INSTEAD = {
    "bf16": ("fp32",), "fp16": ("bf16", "fp32"), "tf32": ("fp32", "bf16"), "fp8": ("bf16", "fp16"),
    "fp4": ("fp8", "bf16", "fp16"), "int8": ("bf16", "fp16"), "fp32": ("tf32", "fp16", "bf16"),
    f"fp8{BACKWARD}": ("fp8", "bf16", "fp16"),
}  # fmt: skip
"""What runs where a card has no such units: bfloat16 on a T4 takes the float32 path."""
DEFAULT_SM_COUNT = 108
"""Of a card whose multiprocessors nobody counted: an A100's."""
LEAST_BYTES_PER_S = 300e9


@dataclass(frozen=True, eq=False)
class Rates:
    """A card as prices see it; one object a card, which unlike `Gpu` can be a key."""

    name: str
    vendor: str
    sm_count: int
    bytes_per_s: float
    """The data sheet's."""
    compute_capability: tuple[int, int]
    l2_bytes: int
    by_dtype: Mapping[str, float]
    """FLOP a second of a large matrix product in a step, by bf16, fp16, tf32, fp32, fp8, fp4, int8."""
    host: HostLink

    def flop_per_s(self, dtype: str) -> float:
        return self.by_dtype[RATE_OF_DTYPE.get(dtype, "bf16")]


_known: dict[int, tuple[Gpu, Rates]] = {}


def rates_of(gpu: Gpu) -> Rates:
    found = _known.get(id(gpu))
    if found is None or found[0] is not gpu:
        if len(_known) > 1000:
            _known.clear()
        found = _known[id(gpu)] = (gpu, _rates(gpu))
    return found[1]


def _rates(gpu: Gpu) -> Rates:
    reached = {name: _best(gpu, name) * _sustained(gpu) for name in INSTEAD}
    if gpu.vendor == NVIDIA and gpu.compute_capability[0] == HOPPER:
        reached[f"fp8{BACKWARD}"] *= FULL_SUMS
    return Rates(
        gpu.name,
        gpu.vendor,
        gpu.sm_count or DEFAULT_SM_COUNT,
        gpu.memory_bytes_per_s or LEAST_BYTES_PER_S,
        gpu.compute_capability,
        gpu.l2_bytes or 0,
        reached,
        host_link(gpu),
    )


def _best(gpu: Gpu, wanted: str) -> float:
    for name in (wanted, *INSTEAD[wanted]):
        if name in gpu.achieved_flop_per_s:
            return gpu.achieved_flop_per_s[name]
        dense = gpu.dense_flop_per_s.get(name)
        if dense is not None:
            return dense * (FLOAT32_ACHIEVABLE if name == "fp32" else _achievable(gpu) * LOW_PRECISION.get(name, 1.0))
    raise Unsupported(
        f"hardware.gpu: what {gpu.name} computes in a second is not known. To fix: name another card",
        field="hardware.gpu",
    )


def _achievable(gpu: Gpu) -> float:
    """As much of another dtype's rate as of bfloat16's, where that was measured; else as the chip, or as its power
    pays for."""
    measured, dense = gpu.achieved_flop_per_s.get("bf16"), gpu.dense_flop_per_s.get("bf16")
    if measured and dense:
        return measured / dense
    if (alike := OF_CHIP.get(gpu.architecture.partition(" ")[0])) is not None:
        return alike
    return min(ACHIEVABLE, _paid(gpu)) if _paid(gpu) else ACHIEVABLE


def _paid(gpu: Gpu) -> float:
    """How much of its dense rate a card's power pays for; 0 where nobody knows."""
    each = next((each for chip, each in PER_JOULE.items() if gpu.architecture.startswith(chip)), 0.0)
    dense = gpu.dense_flop_per_s.get("bf16")
    return each * (gpu.tdp_w or 0) / dense if dense else 0.0


def _sustained(gpu: Gpu) -> float:
    if gpu.architecture.startswith(GEFORCE_BLACKWELL):
        return USUALLY_SUSTAINED
    if gpu.architecture.startswith("Ada") and _paid(gpu) >= AMPLE_POWER:
        return 1.0
    return SUSTAINED.get(gpu.architecture.partition(" ")[0], USUALLY_SUSTAINED)
