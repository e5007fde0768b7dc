"""Real training code under fake tensors. The only room that imports torch, and only in the traced process.

attention.py        scaled dot-product attention takes the kernel CUDA would take
chance.py           random numbers of the host are drawn for real, so that data come in their order
check.py            refuses a torch that behaves otherwise than the tracer knows
child.py            the traced process: reads a request, trains, writes the tape
composites.py       composite operations take the branch they take on CUDA tensors
cuda.py             `torch.cuda` and `torch.accelerator` as if the card were there
devices.py          which card each thread works on
ending.py           how a process that traced ends: at once, without its interpreter being taken apart
engine.py           from a job to its tape: how many layers and steps to trace (no torch)
facts.py            what a script says of its own run, as plain values (no torch)
folders.py          the temporary folder of a run: removed at its end, or by a later run
graphs.py           CUDA graphs: what is captured lies in pools of its own
guard.py            between tunecast and the traced process: limits it, and outlives neither of them
host_watch.py       What the host does between operations and only time asks for: modules, autograd's nodes,
                    checkpointing
interpreter.py      which Python traces: one that has torch (no torch here)
launch.py           what a launcher tells rank 0
ledger.py           blocks, the storages that hold them, and the events so far
limits.py           how long a traced process may run and how much it may hold
logits.py           which blocks are logits and loss where no model says so
meter.py            How full a card is while the script runs, as `torch.cuda` and `nvidia-smi` would answer there
native.py           lets C++ autograd accept `cuda` tensors without a GPU
notebook.py         the cells of a notebook, run as a script
nvidia_smi.py       what `nvidia-smi` answers a script
observer.py         watches what a script parses, what it builds its trainer with, how long its data is
optimizers.py       the optimizers of a job, as the Trainer makes them
overlay.py          what a script writes goes into a folder of its own, laid over the disk
patches.py          small corrections that let training code run on fake tensors
places.py           lines of the user's own code
processes.py        processes that a script forks: let through while they stay away from the card
programs.py         the programs a script may start: tools that only read, by their real path
recipe.py           the training run of a job, as plain code
recipes_unsloth.py  the same with `stack: unsloth`
recorder.py         sees every operation and records the tape
repeats.py          An operation that was run before on tensors of the same shapes makes outputs of the same shapes
request.py          what goes to the traced process and what comes back
run.py              asks for a tape: starts the traced process and limits it (no torch)
sandbox.py          a script changes nothing outside its folder, reaches no network, starts no programs
saved.py            what a script saves with torch.save and loads again, without contents
scopes.py           where the trace stands: module, phase, step, line of code
script.py           an unmodified training script, until it has taken its steps
secrets.py          tokens are hidden in words that are for others
session.py          puts the pieces together
skip.py             Most calls of the model are skipped, so that a script of thousands of steps runs to its end in
                    seconds
stubs.py            What a call that is skipped returns: tensors of the right shapes, without what the call would have
                    done
tensor_files.py     files of tensors, read for their shapes
unread.py           numbers a script compares and nobody knows
values.py           small integers and flags keep their values
workspaces.py       what CUDA kernels borrow beside their outputs
kernel/             what the kernel refuses a script and all that it starts, from C as from Python
packages/           corrections to other packages, one file each
"""
