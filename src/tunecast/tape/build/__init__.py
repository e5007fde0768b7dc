"""The closed form: PyTorch on paper. A job's training step as a tape, in milliseconds, without torch.

    tensor.py      tensors with a shape and a lifetime but no contents; the machine that writes the tape
    autograd.py    nodes, saved tensors, the backward engine, recomputation
    ops.py         operations: what they make and save, and their gradients
    attention.py   rotary positions and the attention kernels
    modules.py     parameters, linear layers, norms        decoder.py   the causal language model
    families/      what each architecture does differently
    adapters.py    LoRA       optimizers.py  optimizers and clipping       run.py  the training run of a job
    offload.py     saved tensors that wait in host memory  flex.py      flex attention

It is written as the real code is: a local name holds a tensor here as long as it does there, so frees fall where they
fall. The tracer is its referee (tests/trace/test_build.py): same allocations, same order. Where a new release of
transformers moves something, the test names the first allocation that differs, and the family's file is the place.
"""
