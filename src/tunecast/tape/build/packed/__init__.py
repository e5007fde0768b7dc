"""Weights that others packed: what arrives from such checkpoints, what stays on the card, and how layers run on it.

choice.py     what training makes of a checkpoint that is stored quantised: adapters over its weights, plain weights, or
              nothing
unpacking.py  checkpoints whose weights are taken apart as they are loaded, on paper: MXFP4 and FP8 with
              `dequantize=True`
"""
