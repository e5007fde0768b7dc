"""What measured runs teach: so far, what the user's own card can do (`calibrate.py`).

calibrate.py  Measure this machine's card in a process of its own, with the Python that has torch
measure.py    Run by the Python that has torch: measure this machine's card, and print what was found as one JSON
              object
store.py      Where calibrations are kept: one file a kind of card, in the user's own data folder
inside/       What runs inside a training or beside it, with Python's standard library alone (torch where the program
              has it): these files are shipped with a job as they are, as `tunecast_run`
"""
