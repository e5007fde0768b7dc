"""Unsloth 2026.10.9 on paper: what its own code does where `stack: unsloth` trains (`stacks/unsloth.py`).

compiled.py   A decoder layer as one compiled region (unsloth/models/_block_compile.py): its code is compiled for any
              batch size and length into three graphs: inference, forward for training, and backward
early.py      What Unsloth did otherwise up to 2024.9 (2024.8 and 2024.9: unsloth/models/llama.py,
              kernels/cross_entropy_loss.py)
fast_lora.py  linear layers with adapters, one function each
loading.py    weights and adapters come to the card
loss.py       head and loss in chunks or tiles
model.py      The model as Unsloth runs it (unsloth/models/llama.py; mistral.py, qwen2.py and qwen3.py where they
              differ)
norms.py      Norms and rotary positions (unsloth/kernels/rms_layernorm.py, rope_embedding.py)

By default each layer is compiled as one region: `compiled.py` has the compiler (`build/compiler`) look at the same code
run by a layer on paper, and runs what it makes of it in the layer's place.
"""
