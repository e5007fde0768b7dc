"""One job or traced run, for the terminal.

advice.py    What to change first: the changes that were tried, the best of each kind, for the terminal
answer.py    What `predict` and `trace` print of a run: about a screen, or with details all of it
evidence.py  One line on how far to trust a prediction: what was measured of its kind, and the ranges that follow from
             it
job.py       A job's prediction for people: its figures, the sections beside them, one line, and what its page shows
memory.py    Where a run's memory goes, for the terminal: one bar and its parts; with details phases, bytes, modules,
             blocks
on_card.py   A run on a card, however its tape was made, as the plain values that text and page draw
outside.py   What a run needs outside its step, for the terminal: a section of the report of `tunecast predict`
snapshot.py  The run as `torch.cuda.memory._dump_snapshot` would have saved it, for PyTorch's viewer
             (pytorch.org/memory_viz)
wording.py  How a change to a job is said: as flags, as fields of its file, or in the words of the trainer whose file
             it is
time.py      How long a job takes, for the terminal: a section of the report of `tunecast predict`
unstated.py  What a job does not say, what was taken for it, and what another value would change
verdict.py   Whether a run fits, what it needs and where it runs out: the first lines of every report, and `--short`
"""
