"""What engines call our cards and providers. What is not here is named in a note, and never guessed.

Source  SkyPilot: AcceleratorName of each cloud's list in skypilot-org/skypilot-catalog@f2624ac, catalogs/v8 (aws: v7),
        and the names that the fetchers of skypilot 0.14.1 give (sky/catalog/data_fetchers/fetch_*.py);
        clouds: ALL_CLOUDS of sky/skylet/constants.py. Where a cloud has one name for two cards (Azure's H100 is an SXM
        or an NVL, Lambda's A100 an SXM or a PCIe) it is left out: its machines are asked for by instance.
        dstack: KNOWN_NVIDIA_GPUS and KNOWN_AMD_GPUS of gpuhunt 0.1.34 (gpuhunt/_internal/constraints.py), which has no
        names for form factors; backends: BackendType of dstack 0.22.5 (dstack/_internal/core/models/backends/base.py).
"""

from __future__ import annotations

from collections.abc import Mapping

SKYPILOT_CLOUDS: Mapping[str, str] = {
    "aws": "aws", "azure": "azure", "cudo": "cudo", "digitalocean": "do", "gcp": "gcp", "ibm": "ibm",
    "lambda": "lambda", "nebius": "nebius", "oracle": "oci", "paperspace": "paperspace", "runpod": "runpod",
    "seeweb": "seeweb", "vast.ai": "vast", "verda": "verda", "primeintellect": "primeintellect",
    "shadeform": "shadeform",
}  # fmt: skip
"""By our provider."""
SKYPILOT_LISTS = frozenset(
    {*SKYPILOT_CLOUDS.values(), "mithril", "hyperbolic", "yotta", "fluidstack", "vsphere", "scp"}
)
"""Clouds of SkyPilot that have a price list: an offer read from one is known there by its instance."""

SKYPILOT_CANNOT: Mapping[str, frozenset[str]] = {
    "mount a bucket": frozenset({"hyperbolic", "runpod", "seeweb", "shadeform", "vast", "verda", "yotta"}),
    "join machines": frozenset(
        {"hyperbolic", "primeintellect", "runpod", "seeweb", "shadeform", "vast", "verda", "vsphere", "yotta"}
    ),
    "rent spot machines": frozenset(
        {
            *("cudo", "do", "fluidstack", "hyperbolic", "lambda", "paperspace", "scp", "seeweb", "shadeform"),
            *("vsphere", "yotta"),
        }
    ),
    "name a region": frozenset({"shadeform"}),
}
"""Clouds at which SkyPilot cannot do it (CloudImplementationFeatures in sky/clouds/*.py of 0.14.1). Of Shadeform it
cannot look a region up: the class has no name (`_REPR`)."""

SKYPILOT_CARDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "t4": {"T4": ("aws", "azure", "gcp")},
    "v100-sxm-16gb": {"V100": ("aws", "oci")},
    "v100-sxm-32gb": {"V100-32GB": ("aws",)},
    "a10": {"A10": ("azure", "lambda", "oci", "shadeform")},
    "a10g": {"A10G": ("aws",)},
    "a30": {"A30": ("seeweb",)},
    "a40": {"A40": ("runpod", "shadeform")},
    "l4": {"L4": ("aws", "gcp", "runpod", "seeweb", "shadeform")},
    "l40": {"L40": ("primeintellect", "runpod", "shadeform")},
    "l40s": {
        "L40S": ("aws", "cudo", "nebius", "oci", "primeintellect", "runpod", "seeweb", "shadeform", "vast"),
    },
    "a100-sxm-40gb": {"A100": ("aws", "azure", "gcp", "oci")},
    "a100-sxm-80gb": {"A100-80GB": ("aws", "gcp", "lambda", "oci", "verda"), "A100-80GB-SXM": ("runpod",)},
    "a100-pcie-80gb": {"A100-80GB": ("runpod",)},
    "h100-sxm-80gb": {"H100": ("aws", "do", "gcp", "nebius", "oci", "verda"), "H100-SXM": ("runpod",)},
    "h100-pcie-80gb": {"H100": ("runpod",)},
    "h100-nvl-94gb": {"H100-NVL": ("runpod",)},
    "h200-sxm-141gb": {"H200": ("aws", "gcp", "nebius", "oci", "verda"), "H200-SXM": ("runpod",)},
    "gh200-96gb": {"GH200": ("lambda", "shadeform")},
    "b200-sxm-180gb": {"B200": ("aws", "gcp", "lambda", "nebius", "primeintellect", "runpod", "verda")},
    "b300-sxm-288gb": {"B300": ("nebius", "runpod")},
    "rtx-3090": {"RTX3090": ("runpod", "vast")},
    "rtx-4090": {"RTX4090": ("runpod", "shadeform", "vast")},
    "rtx-5090": {"RTX5090": ("runpod", "shadeform", "vast", "yotta")},
    "rtx-6000-ada": {"RTX6000-Ada": ("runpod", "vast"), "RTX6000Ada": ("primeintellect", "shadeform")},
    "rtx-a5000": {"RTXA5000": ("runpod", "vast")},
    "rtx-a6000": {"RTXA6000": ("runpod", "seeweb", "vast"), "A6000": ("lambda", "primeintellect", "shadeform")},
    "rtx-pro-6000-server": {"RTXPRO6000": ("aws", "runpod")},
    "rtx-pro-6000-workstation": {"RTXPRO6000-WK": ("runpod",)},
    "rtx-pro-4500": {"RTXPRO4500": ("runpod",)},
    "mi300x": {"MI300X": ("runpod",)},
}
"""By our card: the names it has, and the clouds where such a name means this card and no other."""
SEVERAL_CARDS = frozenset({"V100", "V100-32GB", "A100", "A100-80GB", "H100", "H200", "RTXPRO6000"})
"""Names that mean different cards at different clouds: they are asked for with the cloud."""

