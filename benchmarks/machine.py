"""The releases on the machine with an H200 that measured data/: jobs it ran name them, and are predicted as such."""

from __future__ import annotations

MEASURED_WITH = {
    "torch_version": "2.11.0", "transformers_version": "5.17.0", "peft_version": "0.21.0",
    "bitsandbytes_version": "0.50.2",
}  # fmt: skip
