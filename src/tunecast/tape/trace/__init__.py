"""Real training code under fake tensors. The only room that imports torch, and only in the traced process.

attention.py        scaled dot-product attention takes the kernel CUDA would take
chance.py           random numbers of the host are drawn for real, so that data come in their order
check.py            refuses a torch that behaves otherwise than the tracer knows
child.py            the traced process: reads a request, trains, writes the tape
composites.py       composite operations take the branch they take on CUDA tensors
cuda.py             `torch.cuda` and `torch.accelerator` as if the card were there
engine.py           from a job to its tape: how many layers and steps to trace (no torch)
interpreter.py      which Python traces: one that has torch (no torch here)
landlock.py         the kernel's own refusal of writes outside a folder
launch.py           what a launcher tells rank 0
ledger.py           blocks, the storages that hold them, and the events so far
limits.py           how long a traced process may run and how much it may hold
native.py           lets C++ autograd accept `cuda` tensors without a GPU
optimizers.py       the optimizers of a job, as the Trainer makes them
overlay.py          what a script writes goes into a folder of its own, laid over the disk
patches.py          small corrections that let training code run on fake tensors
recipe.py           the training run of a job, as plain code
recipes_unsloth.py  the same with `stack: unsloth`
recorder.py         sees every operation and records the tape
request.py          what goes to the traced process and what comes back
run.py              asks for a tape: starts the traced process and limits it (no torch)
sandbox.py          a script changes nothing outside its folder, reaches no network, starts no programs
scopes.py           where the trace stands: module, phase, step, line of code
script.py           an unmodified training script, until it has taken its steps
session.py          puts the pieces together
skip.py             Most calls of the model are skipped, so that a script of thousands of steps runs to its end in
                    seconds
stubs.py            What a call that is skipped returns: tensors of the right shapes, without what the call would have
                    done
tensor_files.py     files of tensors, read for their shapes
values.py           small integers and flags keep their values
workspaces.py       what CUDA kernels borrow beside their outputs
packages/           corrections to other packages, one file each
"""
