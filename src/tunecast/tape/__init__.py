"""The tape: one list of everything a fine-tuning run does to one GPU. `op.py` says what it is; read that first.

card.py         the card the trace pretends to run on
cards.py        several cards in one process: the tape of each apart
columns.py      a program's columns, of 100,000 rows and more: by C where that was compiled, else here
compose.py      a run of micro-batches of many lengths, put together from the structure of a step
file.py         a tape on disk: gzip-compressed JSON lines, each thing that repeats written once
fold.py         a short tape, folded: a whole run's requests and frees as a `Program`, without making its events
layers.py       a tape of a few layers, extended to many: exactly, or not at all
op.py           the tape: what a fine-tuning run does to one GPU, in order
pattern.py      the operations of a structure's steps
program.py      a run's memory events as columns of integers, which replay many times faster than the tape
schedule.py     a run of many steps from a tape of a few: each traced step played in the order a job takes them
shorten.py      how few layers and steps stand for all of a run
sizes.py        How many bytes each request of a call asks for, as a function of the sizes of the call's inputs
step.py         one optimizer step as who prices it sees it
structure.py    a program whose sizes are expressions
symbols.py      sizes that are not yet numbers
timed.py        the operations of one steady optimizer step, for whoever prices them
units.py        A script's run in units: calls of its model, backward passes, optimizer steps, and what stands between
                them
untrained.py    What a script's run does beside its forward and backward passes: calls of models without gradients,
                and generation
whole_parts.py  What a whole run (whole_run.py) is put together from: its units and gaps, and the rows of each
                structure
whole_run.py    The whole run of a script of which most units were skipped (units.py), put together for replay
whole_tape.py   A whole run (whole_run.py) as a tape, for reports that name modules, operations and lines
whole_units.py  What the traced units of a script show of all its units: a structure and sizes for each (whole_run.py)
build/          the closed form: PyTorch on paper
kernels/        what CUDA kernels allocate inside one operation, which no fake kernel shows
trace/          real training code under fake tensors
"""
