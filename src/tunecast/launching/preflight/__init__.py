"""A check of the machine before a training starts there: preflight.py, and what was predicted in preflight.json.

data.py      Opens training data, and prints the columns of the first row as JSON; none where there is no row
expected.py  What a prediction assumes of a machine, as preflight.json says it, with the smallest change where it does
             not hold
links.py     An all-reduce over all cards, by torchrun: rank 0 prints its bus bandwidth
machine.py   Checks the machine that is to train, before it does: against preflight.json beside this file, with Python
             alone
"""
