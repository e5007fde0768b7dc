"""The tape: one list of everything a fine-tuning run does to one GPU. `op.py` says what it is; read that first.

op.py      the events, and `Tape`
file.py    a tape on disk: how a traced run travels from the user's interpreter to ours
trace/     the real code, run under fake tensors, recorded as a tape (the only place that imports torch)
"""
