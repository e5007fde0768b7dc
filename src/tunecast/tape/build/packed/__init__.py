"""Weights that others packed: what arrives from such checkpoints, what stays on the card, and how layers run on it.

awq.py        Linear layers whose weights AWQ has quantised to 4 bits, on paper: what they hold and how they run
choice.py     what training makes of a checkpoint that is stored quantised: adapters over its weights, plain weights,
              or nothing
experts.py    Experts' stacked weights in bitsandbytes' 4 or 8 bits, as Axolotl's `quantize_moe_experts` puts them
fp8.py        Linear layers whose weights are FP8 in blocks with a scale each, on paper: adapters train over them from
              transformers 5.22 on
torchao.py    Linear layers over torchao's weight-only formats, int8 and float8, on paper: what they hold and how they
              run
unpacking.py  checkpoints whose weights are taken apart as they are loaded, on paper: MXFP4 and FP8 with
              `dequantize=True`
"""
