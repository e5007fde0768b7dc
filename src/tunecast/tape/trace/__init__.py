"""Real training code under fake tensors. The only room that imports torch, and only in the traced process.

run.py, limits.py   asks for a tape (no torch)   request.py   what goes to the child and back
child.py     the traced process                  session.py   puts the pieces together
recorder.py  sees every operation                ledger.py    blocks, storages, the events so far
scopes.py    module, phase, step, line of code
values.py    small integers keep their values    workspaces.py what CUDA kernels borrow
native.py, cuda.py, attention.py, patches.py, packages/   make torch and friends believe in the card
engine.py, recipe.py   a job's own training run  script.py    an unmodified script
launch.py    what a launcher tells rank 0
sandbox.py, overlay.py, landlock.py   what a script may touch       tensor_files.py   checkpoints, shapes only
chance.py    random numbers of the host, so that data come in their order
check.py     refuses a torch that behaves otherwise
"""
