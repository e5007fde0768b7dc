"""The memory of a step: its allocations and frees replayed through PyTorch's allocator, and what lies beside that.

addresses.py     Where the driver puts the segments that cudaMalloc hands out: what decides between free blocks of one
                 size up to torch 2.11
allocator.py     A model of PyTorch's CUDA caching allocator: which segments it asks the driver for, and when it runs
                 out
expandable.py    Pools of free blocks, and the segments of `expandable_segments:True`, which get physical pages when
                 they need them
nccl.py          Device memory NCCL holds beside PyTorch's allocator: `nccl_bytes`
needs.py         What memory a tape needs: its allocations and frees, replayed through the allocator
pages.py         The state of paged optimizers: CUDA's managed memory, outside PyTorch's allocator, which lies on the
                 card
ranges.py        How far a prediction may be off: an 80 % range for each kind of memory, from what measured runs show
ranges_table.py  How far measured runs lie from their predictions. Written by `benchmarks/ranges.py`; do not edit
replay.py        A program's requests and frees, replayed through the allocator, phase by phase
so_far.py        What `torch.cuda` answers inside a traced script: the allocator's replay as far as the script has
                 come
vllm.py          What vLLM holds of a training card, beside PyTorch's allocator, and whether it starts there:
                 `vllm_share`
"""