DSTACK_BACKENDS: Mapping[str, str] = {
    "aws": "aws", "azure": "azure", "crusoe": "crusoe", "cudo": "cudo", "digitalocean": "digitalocean", "gcp": "gcp",
    "hotaisle": "hotaisle", "lambda": "lambda", "nebius": "nebius", "oracle": "oci", "runpod": "runpod",
    "seeweb": "seeweb", "vast.ai": "vastai", "verda": "verda", "vultr": "vultr",
}  # fmt: skip
"""By our provider."""

DSTACK_CARDS: Mapping[str, tuple[str, int]] = {
    "t4": ("T4", 16),
    "v100-sxm-16gb": ("V100", 16),
    "v100-sxm-32gb": ("V100", 32),
    "p100-pcie-16gb": ("P100", 16),
    "a10": ("A10", 24),
    "a10g": ("A10G", 24),
    "a40": ("A40", 48),
    "l4": ("L4", 24),
    "l40": ("L40", 48),
    "l40s": ("L40S", 48),
    "a100-pcie-40gb": ("A100", 40),
    "a100-sxm-40gb": ("A100", 40),
    "a100-pcie-80gb": ("A100", 80),
    "a100-sxm-80gb": ("A100", 80),
    "h100-pcie-80gb": ("H100", 80),
    "h100-sxm-80gb": ("H100", 80),
    "h100-nvl-94gb": ("H100NVL", 94),
    "h200-sxm-141gb": ("H200", 141),
    "h200-nvl-141gb": ("H200NVL", 141),
    "gh200-96gb": ("GH200", 96),
    "b200-sxm-180gb": ("B200", 180),
    "gb200-186gb": ("GB200", 186),
    "rtx-3090": ("RTX3090", 24),
    "rtx-3090-ti": ("RTX3090Ti", 24),
    "rtx-4090": ("RTX4090", 24),
    "rtx-5090": ("RTX5090", 32),
    "rtx-a4000": ("A4000", 16),
    "rtx-a4500": ("A4500", 20),
    "rtx-a5000": ("A5000", 24),
    "rtx-a6000": ("A6000", 48),
    "rtx-6000-ada": ("RTX6000Ada", 48),
    "rtx-pro-4500": ("RTXPRO4500", 32),
    "rtx-pro-6000-server": ("RTXPRO6000", 96),
    "rtx-pro-6000-workstation": ("RTXPRO6000", 96),
    "mi300x": ("MI300X", 192),
}
"""By our card: gpuhunt's name, and the GB that tell cards of one name apart."""
FORM_FACTORS = frozenset({("A100", 40), ("A100", 80), ("H100", 80), ("RTXPRO6000", 96)})
"""Of these dstack may bring either form factor."""
