"""Unsloth 2026.10.9 on paper: what its own code does where `stack: unsloth` trains (`stacks/unsloth.py`).

    loading.py    weights and adapters come to the card          model.py  attention, layers and model
    fast_lora.py  linear layers with adapters, one function each norms.py  norms and rotary positions
    loss.py       head and loss in chunks or tiles               checkpoint.py  layers run twice, inputs on the host

By default each layer is compiled as one region. Then its code is not followed but its graphs:

    blocks.py     their steps after fusion; dropping.py where adapters drop input, biased.py where layers have a bias
    graph.py      the order Inductor runs steps in               plan.py, pools.py  the memory it gives them
    compiled.py   runs them in the layer's place
"""
